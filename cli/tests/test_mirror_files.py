"""Tests what is done with the file of a mirror besides running it: status, lateness, estimate, proofs."""

import json
import os
import signal
import sqlite3
from contextlib import closing

import pytest
from deltalake import DeltaTable
from typer.main import get_command

from multiclouddb_cli import exits
from multiclouddb_cli.main import app
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_mirror import several
from multiclouddb_mirror.mirroring import Mirror


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)
    monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)


@pytest.fixture
def file(tmp_path, path, store):
    """Return a file with the tables of two collections; orders has ten rows, and bills two."""
    store.create_collection("bills")
    store.put("bills", "b-0", {"n": 0})
    store.put("bills", "b-1", {"n": 1})
    return written(tmp_path, path, "orders", "bills")


def written(tmp_path, path, *collections):
    entry = '[[table]]\ncollection = "main/{0}"\ntarget = "sqlite:{1}/copy.db#{2}"\n'
    entries = [entry.format(each, tmp_path, each.replace("*", "{collection}")) for each in collections]
    made = tmp_path / "mirror.toml"
    made.write_text(f'provider = "embedded"\n[connection]\npath = "{path}"\n' + "".join(entries))
    return made


def test_the_status_of_a_file_has_a_row_for_each_table(run, file, tmp_path):
    ran = run("mirror", "status", file)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.count("there is no table") == 2
    assert run("mirror", file).exit_code == 0
    head, orders, bills = run("mirror", "status", file).stdout.splitlines()
    assert head.split()[:3] == ["collection", "table", "rows"]
    assert orders.split()[:3] == ["main/orders", f"sqlite:{tmp_path}/copy.db#orders", "10"]
    assert "complete" in bills
    (tmp_path / "aside").mkdir()
    told = json.loads(run("mirror", "status", file, "--set-aside", tmp_path / "aside", "--json").stdout)
    assert [(each["address"], each["rows"], each["set_aside"]) for each in told] == [
        ("main/orders", 10, 0),
        ("main/bills", 2, 0),
    ]


def test_a_folder_that_is_not_there_is_no_count_of_what_is_set_aside(run, file, tmp_path):
    assert run("mirror", file).exit_code == 0
    wrong = ("--set-aside", tmp_path / "asdie")
    told = json.loads(run("mirror", "status", file, *wrong, "--json").stdout)
    assert [each["set_aside"] for each in told] == [None, None]
    assert (
        f"set aside: not known: there is no folder {wrong[1]}" in run("mirror", "status", file, *wrong).stdout
    )
    one = run("mirror", "status", f"sqlite:{tmp_path}/copy.db#orders", *wrong)
    assert f"not known: there is no folder {wrong[1]}" in one.stdout


