"""Reads and writes the recorded run in `docs/assets/peers.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

from benchmarks.peers.report import Outcome
from benchmarks.record import ROOT

__all__ = ["Record"]


@attrs.frozen
class Record:
    """A stored run.

    Attributes:
        setting: The machine, and the versions of the software.
        day: The day of the run.
        events: The number of changes that were measured in a run.
        outcomes: The measured figures, one object for each line of the tables.
    """

    setting: str
    day: str
    events: int
    outcomes: tuple[Outcome, ...]

    @classmethod
    def read(cls, root: Path = ROOT) -> Record | None:
        """Return the stored record, or None if there is none."""
        file = _file(root)
        if not file.exists():
            return None
        value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        outcomes = tuple(Outcome(**outcome) for outcome in value.pop("outcomes"))
        return cls(**value, outcomes=outcomes)

    def write(self, root: Path = ROOT) -> None:
        """Store the record."""
        head = {field.name: getattr(self, field.name) for field in attrs.fields(Record)[:-1]}
        value = {**head, "outcomes": [outcome.to_json() for outcome in self.outcomes]}
        _file(root).parent.mkdir(parents=True, exist_ok=True)
        _file(root).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _file(root: Path) -> Path:
    return root / "assets" / "peers.json"
