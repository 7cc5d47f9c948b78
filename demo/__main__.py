"""`make demo` copies flights from the embedded store into a Delta table, and kills the pipeline once.

Half of the flights exist at the start: the pipeline reads them first, then every change. While the writer
still runs, `multiclouddb verify` proves that the table is equal; at the end each row is compared.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo.chart import draw, lags_of, quantile
from demo.flights import ALL_ROWS
from demo.places import Places, merged_batches, read_lines
from demo.proof import Proof, compare

__all__ = ["main"]

_QUICK_JAVA: Final = Path(__file__).parents[1] / "spark" / "tests" / "jvm_settings.py"
_POLL_SECONDS: Final = 0.2
_SHOWN: Final = 5
_KILL_AT: Final = 0.2
"""The fraction of the work after which the pipeline is killed.

When the pipeline is killed, it is reading the rows that existed before its start.
"""
_VERIFY_AT: Final = 0.6
"""The fraction of the work after which the table is compared; the rows of the snapshot are merged by then."""
_EVENTS_PER_ROW: Final = 2
"""The number of events per flight: a flight is created, then updated or deleted."""


class _Run:
    """Runs the writer and the pipeline at the same time, and kills the pipeline once."""

    def __init__(self, places: Places, rows: int) -> None:
        self._places, self._rows = places, rows
        self._log = (places.root / "pipeline.log").open("ab")
        # The first half of the flights already exists, with one row for each flight. The count includes these
        # rows from the time when they are written.
        self.total = rows // 2 + _EVENTS_PER_ROW * (rows - rows // 2)
        self.killed_at: float | None = None
        self.proof: Proof | None = None

    def run(self, progress: Progress) -> None:
        """Start the writer and the pipeline, kill the pipeline once, and wait until both have ended."""
        written = progress.add_task("written to the store", total=self.total)
        merged = progress.add_task("merged into the table", total=self.total)
        writer = self._start("demo.writer", str(self._rows))
        pipeline: subprocess.Popen[bytes] | None = None
        try:
            while writer.poll() is None or pipeline is None or pipeline.poll() is None:
                done = read_lines(self._places.written)
                events = sum(line["events"] for line in merged_batches(self._places))
                progress.update(written, completed=done[-1]["events"] if done else 0)
                progress.update(merged, completed=min(self.total, events))
                if pipeline is None and done:
                    self.total += done[0]["events"] - self._rows // 2
                    progress.update(written, total=self.total)
                    progress.update(merged, total=self.total)
                    pipeline = self._start("demo.pipeline", str(self.total))
                if pipeline is not None and self.killed_at is None and events >= _KILL_AT * self.total:
                    pipeline = self._kill_and_restart(pipeline, progress)
                if self.proof is None and self.killed_at is not None and events >= _VERIFY_AT * self.total:
                    self.proof = Proof(self._places)
                self._check(writer, pipeline)
                time.sleep(_POLL_SECONDS)
            self._check(writer, pipeline)
            if self.proof is not None:
                self.proof.wait()
        finally:
            for process in (writer, pipeline):
                if process is not None and process.poll() is None:
                    _kill(process)
        progress.update(written, completed=self.total)
        progress.update(merged, completed=self.total)

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", module, str(self._places.root), *arguments]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)

    def _kill_and_restart(
        self, pipeline: subprocess.Popen[bytes], progress: Progress
    ) -> subprocess.Popen[bytes]:
        self.killed_at = time.time()
        _kill(pipeline)
        progress.console.print("[bold red]SIGKILL[/] to the pipeline and its JVM; starting it again")
        return self._start("demo.pipeline", str(self.total))

    def _check(self, *processes: subprocess.Popen[bytes] | None) -> None:
        for process in processes:
            if process is not None and process.poll():
                name = self._places.root / "pipeline.log"
                raise SystemExit(f"a process of the demo failed with status {process.returncode}; see {name}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its children, and wait until the process has ended."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return 0 if the table equals its source."""
    options = _options(arguments)
    places = Places(options.folder)
    shutil.rmtree(places.root, ignore_errors=True)
    places.root.mkdir(parents=True)
    # Spark starts twice, so the demo uses the tests' archive of Java's classes. The first run makes it.
    os.environ.update(runpy.run_path(str(_QUICK_JAVA))["quick_start"]())
    return _run(options, places)


def _run(options: Any, places: Places) -> int:
    console = Console()
    console.print(f"Following {options.rows:,} flights; files are in {places.root}")
    run, began = _Run(places, options.rows), time.time()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        run.run(progress)
    seconds = time.time() - began
    draw(places, run.killed_at)
    _report(console, places, seconds, run.killed_at)
    rows, differences = compare(places)
    for line in differences[:_SHOWN]:
        console.print(line, style="red", markup=False)
    if differences:
        console.print(
            f"[bold red]NOT EQUAL[/]: {len(differences):,} rows differ from the {rows:,} of the store"
        )
    else:
        console.print(f"[bold green]EQUAL[/]: all {rows:,} rows of the table are as in the store")
    proved = run.proof is not None and run.proof.report(console)
    return 0 if proved and not differences else 1


def _options(arguments: list[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument(
        "--rows", type=_rows, default=os.environ.get("ROWS") or ALL_ROWS, help="flights to follow"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("demo-output"),
        help="folder for all files; is emptied first",
    )
    return parser.parse_args(arguments)


def _rows(text: str) -> int:
    rows = int(text) if text.isdigit() else 0
    if not 1 <= rows <= ALL_ROWS:
        raise argparse.ArgumentTypeError(f"ROWS must be a whole number from 1 to {ALL_ROWS}, not {text!r}")
    return rows


def _report(console: Console, places: Places, seconds: float, killed_at: float | None) -> None:
    lines = merged_batches(places)
    twice = len(read_lines(places.merged)) - len(lines)
    events = sum(line["events"] for line in lines)
    lags = lags_of(lines)
    table = Table(show_header=False)
    table.add_row("events merged", f"{events:,} in {len(lines)} micro-batches")
    # The first batch and what came before it are the start of Spark; the restart after the kill counts.
    lasted = lines[-1]["at"] - lines[0]["at"]
    if lasted > 0:
        rate = sum(line["events"] for line in lines[1:]) / lasted
        table.add_row("rate", f"{rate:,.0f} events a second after the first micro-batch")
    if lags:
        median, most, largest = (quantile(lags, share) for share in (0.5, 0.99, 1))
        table.add_row("lag", f"median {median:.1f} s, p99 {most:.1f} s, largest {largest:.1f} s")
    killed = "never: there was too little to do"
    if killed_at is not None:
        wait = min((line["at"] for line in lines if line["at"] > killed_at), default=killed_at) - killed_at
        killed = f"once; the next micro-batch came {wait:.0f} s later; {twice} came twice"
    table.add_row("killed", killed)
    table.add_row("time", f"{seconds:.0f} s")
    table.add_row("chart", str(places.chart))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
