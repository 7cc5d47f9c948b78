"""The command line: `python -m benchmarks.peers`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from benchmarks.peers.feeds import Size
from benchmarks.peers.peer import Group, Peer
from benchmarks.peers.peers import PEERS
from benchmarks.peers.run import Plan, measure
from benchmarks.peers.screen import progress, show
from benchmarks.screen import console

__all__ = ["app", "choose", "plan"]

_EVENTS: Final = 100_000
_RUNS: Final = 3
_WARM_UP: Final = 5
"""One change to warm up for this many that are measured."""
_TAIL: Final = 5000
"""More than two batches of Debezium."""
_LATENCY: Final = 50
"""One change in the latency group for this many in the others, because these come at a fixed rate."""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def bench(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only this peer; repeat it for more.")
    ] = None,
    events: Annotated[int, typer.Option(min=500, help="How many changes are measured in each run.")] = _EVENTS,
    runs: Annotated[int, typer.Option(min=1, help="How often each peer runs; medians count.")] = _RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure multiclouddb beside other readers of the same feeds; takes some ten minutes.

    The first run fetches the peers. The exit code is 0 if every peer ran or is missing, and 1 if a peer failed
    or did not deliver every change exactly once.
    """
    peers = choose(only)
    if (load := os.getloadavg()[0]) > 1.0:
        typer.echo(f"warning: the machine is busy (load {load:.1f})", err=True)
    with progress(peers, runs) as step:
        outcomes = measure(peers, plan(events, runs), step)
    if as_json:
        typer.echo(json.dumps([outcome.to_json() for outcome in outcomes], indent=2))
    else:
        show(console(), peers, outcomes)
    if any(outcome.state == "failed" for outcome in outcomes):
        raise typer.Exit(1)


def choose(only: Sequence[str] | None) -> list[Peer]:
    """Return the selected peers, in the order of the tables; all peers by default."""
    wanted = [name for names in only or [] for name in names.replace(",", " ").split()]
    known = {peer.name: peer for peer in PEERS}
    for name in wanted:
        if name not in known:
            typer.echo(f"error: there is no peer {name!r}; the peers are {', '.join(known)}", err=True)
            raise typer.Exit(2)
    return [peer for peer in known.values() if not wanted or peer.name in wanted]


def plan(events: int, runs: int) -> Plan:
    """Return how much is measured in each group."""
    size, few = Size(events, events // _WARM_UP, _TAIL), max(100, events // _LATENCY)
    return Plan({Group.MONGO: size, Group.DYNAMO: size, Group.LATENCY: Size(few, few // _WARM_UP)}, runs)
