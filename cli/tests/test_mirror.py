"""Tests `multiclouddb mirror`."""

import json
import shutil
import signal
from pathlib import Path
from urllib.parse import quote

import pytest
from deltalake import DeltaTable, write_deltalake
from psycopg.conninfo import conninfo_to_dict

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError, ResourceAddress, invalid_request
from multiclouddb_cli import exits
from multiclouddb_cli.tail import OutageReport, StatusLine
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_mirror import Mirror
from multiclouddb_tables.delta import DeltaTarget
from testing.postgres_server import PostgresServer


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)
    monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)


@pytest.fixture
def target(tmp_path):
    return f"delta:{tmp_path}/table"


@pytest.fixture
def mirror(run, url, store, target):
    def invoke(*words):
        return run("mirror", url, "main/orders", "--target", target, *words)

    return invoke


def test_each_run_says_what_it_has_done(mirror, store):
    ran = mirror("--prove")
    assert ran.exit_code == 0, ran.output
    lines = dict(line.split("  ", 1) for line in ran.stdout.splitlines() if "  " in line)
    assert lines["merged"].strip() == "10 rows and changes, of them 0 deletes"
    assert lines["began"].strip() == "with a copy of every row"
    assert "EQUAL" in ran.stdout
    store.delete("orders", "o-3")
    told = json.loads(mirror("--json").stdout)
    assert (told["began"], told["events"], told["deletes"], told["caught_up"]) == ("position", 1, 1, True)
    assert told["proof"] is None


def test_rows_that_differ_end_with_11(mirror, tmp_path):
    assert mirror().exit_code == 0
    DeltaTable(tmp_path / "table").update(
        updates={"new_item_state": """'{"total":"3"}'"""}, predicate="""key = '{"id":"o-3"}'"""
    )
    ran = mirror("--prove")
    assert ran.exit_code == exits.DIFFERENT, ran.output
    assert "DIFFERENT" in ran.stdout
    assert json.loads(mirror("--prove", "--json").stdout)["proof"]["counts"]["differences"]


def test_other_commands_find_the_position_with_the_table(mirror, run, url, target):
    ran = run("token", "check", url, f"table:{target}")
    assert ran.exit_code == exits.USAGE
    assert "there is no position with" in ran.stderr
    assert mirror().exit_code == 0
    assert run("token", "check", url, f"table:{target}", "--max-lag", "1h").exit_code == 0
    ran = run("verify", url, "main/orders", "--target", target)
    assert ran.exit_code == 0, ran.output


def test_following_it_ends_with_0_when_it_is_told_to(mirror, monkeypatch):
    run = Mirror.run

    def stopped(self):
        self._settings["on_progress"] = lambda progress: signal.raise_signal(signal.SIGTERM)
        return run(self)

    monkeypatch.setattr(Mirror, "run", stopped)
    ran = mirror("--follow")
    assert ran.exit_code == 0, ran.output
    assert "stopped" in ran.stdout
    assert mirror().exit_code == 128 + signal.SIGTERM  # a run that would have ended is cut short


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--follow", "--prove"], exits.USAGE, "leave out --follow"),
        (["--position", "orders"], 3, "is no URL of a checkpoint"),
        (["--from", "@nowhere"], exits.USAGE, "looked for in /"),
        (["--on-expired", "skip"], exits.USAGE, "resnapshot"),
    ],
)
def test_a_wrong_argument_is_named(mirror, words, code, told):
    ran = mirror(*words)
    assert ran.exit_code == code, ran.output
    assert told in ran.stderr


def test_a_table_of_something_else_names_the_way_out(mirror, tmp_path):
    assert mirror().exit_code == 0
    rows = DeltaTable(tmp_path / "table").to_pyarrow_table()
    write_deltalake(tmp_path / "other", rows)
    ran = mirror("--target", f"delta:{tmp_path}/other", "--json")
    assert ran.exit_code == 3
    assert "--adopt" in ran.stderr
    error = json.loads(ran.stdout)["error"]
    assert (error["category"], error["reason"]) == ("INVALID_REQUEST", "wrong_resource")
    assert "--adopt" in error["message"]


