"""The command `multiclouddb certify`, which the command line finds by its entry point."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

import multiclouddb_api as api
from multiclouddb_cli.exits import DIFFERENT, INTERRUPTED

if TYPE_CHECKING:
    from multiclouddb_certify.certification import RunPlace
    from multiclouddb_certify.progress import Progress
    from multiclouddb_certify.run import Plan

__all__ = ["app"]

_RUN: Final = "run"
_SHORT: Final = 90


Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="A URL or a .toml file, as `connect` accepts them, or env:NAME for a URL in a variable.",
        show_default=False,
    ),
]
Account = Annotated[
    str | None, typer.Option("--account", metavar="ID", help="Repeat the id of the account or project.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Budget = Annotated[float, typer.Option("--budget", min=0.0, metavar="USD", help="The most to spend.")]


class _Group(TyperGroup):
    """Runs `run` if the first word is no command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Group, rich_markup_mode=None, help="Prove the library on your own account, with a bounded bill."
)


@app.command(_RUN)
def run(
    url: Url,
    account: Account = None,
    yes: Yes = False,
    budget: Budget = 2.0,
    only: Annotated[
        str | None, typer.Option("--only", metavar="EXPR", help="Only these tests, as in pytest -k.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FOLDER", help="Where the report goes.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--plan", help="Show the plan, and end.")] = False,
    price: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="UNIT=USD", help="Your own price of a unit that the plan shows."),
    ] = None,
) -> None:
    """Show the plan, ask, run the conformance suite, remove everything, and write a report.

    The exit code is 0 if every test passed, and 11 if one failed or did not run.
    """
    from multiclouddb_certify.report import content_of, new_folder, write_report
    from multiclouddb_certify.run import RunEnd, certify
    from multiclouddb_certify.run import plan as planned
    from multiclouddb_certify.source import url_of

    if report is not None:
        new_folder(report)

    def check(place: RunPlace) -> None:
        if not dry_run:
            _check_account(place.account, account)

    with planned(url_of(url), budget, only, check, price or ()) as plan:
        folder = new_folder(report or Path(f"certify-{plan.run.name}"))
        typer.echo("\n".join(_lines_of(plan, budget)))
        if dry_run:
            return
        _agree(plan, budget, yes=yes)
        log = folder.with_name(f"{folder.name}.log")
        with _screen(len(plan.tests), budget) as show:
            progress, ended, left = certify(plan, show, log)
        write_report(folder, content_of(plan, progress, ended, budget, progress.seconds))
    outcomes = Counter(test.outcome for test in progress.tests.values())
    typer.echo(
        f"{ended}: {outcomes['passed']} of {len(plan.tests)} tests passed, {outcomes['failed']} failed; "
        f"${progress.usd:.4f}; report: {folder}"
    )
    if log.exists():
        typer.echo(f"{log} is not to be attached: it may contain names and values")
    for name in left:
        typer.echo(f"could not be removed: {name}; run: multiclouddb certify clean URL", err=True)
    if progress.refusal is not None and not left:
        category, message = progress.refusal
        raise api.MulticloudDbError(message, api.ErrorDetail(api.ErrorCategory(category)))
    if ended == RunEnd.INTERRUPTED:
        raise typer.Exit(INTERRUPTED)
    if outcomes["passed"] < len(plan.tests) or left:
        raise typer.Exit(DIFFERENT)


def _agree(plan: Plan, budget: float, *, yes: bool) -> None:
    from multiclouddb_certify.wire import dollars

    if budget < plan.largest or budget <= 0:
        raise api.invalid_request(
            "--budget",
            f"${budget:g} is too small for one test",
            f"it has to be at least {dollars(plan.largest)}",
        )
    _ask(yes=yes)


def _check_account(planned: str, account: str | None) -> None:
    if account != planned:
        given = "is missing" if account is None else f"is {account!r}"
        raise api.invalid_request("--account", given, f"the plan is for --account {planned}: repeat it")


def _ask(*, yes: bool) -> None:
    if not yes:
        if not sys.stdin.isatty():
            raise api.invalid_request("--yes", "is missing, and nobody can be asked", "add it")
        if not typer.confirm("Create this?"):
            typer.echo("nothing was created")
            raise typer.Exit(INTERRUPTED)


@app.command()
def clean(
    url: Url,
    name: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="Only this run or drill, whoever owns it."),
    ] = None,
) -> None:
    """Remove what interrupted runs left: those of this user, and those that have expired."""
    from multiclouddb_certify.run import clean as remove
    from multiclouddb_certify.source import url_of

    removed, kept = remove(url_of(url), name)
    for each in removed:
        typer.echo(f"removed {each}")
    for each, why in kept.items():
        typer.echo(f"kept {each}: {why}")
    if not removed and not kept:
        typer.echo("nothing was left")


