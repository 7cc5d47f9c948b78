"""Removes old tombstones of a Delta table, and merges its small files."""

from __future__ import annotations

from datetime import datetime

from multiclouddb_api.validators import to_utc
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.delta_log import committed, said, writable
from multiclouddb_tables.delta_refusals import missing
from multiclouddb_tables.merging import FILLED
from multiclouddb_tables.rules import DELETED_AT

__all__ = ["compact", "drop_tombstones"]


def drop_tombstones(path: str, before: datetime) -> int:
    """Remove the rows of documents that were deleted before a time, and return their number.

    Args:
        path: The path of a folder, or a URL that `deltalake` supports.
        before: The time at which the delete was merged.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the time has no zone; `NOT_FOUND` if the table does not exist;
            `CONFLICT` if other processes change the table all the time.
    """
    before = to_utc("before", before)
    table = writable(path)
    if table is None:
        raise missing(path)
    if DELETED_AT not in {field.name for field in table.schema().fields}:
        return 0
    found = committed(table, lambda: table.delete(f"{DELETED_AT} < '{before.isoformat()}'"))
    target = DeltaTarget(path)
    if target.number(FILLED) and target.is_empty():
        target.store({FILLED: 0}, {})
    return int(found["num_deleted_rows"])


def compact(path: str) -> None:
    """Merge small files, and remove files that no version of the last seven days needs.

    Args:
        path: The path of a folder, or a URL that `deltalake` supports.

    Raises:
        MulticloudDbError: As `drop_tombstones`.
    """
    table = writable(path)
    if table is None:
        raise missing(path)
    committed(table, lambda: table.optimize.compact(commit_properties=said({})))
    committed(table, lambda: table.vacuum(dry_run=False))
