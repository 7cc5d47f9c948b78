"""What is in the Delta table, read with deltalake alone: its rows, its newest change, and each merge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

from multiclouddb_api import decode_json, encode_json

__all__ = ["Merge", "Sample", "documents", "look", "merges"]


class Sample(NamedTuple):
    """The number of rows with those of deleted flights, and when the newest change was committed.

    The time is in seconds since 1970, and 0 without rows.
    """

    rows: int = 0
    newest: float = 0.0


class Merge(NamedTuple):
    """One merge: when the table committed it, in seconds since 1970, and the number of its rows."""

    at: float
    rows: int


def look(path: Path) -> Sample:
    """Return what the statistics of the table's files say; nothing if there is no table yet."""
    if not DeltaTable.is_deltatable(str(path)):
        return Sample()
    files = DeltaTable(str(path)).get_add_actions(flatten=True)
    counts, newest = (files.column(name).to_pylist() for name in ("num_records", "max.timestamp"))
    return Sample(sum(counts), max((each.timestamp() for each in newest if each is not None), default=0.0))


def merges(path: Path) -> list[Merge]:
    """Return the merges of a table, oldest first."""
    return [
        Merge(commit["timestamp"] / 1e3, commit["operationMetrics"]["num_source_rows"])
        for commit in reversed(DeltaTable(str(path)).history())
        if commit["operation"] == "MERGE"
    ]


def documents(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key and the document of each row that is no tombstone."""
    rows = DeltaTable(str(path)).to_pyarrow_dataset().scanner(["key", "new_item_state"]).to_table()
    for row in rows.to_pylist():
        if row["new_item_state"] is not None:
            yield encode_json(decode_json(row["key"])).decode(), decode_json(row["new_item_state"])
