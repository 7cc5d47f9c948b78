"""The recorded run: `docs/assets/benchmarks.json`."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Final

import attrs

from benchmarks.result import Result

__all__ = ["ROOT", "Record", "SettingError", "setting"]

ROOT: Final = Path(__file__).resolve().parent.parent / "docs"
_PACKAGES: Final = ("orjson", "pyarrow", "pyspark")


class SettingError(Exception):
    """Raised if a record must not be extended because the machine or the versions are different now."""


@attrs.frozen
class Record:
    """A stored run of the benchmarks.

    Attributes:
        setting: The machine, and the versions of the software.
        results: The results of the rows, by name.
    """

    setting: str
    results: dict[str, Result] = attrs.field(factory=dict, hash=False)

    @classmethod
    def read(cls, root: Path = ROOT) -> Record | None:
        """Return the stored record, or None if there is none."""
        file = _file(root)
        if not file.exists():
            return None
        value = json.loads(file.read_text(encoding="utf-8"))
        results = (Result.from_json(row) for row in value["rows"])
        return cls(value["setting"], {result.name: result for result in results})

    def write(self, root: Path = ROOT) -> None:
        """Store the record."""
        rows = [result.to_json() for result in self.results.values()]
        text = json.dumps({"setting": self.setting, "rows": rows}, indent=2)
        _file(root).parent.mkdir(parents=True, exist_ok=True)
        _file(root).write_text(text + "\n", encoding="utf-8")

    def merged(self, new: Record, known: Iterable[str]) -> Record:
        """Return a copy of this record in which the rows of a new run replace the old ones.

        A failed row of the new run does not replace the old row.

        Args:
            new: The new run.
            known: The names of the existing rows, in order. The returned record contains no other
                rows.
        """
        fresh = {name: result for name, result in new.results.items() if not result.failed}
        names = list(known)
        if fresh.keys() >= set(names):
            return attrs.evolve(new, results={name: fresh[name] for name in names})
        self.check(new.setting)
        results = {**self.results, **fresh}
        return attrs.evolve(self, results={name: results[name] for name in names if name in results})

    def check(self, now: str) -> None:
        """Check that a run with this setting can be added to the recorded rows.

        Raises:
            SettingError: Raised if the rows and the record come from different settings.
        """
        if self.results and self.setting != now:
            raise SettingError(
                f"the record was made on another machine or with other versions ({self.setting}), and this "
                f"is {now}; record all rows together: python -m benchmarks --record"
            )


def setting() -> str:
    """Return a text that describes this machine and the versions of the software."""
    python = ".".join(map(str, sys.version_info[:2]))
    packages = ", ".join(f"{name} {'.'.join(version(name).split('.')[:2])}" for name in _PACKAGES)
    return (
        f"{_cores()} cores ({_processor()}), {platform.system()}; "
        f"Python {python}, SQLite {sqlite3.sqlite_version}, {packages}"
    )


def _cores() -> int | None:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _file(root: Path) -> Path:
    return root / "assets" / "benchmarks.json"
