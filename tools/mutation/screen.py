"""Prints the output for a person: progress during the run, the survivors, and the final table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mutation.mutant import Mutant
from mutation.running import LATE, NOT_RUN, SURVIVED, Outcome

__all__ = ["Tally", "console", "progress", "show", "tally"]

_PIPED_WIDTH: Final = 160


@attrs.frozen
class Tally:
    """The figures of a run, or of one module.

    Attributes:
        planted: The number of mutants that were chosen.
        compile: The number of planted mutants that are valid programs.
        equivalent: The number of planted mutants that are listed as equivalent.
        killed: The number of mutants that a test found.
        late: The number of killed mutants that a time limit ended.
        survived: The number of mutants that no test found.
        not_run: The number of mutants that were not started before the time limit.
    """

    planted: int
    compile: int
    equivalent: int
    killed: int
    late: int
    survived: int
    not_run: int

    @property
    def rate(self) -> float:
        """Return the share of killed mutants among the mutants that ran and are not equivalent."""
        ran = self.killed + self.survived
        return self.killed / ran if ran else 1.0


def tally(mutants: Sequence[Mutant], equivalent: set[str], outcomes: dict[str, Outcome]) -> Tally:
    """Count the results of a run.

    Args:
        mutants: The chosen mutants.
        equivalent: The names of the mutants that are listed as equivalent.
        outcomes: The results of the mutants that compile and are not equivalent, by name.
    """
    programs = [mutant for mutant in mutants if mutant.compiles]
    found = [outcomes[each.name] for each in programs if each.name in outcomes]
    return Tally(
        planted=len(mutants),
        compile=len(programs),
        equivalent=sum(each.name in equivalent for each in programs),
        killed=sum(outcome.killed for outcome in found),
        late=sum(outcome.status == LATE for outcome in found),
        survived=sum(outcome.status == SURVIVED for outcome in found),
        not_run=sum(outcome.status == NOT_RUN for outcome in found),
    )


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; in a pipe it prints plain text in long lines."""
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=_PIPED_WIDTH)


@contextmanager
def progress(total: int) -> Iterator[Callable[[Mutant, Outcome], None]]:
    """Show progress on stderr: a bar in a terminal, one line per mutant elsewhere.

    Yields:
        A function to call when a mutant is done.
    """
    screen = console(stderr=True)
    columns = (TextColumn("mutants"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    counted = 0
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bars:
        task = bars.add_task("", total=total)

        def step(mutant: Mutant, outcome: Outcome) -> None:
            nonlocal counted
            counted += 1
            bars.advance(task)
            if not screen.is_terminal:
                place = f"{mutant.file}:{mutant.lines[0]}"
                text = f"{counted}/{total} {mutant.name} {outcome.status} {outcome.seconds:.0f}s {place}"
                screen.print(f"{text} {outcome.by}", markup=False, soft_wrap=True)

        yield step


def show(
    screen: Console, mutants: Sequence[Mutant], equivalent: set[str], outcomes: dict[str, Outcome]
) -> None:
    """Print the survivors as entries for `equivalents.toml`, and the table."""
    for mutant in mutants:
        outcome = outcomes.get(mutant.name)
        if outcome is not None and outcome.status == SURVIVED:
            screen.print(_entry(mutant, outcome), markup=False, soft_wrap=True)
    table = Table(box=box.SIMPLE)
    table.add_column("module", no_wrap=True)
    titles = ("planted", "compile", "equivalent", "killed", "by time limit", "survived", "not run", "rate")
    for title in titles:
        table.add_column(title, justify="right")
    for file in sorted({mutant.file for mutant in mutants}):
        some = [mutant for mutant in mutants if mutant.file == file]
        table.add_row(file, *_cells(tally(some, equivalent, outcomes)))
    table.add_section()
    table.add_row("all", *_cells(tally(mutants, equivalent, outcomes)))
    screen.print(table)


def _cells(figures: Tally) -> list[str]:
    return [*map(str, attrs.astuple(figures)), f"{figures.rate:.1%}"]


def _entry(mutant: Mutant, outcome: Outcome) -> str:
    """Return the entry of a survivor as TOML; comments contain its place and the number of tests."""
    first, last = mutant.lines
    lines = [
        f"# survived {outcome.tests} tests: {mutant.name}, lines {first} to {last}, {mutant.operator}",
        "[[equivalent]]",
        f"file = {quoted(mutant.file)}",
        f"function = {quoted(mutant.function)}",
        f"before = {quoted(mutant.before)}",
        f"after = {quoted(mutant.after)}",
        *([f"nth = {mutant.nth}"] if mutant.nth else []),
        'reason = ""',
        "",
    ]
    return "\n".join(lines)


def quoted(text: str) -> str:
    """Return a TOML string, as a literal string if possible.

    Args:
        text: One line.
    """
    if "'" not in text:
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