def _lines_of(plan: Plan, budget: float) -> Iterator[str]:
    place = plan.place
    yield f"run          {plan.run.name}, expires {plan.run.expires:%Y-%m-%d %H:%M} UTC"
    yield f"where        {place.service}, account {place.account}, region {place.region or 'none'}"
    for line in plan.creates:
        yield f"creates      {line}"
    by_result: dict[tuple[str, str], list[str]] = {}
    for each in plan.permissions:
        by_result.setdefault((each.granted.value, each.reason), []).append(each.name)
    for (granted, reason), names in by_result.items():
        yield f"permissions  {granted}{f' ({reason})' if reason else ''}: {', '.join(names)}"
    yield f"tests        {len(plan.tests)}; {sum(plan.deselected.values())} cannot run here"
    for unit, number in sorted(plan.units.items()):
        yield f"uses         about {number:,.0f} x {unit}"
    for price in plan.prices:
        yield f"price        ${_plain(price.usd)} a {price.unit}: {price.source}"
    guessed = f"; {plan.unmeasured} tests were never measured" if plan.unmeasured else ""
    yield f"costs        about ${plan.usd:.4f}, at most ${budget:.2f}{guessed}"
    takes = f"{plan.seconds / 60:.0f} minutes" if plan.seconds > _SHORT else f"{plan.seconds:.0f} seconds"
    yield f"takes        about {takes}"


def _plain(number: float) -> str:
    return f"{number:.12f}".rstrip("0").rstrip(".")


@contextmanager
def _screen(tests: int, budget: float) -> Iterator[Callable[[Progress], None]]:
    """Show the current test, the elapsed time and the cost: on a terminal a bar, otherwise a line a test."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        shown: set[str] = set()

        def line(progress: Progress) -> None:
            for test in progress.tests.values():
                if test.seconds and test.name not in shown:
                    shown.add(test.name)
                    typer.echo(
                        f"{test.outcome} {test.name} ({test.seconds:.1f}s, ${progress.usd:.4f})", err=True
                    )

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=tests)

        def update(progress: Progress) -> None:
            ended = sum(test.seconds > 0 for test in progress.tests.values())
            text = f"${progress.usd:.4f} of ${budget:.2f}  {progress.current or ''}"
            bar.update(task, completed=ended, description=text)

        yield update


Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The folder of `certify start`.", show_default=False)
]


@app.command("drills")
def list_drills() -> None:
    """List the drills: what a service does slowly, and what shows it."""
    from multiclouddb_certify.drills import DRILLS

    for name, drill in DRILLS.items():
        typer.echo(f"{name}: {drill.provider}: {drill.about}")
        for number, step in enumerate(drill.steps, 1):
            typer.echo(f"  {number}. {step.text}")


@app.command()
def start(
    url: Url,
    drill: Annotated[str, typer.Option("--drill", metavar="NAME", help="See `certify drills`.")],
    account: Account = None,
    yes: Yes = False,
    budget: Budget = 2.0,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="FOLDER", help="Where it is stored.")
    ] = None,
) -> None:
    """Start a drill; `certify resume` picks it up hours later."""
    from multiclouddb_certify.drills import DRILLS, least_cost
    from multiclouddb_certify.drills import start as begin
    from multiclouddb_certify.run import look
    from multiclouddb_certify.wire import dollars

    chosen = folder or Path(f"drill-{drill}")
    state, certification, run = begin(drill, url, chosen, budget)
    place, _ = look(certification, state.url, run, lambda place: _check_account(place.account, account))
    typer.echo(f"run          {run.name}, expires {run.expires:%Y-%m-%d %H:%M} UTC")
    typer.echo(f"where        {place.service}, account {place.account}, region {place.region or 'none'}")
    for line in certification.creates(state.url, run):
        typer.echo(f"creates      {line}")
    for unit, number in DRILLS[drill].least.items():
        typer.echo(f"uses         at least {number:,.0f} x {unit}, in each clock hour that it waits")
    for price in certification.prices:
        typer.echo(f"price        ${_plain(price.usd)} a {price.unit}: {price.source}")
    typer.echo(f"costs        at least {dollars(least_cost(drill, certification))}, at most ${budget:.2f}")
    _ask(yes=yes)
    _go_on(chosen, state)


@app.command()
def resume(folder: Folder) -> None:
    """Go on with a drill. If it has to wait longer, it says for what, and can be resumed again."""
    _go_on(folder, None)


def _go_on(folder: Path, state: Any) -> None:
    from multiclouddb_certify.drills import resume as go_on

    try:
        state, wait = go_on(folder, state, typer.echo)
    except KeyboardInterrupt:
        typer.echo(
            f"interrupted; what it has created goes on costing. Go on: multiclouddb certify resume {folder}; "
            "or give it up: multiclouddb certify clean URL --run NAME, with the run in its drill.json"
        )
        raise typer.Exit(INTERRUPTED) from None
    if wait is None:
        typer.echo(f"done: the drill passed; ${state.usd:.4f}; report: {folder}")
    else:
        costs = f"; each clock hour costs ${state.hourly:.2f}" if state.hourly else ""
        typer.echo(
            f"waits: {wait.reason}{costs}; run in about {wait.hours:g} hours: "
            f"multiclouddb certify resume {folder}"
        )
