"""The command line: `python -m benchmarks.peers`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from benchmarks.peers.feeds import Size
from benchmarks.peers.page import tables, write_docs
from benchmarks.peers.peer import Peer
from benchmarks.peers.peers import PEERS
from benchmarks.peers.record import Record
from benchmarks.peers.run import Plan, measure
from benchmarks.record import setting

__all__ = ["app", "choose", "plan"]

_EVENTS: Final = 100_000
_RUNS: Final = 3
_QUIET: Final = 2.0
"""The lowest load of the machine at which figures are not recorded."""
_WARM_UP: Final = 5
"""The number of measured changes for each change in the warm-up."""
_TAIL: Final = 5000
"""The number of changes after the measured ones; it is larger than two batches of Debezium."""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def bench(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only this peer; may be repeated.")
    ] = None,
    events: Annotated[
        int, typer.Option(min=500, help="How many changes are measured in each run.")
    ] = _EVENTS,
    runs: Annotated[int, typer.Option(min=1, help="How often each peer runs; the median is shown.")] = _RUNS,
    record: Annotated[
        bool,
        typer.Option("--record", help="Write the figures into the documentation: charts and JSON file."),
    ] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Write the charts again from the JSON file, without measuring.")
    ] = False,
) -> None:
    """Compare multiclouddb with other readers of the same feeds; takes about fifteen minutes.

    The first run downloads the peers. The exit code is 1 if a peer failed, or did not deliver every change
    exactly once. A missing peer does not affect the exit code.
    """
    if redraw:
        _redraw()
        return
    peers = choose(only)
    _check_request(peers, events, runs, record=record)
    outcomes = measure(peers, plan(events, runs), _tell)
    failed = any(outcome.state == "failed" for outcome in outcomes)
    if record and not failed:
        day = datetime.now(UTC).date().isoformat()
        write_docs(Record(setting(), day, events, tuple(outcomes)))
    typer.echo("\n".join(tables(list(zip(peers, outcomes, strict=True)))))
    if failed:
        raise typer.Exit(1)


def _tell(peer: Peer, run: int) -> None:
    sys.stderr.write(f"{peer.name}, run {run}\n")


def _redraw() -> None:
    kept = Record.read()
    if kept is None:
        raise _refused("there is no record yet; make one: make bench-peers ARGS=--record")
    write_docs(kept)


def _check_request(peers: Sequence[Peer], events: int, runs: int, *, record: bool) -> None:
    """Warn if the machine is busy; refuse to record a run that would not be a fair comparison."""
    load = os.getloadavg()[0]
    if record and (len(peers) < len(PEERS) or events < _EVENTS or runs < _RUNS):
        raise _refused(f"--record needs all peers, {_EVENTS:,} events and {_RUNS} runs")
    if record and load >= _QUIET:
        raise _refused(f"--record needs a quiet machine (load below {_QUIET:g}), and its load is {load:.1f}")
    if load >= _QUIET:
        typer.echo(f"warning: the machine is busy (load {load:.1f}): figures mean little", err=True)


def _refused(message: str) -> typer.Exit:
    """Format an error as one line."""
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(2)


def choose(only: Sequence[str] | None) -> list[Peer]:
    """Return the selected peers, in the order of the tables; all peers by default."""
    wanted = [name for names in only or [] for name in names.replace(",", " ").split()]
    known = {peer.name: peer for peer in PEERS}
    for name in wanted:
        if name not in known:
            raise _refused(f"there is no peer {name!r}; the peers are {', '.join(known)}")
    return [peer for peer in known.values() if not wanted or peer.name in wanted]


def plan(events: int, runs: int) -> Plan:
    """Return the number of changes of each group, and the number of runs."""
    return Plan(Size(events, events // _WARM_UP, _TAIL), runs)
