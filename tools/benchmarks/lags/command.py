"""The command line: `python -m benchmarks.lags`."""

from __future__ import annotations

import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.lags.page import table_of, write_docs
from benchmarks.lags.reader import READERS
from benchmarks.lags.record import Record, Row
from benchmarks.lags.run import SERVICES, measure
from benchmarks.record import ROOT, setting

__all__ = ["app"]

_SECONDS: Final = 600.0
_RATE: Final = 20.0

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def lags(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure only this database; may be repeated.")
    ] = None,
    reader: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure only this reader: events or spark.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=4.0, help="How long changes are committed.")] = _SECONDS,
    rate: Annotated[float, typer.Option(min=1.0, help="How many changes are committed in a second.")] = _RATE,
    at_once: Annotated[int, typer.Option(min=1, help="How many runs are made side by side.")] = 1,
    record: Annotated[bool, typer.Option("--record", help="Write these rows of the documentation.")] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Write the page again from the JSON file, without measuring.")
    ] = False,
) -> None:
    """Measure how late a handler gets each change; takes ten minutes for each database and reader."""
    kept = Record.read()
    if redraw:
        if not kept.rows:
            raise _refused("there is no record yet; make one: python -m benchmarks.lags --record")
        write_docs(kept)
        return
    for kind, asked, known in (("database", only, SERVICES), ("reader", reader, READERS)):
        unknown = [name for name in asked or () if name not in known]
        if unknown:
            raise _refused(f"there is no {kind} {unknown[0]!r}; the {kind}s are {', '.join(known)}")
    if record and (seconds < _SECONDS or rate != _RATE):
        raise _refused(f"--record needs {_SECONDS:g} seconds and {_RATE:g} changes a second")

    def row(service: str, kind: str) -> Row:
        commit, day = _commit(), datetime.now(UTC).date().isoformat()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found, load = measure(service, kind, seconds, rate, Path(folder))
        return Row(service, kind, found, rate, round(load, 2), commit, day, setting())

    with ThreadPoolExecutor(at_once) as pool:  # they mostly wait
        runs = [pool.submit(row, *which) for which in product(only or SERVICES, reader or READERS)]
        rows = [run.result() for run in runs]
    typer.echo(table_of(rows))
    if record:
        write_docs(Record.read().merged(rows, SERVICES))


def _commit() -> str:
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _refused(message: str) -> typer.Exit:
    """Format an error as one line."""
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(2)
