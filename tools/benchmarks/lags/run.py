"""Runs a writer beside a reader that is killed once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.lags.lag import Lags, lags_of
from benchmarks.record import ROOT
from demo.places import Places, read_lines
from demo.stores import start_store

__all__ = ["SERVICES", "measure"]

SERVICES: Final = {
    "embedded": "Embedded store",
    "mongo": "MongoDB",
    "dynamo": "DynamoDB",
    "spanner": "Spanner",
    "cosmos": "Cosmos DB",
}
_POLL_SECONDS: Final = 0.5
_START_SECONDS: Final = 180.0
_END_SECONDS: Final = 300.0
"""How long a change may be late before it counts as lost."""
_STARTING: Final = threading.Lock()


def measure(service: str, reader: str, seconds: float, rate: float, folder: Path) -> tuple[Lags, float]:
    """Measure one reader of one database, and return the lags and the mean load of the machine.

    Args:
        service: A name in `SERVICES`.
        reader: `events` or `spark`.
        seconds: How long the writer writes; the reader is killed after half of it.
        rate: How many changes the writer commits in a second.
        folder: An empty folder.

    Raises:
        RuntimeError: Raised if a process fails.
        ValueError: Raised if a change did not arrive.
    """
    places, changes = Places(folder), round(seconds * rate)
    with ExitStack() as stack:
        known = _started(stack, service, places)
        started = _Processes(folder, known)
        stack.callback(started.kill)
        started.start("reader", reader, str(folder))
        started.start("writer", str(folder), str(changes), str(rate))
        started.wait(lambda: _count(places.written) > 1, _START_SECONDS)
        started.wait(lambda: _count(places.written) > changes // 2, seconds)
        loads, killed_at = [_load()], time.time()
        started.kill("reader")
        started.start("reader", reader, str(folder))
        started.wait(lambda: _count(places.written) > changes, seconds)
        loads.append(_load())
        over = time.monotonic() + _END_SECONDS
        started.wait(lambda: _is_last(places, changes) or time.monotonic() > over, 2 * _END_SECONDS)
        started.kill()
        return lags_of(read_lines(places.written), read_lines(places.merged), killed_at), sum(loads) / 2


class _Processes:
    """The writer and the reader."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start a module of this package."""
        command = [sys.executable, "-m", f"benchmarks.lags.{name}", *arguments]
        with self._log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                cwd=ROOT.parent,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition is true, while the processes run."""
        end = time.monotonic() + seconds + _START_SECONDS
        while not condition():
            for name, process in self._running.items():
                # The writer ends when it has written everything.
                if process.poll() or (name == "reader" and process.poll() is not None):
                    said = self._log(name).read_text(encoding="utf-8", errors="replace")[-2000:]
                    raise RuntimeError(f"the {name} ended with status {process.returncode}:\n{said}")
            if time.monotonic() > end:
                raise RuntimeError(f"the {' and the '.join(self._running)} did not get on")
            time.sleep(_POLL_SECONDS)

    def kill(self, *names: str) -> None:
        """Kill processes, with their children, and wait until they have ended; without names, all of them."""
        for name in names or tuple(self._running):
            process = self._running.pop(name)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def _started(stack: ExitStack, service: str, places: Places) -> dict[str, str]:
    """Start a server; return the environment from which the processes know it."""
    with _STARTING:
        before = dict(os.environ)
        try:
            os.environ["PROVIDER"] = service
            start_store(stack, places)
            return dict(os.environ)
        finally:
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)


def _count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _is_last(places: Places, changes: int) -> bool:
    """Return True if every change has arrived."""
    return len({number for line in read_lines(places.merged) for number in line["numbers"]}) > changes


def _load() -> float:
    """Return the mean load of the last five minutes."""
    return os.getloadavg()[1]
