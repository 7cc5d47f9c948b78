"""Tests `multiclouddb verify`."""

import json
import re
import signal
import sqlite3
import time
from contextlib import closing

import attrs
import pytest
from deltalake import DeltaTable, write_deltalake
from prometheus_client.parser import text_string_to_metric_families

import multiclouddb_api as api
import multiclouddb_verify
from multiclouddb_cli import exits
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables.sqlite import merge_into_sqlite
from multiclouddb_verify import Outcome, report
from multiclouddb_verify.source import Source
from multiclouddb_verify.state import State
from multiclouddb_verify.verification import Verification
from pyspark_multiclouddb import merge_into_delta


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)
    monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)


@pytest.fixture
def table(tmp_path, url, store):
    """Make a table that equals the store, and a checkpoint."""
    with api.connect(url) as client:
        # A page need not contain all partitions' changes, and the sink of these tests never moves again.
        for page in client.iterate_changes(
            api.ChangeFeedRequest("main/orders", api.Beginning()), until_idle=True
        ).pages():
            merge_into_delta(page, None, tmp_path / "table", None)
        checkpoints = api.FileCheckpointStore(tmp_path)
        checkpoints.save("sink", page.continuation_token, None)
    return tmp_path / "table"


@pytest.fixture
def verify(run, tmp_path, url, table):
    def invoke(*words):
        position = f"@{tmp_path / 'sink.checkpoint.json'}"
        more = ["--target", f"delta:{table}", "--position", position, "--state", tmp_path / "state"]
        return run("verify", url, "main/orders", *more, *words)

    return invoke


def damage(table, name="o-3"):
    DeltaTable(table).update(
        updates={"new_item_state": """'{"total":"3"}'"""}, predicate=f"""key = '{{"id":"{name}"}}'"""
    )


def test_equal_table_ends_with_0(verify):
    ran = verify()
    assert ran.exit_code == 0, ran.output
    assert "EQUAL" in ran.stdout


def test_an_error_has_its_reason_as_json(verify, table, tmp_path):
    write_deltalake(tmp_path / "other", DeltaTable(table).to_pyarrow_table())
    ran = verify("--target", f"delta:{tmp_path}/other", "--json")
    assert ran.exit_code == 3
    error = json.loads(ran.stdout)["error"]
    assert (error["category"], error["reason"]) == ("INVALID_REQUEST", "wrong_resource")


def test_equal_says_in_the_same_line_which_columns_were_not_compared(verify, table):
    found = DeltaTable(table)
    found.alter.add_columns([found.schema().fields[0].__class__(name, "string") for name in ("note", "mood")])
    ran = verify()
    assert ran.exit_code == 0, ran.output
    [line] = [each for each in ran.stdout.splitlines() if each.startswith("EQUAL")]
    assert line.endswith("; not compared: note, mood")
    assert json.loads(verify("--json").stdout)["not_compared"] == ["note", "mood"]


def test_difference_ends_with_11_and_names_key_path_and_types_but_no_value(verify, table):
    damage(table)
    ran = verify()
    assert ran.exit_code == 11
    assert key_digest('{"id":"o-3"}') in ran.stdout
    assert "o-3" not in ran.stdout
    assert "$.total: int in the source, str in the table" in ran.stdout
    shown = verify("--show-values").stdout
    assert "3 in the source, '3' in the table" in shown
    assert '{"id":"o-3"}' in shown


def test_repair_ends_with_0(verify, table):
    damage(table)
    ran = verify("--repair", "--json")
    assert ran.exit_code == 0
    told = json.loads(ran.stdout)
    assert (told["equal"], told["counts"]["repaired"]) == (True, 1)
    assert told["repaired"][0]["kind"] == "stale"
    assert verify().exit_code == 0


def test_too_many_differences_are_named(verify, table):
    damage(table)
    ran = verify("--repair", "--max-repairs", "0")
    assert (ran.exit_code, "--force" in ran.stdout) == (11, True)
    assert verify("--repair", "--max-repairs", "0", "--force").exit_code == 0


def test_sink_that_does_not_move_ends_with_13_and_a_difference_beside_it_with_11(verify, store, table):
    store.put("orders", "o-3", {"total": -1})
    ran = verify("--patience", "0.2", "--json")
    assert ran.exit_code == 13
    told = json.loads(ran.stdout)
    assert (told["behind"], told["outcome"], told["exit_code"]) == (['{"id":"o-3"}'], "behind", 13)
    assert "BEHIND" in verify("--patience", "0.2").stdout
    damage(table, "o-2")
    assert verify("--patience", "0.2").exit_code == 11


def test_key_that_changes_all_the_time_ends_with_12(verify, store, monkeypatch):
    original, numbers = Source.changes, iter(range(1000))

    def changes(source, *arguments):
        store.put("orders", "o-3", {"total": -next(numbers)})
        return original(source, *arguments)

    monkeypatch.setattr(Source, "changes", changes)
    store.put("orders", "o-2", {"total": -1})
    ran = verify("--patience", "0.2", "--json")
    assert ran.exit_code == 12
    told = json.loads(ran.stdout)
    assert (told["unsettled"], told["behind"]) == (['{"id":"o-3"}'], ['{"id":"o-2"}'])