def test_the_tables_of_a_file_end_with_the_highest_code(run, tmp_path, path, store):
    file = tmp_path / "mirror.toml"
    entry = '[[table]]\ncollection = "main/{0}"\ntarget = "sqlite:{1}/copy.db#{0}"\n'
    head = f'provider = "embedded"\n[connection]\npath = "{path}"\n'
    file.write_text(head + entry.format("orders", tmp_path))
    ran = run("mirror", file)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.endswith("10 merged  every change is read\n")
    file.write_text(head + entry.format("gone", tmp_path) + entry.format("orders", tmp_path))
    ran = run("mirror", file, "--json", "--prove")
    assert ran.exit_code == 4, ran.output
    failed, equal = map(json.loads, ran.stdout.splitlines())
    assert failed["error"]["category"] == "NOT_FOUND"
    assert equal["proof"]["equal"]
    assert run("mirror", file, "--target", "delta:x").exit_code == exits.USAGE
    # The file is a connection too, for what is done with one of its tables.
    ran = run(
        "mirror", file, "main/orders", "--target", f"sqlite:{tmp_path}/copy.db#orders", "--resync", "--prove"
    )
    assert ran.exit_code == 0, ran.output
    ran = run("mirror", file, "--option", "nothing=1")
    assert ran.exit_code == exits.USAGE, ran.output
    assert "--option" in ran.stderr


def test_what_is_set_aside_ends_with_18_until_it_is_written(
    mirror, run, url, target, store, tmp_path, monkeypatch
):
    assert mirror().exit_code == 0
    store.put("orders", "o-3", {"total": "geheim"})
    store.put("orders", "o-4", {"total": 400})
    folder, refused = str(tmp_path / "aside"), "geheim"
    merge, fix = DeltaTarget.merge, DeltaTarget.fix

    def check(texts):
        if any(refused in (text or "") for text in texts):
            raise invalid_request("column total", "has a value that does not fit", "change it")

    def merging(table, rows, notes, *, is_last):
        check(rows["new_item_state"].to_pylist())
        return merge(table, rows, notes, is_last=is_last)

    def fixing(table, fixes, expected):
        check([each.text for each in fixes])
        return fix(table, fixes, expected)

    monkeypatch.setattr(DeltaTarget, "merge", merging)
    monkeypatch.setattr(DeltaTarget, "fix", fixing)
    ran = mirror("--set-aside", folder)
    assert ran.exit_code == exits.SET_ASIDE, ran.output
    assert "1 row, of which the table lacks" in ran.stdout
    assert json.loads(mirror("--set-aside", folder, "--json").stdout)["set_aside"] == 1
    ran = run("set-aside", "retry", folder, target, url)
    assert ran.exit_code == exits.SET_ASIDE, ran.output
    assert "has a value that does not fit" in ran.stdout
    ran = run("mirror", "status", target)  # the table's mark tells it without the folder
    assert (ran.exit_code, "incomplete    since" in ran.stdout) == (exits.SET_ASIDE, True), ran.output
    refused = "nothing of this text"
    assert json.loads(run("set-aside", "retry", folder, target, url, "--json").stdout)["written"] == 1
    assert mirror("--set-aside", folder, "--prove").exit_code == 0
    ran = run("set-aside", "retry", folder, target, url)
    assert ran.exit_code == exits.USAGE
    assert "has nothing of" in ran.stderr
    ran = run("set-aside", "retry", folder, target)
    assert ran.exit_code == exits.USAGE
    assert "URL: is missing" in ran.stderr.replace("Invalid value for ", "")


@pytest.mark.parametrize("words", [["--follow"], ["--resync"], ["--set-aside", "aside"]])
def test_an_option_without_a_meaning_is_named(mirror, words):
    ran = mirror("--estimate", *words)
    assert ran.exit_code == exits.USAGE, ran.output
    assert f"{words[0]}: has no meaning for --estimate" in ran.stderr.replace("Invalid value for ", "")


def test_each_proof_of_a_mirror_that_follows_is_counted_in_the_log(mirror, monkeypatch):
    run, told = Mirror.run, []

    def stopped(self):
        told.append(self._settings["prove"])
        if len(told) == 3:
            signal.raise_signal(signal.SIGTERM)
        return run(self)

    monkeypatch.setattr(Mirror, "run", stopped)
    ran = mirror("--follow", "--prove-every", "1s")
    assert ran.exit_code == 0, ran.output
    assert "proof: equal: 10 equal" in ran.stderr


