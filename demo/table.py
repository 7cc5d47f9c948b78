"""What is in the Delta table, read with deltalake alone: its rows, its newest change, and each merge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from deltalake import DeltaTable

from multiclouddb_api import decode_json, encode_json

__all__ = ["Merge", "Sample", "documents", "look", "merges"]


@attrs.frozen
class Sample:
    """The table at one moment.

    Attributes:
        rows: The number of its rows, with those of deleted flights.
        newest: When its newest change was committed in the store, in seconds since 1970; 0 without rows.
    """

    rows: int = 0
    newest: float = 0.0


@attrs.frozen
class Merge:
    """One merge: a commit of the table, with the rows of one page.

    Attributes:
        begun: When it began, in seconds since 1970.
        at: When it was committed.
        rows: The number of rows that were merged.
    """

    begun: float
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
    found = []
    for commit in reversed(DeltaTable(str(path)).history()):
        if commit["operation"] == "MERGE":
            told, at = commit["operationMetrics"], commit["timestamp"] / 1e3
            found.append(Merge(at - told["execution_time_ms"] / 1e3, at, told["num_source_rows"]))
    return found


def documents(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key and the document of each row that is no tombstone."""
    rows = DeltaTable(str(path)).to_pyarrow_dataset().scanner(["key", "new_item_state"]).to_table()
    for row in rows.to_pylist():
        if row["new_item_state"] is not None:
            yield encode_json(decode_json(row["key"])).decode(), decode_json(row["new_item_state"])
