"""The command line: `python -m benchmarks`. Each row runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import attrs
import typer

from benchmarks.measure import failure
from benchmarks.page import write_docs
from benchmarks.record import Record, setting
from benchmarks.result import Result
from benchmarks.row import Row, load_rows
from benchmarks.screen import announced, console, show

__all__ = ["app", "choose", "run_all"]

_QUIET: Final = 0.25
"""The highest load per core at which the figures are useful."""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def bench(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only this row; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    record: Annotated[
        bool,
        typer.Option("--record", help="Write the figures into the docs: page and JSON file."),
    ] = False,
    redraw: Annotated[
        bool,
        typer.Option("--redraw", help="Write the page again from the JSON file, without measuring."),
    ] = False,
    scale: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="FRACTION", help="Do only this fraction of the work.")
    ] = 1.0,
) -> None:
    """Measure multiclouddb and compare it with hand-written code; takes about ten minutes.

    The exit code is 0 if all rows ran, even if they missed their goals, and 1 if a row failed.
    """
    if redraw:
        _redraw()
        return
    if record and scale < 1:
        raise _refused("--scale measures too little for a record; leave it or --record out")
    rows = choose(only)
    if (load := os.getloadavg()[0]) > _QUIET * (os.cpu_count() or 1):
        typer.echo(f"warning: the machine is busy (load {load:.1f}); rows with threads suffer most", err=True)
    results = run_all(rows, scale)
    if record:
        _keep(results)
    _tell(rows, results, as_json=as_json)
    if any(result.failed for result in results):
        raise typer.Exit(1)


def choose(only: Sequence[str] | None) -> list[Row]:
    """Return the selected rows, in the order of the table; all rows by default."""
    known = load_rows()
    wanted = [name for names in only or [] for name in names.replace(",", " ").split()]
    for name in wanted:
        if name not in known:
            raise _refused(f"there is no row {name!r}; the rows are {', '.join(known)}")
    return [row for row in known.values() if not wanted or row.name in wanted]


def run_all(rows: Sequence[Row], scale: float = 1.0) -> list[Result]:
    """Run rows one after another; if one fails, the others still run."""
    return [_alone(row, scale) for row in announced(rows)]


def _alone(row: Row, scale: float) -> Result:
    """Run a row in a process of its own: what a row leaves, such as a JVM, cannot change the next one."""
    command = [sys.executable, "-m", "benchmarks.alone", row.name, str(scale)]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=printed, text=True, check=False)
        if ran.stdout:
            return Result.from_json(json.loads(ran.stdout))
        printed.seek(0)
        last = (printed.read().strip().splitlines() or ["it printed nothing"])[-1]
    return failure(row, RuntimeError(f"its process ended with {ran.returncode}: {last}"))


def _tell(rows: Sequence[Row], results: Sequence[Result], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([result.to_json() for result in results], indent=2))
    else:
        show(console(), rows, results)


def _redraw() -> None:
    kept = Record.read()
    if kept is None:
        raise _refused("there is no record yet; make one: python -m benchmarks --record")
    write_docs(kept)


def _keep(results: Sequence[Result]) -> None:
    day, here = datetime.now(UTC).date().isoformat(), setting()
    dated = [attrs.evolve(result, recorded=day, setting=here) for result in results]
    write_docs((Record.read() or Record()).merged(dated, load_rows()))


def _refused(message: str) -> typer.Exit:
    """Format an error as one line."""
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(2)
