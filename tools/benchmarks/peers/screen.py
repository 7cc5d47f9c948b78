"""Prints the output for a person: progress during the run, and the tables at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from benchmarks.peers.goals import GOALS
from benchmarks.peers.peer import Group, Peer
from benchmarks.peers.report import Outcome
from benchmarks.peers.run import Step
from benchmarks.result import figure
from benchmarks.screen import console

__all__ = ["COLUMNS", "cells", "progress", "show"]

COLUMNS: Final = {
    Group.MONGO: ("events/s", "CPU s for 100,000", "peak MiB"),
    Group.DYNAMO: ("events/s", "CPU s for 100,000", "peak MiB"),
    Group.LATENCY: ("median ms", "p99 ms", "peak MiB"),
}


def cells(group: Group, outcome: Outcome) -> tuple[str, str, str]:
    """Return the figures of a line, in the order of the columns."""
    if group is Group.LATENCY:
        return figure(outcome.median_ms), figure(outcome.p99_ms), figure(outcome.mebibytes)
    return figure(outcome.rate), figure(outcome.cpu), figure(outcome.mebibytes)


@contextmanager
def progress(peers: Sequence[Peer], runs: int) -> Iterator[Step]:
    """Show progress on stderr: a bar in a terminal, one line per run elsewhere.

    Yields:
        A function to call before each run.
    """
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bars:
        task = bars.add_task("starting a server", total=len(peers) * runs)

        def step(peer: Peer, run: int) -> None:
            bars.update(task, advance=1, description=f"{peer.name}, run {run} of {runs}")
            if not screen.is_terminal:
                screen.print(f"{peer.name}, run {run} of {runs}", markup=False)

        yield step


def show(screen: Console, peers: Sequence[Peer], outcomes: Sequence[Outcome]) -> None:
    """Print a table for each group, and the reasons why some peers have no figures."""
    for group in Group:
        lines = [
            (peer, outcome) for peer, outcome in zip(peers, outcomes, strict=True) if peer.group is group
        ]
        if not lines:
            continue
        table = Table(box=box.SIMPLE, title=group.value, title_justify="left", title_style="bold")
        table.add_column("peer", no_wrap=True)
        table.add_column("", no_wrap=True)
        for title in COLUMNS[group]:
            table.add_column(title, justify="right")
        for peer, outcome in lines:
            table.add_row(peer.name, peer.title.replace("`", ""), *cells(group, outcome))
        screen.print(table)
    _show_goals(screen, {outcome.name: outcome for outcome in outcomes})
    for outcome in outcomes:
        if outcome.state != "measured":
            color = "yellow" if outcome.state == "missing" else "bold red"
            line = Text.assemble((f"{outcome.name} {outcome.state}", color), f": {outcome.reason}")
            screen.print(line, soft_wrap=True)


def _show_goals(screen: Console, outcomes: Mapping[str, Outcome]) -> None:
    """Print the goals whose figures were measured."""
    goals = [goal for goal in GOALS if goal.achieved(outcomes) is not None]
    if not goals:
        return
    table = Table(box=box.SIMPLE, title="Goals", title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for title in ("figure", "bound", "verdict"):
        table.add_column(title, justify="left" if title == "verdict" else "right")
    for goal in goals:
        title, achieved, bound, verdict = goal.line(outcomes)
        table.add_row(
            title.replace("`", ""), achieved, bound, Text(verdict, "green" if verdict == "met" else "yellow")
        )
    screen.print(table)