@pytest.mark.parametrize("waits_for", ["the clock of the service", "the table"])
@pytest.mark.parametrize(
    ("words", "code"), [(["--prove"], 128 + signal.SIGTERM), (["--follow", "--prove-every", "1s"], 0)]
)
def test_a_first_signal_ends_a_proof_that_waits(mirror, monkeypatch, waits_for, words, code):
    assert mirror().exit_code == 0
    asked = []

    def signalled():
        asked.append(waits_for)
        assert len(asked) == 1, "the proof goes on"
        signal.raise_signal(signal.SIGTERM)

    rows = DeltaTarget.rows

    def away(self, keys=None, **how):
        if keys is None:
            signalled()
            raise MulticloudDbError("is away", ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True))
        return rows(self, keys, **how)

    with monkeypatch.context() as patched:
        if waits_for == "the table":
            patched.setattr(DeltaTarget, "rows", away)
        else:
            patched.setattr("multiclouddb_verify.source._has_read", lambda page, moment: signalled())
        ran = mirror(*words)
    assert ran.exit_code == code, ran.output
    assert "stopped" in ran.stdout
    proof = json.loads(mirror("--prove", "--json").stdout)["proof"]
    assert proof["equal"]
    assert proof["left_over"].endswith("was removed; a proof of a mirror reads the source again")


def test_a_data_file_that_is_gone_is_told_at_once(mirror, run, url, target, tmp_path, store):
    assert mirror().exit_code == 0
    for uri in DeltaTable(tmp_path / "table").file_uris():
        Path(uri).unlink()
    store.put("orders", "o-3", {})
    for ran in (
        run("mirror", "status", target),
        run("verify", url, "main/orders", "--target", target),
        mirror("--prove"),
        mirror("--resync"),
    ):
        assert ran.exit_code == exits.OTHER, ran.output
        assert "names a data file that is gone" in ran.stderr
    # The way out that the message names.
    shutil.rmtree(tmp_path / "table")
    assert mirror("--prove").exit_code == 0


def test_a_table_that_a_proof_cannot_read_is_told_on_stderr(mirror, monkeypatch):
    assert mirror().exit_code == 0
    monkeypatch.setattr("multiclouddb_verify.sides._SILENT_SECONDS", 0.0)
    rows, failed = DeltaTarget.rows, []

    def away(self, keys=None, **how):
        if keys is None and not failed:
            failed.append(1)
            raise MulticloudDbError("is away", ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True))
        return rows(self, keys, **how)

    monkeypatch.setattr(DeltaTarget, "rows", away)
    ran = mirror("--prove")
    assert ran.exit_code == 0, ran.output
    assert ran.stderr.count("is away; trying again") == 1


def test_an_estimate_ends_with_the_code_of_what_is_missing(mirror, run, url, target, tmp_path):
    ran = mirror("--estimate", "--max-scan-rate", "5")
    assert ran.exit_code == 0, ran.output
    assert "about 10" in ran.stdout
    assert not (tmp_path / "table").exists()
    ran = run("mirror", url, "main/gone", "--target", target, "--estimate", "--json")
    assert ran.exit_code == 4, ran.output
    assert json.loads(ran.stdout)["problems"][0]["category"] == "NOT_FOUND"


def test_its_status_is_that_of_the_table(mirror, run, store, target, tmp_path):
    told = json.loads(run("mirror", "status", target, "--json").stdout)
    assert (told["exists"], told["rows"], told["address"]) == (False, None, None)
    assert "there is no table" in run("mirror", "status", target).stdout
    assert mirror().exit_code == 0
    store.delete("orders", "o-3")
    assert mirror().exit_code == 0
    version = DeltaTable(tmp_path / "table").version()
    (tmp_path / "aside").mkdir()
    ran = run("mirror", "status", target, "--set-aside", str(tmp_path / "aside"), "--json")
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert (told["rows"], told["deleted"], told["address"], told["set_aside"]) == (9, 1, "main/orders", 0)
    assert told["incomplete_since"] is told["proved_at"] is None
    assert told["lag_seconds"] >= 0
    ran = run("mirror", "status", target)
    assert ran.exit_code == 0, ran.output
    assert "never with --prove" in ran.stdout
    assert "9, and 1 of deleted documents" in ran.stdout
    assert DeltaTable(tmp_path / "table").version() == version  # nothing was written