class TestLateness:
    """`token check FILE` asks for the positions of all tables of a mirror."""

    def check(self, run, file, *words):
        ran = run("token", "check", file, "--json", *words)
        return ran, json.loads(ran.stdout)["positions"]

    def test_each_table_is_late_or_not(self, run, file, store, tmp_path):
        assert run("mirror", file).exit_code == 0
        ran, found = self.check(run, file, "--max-lag", "1h")
        assert ran.exit_code == 0, ran.output
        assert [each["late"] for each in found.values()] == [{"is_late": False}] * 2
        store.put("bills", "b-2", {"n": 2})
        wait_until(lambda: self.check(run, file, "--max-lag", "0.01s")[0].exit_code == exits.LATE)
        ran, found = self.check(run, file, "--max-lag", "0.01s")
        assert {name: each["late"]["is_late"] for name, each in found.items()} == {
            f"main/orders, sqlite:{tmp_path}/copy.db#orders": False,
            f"main/bills, sqlite:{tmp_path}/copy.db#bills": True,
        }
        assert "[LATE] main/bills" in ran.stderr

    def test_a_table_without_a_position_hides_no_other(self, run, file, tmp_path):
        text = file.read_text()
        orders, _, bills = text.rpartition("[[table]]")
        file.write_text(orders)
        assert run("mirror", file).exit_code == 0
        file.write_text("[[table]]".join((orders, bills)))
        ran, found = self.check(run, file, "--max-lag", "1h")
        assert ran.exit_code == 3
        first, second = found.values()
        assert (first["resumes"], first["late"]) == (True, {"is_late": False})
        assert (second["error"], second["resumes"], second["late"]) == ("INVALID_REQUEST", None, None)
        assert f"copy.db#bills: has no position yet; run multiclouddb mirror {file}" in ran.stderr

    def test_lost_changes_of_one_table_come_before_another_error(self, run, file, store):
        assert run("mirror", file).exit_code == 0
        store.put("orders", "o-1", {})
        store.put("orders", "o-2", {})
        store.trim("orders", max_count=0)
        store.drop_collection("bills")
        ran, found = self.check(run, file)
        assert ran.exit_code == 6
        assert [each["error"] for each in found.values()] == ["CHECKPOINT_EXPIRED", "NOT_FOUND"]
        assert "[NOT_FOUND]" in ran.stderr

    def test_a_connection_without_tables_needs_a_token(self, run, url):
        ran = run("token", "check", url)
        assert ran.exit_code == exits.USAGE
        assert "only the file of a mirror" in ran.stderr

    def test_the_exporter_asks_for_all_of_them(self, run, file, tmp_path):
        assert run("mirror", file).exit_code == 0
        positions = tmp_path / "positions.toml"
        positions.write_text(f'[[position]]\nname = "night"\nurl = "{file}"\nmax_lag = "26h"\n')
        ran = run("exporter", positions, "--once")
        assert ran.exit_code == 0, ran.output
        assert 'multiclouddb_position_known{position="night"} 1' in ran.stdout
        assert 'multiclouddb_position_late{position="night"} 0' in ran.stdout

    def test_the_exporter_names_the_lost_changes_before_another_error(self, run, file, store, tmp_path):
        assert run("mirror", file).exit_code == 0
        store.drop_collection("orders")
        store.put("bills", "b-0", {})
        store.put("bills", "b-1", {})
        store.trim("bills", max_count=0)
        positions = tmp_path / "positions.toml"
        positions.write_text(f'[[position]]\nname = "night"\nurl = "{file}"\n')
        ran = run("exporter", positions, "--once")
        assert 'multiclouddb_position_expired{position="night"} 1' in ran.stdout
        assert 'category="CHECKPOINT_EXPIRED"' in ran.stdout


def test_reading_the_position_of_a_restored_table_writes_nothing(run, url, store, tmp_path):
    target = f"delta:{tmp_path}/table"
    assert run("mirror", url, "main/orders", "--target", target).exit_code == 0
    before = DeltaTable(tmp_path / "table").version()
    store.put("orders", "o-1", {"total": 7})
    assert run("mirror", url, "main/orders", "--target", target).exit_code == 0
    DeltaTable(tmp_path / "table").restore(before)
    version = DeltaTable(tmp_path / "table").version()
    assert run("token", "check", url, f"table:{target}").exit_code == 0
    assert run("token", "inspect", f"table:{target}").exit_code == 0
    assert DeltaTable(tmp_path / "table").version() == version


def test_a_table_that_cannot_be_read_hides_no_other(run, file, tmp_path):
    assert run("mirror", file).exit_code == 0
    with closing(sqlite3.connect(tmp_path / "copy.db")) as database:
        database.execute("DROP TABLE orders")
        database.execute("CREATE TABLE orders (n INTEGER)")
    ran = run("mirror", "status", file, "--json")
    assert ran.exit_code == 3, ran.output
    broken, whole = json.loads(ran.stdout)
    assert broken["error"]["category"] == "INVALID_REQUEST"
    assert whole["rows"] == 2
    assert f"main/orders, sqlite:{tmp_path}/copy.db#orders:" in ran.stderr
    assert "not known" in run("mirror", "status", file).stdout


def test_the_position_of_one_table_is_not_for_a_file(run, file):
    ran = run("mirror", "status", file, "--position", "file:///p/orders")
    assert ran.exit_code == exits.USAGE
    assert "is for one table" in ran.stderr


def test_an_estimate_and_a_retry_refuse_a_table_in_the_folder_of_another_one(run, file, tmp_path, path):
    text = file.read_text().replace(f"sqlite:{tmp_path}/copy.db#orders", f"delta:{tmp_path}/lake")
    file.write_text(text.replace(f"sqlite:{tmp_path}/copy.db#bills", f"delta:{tmp_path}/lake/bills"))
    (tmp_path / "aside").mkdir()
    for command in (("mirror", file, "--estimate"), ("set-aside", "retry", tmp_path / "aside", file)):
        ran = run(*command)
        assert ran.exit_code == 3, ran.output
        assert ran.stderr.count("into the folder of the table of main/orders") == 2


