"""Counts changes, writes their keys and measures the time.

`Meter.java` and `meter.cjs` are the same module in Java and in JavaScript. This module needs only
the standard library, because it also runs in the environments of the peers.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["Meter", "read_spec"]

_STATUS: Final = Path("/proc/self/status")


def read_spec() -> dict[str, Any]:
    """Return the description of the work from the file that the command line names."""
    spec: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    return spec


class Meter:
    """Measures a reader: the clock starts after the warm-up, and stops after the last change.

    Attributes:
        count: The number of changes so far.
        total: The number of changes to read, including the warm-up.
    """

    def __init__(self, spec: dict[str, Any], cpu: Callable[[], float] = time.process_time) -> None:
        """Open the file for the keys.

        Args:
            spec: The description of the work.
            cpu: A function that returns the CPU seconds used so far.
        """
        self.count = 0
        self.total: int = spec["warm_up"] + spec["events"]
        self._warm_up: int = spec["warm_up"]
        self._cpu = cpu
        self._keys = Path(spec["keys"]).open("w", encoding="utf-8")  # noqa: SIM115 - closed at the end
        self._begin: tuple[int, float, float] | None = None
        self._end: tuple[float, float] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keys.close()

    def take(self, key: str) -> bool:
        """Count one change, and write its key to the file. Return True if this was the last change."""
        self._keys.write(f"{key}\n")
        self.count += 1
        if self.count == self._warm_up:
            self._start()
        return self.count >= self.total and self._stop()

    def take_all(self, keys: Iterable[str]) -> bool:
        """Count the changes of a batch and write their keys; return True after the last batch.

        If an engine delivers another batch after the last change, the method ignores this batch.
        """
        before = self.count
        if before >= self.total:
            return True
        lines = [f"{key}\n" for key in keys]
        self._keys.writelines(lines)
        self.count += len(lines)
        if before < self._warm_up <= self.count:
            self._start()
        elif self.count >= self.total:
            self._stop()
        return self.count >= self.total

    def report(self, **more: Any) -> None:
        """Print the figures and the values in `more` as one line of JSON."""
        begun, wall, cpu = self._begin or (self.count, 0.0, 0.0)
        ended, spent = self._end or (wall, cpu)
        figures = {
            "count": self.count,
            "events": self.count - begun,
            "seconds": ended - wall,
            "cpu": spent - cpu,
            "mebibytes": _peak_mebibytes(),
            "versions": {"Python": platform.python_version()},
        }
        sys.stdout.write(json.dumps({**figures, **more}) + "\n")
        sys.stdout.flush()

    def _start(self) -> None:
        self._begin = (self.count, time.perf_counter(), self._cpu())

    def _stop(self) -> bool:
        self._end = (time.perf_counter(), self._cpu())
        return True


def _peak_mebibytes() -> float:
    if not _STATUS.exists():
        return 0.0
    (line,) = [line for line in _STATUS.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 2**10