def test_another_declaration_is_refused_and_rescued_rows_are_counted(mirror, store, tmp_path):
    file = tmp_path / "columns.toml"
    file.write_text('[columns]\nn = "int64"')
    assert mirror().exit_code == 0
    for words in ([], ["--prove"], ["--json"], ["--resync"]):
        ran = mirror("--columns", file, *words)
        assert ran.exit_code == 3, ran.output
        assert "n (new)" in ran.stderr
        assert "--refill" in ran.stderr
        assert "refill=True" not in ran.stderr.replace("refill=True (--refill)", "")
    store.put("orders", "odd", {"n": "text"})
    file.write_text('misfits = "rescue"\n[columns]\nn = "int64"')
    ran = mirror("--columns", file, "--refill", "--prove")
    assert ran.exit_code == 0, ran.output
    assert "1 row has values in _rescued" in ran.stdout
    store.put("orders", "odder", {"n": True})
    store.put("orders", "even", {"n": 2})
    assert json.loads(mirror("--json").stdout)["rescued"] == 1
    assert json.loads(mirror("--json", "--refill", "--columns", file).stdout)["events"] == 0


def test_a_failure_names_the_table_of_a_file(run, tmp_path, path, store):
    file = tmp_path / "mirror.toml"
    place = f"sqlite:{tmp_path}/copy.db"
    entries = [
        f'[[table]]\ncollection = "main/orders"\ntarget = "{place}#{name}"\ncolumns = "{name}.toml"\n'
        for name in ("one", "two")
    ]
    entries.append(f'[[table]]\ncollection = "main/orders"\ntarget = "{place}#undeclared"\n')
    file.write_text(f'provider = "embedded"\n[connection]\npath = "{path}"\n' + "".join(entries))
    (tmp_path / "one.toml").write_text("[columns]\n")
    (tmp_path / "two.toml").write_text('[columns]\nn = "int64"')
    assert run("mirror", file).exit_code == 0
    (tmp_path / "two.toml").write_text('[columns]\nn = "string"')
    ran = run("mirror", file, "--json")
    assert ran.exit_code == 3, ran.output
    assert f"main/orders, sqlite:{tmp_path}/copy.db#two:" in ran.stderr
    equal, failed, undeclared = map(json.loads, ran.stdout.splitlines())
    assert undeclared["caught_up"]
    assert (equal["events"], failed["table"]) == (0, f"sqlite:{tmp_path}/copy.db#two")
    ran = run("mirror", file, "--refill")
    assert ran.exit_code == 0, ran.output


def test_what_is_set_aside_does_not_hide_the_failure_of_another_table(run, tmp_path, path, store):
    entry = '[[table]]\ncollection = "main/{0}"\ntarget = "sqlite:{1}/copy.db#{0}"\n'
    (tmp_path / "columns.toml").write_text('[columns]\nn = "int64"')
    store.put("orders", "bad", {"n": "many"})
    file, head = tmp_path / "mirror.toml", f'provider = "embedded"\n[connection]\npath = "{path}"\n'
    orders = entry.format("orders", tmp_path) + 'columns = "columns.toml"\n'
    file.write_text(head + orders)
    assert run("mirror", file, "--set-aside", tmp_path / "aside").exit_code == exits.SET_ASIDE
    file.write_text(head + orders + entry.format("gone", tmp_path))
    ran = run("mirror", file, "--set-aside", tmp_path / "aside")
    assert ran.exit_code == 4, ran.output


def test_the_outage_of_one_of_several_tables_is_not_ended_by_another(capsys):
    outages = OutageReport(StatusLine(), several=True)
    orders, bills = map(ResourceAddress.parse, ("main/orders", "main/bills"))
    outages.outage(orders, 0.0, "the table is away")
    outages.outage(bills, 0.0, "the table is away; try again")
    outages.outage_ended(bills, 2.0)
    outages.outage(orders, 30.0, "the table is away")
    outages.outage_ended(orders, 40.0)
    assert capsys.readouterr().err.splitlines() == [
        "warning: main/orders: the table is away; trying again",
        "warning: main/bills: the table is away; trying again",
        "notice: main/bills: works again after 2.0s",
        "warning: main/orders: no answer for 30s; trying again",
        "notice: main/orders: works again after 40s",
    ]


def test_the_position_with_a_table_of_postgres_is_no_url_of_a_checkpoint(run, url, store):
    with PostgresServer() as server:
        host = quote(conninfo_to_dict(server.dsn)["host"], safe="")
        target = f"postgres:postgresql://postgres@/postgres?host={host}#orders"
        assert run("mirror", url, "main/orders", "--target", target).exit_code == 0
        ran = run("token", "check", url, f"table:{target}", "--max-lag", "1h")
    assert ran.exit_code == 0, ran.output
