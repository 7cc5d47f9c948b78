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

__all__ = ["ROOT", "Record", "setting"]

ROOT: Final = Path(__file__).resolve().parents[2] / "docs"
_PACKAGES: Final = ("orjson", "pyarrow", "pyspark")


@attrs.frozen
class Record:
    """The stored results of the benchmarks.

    Attributes:
        results: The results of the rows, by name. Both sides of a row run on the same machine, so rows from
            different machines may be stored together; each result names its machine.
    """

    results: dict[str, Result] = attrs.field(factory=dict, hash=False)

    @classmethod
    def read(cls, root: Path = ROOT) -> Record | None:
        """Return the stored record, or None if there is none."""
        file = _file(root)
        if not file.exists():
            return None
        value = json.loads(file.read_text(encoding="utf-8"))
        results = (Result.from_json(row) for row in value["rows"])
        return cls({result.name: result for result in results})

    def write(self, root: Path = ROOT) -> None:
        """Store the record."""
        text = json.dumps({"rows": [result.to_json() for result in self.results.values()]}, indent=2)
        _file(root).parent.mkdir(parents=True, exist_ok=True)
        _file(root).write_text(text + "\n", encoding="utf-8")

    def merged(self, new: Iterable[Result], known: Iterable[str]) -> Record:
        """Return a copy of this record in which new results replace the old ones.

        A failed row of the new run does not replace the old row.

        Args:
            new: The new results.
            known: The names of the existing rows, in order. The returned record contains no other
                rows.
        """
        fresh = {result.name: result for result in new if not result.failed}
        results = {**self.results, **fresh}
        return Record({name: results[name] for name in known if name in results})


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
