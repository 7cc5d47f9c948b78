"""`make demo` mirrors flights from the embedded store into a Delta table, and kills the mirror once.

Half of the flights exist at the start: `multiclouddb mirror` copies them first, then merges every change.
While the writer still runs, `multiclouddb verify` proves that the table is equal; at the end each row is
compared.
"""

from __future__ import annotations

import argparse
import os
import shlex
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

from demo.chart import Behind, draw, lag, spread
from demo.flights import ALL_ROWS
from demo.places import COLLECTION, Places, read_lines
from demo.proof import Proof, compare
from demo.table import Merge, look, merges

__all__ = ["main"]

_POLL_SECONDS: Final = 0.2
_SHOWN: Final = 5
_KILL_AT: Final = 0.6
"""The part of the flights that are in the table when the mirror is killed, so that it merges changes then."""
_VERIFY_AT: Final = 0.8
"""The part of the flights that are in the table when it is compared."""


class _Run:
    """Runs the writer and the mirror at the same time, and kills the mirror once."""

    def __init__(self, places: Places, rows: int) -> None:
        self._places, self._rows = places, rows
        self._log = (places.root / "demo.log").open("ab")
        self.killed_at: float | None = None
        self.proof: Proof | None = None
        self.behind: list[Behind] = []

    def run(self, progress: Progress) -> None:
        """Start the writer and the mirror, kill the mirror once, and end when all is merged."""
        progress.console.print(f"$ {shlex.join(['multiclouddb', *self._words])}", style="bold", markup=False)
        merged = progress.add_task("flights in the table", total=self._rows)
        writer = self._start("demo.writer", str(self._places.root), str(self._rows))
        mirror: subprocess.Popen[bytes] | None = None
        try:
            while writer.poll() is None:
                times = [line["at"] for line in read_lines(self._places.written)]
                if mirror is None and times:
                    mirror = self._mirror()
                found, now = look(self._places.table), time.time()
                if times and found.newest > times[0]:
                    self.behind.append((now, lag(now, found.newest, times)))
                done = found.rows / self._rows
                progress.update(merged, completed=found.rows)
                if mirror is not None and self.killed_at is None and done >= _KILL_AT:
                    self.killed_at = now
                    _kill(mirror)
                    progress.console.print("[bold red]SIGKILL[/] to the mirror; starting it again")
                    mirror = self._mirror()
                if self.proof is None and self.killed_at is not None and done >= _VERIFY_AT:
                    self.proof = Proof(self._places)
                self._check(writer, mirror)
                time.sleep(_POLL_SECONDS)
            self._check(writer, mirror)
            assert mirror is not None
            mirror.terminate()  # it ends after the page at which it is
            mirror.wait()
            self._check(mirror)
            mirror = self._mirror(follow=False)
            mirror.wait()
            self._check(mirror)
            if self.proof is not None:
                self.proof.wait()
        finally:
            for process in (writer, mirror):
                if process is not None and process.poll() is None:
                    _kill(process)
        progress.update(merged, completed=self._rows)

    @property
    def _words(self) -> list[str]:
        return ["mirror", self._places.url, COLLECTION, "--target", f"delta:{self._places.table}", "--follow"]

    def _mirror(self, follow: bool = True) -> subprocess.Popen[bytes]:
        return self._start("multiclouddb_cli", *(self._words if follow else self._words[:-1]))

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)

    def _check(self, *processes: subprocess.Popen[bytes] | None) -> None:
        for process in processes:
            if process is not None and process.poll():
                name = self._places.root / "demo.log"
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
    console = Console()
    console.print(f"Mirroring {options.rows:,} flights; files are in {places.root}")
    run, began = _Run(places, options.rows), time.time()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        run.run(progress)
    seconds = time.time() - began
    merged = merges(places.table)
    draw(places, merged, run.behind, run.killed_at)
    _report(console, places, merged, seconds, run)
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
        "--rows", type=_rows, default=os.environ.get("ROWS") or ALL_ROWS, help="flights to mirror"
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


def _report(console: Console, places: Places, merged: list[Merge], seconds: float, run: _Run) -> None:
    table = Table(show_header=False)
    table.add_row("merged", f"{sum(merge.rows for merge in merged):,} rows in {len(merged)} commits")
    if run.behind:
        table.add_row("behind", spread(run.behind))
    killed = run.killed_at or 0.0
    wait = min((merge.at for merge in merged if merge.at > killed), default=killed) - killed
    table.add_row("killed", f"once; the next commit came {wait:.0f} s later")
    table.add_row("time", f"{seconds:.0f} s")
    table.add_row("chart", str(places.chart))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
