"""The command line: `python -m mutation`."""

from __future__ import annotations

import os
import time
from typing import Annotated, Final, TypeAlias

import typer

from mutation.equivalents import Equivalent, read_equivalents, stale
from mutation.mutant import Mutant, mutants_of, sample
from mutation.running import Outcome, Runner
from mutation.screen import console, progress, show, tally
from mutation.settings import FOLDER, Settings
from mutation.tracing import FailingTestsError, Traces, trace

__all__ = ["app"]

ROOT: Final = FOLDER.parents[1]
_SETTINGS: Final = "mutation.toml"
_Chosen: TypeAlias = Annotated[
    str,
    typer.Option(
        "--settings",
        metavar="FILE",
        help="The settings file in tools/mutation/; spanner.toml plants them in the Spanner provider.",
    ),
]
_Equivalents: TypeAlias = Annotated[
    bool, typer.Option("--equivalents", help="Try only the defects that are listed as equivalent.")
]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def mutate(
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="The number of parallel processes.")] = max(
        1, (os.cpu_count() or 2) - 1
    ),
    seed: Annotated[int | None, typer.Option(help="The seed for choosing the planted defects.")] = None,
    number: Annotated[int | None, typer.Option(min=1, help="The number of planted defects.")] = None,
    minutes: Annotated[float | None, typer.Option(help="No further defect is tried after this time.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Plant only defects whose name or file contains this text."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only print the defects.")] = False,
    chosen: _Chosen = _SETTINGS,
    equivalents: _Equivalents = False,
) -> None:
    """Put defects into engine, iterator, stores and embedded reader; count the defects that tests find.

    The exit code is 0 if at least the required share of the mutants is killed. The exit code is 1 if the
    share of killed mutants is too low, if too few mutants ran, or if an entry in equivalents.toml is out of
    date.
    """
    settings = Settings.read(FOLDER / chosen, ROOT)
    began = time.monotonic()
    until = began + 60 * (settings.minutes if minutes is None else minutes)
    possible = [mutant for file in settings.modules for mutant in mutants_of(ROOT, file)]
    known = _known(settings, chosen)
    same = {entry.identity for entry in known}
    mutants = sample(possible, settings.seed if seed is None else seed, number or settings.number)
    if equivalents:
        mutants = [mutant for mutant in possible if mutant.identity in same]
    if only:
        mutants = [each for each in mutants if any(text in f"{each.name} {each.file}" for text in only)]
    if listed:
        _list(mutants)
        return
    tried = [each for each in mutants if each.compiles and (equivalents or each.identity not in same)]
    outcomes = _tried(settings, _traced(settings, jobs), tried, jobs, until)
    passed = _told(mutants, same, outcomes, 0 if only or number else settings.least, settings.goal)
    if equivalents:
        passed = _sound(outcomes)
    console().print(f"{time.monotonic() - began:.0f} seconds with {jobs} processes")
    raise typer.Exit(not (_fresh(known, possible) and passed))


def _known(settings: Settings, chosen: str) -> list[Equivalent]:
    """Return the entries of equivalents.toml.

    For a settings file other than the default, return only the entries for the modules in this file.
    """
    listed = read_equivalents(FOLDER / "equivalents.toml")
    return [entry for entry in listed if chosen == _SETTINGS or entry.file in settings.modules]


def _list(mutants: list[Mutant]) -> None:
    screen = console()
    for mutant in mutants:
        screen.print(f"{mutant.name} {mutant.file}:{mutant.lines[0]} {mutant.function}", markup=False)
        screen.print(f"  - {mutant.before}\n  + {mutant.after}", markup=False, soft_wrap=True)


def _told(
    mutants: list[Mutant],
    same: set[tuple[str, str, str, str, int]],
    outcomes: dict[str, Outcome],
    least: int,
    goal: float,
) -> bool:
    """Show the survivors and the figures; return True if enough mutants ran and enough were killed."""
    equivalent = {each.name for each in mutants if each.identity in same}
    show(console(), mutants, equivalent, outcomes)
    figures = tally(mutants, equivalent, outcomes)
    if figures.killed + figures.survived < least:
        console().print(f"fewer than {least} ran: give more minutes or jobs")
        return False
    return figures.rate >= goal


def _sound(outcomes: dict[str, Outcome]) -> bool:
    """Print mutants that are listed as equivalent but were killed; return True if there are none."""
    wrong = [f"{name}, by {outcome.by}" for name, outcome in outcomes.items() if outcome.killed]
    for text in wrong:
        console().print(f"listed as equivalent, and killed: {text}", markup=False, soft_wrap=True)
    return not wrong


def _fresh(known: list[Equivalent], possible: list[Mutant]) -> bool:
    old = stale(known, possible)
    for entry in old:
        text = f"stale in equivalents.toml, remove it: {entry.file}, {entry.function}: {entry.before}"
        console().print(text, markup=False, soft_wrap=True)
    return not old


def _traced(settings: Settings, jobs: int) -> Traces:
    try:
        traces = trace(settings, ROOT / ".mutation", jobs)
    except FailingTestsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    for name in traces.failed:
        typer.echo(f"is not used, because it does not pass while it is traced: {name}", err=True)
    return traces


def _tried(
    settings: Settings, traces: Traces, mutants: list[Mutant], jobs: int, until: float
) -> dict[str, Outcome]:
    """Run the tests of the mutants. A kill counts only if the failing test passes without the defect."""
    runner = Runner(settings.root, traces.tests)
    slowest, seconds = settings.slowest_test_seconds, settings.tests_seconds
    work = [(mutant, traces.tests_of(mutant, slowest, seconds)) for mutant in mutants]
    if name := runner.control(work):
        typer.echo(f"this test fails in a mutant's process, although no defect is planted: {name}", err=True)
        raise typer.Exit(2)
    with progress(len(work)) as done:
        outcomes = runner.run_all(work, jobs=jobs, until=until, done=done)
    unsound: set[str] = set()
    while True:
        killers = {outcome.by for outcome in outcomes.values() if outcome.by in traces.tests} - unsound
        name = runner.fails(sorted(killers))
        if not name:
            break
        typer.echo(f"also fails without a defect, so it proves nothing: {name}", err=True)
        if name not in killers:
            break
        unsound.add(name)
        again = [
            (mutant, [test for test in names if test not in unsound])
            for mutant, names in work
            if outcomes[mutant.name].by == name
        ]
        with progress(len(again)) as done:
            outcomes |= runner.run_all(again, jobs=jobs, until=until, done=done)
    return outcomes
