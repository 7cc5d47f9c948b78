"""The command line: `python -m benchmarks.costs`."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.costs.cost import Cost
from benchmarks.costs.counting import SERVICES
from benchmarks.costs.page import table_of, write_docs
from benchmarks.costs.record import Record
from benchmarks.record import setting

__all__ = ["app", "count"]

_CHANGES: Final = 10_000
_SECONDS: Final = 60.0

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def costs(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Count only on this service; may be repeated.")
    ] = None,
    changes: Annotated[int, typer.Option(min=100, help="How many changes each reader reads.")] = _CHANGES,
    seconds: Annotated[
        float, typer.Option(min=1.0, help="How long each reader then follows the idle feed.")
    ] = _SECONDS,
    record: Annotated[bool, typer.Option("--record", help="Write the page of the documentation.")] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Write the page again from the JSON file, without counting.")
    ] = False,
) -> None:
    """Count the requests of readers of the same feeds; takes six minutes, most of which are waits."""
    if redraw:
        kept = Record.read()
        if kept is None:
            raise _refused("there is no record yet; make one: python -m benchmarks.costs --record")
        write_docs(kept)
        return
    unknown = [name for name in only or () if name not in SERVICES]
    if unknown:
        raise _refused(f"there is no service {unknown[0]!r}; the services are {', '.join(SERVICES)}")
    if record and (only or changes < _CHANGES or seconds < _SECONDS):
        raise _refused(f"--record needs all services, {_CHANGES:,} changes and {_SECONDS:g} seconds")
    names = list(only or SERVICES)
    rows: list[Cost] = []
    with ThreadPoolExecutor(len(names)) as pool:  # they mostly wait
        for found in pool.map(count, names, repeat(changes), repeat(seconds)):
            typer.echo(table_of(found))
            rows += found
    if record:
        day = datetime.now(UTC).date().isoformat()
        write_docs(Record(tuple(rows), changes, seconds, day, setting()))


def count(service: str, changes: int, seconds: float) -> list[Cost]:
    """Count what the readers of a service send.

    Args:
        service: A name in `SERVICES`.
        changes: The number of changes that each reader reads.
        seconds: How long each reader then follows the idle feed.
    """
    with tempfile.TemporaryDirectory() as folder:
        return list(SERVICES[service](changes, seconds, Path(folder)))


def _refused(message: str) -> typer.Exit:
    """Format an error as one line."""
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(2)
