"""Runs peers in rounds, each run in its own process, and checks what they deliver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.peers.data import LostError, check_keys, keys_in
from benchmarks.peers.feeds import FEEDS, Size, Spec
from benchmarks.peers.peer import Command, Group, MissingError, Peer
from benchmarks.peers.report import Outcome, PeerError, Report
from testing.servers import ServerUnavailableError

__all__ = ["Plan", "Step", "measure", "run_once"]

# On a busy machine, these limits suffice for Debezium, and for bloop at a twentieth of its usual rate.
_START_SECONDS: Final = 120.0
_LEAST_RATE: Final = 350.0
_TAIL: Final = 300

Step = Callable[[Peer, int], None]


@attrs.frozen
class Plan:
    """The amount of work to measure.

    Attributes:
        size: The number of changes of each group.
        runs: The number of runs of each peer; the median of the runs is reported.
    """

    size: Size
    runs: int


def measure(peers: Sequence[Peer], plan: Plan, step: Step) -> list[Outcome]:
    """Measure peers. A peer that is missing or fails does not affect the others.

    Args:
        peers: The peers.
        plan: The amount of work to measure.
        step: A function that is called before each run with the peer and the number of the run.
    """
    found: dict[str, Outcome] = {}
    for group in FEEDS:
        members = [peer for peer in peers if peer.group is group]
        commands = _prepared(members, found)
        if commands:
            with tempfile.TemporaryDirectory(prefix="peers-") as folder:
                _measure_group(group, commands, plan, step, Path(folder), found)
    return [found[peer.name] for peer in peers]


def _prepared(peers: Sequence[Peer], found: dict[str, Outcome]) -> dict[Peer, Command]:
    commands = {}
    for peer in peers:
        try:
            commands[peer] = peer.prepare()
        except MissingError as error:
            found[peer.name] = Outcome(peer.name, "missing", str(error))
    return commands


def _measure_group(
    group: Group,
    commands: dict[Peer, Command],
    plan: Plan,
    step: Step,
    folder: Path,
    found: dict[str, Outcome],
) -> None:
    reports: dict[Peer, list[Report]] = {peer: [] for peer in commands}
    try:
        with FEEDS[group](folder / "server", plan.size) as spec:
            # Peers run in rounds, so that a change in the machine's speed affects all peers.
            for run in range(plan.runs):
                for peer, command in commands.items():
                    if peer.name in found:
                        continue
                    step(peer, run + 1)
                    try:
                        reports[peer].append(run_once(command, plan.size, spec, folder))
                    except (LostError, PeerError) as error:
                        found[peer.name] = Outcome(peer.name, "failed", str(error))
    except ServerUnavailableError as error:
        reason = str(error).strip().splitlines()[0]
        found.update({peer.name: Outcome(peer.name, "missing", reason) for peer in commands})
    for peer, runs in reports.items():
        if peer.name not in found:
            found[peer.name] = Outcome.of(peer.name, runs, commands[peer].versions)


def run_once(command: Command, size: Size, spec: Spec, folder: Path) -> Report:
    """Run a peer's program once, and check that it has delivered every change once.

    Raises:
        LostError: Raised if the program has not delivered every change once.
        PeerError: Raised if the program failed.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        keys = Path(scratch, "keys.txt")
        work = attrs.asdict(size) | {"keys": str(keys), "folder": scratch} | spec | dict(command.spec)
        file = Path(scratch, "spec.json")
        variables = command.variables() | work.pop("variables", {})
        file.write_text(json.dumps(work), encoding="utf-8")
        with _started(command.line(str(file)), variables, scratch, _limit(size)) as process:
            output, said = process.communicate()
        if process.returncode:
            raise PeerError(_why(process.returncode, said))
        report = Report.parse(output)
        delivered = keys_in(keys)
        check_keys(delivered, size.least, size.written)
        if report.count != len(delivered):
            raise LostError(f"it counted {report.count:,} changes, and delivered {len(delivered):,}")
        return report


def _limit(size: Size) -> float:
    """Return how many seconds a run may take."""
    return _START_SECONDS + size.written / _LEAST_RATE


@contextmanager
def _started(
    line: list[str], variables: dict[str, str], folder: str, seconds: float
) -> Iterator[subprocess.Popen[str]]:
    """Start a program; end its processes when the block ends, or earlier if the program takes too long."""
    pipe = subprocess.PIPE
    settings: dict[str, Any] = {"cwd": folder, "env": variables, "text": True, "process_group": 0}
    process = subprocess.Popen(line, stdout=pipe, stderr=pipe, **settings)
    watch = threading.Timer(seconds, _end, [process])
    watch.start()
    try:
        yield process
    finally:
        watch.cancel()
        _end(process)
        process.communicate()


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _why(status: int, said: str) -> str:
    """Return one line that says why a program failed."""
    if status == -signal.SIGKILL:
        return "it did not deliver all changes in time"
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()] or ["it said nothing"]
    return f"its program ended with status {status}: {lines[-1][-_TAIL:]}"
