"""The recorded lags: `docs/assets/lags.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import attrs

from benchmarks.lags.lag import Lags
from benchmarks.record import ROOT

__all__ = ["Record", "Row"]


@attrs.frozen
class Row:
    """A row of the table.

    Attributes:
        service: The service.
        reader: `events` or `spark`.
        lags: What was measured.
        rate: How many changes were committed in a second.
        load: The mean load of the machine.
        commit: The commit of this repository that ran.
        day: The day of the run.
        setting: The machine and the versions of the software.
    """

    service: str
    reader: str
    lags: Lags
    rate: float
    load: float
    commit: str
    day: str
    setting: str


@attrs.frozen
class Record:
    """The stored rows, in the order of the table."""

    rows: tuple[Row, ...]

    @classmethod
    def read(cls, root: Path = ROOT) -> Record:
        """Return the stored record; it is empty if there is none."""
        file = _file(root)
        if not file.exists():
            return cls(())
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        return cls(tuple(Row(**{**row, "lags": Lags(**row["lags"])}) for row in rows))

    def merged(self, new: Iterable[Row], services: Iterable[str]) -> Record:
        """Return a record in which new rows replace those of the same service and reader.

        Args:
            new: The new rows.
            services: The names of all services, in order.
        """
        order = {name: place for place, name in enumerate(services)}
        found = {(row.service, row.reader): row for row in (*self.rows, *new)}
        return Record(tuple(sorted(found.values(), key=lambda row: (order[row.service], row.reader))))

    def write(self, root: Path = ROOT) -> None:
        """Store the record."""
        _file(root).write_text(json.dumps(attrs.asdict(self), indent=2) + "\n", encoding="utf-8")


def _file(root: Path) -> Path:
    return root / "assets" / "lags.json"