def test_state_folder_in_use_ends_with_14(verify, tmp_path):
    state = State(tmp_path / "state", {})
    ran = verify()
    assert (ran.exit_code, "in use" in ran.stderr) == (14, True)
    state.close()


def test_exit_codes_of_reports_are_those_of_the_command():
    codes = {Outcome.EQUAL: exits.OK, Outcome.DIFFERENT: exits.DIFFERENT}
    codes |= {Outcome.UNSETTLED: exits.UNSETTLED, Outcome.BEHIND: exits.BEHIND}
    assert codes == report._CODES
    assert {*codes.values(), exits.BUSY} <= exits.TABLE.keys()


def test_record_is_the_only_write(verify, table):
    version = DeltaTable(table).version()
    assert verify().exit_code == 0
    assert DeltaTable(table).version() == version
    assert verify("--record").exit_code == 0
    assert "multiclouddb.verified_through" in DeltaTable(table).history(1)[0]


@pytest.mark.parametrize(("words", "said"), [([], "was removed"), (["--resume"], "is taken up")])
def test_what_becomes_of_a_killed_run_is_said_on_stderr(words, said, verify, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("multiclouddb_verify.rounds.Rounds.join", lambda rounds: 1 / 0)
        assert verify().exit_code == 1
    ran = verify("--json", *words)
    assert (ran.exit_code, said in ran.stderr) == (0, True)
    assert json.loads(ran.stdout)["left_over"] in ran.stderr


def test_progress_is_for_a_terminal_and_not_for_a_mail(verify):
    ran = verify()
    assert (ran.exit_code, ran.stderr) == (0, "")


def test_estimate_reads_no_row(verify, tmp_path):
    ran = verify("--estimate", "--json")
    assert ran.exit_code == 0
    assert {"rows", "segments", "units", "price", "seconds"} == json.loads(ran.stdout).keys()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("words", "code", "option"),
    [
        (["--target", "iceberg:/x"], 3, "target"),
        (["--sample", "2/3"], 2, "--sample"),
        (["--position", "@nowhere"], 2, "--position"),
    ],
)
def test_wrong_argument_names_the_option(verify, words, code, option):
    ran = verify(*words)
    assert ran.exit_code == code
    assert option in ran.stderr


def test_table_of_sqlite_is_compared_and_repaired(run, tmp_path, url, store):
    path = tmp_path / "a#b.db"
    with api.connect(url) as client:
        request = api.ChangeFeedRequest("main/orders", api.Beginning())
        for page in client.iterate_changes(request, until_idle=True).pages():
            merge_into_sqlite(page, None, path, "orders", None)
    api.FileCheckpointStore(tmp_path).save("sink", page.continuation_token, None)
    words = ["--target", f"sqlite:{path}#orders", "--position", f"@{tmp_path / 'sink.checkpoint.json'}"]
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE orders SET new_item_state = '{}' WHERE key = '{\"id\":\"o-3\"}'")
    ran = run("verify", url, "main/orders", *words, "--state", tmp_path / "state", "--repair")
    assert re.search(r"repaired +1\b", ran.stdout), ran.output
    ran = run("verify", url, "main/orders", *words, "--state", tmp_path / "state")
    assert ran.exit_code == 0, ran.output
    assert "EQUAL" in ran.stdout


def test_missing_position_says_what_to_give(run, url, table):
    ran = run("verify", url, "main/orders", "--target", f"delta:{table}")
    assert ran.exit_code == 3
    assert "give --position" in ran.stderr


def test_key_that_the_source_was_not_asked_for_ends_with_12_and_is_told_with_the_reason(verify, table):
    DeltaTable(table).update(updates={"key": "'no key'"}, predicate="""key = '{"id":"o-3"}'""")
    ran = verify("--repair")
    assert ran.exit_code == exits.UNSETTLED, ran.output
    assert "no key" not in ran.stdout.replace("that is no key; remove the row by hand", "")
    assert key_digest("no key") in ran.stdout
    assert "remove the row by hand" in ran.stdout
    assert json.loads(verify("--repair", "--json").stdout)["reasons"].keys() == {"no key"}


