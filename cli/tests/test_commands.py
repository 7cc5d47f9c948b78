"""Tests the commands that only read."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from importlib.metadata import version

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_cli.rendering import event_line
from multiclouddb_cli.screen import print_table
from multiclouddb_cli.session import ConnectedFeed
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_spi.continuation.token import decode_token, encode_token

from .terminals import Terminal, in_terminal

ORDERS = api.ResourceAddress("main", "orders")
BOX = re.compile("[\u2500-\u257f]")


@pytest.fixture
def shaped(store):
    """Make a collection in which p0 was split and the upper half of p0 was merged with p1."""
    _, upper = store.split("orders", "p0")
    store.put("orders", "o-1", {})
    store.merge("orders", upper, "p1")
    return store


def token_of(url, **request):
    """Return the token after a page from the beginning."""
    with api.connect(url) as client:
        page = client.read_changes(api.ChangeFeedRequest(ORDERS, api.Beginning(), **request))
    return page.continuation_token


@pytest.fixture
def token(url, store):
    """Return a token after three events."""
    return token_of(url, max_page_size=3)


def listed(run, url):
    """Return what `partitions` prints as JSON, by the native ids."""
    found = json.loads(run("partitions", url, "main/orders", "--json").stdout)
    return {item["native_id"]: item for item in found}


def check_lines(out, *lines):
    """Check that each of these patterns fits a whole line."""
    assert [line for line in lines if not re.search(f"^{line}$", out, re.MULTILINE)] == []


class TestPartitions:
    def test_are_indented_below_their_parents(self, run, url, shaped):
        lines = run("partitions", url, "main/orders").stdout.splitlines()
        assert lines[0] == "5 partitions: 2 open, 3 closed"
        assert [line.split("  embedded:")[0] for line in lines[1:]] == [
            "p0  closed",
            "  p2  open",
            "  p3  closed",
            "    p4  open",
            "p1  closed",
            "  p4  open  (see above)",
        ]

    def test_one_that_is_gone_is_named_as_a_parent(self, run, url, shaped):
        """Some services do not list a partition any more after its changes have expired."""
        shaped.trim("orders", max_count=0)
        shown = run("partitions", url, "orders").stdout
        assert shown.startswith("4 partitions: 2 open, 2 closed\n")
        assert "(from p0, no longer listed)" in shown

    def test_as_json_have_ids_that_a_scope_takes(self, run, url, shaped):
        found = listed(run, url)
        assert set(found["p4"]["parents"]) == {found["p1"]["partition_id"], found["p3"]["partition_id"]}
        assert found["p0"]["children"] == [found["p2"]["partition_id"], found["p3"]["partition_id"]]
        assert found["p0"]["state"] == "closed"

    def test_as_mermaid_are_a_graph(self, run, url, shaped):
        lines = run("partitions", url, "orders", "--mermaid").stdout.splitlines()
        assert lines[0] == "flowchart LR"
        assert '    n4["p4"]:::open' in lines
        assert {"    n0 --> n2", "    n0 --> n3", "    n1 --> n4", "    n3 --> n4"} <= set(lines)


class TestCapabilities:
    def test_of_all_providers_need_no_url_where_the_plugin_tells_them(self, run, fake):
        out = run("capabilities").stdout
        assert re.search(r"^CHANGE_FEED .*emulated", out, re.MULTILINE)
        assert "fake CHANGE_FEED: opt in with x" in out
        assert "broken: provider: 'broken' is installed but cannot be imported" in out

    def test_of_one_database(self, run, url, store):
        lines = run("capabilities", url).stdout.splitlines()
        assert lines[0].split() == ["capability", "embedded"]
        assert ["CHANGE_FEED", "native"] in [line.split() for line in lines]

    def test_as_json(self, run, url, store, fake):
        found = json.loads(run("capabilities", url, "--json").stdout)
        assert found["embedded"]["CHANGE_FEED_CLUSTER_SCOPE"]["support"] == "unsupported"
        every = json.loads(run("capabilities", "--json").stdout)
        assert every["fake"]["CHANGE_FEED"] == {"support": "emulated", "note": "opt in with x"}
        assert "cannot be imported" in every["broken"]["error"]


class TestProviders:
    def test_are_listed_with_what_is_wrong_with_them(self, run, fake):
        rows = {line.split()[0]: line for line in run("providers", "--check").stdout.splitlines()}
        assert re.fullmatch(r"embedded +multiclouddb +\S+ +yes", rows["embedded"])
        assert rows["fake"].split() == ["fake", "multiclouddb-fake", "9.8", "yes"]
        assert 'pip install "multiclouddb[broken]"' in rows["broken"]

        found = {item["provider"]: item for item in json.loads(run("providers", "--check", "--json").stdout)}
        assert found["fake"] == {
            "provider": "fake", "distribution": "multiclouddb-fake", "version": "9.8", "problem": None
        }  # fmt: skip

    def test_are_listed_as_installed_without_importing_them(self, run, fake):
        rows = [line.split() for line in run("providers").stdout.splitlines()]
        assert ["fake", "multiclouddb-fake", "9.8", "installed"] in rows
        assert ["broken", "multiclouddb-fake", "9.8", "installed"] in rows
        assert "fake_provider" not in sys.modules
        found = {item["provider"]: item for item in json.loads(run("providers", "--json").stdout)}
        assert found["broken"] == {
            "provider": "broken", "distribution": "multiclouddb-fake", "version": "9.8"
        }  # fmt: skip


class TestInspect:
    def test_reads_stdin_files_and_checkpoints_without_a_store(self, run, path, url, token, tmp_path):
        (tmp_path / "token").write_text(token)
        run("tail", url, "main/orders", "--until-idle", "--checkpoint", tmp_path / "pos")
        path.unlink()
        outs = [run("token", "inspect", "-", input=token + "\n").stdout]
        outs += [run("token", "inspect", f"@{tmp_path}/{name}").stdout for name in ("token", "pos")]
        lines = ["provider +embedded", "resource +main/orders", "scope +collection", "version +1"]
        lines += [r"issued +\S+Z \(\S+s ago\)", r"p0 +active +\d+ bytes, #\w+"]
        for out in outs:
            check_lines(out, *lines)

    def test_shows_what_waits_for_its_parents(self, run, url, shaped, token):
        token = token_of(url, max_page_size=1)
        found = json.loads(run("token", "inspect", token, "--json").stdout)
        states = {item["partition"]: item for item in found["partitions"]}
        assert states["p4"]["state"] == "waiting"
        assert set(states["p4"]["waits_for"]) == {"p1", "p3"}
        assert found["size"] == len(token)

    def test_never_shows_a_key(self, run, url, store):
        token = token_of(url, scope=api.LogicalPartition(api.MulticloudDbKey({"id": "o-4"})))
        for words in ((), ("--json",)):
            out = run("token", "inspect", token, *words).stdout
            assert "key:" in out
            assert "o-4" not in out


class TestCheck:
    def test_of_a_good_one_says_for_how_long(self, run, url, token):
        out = run("token", "check", url, token).stdout
        check_lines(out, "resumes +yes", "changes +waiting", "covers +yes", r"kept for +1h \d+m")
        assert len(re.findall(r"^p\d +active +sequence", out, re.MULTILINE)) == 2

    def test_says_if_nobody_knows_for_how_long(self, run, url, store):
        store.create_collection("kept")
        with api.connect(url) as client:
            kept = api.ChangeFeedRequest(api.ResourceAddress("main", "kept"), api.Beginning())
            token = client.read_changes(kept).continuation_token
        check_lines(run("token", "check", url, token).stdout, "resumes +yes", "kept for +not known")

    def test_lag_counts_what_waits(self, run, url, store):
        last = token_of(url, max_page_size=9)
        found = json.loads(run("token", "check", url, last, "--json").stdout)
        assert found["changes_waiting"] is True
        assert 1700 < found["lag_seconds"] < 1900

    def test_finds_one_expired_partition_behind_a_good_one(self, run, url, store, token):
        ahead = token_of(url, scope=api.PhysicalPartition(listed(run, url)["p0"]["partition_id"]))
        old, new = decode_token(token), decode_token(ahead)
        mixed_in = [entry for entry in old.state["p"] if entry[0] == "p1"]
        mixed = encode_token(attrs.evolve(old, state={"p": [*new.state["p"], *mixed_in]}))
        store.trim("orders", max_count=0)
        for number in range(100, 110):
            store.put("orders", f"o-{number}", {})
        result = run("token", "check", url, mixed)
        assert result.exit_code == 6
        assert result.stderr.startswith("error: [CHECKPOINT_EXPIRED]")
        check_lines(result.stdout, "resumes +no", "p0 .*(has changes|nothing new)", "p1 .*CHECKPOINT_EXPIRED")
        assert run("token", "check", url, token).exit_code == 6

    def test_that_leaves_a_partition_out_has_an_exit_code_of_its_own(self, run, url, store, token):
        whole = decode_token(token)
        part = {**whole.state, "p": [entry for entry in whole.state["p"] if entry[0] == "p0"]}
        token = encode_token(attrs.evolve(whole, state=part))
        result = run("token", "check", url, token)
        assert result.exit_code == 10
        check_lines(result.stdout, "resumes +yes", "covers +no, 1 missed: p1")
        assert "PartitionFoundLate" in result.stderr
        result = run("token", "check", url, token, "--json")
        assert result.exit_code == 10
        found = json.loads(result.stdout)
        assert (found["resumes"], found["covers"], found["changes_waiting"]) == (True, False, True)
        assert 5000 < found["retention_headroom_seconds"] < 7200
        assert {item["state"] for item in found["partitions"]} == {"active"}
        assert [name.rpartition(":")[2] for name in found["missed"]] == ["p1"]

    def test_of_one_partition_does_not_speak_of_coverage(self, run, url, store):
        with api.connect(url) as client:
            (_, token), *_ = client.plan_partitions(api.ChangeFeedRequest(ORDERS, api.Beginning()))
        result = run("token", "check", url, token)
        assert result.exit_code == 0
        check_lines(result.stdout, "covers +unknown")

    def test_of_every_scope(self, run, url, store):
        with api.connect(url) as client:
            plan = client.plan_partitions(api.ChangeFeedRequest(ORDERS, api.Beginning()))
        for _, token in plan:
            assert run("token", "check", url, token).exit_code == 0
        keyed = token_of(url, scope=api.LogicalPartition(api.MulticloudDbKey({"id": "o-4"})))
        words = ("token", "check", url, keyed)
        assert run(*words).exit_code == 2
        assert run(*words, "--key", '{"id": "o-5"}').exit_code == 2
        assert run(*words, "--key", '{"id": "o-4"}').exit_code == 0

    def test_asks_as_many_partitions_at_once_as_a_client_does(self, run, tmp_path, monkeypatch):
        url, at_once = f"embedded://{tmp_path}/wide.db", 24
        with EmbeddedStore(tmp_path / "wide.db", durable=False) as store:
            store.create_collection("orders", at_once)
        token, read, together = token_of(url), ConnectedFeed.read, threading.Barrier(at_once)

        def meet(session, request, *rest):
            if isinstance(request.scope, api.PhysicalPartition):
                together.wait(30)  # fails if fewer are asked at once
            return read(session, request, *rest)

        monkeypatch.setattr(ConnectedFeed, "read", meet)
        assert run("token", "check", url, token).exit_code == 0

    def test_of_a_foreign_one_is_refused(self, run, fake, url, store, token):
        result = run("token", "check", f"{fake}/NOT_FOUND", token)
        assert result.exit_code == 3
        assert "belongs to provider 'embedded', not to 'fake'" in result.stderr
        store.create_collection("orders", recreate=True)
        result = run("token", "check", url, token)
        assert result.exit_code == 3
        assert "recreated" in result.stderr
        as_json = run("token", "check", url, token, "--json")
        found = json.loads(as_json.stdout)
        assert (as_json.exit_code, found["error"], found["reason"]) == (3, "INVALID_REQUEST", "recreated")
        assert found["message"] in as_json.stderr


class TestOutput:
    @pytest.mark.parametrize(
        "words",
        [
            "tail URL orders --from beginning --until-idle",
            "partitions URL orders",
            "capabilities URL",
            "providers",
            "token inspect TOKEN",
            "token check URL TOKEN",
            "tail --help",
        ],
    )
    def test_in_a_pipe_is_plain_and_ends_with_its_reader(self, shell, url, token, tmp_path, words):
        words = words.replace("URL", url).replace("TOKEN", token)
        result = shell(f"multiclouddb {words} | tee all | head -1")
        assert result.stderr == ""
        assert result.returncode in (0, 141)  # the exit code of tee
        assert result.stdout.count("\n") == 1
        whole = (tmp_path / "all").read_text()
        assert not BOX.search(whole)
        assert "\x1b" not in whole

    def test_in_a_terminal_has_tables_and_colours(self, url, shaped):
        code, out = in_terminal("providers")
        assert (code, bool(BOX.search(out))) == (0, True)
        assert "\u2514\u2500 " in in_terminal("partitions", url, "orders")[1]
        tail = in_terminal("tail", url, "orders", "--from", "beginning", "--until-idle")[1]
        assert "\x1b[32mCREATE" in tail

    @pytest.mark.parametrize("words", ["token check URL TOKEN", "token inspect TOKEN", "capabilities URL"])
    def test_fits_into_a_narrow_terminal(self, url, shaped, token, words):
        words = words.replace("URL", url).replace("TOKEN", token).split()
        terminal = Terminal(*words, columns=80)
        assert terminal.end(None) == 0, terminal.text
        lines = terminal.lines()
        assert max(map(len, lines)) <= 80
        top = next(number for number, line in enumerate(lines) if line.startswith("\u256d"))
        assert lines[top + 2].startswith("\u251c")  # the headings fit on one line
        assert not any("time" in line.split() for line in lines[top:])

    def test_in_a_narrow_terminal_folds_what_is_long_and_nothing_else(self, capsys, monkeypatch):
        monkeypatch.setattr("multiclouddb_cli.screen.is_terminal", lambda: True)
        monkeypatch.setenv("COLUMNS", "60")
        long, time = "high-water mark at cluster time 2026-11-20T16:35:20Z", "2026-11-20T16:35:20.000Z"
        rows = [["0", "active", long, time, ""]]
        print_table(["partition", "state", "position", "time", "trouble"], rows, spare=["time"])
        out = capsys.readouterr().out
        assert "partition" in out
        assert "2026-11-20T16:35:20Z" in out
        assert time not in out  # there was not enough room for it
        assert "trouble" not in out  # the column is empty, so it is omitted


class TestDescendants:
    @pytest.fixture
    def root(self, run, url, store):
        """Return the public id of a partition that was split, with documents in its descendants."""
        root = listed(run, url)["p0"]["partition_id"]
        store.split("orders", "p0")
        for number in range(10, 40):
            store.put("orders", f"o-{number}", {})
        return root

    @pytest.fixture
    def token(self, url, root):
        return token_of(url, scope=api.PhysicalPartition(root, with_descendants=True))

    def test_inspect_and_check_understand_the_token(self, run, url, token):
        shown = run("token", "inspect", token).stdout
        assert re.search(r"^scope +descendants:p0$", shown, re.MULTILINE)
        assert len(re.findall(r"^p\d +active", shown, re.MULTILINE)) == 2
        checked = run("token", "check", url, token)
        assert checked.exit_code == 0
        check_lines(checked.stdout, "resumes +yes", "covers +unknown")
        told = re.findall(r"^p\d +active .*(nothing new|has changes)$", checked.stdout, re.MULTILINE)
        assert len(told) == 2


class TestScope:
    """Only MongoDB supports the wider scopes, so the tests of its provider cover reads with these scopes."""

    @pytest.mark.parametrize("words", [("main", "--scope", "database"), ("--scope", "cluster")])
    def test_a_wide_one_is_the_provider_s_to_refuse(self, run, url, store, words):
        result = run("tail", url, *words)
        assert result.exit_code == 7
        assert "is not supported on embedded" in result.stderr

    @pytest.mark.parametrize(
        ("words", "way_out"),
        [
            (("main/orders", "--scope", "database"), "only the name of a database"),
            (("main", "--scope", "cluster"), "leave it out"),
            ((), "multiclouddb collections URL lists them"),
            (
                ("orders", "--scope", "table"),
                "collection, database, cluster, partition:ID, descendants:ID and key:JSON",
            ),
        ],
    )
    def test_one_that_does_not_fit_says_what_to_write(self, run, url, store, words, way_out):
        result = run("tail", url, *words)
        assert result.exit_code == 2
        assert way_out in result.stderr

    def test_an_event_of_a_wide_one_says_where_it_is(self):
        address = api.ResourceAddress("shop", "orders\x1b")
        key, time = api.MulticloudDbKey({"id": 7}), datetime(2026, 1, 31, tzinfo=UTC)
        event = api.ChangeEvent(
            "1", key, api.ChangeType.DELETE, time, None, None, "1", False, False, address, "p0"
        )
        line = "2026-01-31T00:00:00Z  DELETE  {}id=7"
        assert event_line(event, 80, colour=False) == line.format("")
        assert event_line(event, 80, colour=False, address=True) == line.format("shop/orders\\x1b  ")

    def test_a_long_key_is_cut_as_a_document_is(self):
        key, time = api.MulticloudDbKey({"id": "k" * 100_000}), datetime(2026, 1, 31, tzinfo=UTC)
        event = api.ChangeEvent(
            "1", key, api.ChangeType.CREATE, time, {"n": 1}, None, "1", False, False,
            api.ResourceAddress("shop", "orders"), "p0",
        )  # fmt: skip
        line = event_line(event, 80, colour=False)
        assert line == f'2026-01-31T00:00:00Z  CREATE  {("id=" + chr(34) + "k" * 80)[:79]}…  {{"n":1}}'


COMPLETES = {
    "_MULTICLOUDDB_COMPLETE": "complete_bash",
    "COMP_WORDS": "multiclouddb par",
    "COMP_CWORD": "1",
}


def loaded_by(*words):
    """Run the script in a new process; return what it printed, and in the last line its modules."""
    program = (
        "import atexit, sys; from multiclouddb_cli.script import run; "
        f"sys.argv = ['multiclouddb', *{words}]; atexit.register(lambda: print(*sys.modules)); run()"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()


@pytest.mark.slow
class TestProgram:
    def test_tells_its_version(self, run):
        assert run("--version").stdout == f"multiclouddb {version('multiclouddb')}\n"

    def test_tells_its_version_before_it_imports_the_command_line(self):
        shown = loaded_by("--version")
        assert shown[0] == f"multiclouddb {version('multiclouddb')}"
        assert "typer" not in shown[-1].split()

    @pytest.mark.parametrize("command", ["providers", "capabilities"])
    def test_lists_what_providers_can_do_without_their_sdks(self, command):
        shown = loaded_by(command)
        assert {"cosmos", "dynamo", "embedded", "mongo", "spanner"} <= {
            line.partition(" ")[0] for line in shown
        }
        assert {"azure", "boto3", "google", "grpc", "pymongo"} & set(shown[-1].split()) == set()

    @pytest.mark.parametrize(
        ("prepare", "code"),
        [
            ("sys.meta_path.insert(0, type('', (), {'find_spec': interrupt}))", -signal.SIGINT),
            ("import multiclouddb_cli.failure; multiclouddb_cli.failure.report = interrupt", 130),
        ],
        ids=["imports", "tells an error"],
    )
    def test_ctrl_c_prints_no_traceback_while_it(self, prepare, code):
        program = (
            "import os, signal, sys\n"
            "from multiclouddb_cli.script import run\n"
            # Who runs the tests in the background of a script has it ignored in each process of theirs.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "def interrupt(*words, **named): os.kill(os.getpid(), signal.SIGINT)\n"
            f"{prepare}\n"
            "sys.argv = ['multiclouddb', 'tail', 'nowhere://a', 'b']\n"
            "run()\n"
        )
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", "")

    def test_loads_nothing_before_it_knows_the_command(self):
        program = "import multiclouddb_cli.main, sys; print(*sys.modules)"
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        loaded = {name.partition(".")[0] for name in ran.stdout.split()}
        assert not {"rich", "multiclouddb_api", "multiclouddb_spi", "multiclouddb_embedded"} & loaded

    def test_help_names_commands_without_what_they_need(self):
        shown = loaded_by("--help")
        assert any("certify" in line for line in shown)
        assert {"multiclouddb_conformance", "multiclouddb_spi", "yaml"} & set(shown[-1].split()) == set()

    def test_completes_its_commands(self, shell):
        assert shell("multiclouddb", **COMPLETES).stdout.split() == ["partitions"]

    @pytest.mark.parametrize("completes", [False, True])
    def test_keeps_the_logs_of_libraries_off_the_terminal(self, completes):
        program = (
            "import atexit, logging, sys; from multiclouddb_cli.script import run; "
            "atexit.register(logging.getLogger('vendor').warning, 'of a library'); "
            "sys.argv = ['multiclouddb', 'providers']; run()"
        )
        ran = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **(COMPLETES if completes else {})},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ("partitions" in ran.stdout, ran.stderr) == (completes, "")
