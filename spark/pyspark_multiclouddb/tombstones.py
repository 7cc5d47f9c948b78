"""Reads the sink's table without the tombstones, and removes old tombstones."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import invalid_request
from multiclouddb_api.validators import check_type, local_path
from pyspark_multiclouddb.checkpoint import Checkpoint
from pyspark_multiclouddb.table import DELETED_AT, committed, missing, opened

__all__ = ["drop_tombstones", "live_rows"]


def live_rows(table_path: str | os.PathLike[str], columns: list[str] | None = None) -> pa.RecordBatchReader:
    """Read the documents of a table that `merge_into_delta` writes, without the tombstones.

    A SQL query with `WHERE _deleted_at IS NULL` returns the same rows as this function.

    Args:
        table_path: The path of the table, as in `merge_into_delta`.
        columns: The columns to read; by default all except `_deleted_at`.

    Returns:
        The rows, in batches; `.read_all()` returns them as one table.

    Raises:
        MulticloudDbError: `NOT_FOUND` if the table does not exist; `INVALID_REQUEST` if it does not have one
            of the columns.
    """
    path = local_path("table_path", table_path)
    check_type("columns", columns, list, type(None))
    for name in columns or ():
        check_type("columns", name, str)
    table = opened(path)
    if table is None:
        raise missing(path)
    dataset = table.to_pyarrow_dataset()
    if unknown := [name for name in columns or () if name not in dataset.schema.names]:
        raise invalid_request(
            "columns", f"{path} has no column {unknown[0]}", f"choose among {', '.join(dataset.schema.names)}"
        )
    if columns is None:
        columns = [name for name in dataset.schema.names if name != DELETED_AT]
    live = pc.field(DELETED_AT).is_null() if DELETED_AT in dataset.schema.names else None
    # If deltalake's reader uses its own threads, it can abort the process when it ends.
    return dataset.scanner(columns=columns, filter=live, use_threads=False).to_reader()


def drop_tombstones(
    table_path: str | os.PathLike[str],
    older_than: timedelta = timedelta(days=30),
    *,
    checkpoint: str | os.PathLike[str] | None = None,
) -> int:
    """Remove the tombstones of keys that were deleted long ago.

    A tombstone prevents an older change from restoring its row, so a tombstone may be removed only
    when no older change can arrive. The lifetime of a tombstone must be longer than the time for
    which the service keeps changes. The lifetime must also be longer than the longest interruption
    of a query that writes this table. While a snapshot is read, an older version of a row can
    arrive at any time. So if a query begins with a snapshot, pass the `checkpoint` of this query.
    With the `checkpoint`, nothing is removed until the query has completed a batch after the end of
    the scan.

    Args:
        table_path: The path of the table, as in `merge_into_delta`. Call this function in the
            process that merges; any thread of this process is allowed. In another process, call it
            only while no process is merging.
        older_than: The lifetime of a tombstone, counted from the time when its delete was merged.
        checkpoint: The `checkpointLocation` of the query, as in `merge_into_delta`.

    Returns:
        The number of tombstones that were removed.

    Raises:
        MulticloudDbError: `NOT_FOUND` if the table does not exist; `CONFLICT` if another process changes the
            table again and again.
    """
    path = local_path("table_path", table_path)
    check_type("older_than", older_than, timedelta)
    if checkpoint is not None:
        local_path("checkpoint", checkpoint)
    if older_than < timedelta(0):
        raise invalid_request("older_than", "is negative", "give the lifetime of a tombstone")
    table = opened(path)
    if table is None:
        raise missing(path)
    if DELETED_AT not in {field.name for field in table.schema().fields}:
        return 0
    if checkpoint is not None and not Checkpoint(os.fspath(checkpoint)).is_scanned():
        return 0
    try:
        before = datetime.now(UTC) - older_than
    except OverflowError:
        return 0  # no tombstone is from before the year 1
    found = committed(table, lambda: table.delete(f"{DELETED_AT} < '{before.isoformat()}'"))
    return int(found["num_deleted_rows"])