class TestEvery:
    """`--every` compares again and again; here a signal ends it after some passes."""

    @pytest.fixture
    def every(self, verify, monkeypatch):
        def invoke(*words, ends_after=2, between=lambda number: None):
            original = Verification.run
            runs = []

            def run(self):
                if len(runs) == ends_after:
                    signal.raise_signal(signal.SIGTERM)
                between(len(runs))
                runs.append(self)
                return original(self)

            monkeypatch.setattr(Verification, "run", run)
            ran = verify("--every", "1s", *words)
            monkeypatch.setattr(Verification, "run", original)
            assert ran.exit_code == 143, ran.output
            return ran

        return invoke

    def test_says_the_costs_and_after_each_pass_how_old_the_oldest_proof_is(self, every, table):
        ran = every("--repair", between=lambda number: damage(table) if number else None)
        assert "again in" in ran.stdout
        lines = [line for line in ran.stdout.splitlines() if "oldest proof of a row" in line]
        assert "is not known, 0 differences open, 0 healed; next pass at" in lines[0]
        assert re.search(r"is 0\.\ds old, 0 differences open, 0 healed", lines[1])
        assert re.search(r"is [\d.]+s old, 0 differences open, 1 healed", lines[2])

    def test_names_what_is_open(self, every, table, tmp_path):
        damage(table)
        ran = every("--json", ends_after=1)
        estimate, before, after = map(json.loads, ran.stdout.splitlines())
        assert estimate["price"]
        assert (before["proved_at"], before["report"]) == (None, None)
        assert (after["differences"], after["report"]["differences"][0]["key"]) == (1, '{"id":"o-3"}')
        assert after["age_seconds"] >= 0
        assert key_digest('{"id":"o-3"}') in every(ends_after=1).stdout

    def test_writes_the_metrics_for_prometheus(self, every, table, tmp_path):
        file, seen = tmp_path / "verify.prom", []

        def look(number):
            [proved] = re.findall(r"^multiclouddb_verify_proved_timestamp_seconds\{.*\} (.*)$", told(), re.M)
            seen.append(float(proved))
            if number == 0:
                damage(table)

        def told():
            return file.read_text()

        every("--metrics", file, between=look)
        assert seen[0] == 0.0
        assert 0 <= time.time() - seen[1] < 60
        families = {each.name: each.samples[0] for each in text_string_to_metric_families(told())}
        labels = {"database": "main", "collection": "orders", "table": f"delta:{table}"}
        assert families["multiclouddb_verify_differences"].value == 1
        assert families["multiclouddb_verify_healed_rows"].value == 0
        assert families["multiclouddb_verify_proved_timestamp_seconds"].labels == labels

    def test_a_rate_that_is_too_low_for_the_period_is_said_at_the_beginning(self, every, monkeypatch):
        original = multiclouddb_verify.estimate
        slow = {"seconds": 7200.0}
        monkeypatch.setattr(
            multiclouddb_verify,
            "estimate",
            lambda *given, **more: attrs.evolve(original(*given, **more), **slow),
        )
        assert "2h 0m at this rate, which is longer than --every" in every(ends_after=1).stderr

    def test_a_file_that_cannot_be_written_ends_it(self, verify, tmp_path):
        ran = verify("--every", "1s", "--metrics", tmp_path / "nowhere" / "x.prom")
        assert (ran.exit_code, "--metrics" in ran.stderr) == (3, True)

    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            (["--metrics", "x.prom"], 2, "--metrics"),
            (["--every", "soon"], 2, "--every"),
            (["--every", "0s"], 3, "every"),
            (["--every", "1h", "--sample", "1/2"], 3, "sample"),
        ],
    )
    def test_a_wrong_argument_is_named(self, words, code, said, verify):
        ran = verify(*words)
        assert (ran.exit_code, said in ran.stderr) == (code, True)


def test_single_keys_are_compared_and_repaired_and_the_verdict_says_so(verify, table):
    damage(table)
    damage(table, "o-4")
    ran = verify("--key", '{"id": "o-1"}', "--key", '{"id":"o-2"}')
    assert ran.exit_code == 0, ran.output
    assert "2 keys were compared, and no others" in ran.stdout
    assert "EQUAL: the table contains the source's state of every key that was compared" in ran.stdout
    assert verify("--key", '{"id":"o-3"}').exit_code == 11
    told = json.loads(verify("--key", '{"id":"o-3"}', "--repair", "--json").stdout)
    assert (told["outcome"], told["counts"]["repaired"], told["verified_through"]) == ("equal", 1, None)
    assert told["covered"] == "1 key was compared, and no others"
    assert verify("--partition-key", '{"id":"o-3"}').exit_code == 0
    assert verify("--partition-key", '{"id":"o-4"}').exit_code == 11
    assert verify("--key", '{"id":"o-3"}', "--estimate").exit_code == 2
    assert verify("--key", "o-3").exit_code == 2


def test_keys_are_read_from_a_file_and_a_wrong_line_is_named(verify, tmp_path):
    file = tmp_path / "keys"
    file.write_text('{"id": "o-1"}\n\n{"id": "o-2"}\r\n')
    told = json.loads(verify("--key", f"@{file}", "--key", '{"id":"o-4"}', "--json").stdout)
    assert told["counts"]["equal"] == 3
    file.write_text("\n")
    ran = verify("--key", f"@{file}")
    assert (ran.exit_code, "has no key" in ran.stderr) == (2, True)
    file.write_text('{"id": "o-1"}\no-2\n')
    ran = verify("--key", f"@{file}")
    assert (ran.exit_code, f"line 2 of {file}: " in ran.stderr) == (2, True)
    assert "o-2" not in ran.stderr
    assert "cannot be read" in verify("--key", f"@{tmp_path}/nothing").stderr
