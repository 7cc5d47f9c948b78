"""The tables of a long run, read by their own drivers."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import attrs
import psycopg
from deltalake import DeltaTable

from soak.sources import CANARY

__all__ = ["COLUMNS", "Copy"]

COLUMNS: Final = '[columns]\nstatus = "string"\ntotal = "int32"\n'
_OWN: Final = ("status", "total")


@attrs.frozen
class Copy:
    """The table of one collection."""

    collection: str
    kind: str
    """`delta`, `postgres` or `sqlite`."""
    place: str
    """The folder, the DSN or the file."""
    table: str
    has_columns: bool

    @property
    def target(self) -> str:
        """The text that names the table on the command line."""
        return f"delta:{self.place}" if self.kind == "delta" else f"{self.kind}:{self.place}#{self.table}"

    def entry(self, address: str) -> str:
        """Return its entry in the file of the mirror."""
        columns = 'columns = "columns.toml"\n' if self.has_columns else ""
        return f'\n[[table]]\ncollection = "{address}"\ntarget = "{self.target}"\n{columns}'

    def read(self) -> dict[str, tuple[dict[str, Any], tuple[Any, ...]]]:
        """Return document and declared columns of each row that is not deleted, by the key."""
        names = ["key", "new_item_state", *(_OWN if self.has_columns else ())]
        found = {}
        for key, state, *own in self._rows(names):
            (name,) = json.loads(key).values()
            found[name] = (json.loads(state), tuple(own))
        return found

    def canary(self) -> float | None:
        """Return the newest time (seconds) in the table; None if there is none."""
        found = self.read().get(CANARY)
        return None if found is None else found[0]["at"] / 1000

    def version(self) -> int | None:
        """Return the number of commits of a Delta table."""
        return DeltaTable(self.place).version() if self.kind == "delta" else None

    def statement(self, text: str) -> None:
        """Run SQL in PostgreSQL."""
        with psycopg.connect(self.place, autocommit=True) as connection:
            connection.execute(text)

    def _rows(self, names: list[str]) -> list[tuple[Any, ...]]:
        if self.kind == "delta":
            if not Path(self.place, "_delta_log").exists():
                return []
            dataset = DeltaTable(self.place).to_pyarrow_dataset()
            table = dataset.scanner([*names, "_deleted_at"], use_threads=False).to_table()
            return [
                tuple(row[name] for name in names) for row in table.to_pylist() if row["_deleted_at"] is None
            ]
        query = f"SELECT {', '.join(names)} FROM {self.table} WHERE _deleted_at IS NULL"
        if self.kind == "sqlite":
            with closing(sqlite3.connect(f"file:{self.place}?mode=ro", uri=True)) as database:
                return database.execute(query).fetchall()
        query = query.replace("new_item_state", "new_item_state::text")
        with psycopg.connect(self.place) as connection:
            return connection.execute(query).fetchall()