def test_an_estimate_of_a_file_ends_with_the_highest_code(run, file, tmp_path, path):
    ran = run("mirror", file, "--estimate")
    assert ran.exit_code == 0, ran.output
    assert [line.split()[2:5] for line in ran.stdout.splitlines()[1:]] == [
        ["snapshot", "about", "10"],
        ["snapshot", "about", "2"],
    ]
    assert not (tmp_path / "copy.db").exists()
    file = written(tmp_path, path, "gone", "orders")
    ran = run("mirror", file, "--estimate", "--json")
    assert ran.exit_code == 4, ran.output
    gone, orders = json.loads(ran.stdout)
    assert (gone["address"], gone["problems"][0]["category"]) == ("main/gone", "NOT_FOUND")
    assert (orders["scan"]["rows"], orders["problems"]) == (10, [])
    assert "main/gone, sqlite:" in ran.stderr


def test_what_is_set_aside_of_each_table_of_a_file_is_tried_again(run, file, store, tmp_path):
    (tmp_path / "columns.toml").write_text('[columns]\nn = "int64"')
    file.write_text(file.read_text() + 'columns = "columns.toml"\n')
    aside = tmp_path / "aside"
    store.put("bills", "b-2", {"n": "many"})
    assert run("mirror", file, "--set-aside", aside).exit_code == exits.SET_ASIDE
    assert run("mirror", "status", file, "--set-aside", aside).exit_code == exits.SET_ASIDE
    ran = run("set-aside", "retry", aside, file)
    assert ran.exit_code == exits.SET_ASIDE, ran.output
    assert "does not fit" in ran.stdout
    store.put("bills", "b-2", {"n": 2})
    ran = run("set-aside", "retry", aside, file, "--json")
    assert ran.exit_code == 0, ran.output
    orders, bills = json.loads(ran.stdout)
    assert (orders["written"], bills["written"], bills["left"]) == (0, 1, 0)
    assert run("set-aside", "retry", aside, file, "embedded://x").exit_code == exits.USAGE


def test_each_table_of_a_file_is_proved_while_it_is_followed(run, file, monkeypatch):
    run_once, told = Mirror.run, []

    def stopped(self):
        told.append((str(self._address), self._settings["prove"]))
        report = run_once(self)
        if {(f"main/{name}", True) for name in ("orders", "bills")} <= set(told) and report.proof is not None:
            os.kill(os.getpid(), signal.SIGTERM)
        return report

    monkeypatch.setattr(Mirror, "run", stopped)
    ran = run("mirror", file, "--follow", "--prove-every", "1s")
    assert ran.exit_code == 0, ran.output
    assert "main/orders, sqlite:" in ran.stderr
    assert "proof: equal: 10 equal" in ran.stderr
    assert "proof: equal: 2 equal" in ran.stderr


def test_a_collection_that_is_made_meanwhile_is_followed(run, file, store, tmp_path, path, monkeypatch):
    file = written(tmp_path, path, "*")
    monkeypatch.setattr(several, "_AGAIN_SECONDS", 0.05)
    run_once = Mirror.run

    def stopped(self):
        def on_progress(progress):
            shown(progress)
            if self._address.collection == "bills" and progress.events == 2 and not made:
                made.append(store.create_collection("later"))
                store.put("later", "l-0", {})
            if self._address.collection == "later" and progress.events:
                os.kill(os.getpid(), signal.SIGTERM)

        shown = self._settings["on_progress"]
        self._settings["on_progress"] = on_progress
        return run_once(self)

    made = []
    monkeypatch.setattr(Mirror, "run", stopped)
    ran = run("mirror", file, "--follow")
    assert ran.exit_code == 0, ran.output
    assert "main/later" in ran.stdout
    with closing(sqlite3.connect(tmp_path / "copy.db")) as database:
        assert database.execute("SELECT count(*) FROM later").fetchone() == (1,)


def test_a_shell_completes_words_and_no_command_of_two():
    group = get_command(app)
    context = group.make_context("multiclouddb", [], resilient_parsing=True)
    assert [each.value for each in group.shell_complete(context, "mir")] == ["mirror"]
