"""Prints the output for a person: progress during the run, and the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from benchmarks.result import Result, figure
from benchmarks.row import Row

__all__ = ["console", "progress", "show"]

_COLORS: Final = {"met": "green", "missed": "yellow", "failed": "bold red"}
_PIPED_WIDTH: Final = 160

Step = Callable[[int, int], None]


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; in a pipe it prints plain text in long lines."""
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=_PIPED_WIDTH)


@contextmanager
def progress(rows: Sequence[Row]) -> Iterator[Callable[[Row], Step]]:
    """Show progress on stderr: a bar in a terminal, one line per row elsewhere.

    Yields:
        A function that must be called when a row begins. It returns a second function, which must
        be called after each pair of runs.
    """
    screen = console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[at]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bars:
        overall = bars.add_task("all rows", total=len(rows), at="")
        begun = 0

        def begin(row: Row) -> Step:
            nonlocal begun
            begun += 1
            bars.update(overall, completed=begun - 1, at=f"row {begun} of {len(rows)}")
            if not screen.is_terminal:
                screen.print(f"{begun}/{len(rows)} {row.name}", markup=False)
            for task in bars.task_ids[1:]:
                bars.remove_task(task)
            current = bars.add_task(row.title, total=row.pairs + row.warm_up, at="preparing")

            def step(done: int, pairs: int) -> None:
                bars.update(current, completed=done, at=f"pair {done} of {pairs}")

            return step

        yield begin


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
