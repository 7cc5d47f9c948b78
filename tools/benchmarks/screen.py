"""Prints the output for a person: what runs now, and the table at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.result import Result, figure
from benchmarks.row import Row

__all__ = ["announced", "console", "show"]

_COLORS: Final = {"met": "green", "missed": "yellow", "failed": "bold red"}
_PIPED_WIDTH: Final = 160


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; in a pipe it prints plain text in long lines."""
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=_PIPED_WIDTH)


def announced(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield rows, and print a line on stderr before each."""
    screen = console(stderr=True)
    for number, row in enumerate(rows, start=1):
        screen.print(f"{number}/{len(rows)} {row.name}", markup=False)
        yield row


def show(screen: Console, rows: Sequence[Row], results: Sequence[Result]) -> None:
    """Print each question with its answer, further figures, and why goals are missed."""
    table = Table(box=box.SIMPLE)
    table.add_column("row", no_wrap=True)
    table.add_column("question")
    for title in ("ours", "by hand", "ratio", "goal", "verdict"):
        table.add_column(title, justify="left" if title == "verdict" else "right", no_wrap=True)
    for row, result in zip(rows, results, strict=True):
        table.add_row(row.name, row.question, *_cells(result))
    screen.print(table)
    for result in results:
        for name, value in result.notes.items():
            screen.print(f"{result.name}: {name}: {figure(value)}", markup=False)
    for result in results:
        if not result.ok:
            color = _COLORS[result.verdict]
            reason = result.reason or f"{result.achieved_text}, and the goal is {result.goal_text}"
            screen.print(Text.assemble((f"{result.name} {result.verdict}", color), f": {reason}"))


def _cells(result: Result) -> list[str | Text]:
    return [
        figure(result.value, result.unit),
        "" if result.baseline is None else figure(result.baseline),
        "" if result.ratio is None else f"{result.ratio:.2f}",
        result.goal_text,
        Text(result.verdict, _COLORS[result.verdict]),
    ]
