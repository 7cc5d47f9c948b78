"""The Delta table of the sink: its columns, its checks, the merge of changes, and its tombstones."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError, invalid_request

if TYPE_CHECKING:
    from deltalake import DeltaTable, Transaction

__all__ = ["DELETED_AT", "Target", "drop_tombstones", "live_rows"]

DELETED_AT: Final = "_deleted_at"
"""The column with the time at which the sink merged a delete; the column is null in the row of a document."""
_TIME: Final = pa.timestamp("us", tz="UTC")
_TEXT: Final = ("key", "order_key")


class Target:
    """The table that a sink writes.

    Args:
        where: The folder or URL of the table.
        create: True if the first merge creates the table.
        new_columns: What to do with a column of a batch that the table does not have.
    """

    def __init__(self, where: str, *, create: bool, new_columns: Literal["add", "refuse"]) -> None:
        if new_columns not in ("add", "refuse"):
            raise invalid_request("new_columns", f"is {new_columns!r}", "give 'add' or 'refuse'")
        self._where, self._create, self._new_columns = where, create, new_columns
        self._table = _opened(where)
        if self._table is None and not create:
            raise _missing(where)

    def has(self, app_id: str, batch_id: int) -> bool:
        """Return True if this batch or a later one was merged completely."""
        last = None if self._table is None else self._table.transaction_version(app_id)
        return last is not None and last >= batch_id

    def prepare(self, schema: pa.Schema) -> None:
        """Prepare the table for rows of a schema.

        The schema is checked first; then the table is created or gets its new columns.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if a column has a different type, or is new and refused.
        """
        from deltalake import DeltaTable, Schema

        if DELETED_AT in schema.names:
            raise invalid_request("batch", f"has a column {DELETED_AT}", "the sink writes it: rename yours")
        for name in _TEXT:
            if not (pa.types.is_string(kind := schema.field(name).type) or pa.types.is_large_string(kind)):
                raise invalid_request(f"column {name}", f"is {kind}", "pass the column of the data source")
        wanted = {field.name: field for field in Schema.from_arrow(_stored(schema)).fields}
        if self._table is None:
            self._table = DeltaTable.create(self._where, schema=_stored(schema), mode="ignore")
        known = {field.name: field.type for field in self._table.schema().fields}
        for name in (*_TEXT, *wanted):
            if name in known and _kind(known[name]) != _kind(wanted[name].type):
                raise invalid_request(
                    f"column {name}",
                    f"is {_name(wanted[name].type)} in the batch and {_name(known[name])} in {self._where}",
                    "cast it, or give it another name",
                )
            if name in _TEXT and name not in known:
                raise invalid_request(
                    "table_path", f"{self._where} has no column {name}", "give a table that this sink made"
                )
        new = [field for name, field in wanted.items() if name not in known]
        refused = [field.name for field in new if field.name != DELETED_AT]
        if refused and self._new_columns == "refuse":
            raise invalid_request(
                "batch",
                f"has columns that {self._where} does not have: {', '.join(refused)}",
                "leave them out, or set new_columns='add'",
            )
        if new:
            self._table.alter.add_columns(new)

    def merge(self, rows: pa.Table, done: Transaction | None) -> None:
        """Merge the last changes of some keys in one commit. If nothing changes, there is no commit.

        Args:
            rows: The rows in the prepared schema, with the column `type`; at most one row per key.
            done: The data that the commit stores if it completes a batch.
        """
        from deltalake import CommitProperties

        assert self._table is not None, "prepare comes first"
        source = _with_tombstones(rows)
        columns = {f"`{name}`": f"s.`{name}`" for name in source.column_names}
        self._table.merge(
            source,
            "s.key = t.key",
            source_alias="s",
            target_alias="t",
            commit_properties=CommitProperties(app_transactions=None if done is None else [done]),
        ).when_matched_update(columns, "s.order_key > t.order_key").when_not_matched_insert(columns).execute()


def live_rows(table_path: str | os.PathLike[str], columns: list[str] | None = None) -> pa.RecordBatchReader:
    """Read the documents of a table that `merge_into_delta` writes, without the tombstones.

    In SQL the same is `WHERE _deleted_at IS NULL`.

    Args:
        table_path: As for `merge_into_delta`.
        columns: The columns to read; by default all except `_deleted_at`.

    Returns:
        The rows, in batches; `.read_all()` returns them as one table.

    Raises:
        MulticloudDbError: `NOT_FOUND` if the table does not exist.
    """
    table = _opened(os.fspath(table_path))
    if table is None:
        raise _missing(os.fspath(table_path))
    dataset = table.to_pyarrow_dataset()
    if columns is None:
        columns = [name for name in dataset.schema.names if name != DELETED_AT]
    live = pc.field(DELETED_AT).is_null() if DELETED_AT in dataset.schema.names else None
    # If deltalake's reader uses its own threads, it can abort the process when it ends.
    return dataset.scanner(columns=columns, filter=live, use_threads=False).to_reader()


def drop_tombstones(table_path: str | os.PathLike[str], older_than: timedelta = timedelta(days=30)) -> int:
    """Remove the tombstones of keys that were deleted long ago.

    A tombstone prevents an older change from restoring its row, so a tombstone may be removed only when no
    older change can arrive. The lifetime of a tombstone must be longer than the service keeps changes, longer
    than any query with this table may be stopped, and longer than a scan takes. After a snapshot, call this
    only when the query has stored a position after the end of the scan.

    Args:
        table_path: As for `merge_into_delta`. Call this function in the process that merges, or while no
            process merges.
        older_than: The lifetime of a tombstone, counted from the time when its delete was merged.

    Returns:
        The number of tombstones that were removed.

    Raises:
        MulticloudDbError: `NOT_FOUND` if the table does not exist.
    """
    if older_than < timedelta(0):
        raise invalid_request("older_than", "is negative", "give the lifetime of a tombstone")
    table = _opened(os.fspath(table_path))
    if table is None:
        raise _missing(os.fspath(table_path))
    if DELETED_AT not in {field.name for field in table.schema().fields}:
        return 0
    before = datetime.now(UTC) - older_than
    return int(table.delete(f"{DELETED_AT} < '{before.isoformat()}'")["num_deleted_rows"])


def _opened(where: str) -> DeltaTable | None:
    from deltalake import DeltaTable

    return DeltaTable(where) if DeltaTable.is_deltatable(where) else None


def _missing(where: str) -> MulticloudDbError:
    return MulticloudDbError(
        f"table_path: there is no Delta table at {where}; correct the path, or let a merge create it",
        ErrorDetail(category=ErrorCategory.NOT_FOUND),
    )


def _stored(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(DELETED_AT, _TIME))


def _with_tombstones(rows: pa.Table) -> pa.Table:
    """Return the rows in the form in which they are stored.

    The row of a deleted document contains the time of its merge.
    """
    now = pa.scalar(datetime.now(UTC), _TIME)
    deleted = pc.if_else(pc.equal(rows["type"], "DELETE"), now, pa.scalar(None, _TIME))
    return rows.drop_columns("type").append_column(pa.field(DELETED_AT, _TIME), deleted)


def _kind(of: object) -> str:
    """Return a Delta type without its nullability, which does not make a different type."""
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":(true|false)', "", _json(of))


def _name(of: object) -> str:
    return _json(of).strip('"')


def _json(of: object) -> str:
    return str(of.to_json())  # type: ignore[attr-defined]
