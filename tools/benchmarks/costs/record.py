"""The recorded counts: `docs/assets/costs.json`, without what is computed from published defaults."""

from __future__ import annotations

import json
from pathlib import Path

import attrs

from benchmarks.costs.cost import Cost
from benchmarks.record import ROOT

__all__ = ["Record"]


@attrs.frozen
class Record:
    """What was counted.

    Attributes:
        costs: The counted rows.
        changes: How many changes each reader read.
        seconds: How long each reader followed the idle feed.
        day: The day of the run.
        setting: The machine and the versions of the software.
    """

    costs: tuple[Cost, ...]
    changes: int
    seconds: float
    day: str
    setting: str

    @classmethod
    def read(cls, root: Path = ROOT) -> Record | None:
        """Return the stored record, or None if there is none."""
        file = _file(root)
        if not file.exists():
            return None
        value = json.loads(file.read_text(encoding="utf-8"))
        return cls(**{**value, "costs": tuple(map(Cost.from_json, value["costs"]))})

    def write(self, root: Path = ROOT) -> None:
        """Store the record."""
        value = {**attrs.asdict(self, recurse=False), "costs": [cost.to_json() for cost in self.costs]}
        _file(root).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _file(root: Path) -> Path:
    return root / "assets" / "costs.json"
