"""Tests of the command `mirror` on what its first users stumbled over."""

import json
import os
import re

import pytest

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_cli import exits, log
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_mirror import Mirror


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)
    monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)


@pytest.fixture
def mirror(run, url, store, tmp_path):
    def invoke(*words):
        return run("mirror", url, "main/orders", "--target", f"sqlite:{tmp_path}/copy.db#orders", *words)

    return invoke


@pytest.fixture
def columns(tmp_path):
    """Return a file that declares the total as a number."""
    made = tmp_path / "columns.toml"
    made.write_text('[columns]\ntotal = "int64"\n')
    return made


def test_an_estimate_says_whether_a_declaration_fits_the_table(mirror, columns):
    ran = mirror("--estimate", "--columns", columns)
    assert ran.exit_code == 0, ran.output
    assert mirror("--columns", columns).exit_code == 0
    columns.write_text('[columns]\ntotal = "string"\n')
    ran = mirror("--estimate", "--columns", columns, "--json")
    assert ran.exit_code == 3, ran.output
    told = json.loads(ran.stdout)
    assert (told["begins"], told["problems"][0]["reason"]) == ("position", "other_columns")
    ran = mirror("--estimate", "--columns", columns, "--refill", "--json")
    assert (ran.exit_code, json.loads(ran.stdout)["begins"]) == (0, "snapshot")


def test_an_estimate_of_a_file_takes_the_declarations_in_it(run, mirror, columns, tmp_path, path):
    assert mirror("--columns", columns).exit_code == 0
    file, other = tmp_path / "mirror.toml", tmp_path / "other.toml"
    other.write_text('[columns]\ntotal = "string"\n')
    file.write_text(
        f'provider = "embedded"\n[connection]\npath = "{path}"\n'
        f'[[table]]\ncollection = "main/orders"\ntarget = "sqlite:{tmp_path}/copy.db#orders"\n'
    )
    assert run("mirror", file, "--estimate", "--columns", columns).exit_code == 0
    assert run("mirror", file, "--estimate", "--columns", other).exit_code == 3
    file.write_text(file.read_text() + 'columns = "other.toml"\n')
    assert run("mirror", file, "--estimate").exit_code == 3
    assert run("mirror", file, "--estimate", "--columns", columns).exit_code == 3  # the table's own counts
    assert run("mirror", file, "--estimate", "--refill").exit_code == 0


def test_what_is_set_aside_is_not_counted_as_merged_and_told_by_a_proof(mirror, store, columns, tmp_path):
    assert mirror("--columns", columns).exit_code == 0
    store.put("orders", "o-1", {"total": "many"})
    store.put("orders", "o-2", {"total": 2})
    ran = mirror("--set-aside", tmp_path / "aside")
    assert ran.exit_code == exits.SET_ASIDE, ran.output
    assert "merged     1 row or change, of them 0 deletes" in ran.stdout, ran.stdout
    assert "set aside  1 row" in ran.stdout
    ran = mirror("--set-aside", tmp_path / "aside", "--prove")
    assert ran.exit_code == exits.DIFFERENT, ran.output
    assert re.search(rf"stale +sha256:\w+ +\d+~? +set aside in {tmp_path}/aside\n", ran.stdout), ran.stdout


def test_the_status_of_an_incomplete_table_needs_no_folder(run, mirror, store, columns, tmp_path, path):
    assert mirror("--columns", columns).exit_code == 0
    store.put("orders", "o-1", {"total": "many"})
    assert mirror("--set-aside", tmp_path / "aside").exit_code == exits.SET_ASIDE
    target, file = f"sqlite:{tmp_path}/copy.db#orders", tmp_path / "mirror.toml"
    file.write_text(
        f'provider = "embedded"\n[connection]\npath = "{path}"\n'
        f'[[table]]\ncollection = "main/orders"\ntarget = "{target}"\n'
    )
    for what in (target, file):
        ran = run("mirror", "status", what)
        assert ran.exit_code == exits.SET_ASIDE, ran.output
        assert "not asked" in ran.stdout
        assert run("mirror", "status", what, "--json").exit_code == exits.SET_ASIDE


TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  ")


def test_each_line_of_the_log_of_a_mirror_that_follows_has_its_time(mirror, monkeypatch):
    run, runs = Mirror.run, []

    def followed(self):
        runs.append(self)
        if len(runs) == 3:
            raise MulticloudDbError("table: is gone", ErrorDetail(ErrorCategory.NOT_FOUND))
        return run(self)

    monkeypatch.setattr(Mirror, "run", followed)
    ran = mirror("--follow", "--prove-every", "1s")
    assert ran.exit_code == 4, ran.output
    proof, error = ran.stderr.splitlines()
    assert TIME.sub("", proof, count=1) == "proof: equal: 10 equal"
    assert TIME.sub("", error, count=1) == "error: [NOT_FOUND] table: is gone"
    assert TIME.match(proof)
    assert TIME.match(error)
    monkeypatch.setattr(Mirror, "run", run)
    assert mirror("--from", "@nowhere").stderr.startswith("error: ")  # one that ends is read by its caller


def test_a_log_that_the_journal_keeps_has_the_time_of_the_journal(tmp_path, monkeypatch):
    with (tmp_path / "journal").open("w") as file:
        found = os.fstat(file.fileno())
        monkeypatch.setattr("sys.stderr", file)
        for stream in ("1:2", f"{found.st_dev}:{found.st_ino}"):
            monkeypatch.setenv("JOURNAL_STREAM", stream)
            with log.one_command():
                log.begin_log()
                log.say("a line")
    other, journal = (tmp_path / "journal").read_text().splitlines()
    assert TIME.sub("", other, count=1) == journal == "a line"
    assert other != journal


def test_a_run_that_is_stopped_before_it_has_read_anything_does_not_say_that_it_began(mirror, monkeypatch):
    run = Mirror.run

    def stopped(self):
        self.stop()
        return run(self)

    monkeypatch.setattr(Mirror, "run", stopped)
    ran = mirror("--follow")
    assert "began     not yet: it was stopped before a row was copied" in ran.stdout, ran.output
    monkeypatch.undo()
    assert mirror().exit_code == 0
    monkeypatch.setattr(Mirror, "run", stopped)
    assert "began     where the last run ended" in mirror("--follow").stdout


def test_one_row_is_a_row(mirror, store):
    for number in range(9):
        store.delete("orders", f"o-{number}")
    ran = mirror("--prove")
    assert "read             1 row of the source, " in ran.stdout, ran.output
    assert ", 1 row of the table in " in ran.stdout
