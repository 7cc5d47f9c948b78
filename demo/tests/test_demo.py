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
from demo.chart import lags_of, quantile, rate_of_batches, rate_of_writes
from demo.flights import KEY, load_flights
from demo.pipeline import run_query
from demo.places import Places, append_line, merged_batches, read_lines
from demo.writer import write
from multiclouddb_tables.sql import quoted

# The demo starts Spark in a process of its own.
pytestmark = pytest.mark.xdist_group("jvm apart")

ROOT = Path(__file__).parents[2]


def run_demo(folder: Path, rows: str = "1500", **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "demo", "--rows", rows, "--folder", str(folder)]
    environment = {**os.environ, "FAST": "1", **more}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


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
    log = tmp_path / "out" / "pipeline.log"
    assert ran.returncode == 0, ran.stdout + ran.stderr + (log.read_text() if log.exists() else "")
    assert "EQUAL: all 1," in ran.stdout
    assert "SIGKILL to the pipeline" in ran.stdout
    check_proved(ran, tmp_path / "out")
    assert (tmp_path / "out" / "chart.png").read_bytes().startswith(b"\x89PNG")
    # The rows of the scan have no lag, and every change has one.
    lines = merged_batches(Places(tmp_path / "out"))
    assert [] in [line["changes"] for line in lines]
    changes = sum(lag.changes for lag in lags_of(lines))
    written = read_lines(Places(tmp_path / "out").written)
    assert changes == written[-1]["events"] - written[0]["events"]

    def same_again(run: Any, progress: object) -> None:
        """Replace `_Run.run`: copy the files of the previous run, without Spark, and change one row."""
        run._log.close()
        shutil.copytree(tmp_path / "out", tmp_path / "again", dirs_exist_ok=True)
        table = DeltaTable(str(tmp_path / "again" / "table"))
        first = f"key = {quoted(table.to_pyarrow_table(columns=['key'])['key'][0].as_py())}"
        table.update(predicate=first, updates={"new_item_state": """'{"dest":"???"}'"""})

    monkeypatch.setattr("demo.__main__._Run.run", same_again)

    assert main(["--rows", "1500", "--folder", str(tmp_path / "again")]) == 1
    assert "NOT EQUAL: 1 rows differ" in " ".join(capsys.readouterr().out.split())


# A pipeline that merges 100 rows of a scan, is killed, and merges the changes of the outage 15 seconds later.
OUTAGE: list[dict[str, Any]] = [
    {"batch": 0, "begun": 1000.0, "at": 1002.0, "events": 100, "changes": []},
    {"batch": 1, "begun": 1002.0, "at": 1003.0, "events": 98, "changes": [[10_020, 98]]},
    {"batch": 2, "begun": 1017.0, "at": 1018.0, "events": 102, "changes": [[10_175, 100], [10_030, 2]]},
]


def test_lag_is_that_of_every_change_with_those_of_the_outage() -> None:
    lags = lags_of(OUTAGE)
    rounded = [(round(lag.committed, 3), round(lag.seconds, 3), lag.changes) for lag in lags]
    assert rounded == [(1002.0, 1.0, 98), (1003.0, 15.0, 2), (1017.5, 0.5, 100)]
    assert [quantile(lags, share) for share in (0.5, 0.99, 0.995, 1)] == pytest.approx([0.5, 1.0, 15.0, 15.0])


def test_rate_is_zero_while_nothing_runs() -> None:
    times, rates = rate_of_batches(OUTAGE, 990.0)
    assert list(zip(times, rates, strict=True)) == [
        (0.0, 0.0), (10.0, 50.0), (12.0, 0.0), (12.0, 98.0), (13.0, 0.0), (27.0, 102.0), (28.0, 0.0)
    ]  # fmt: skip
    written = [{"at": at, "events": events} for at, events in ((990.0, 500), (991.2, 510), (993.5, 530))]
    assert rate_of_writes(written, 990.0) == ([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 10.0, 0.0, 20.0, 0.0])


class Query:
    """A query that fails with an error, or that ends by itself."""

    def __init__(self, error: str | None) -> None:
        self.isActive, self.status, self.error = True, {"isTriggerActive": False}, error

    def awaitTermination(self, seconds: float) -> None:  # noqa: N802 - Spark's name
        self.isActive = False
        if self.error is not None:
            raise RuntimeError(self.error)

    def stop(self) -> None:
        self.isActive = False

    def exception(self) -> Exception | None:
        return None if self.error is None else RuntimeError(self.error)


LATE = "org.apache.spark.SparkException: Python worker failed to connect back."


def test_query_is_started_again_if_spark_did_not_wait_for_python() -> None:
    left: list[Any] = [Query(None), Query(LATE), Query(LATE)]
    run_query(left.pop, lambda: False)
    assert left == []
    for error, tries in (("another error", 1), (LATE, 10)):
        queries: list[Any] = [Query(error) for _ in range(20)]
        with pytest.raises(RuntimeError, match=error):
            run_query(queries.pop, lambda: False)
        assert len(queries) == 20 - tries


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
    places.begun.parent.mkdir(parents=True)
    places.begun.touch()
    append_line(places.merged, events=1)
    places.proved.touch()
    monkeypatch.setenv("FAST", fast)
    monkeypatch.setattr("demo.writer.time", clock)
    write(places, 20_000)
    assert least <= clock.slept <= most


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
