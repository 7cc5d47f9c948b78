"""Tests the demo on a small part of its data."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from demo.__main__ import main
from demo.chart import lag, rates, spread
from demo.flights import KEY, load_flights
from demo.places import COLLECTION, Places, read_lines
from demo.table import Merge, Sample, look, merges
from demo.writer import write
from multiclouddb_api import Beginning, ChangeFeedRequest, connect
from multiclouddb_tables.sql import quoted

ROOT = Path(__file__).parents[2]


def run_demo(folder: Path, rows: str = "1500", **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "demo", "--rows", rows, "--folder", str(folder)]
    environment = {**os.environ, "FAST": "1", **more}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def table_keys(path: Path) -> list[str]:
    return DeltaTable(str(path)).to_pyarrow_table(columns=["key"])["key"].to_pylist()  # type: ignore[no-any-return]


def check_proved(ran: subprocess.CompletedProcess[str], folder: Path) -> None:
    """Check that the table was proved equal while the writer still ran."""
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "EQUAL: the table contains" in ran.stdout
    places = Places(folder)
    assert read_lines(places.written)[-1]["at"] > places.proved.stat().st_mtime


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fast", "rows"), [("", "1500"), ("", "20000"), ("1", "20000"), ("1", "1")])
def test_table_is_proved_while_the_writer_still_runs(tmp_path: Path, fast: str, rows: str) -> None:
    check_proved(run_demo(tmp_path / "out", rows, FAST=fast), tmp_path / "out")


@pytest.mark.timeout(900)
def test_table_equals_the_store_after_a_kill_and_one_row_changed_by_hand_fails_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = run_demo(tmp_path / "out")
    log = tmp_path / "out" / "demo.log"
    assert ran.returncode == 0, ran.stdout + ran.stderr + (log.read_text() if log.exists() else "")
    assert "EQUAL: all 1," in ran.stdout
    assert "SIGKILL to the mirror" in ran.stdout
    check_proved(ran, tmp_path / "out")
    places = Places(tmp_path / "out")
    assert places.chart.read_bytes().startswith(b"\x89PNG")
    # Of a page, each key is merged once; what was merged when the mirror was killed may be merged again.
    assert sum(merge.rows for merge in merges(places.table)) >= len(table_keys(places.table))
    assert look(places.table).rows == len(table_keys(places.table))

    def same_again(run: Any, progress: object) -> None:
        """Replace `_Run.run`: copy the files of the previous run, and change one row."""
        run._log.close()
        shutil.copytree(tmp_path / "out", tmp_path / "again", dirs_exist_ok=True)
        table = DeltaTable(str(tmp_path / "again" / "table"))
        first = f"key = {quoted(table.to_pyarrow_table(columns=['key'])['key'][0].as_py())}"
        table.update(predicate=first, updates={"new_item_state": """'{"dest":"???"}'"""})

    monkeypatch.setattr("demo.__main__._Run.run", same_again)

    assert main(["--rows", "1500", "--folder", str(tmp_path / "again")]) == 1
    assert "NOT EQUAL: 1 rows differ" in " ".join(capsys.readouterr().out.split())


def test_lag_is_the_age_of_the_oldest_change_that_is_missing() -> None:
    written = [10.0, 11.0, 12.0]
    assert [lag(at, 10.0, written) for at in (10.5, 11.0, 11.5, 13.0)] == [0.0, 0.0, 0.5, 2.0]
    assert lag(13.0, 12.0, written) == 0.0
    behind = [(float(at), float(at)) for at in range(101)]
    assert spread(behind) == "median 50.0 s, p99 99.0 s, largest 100.0 s"
    assert spread([(1.0, 7.0)]) == "median 7.0 s, p99 7.0 s, largest 7.0 s"


def test_rate_is_zero_while_nothing_runs() -> None:
    merged = [Merge(1000.5, 100), Merge(1000.9, 50), Merge(1003.2, 20)]
    rows, edges = rates(merged, 1000.0)
    assert (rows.tolist(), edges.tolist()) == ([150.0, 0.0, 0.0, 20.0], [0, 1, 2, 3, 4])
    assert rates([], 1000.0)[0].tolist() == [0.0]


def test_flights_have_unique_keys_and_lives_of_all_kinds() -> None:
    flights = list(load_flights(5000))
    assert len({tuple(flight.key[name] for name in KEY) for flight in flights}) == 5000
    outcomes = {"cancelled" if flight.actual is None else flight.actual["status"] for flight in flights}
    assert outcomes == {"cancelled", "arrived", "departed"}


class Clock:
    """Counts the seconds for which somebody has slept."""

    slept = 0.0

    def monotonic(self) -> float:
        return self.slept

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


@pytest.mark.parametrize(("fast", "least", "most"), [("", 100, 120), ("1", 0, 0)])
def test_changes_are_spread_over_two_minutes_unless_it_must_be_fast(
    fast: str, least: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, clock = Places(tmp_path), Clock()
    places.proved.touch()
    monkeypatch.setattr("demo.writer.look", lambda path: Sample(rows=1))
    monkeypatch.setenv("FAST", fast)
    monkeypatch.setattr("demo.writer.time", clock)
    write(places, 20_000)
    assert least <= clock.slept <= most


def test_no_change_is_older_than_the_writer_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the table would seem to be behind until the next change, which may be half a minute later."""
    places = Places(tmp_path)
    places.proved.touch()
    monkeypatch.setattr("demo.writer.look", lambda path: Sample(rows=1))
    monkeypatch.setenv("FAST", "1")
    write(places, 3000)
    newest, page, request = set[float](), None, ChangeFeedRequest(COLLECTION, Beginning())
    with connect(places.url) as client:
        while page is None or not page.idle:
            page = client.read_changes(request)
            newest |= {change.timestamp.timestamp() for change in page.events}
            request = request.after(page)
    written = [line["at"] for line in read_lines(places.written)][1:-1]
    assert all(before <= at for before, at in zip(written, sorted(newest), strict=True))


@pytest.mark.parametrize("rows", ["0", "-3", "many", "999999999"])
def test_wrong_number_of_rows_is_refused_in_one_line(rows: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "demo", f"--rows={rows}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "ROWS must be a whole number from 1 to 336776" in ran.stderr
    assert "Traceback" not in ran.stderr
