"""Defines the sink's Delta table: its columns, checks, merges and tombstones."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError, invalid_request
from multiclouddb_api.validators import check_type, local_path
from pyspark_multiclouddb.checkpoint import Checkpoint

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties

    from pyspark_multiclouddb.checkpoint import Scan

__all__ = ["DELETED_AT", "Target", "drop_tombstones", "live_rows"]

DELETED_AT: Final = "_deleted_at"
"""The column that contains the time at which the sink merged a delete; null in the row of a document."""
_TIME: Final = pa.timestamp("us", tz="UTC")
_TEXT: Final = ("key", "order_key")
_DOCUMENT: Final = "new_item_state"
_SNAPSHOT: Final = "multiclouddb-snapshot"
"""The name of the transaction that records the merge of a snapshot.

Another transaction records how far the snapshot was merged; its name also contains the id of the snapshot.
"""
_BEGUN: Final = 0
_ENDED: Final = 1
_NEW_QUERY: Final = "with startingPosition=snapshot, this table, and a checkpointLocation of its own"


class Target:
    """The table that a sink writes.

    Args:
        where: The folder or URL of the table.
        create: True if the first merge creates the table.
        new_columns: What to do if a batch contains a column that the table does not have.
    """

    def __init__(self, where: str, *, create: bool, new_columns: Literal["add", "refuse"]) -> None:
        if new_columns not in ("add", "refuse"):
            raise invalid_request("new_columns", f"is {new_columns!r}", "give 'add' or 'refuse'")
        self._where, self._create, self._new_columns = where, create, new_columns
        self._table = _opened(where)
        if self._table is None and not create:
            raise _missing(where)

    def has(self, app_id: str, batch_id: int) -> bool:
        """Return True if the table already contains all changes of this batch or of a later batch."""
        last = None if self._table is None else self._table.transaction_version(app_id)
        return last is not None and last >= batch_id

    def prepare(self, schema: pa.Schema) -> None:
        """Prepare the table for rows with the given schema.

        The schema is checked first; then the table is created, or the new columns are added to it.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if a column has a different type, or if a new column is
                refused.
        """
        from deltalake import DeltaTable, Schema

        if DELETED_AT in schema.names:
            raise invalid_request(
                "batch", f"has a column {DELETED_AT}", "the sink writes this column; rename yours"
            )
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
                raise _foreign(self._where, name)
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

    @property
    def exists(self) -> bool:
        """Return True if the table exists."""
        return self._table is not None

    def begin(self, scan: Scan) -> None:
        """Mark all rows of the table as older than a snapshot, before the snapshot's first rows are merged.

        Then the rows of the snapshot, and every change after it, win over the rows in the table. Rows whose
        `order_key` is lower than the floor do not have to be changed. All other rows get the lowest
        `order_key`. This step is done once for each snapshot, in one commit that contains the snapshot's id.

        Args:
            scan: The snapshot.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if rows or changes of the snapshot may already have been
                merged before this call recorded the snapshot. Such rows cannot be distinguished from older
                rows.
        """
        if self._stage(scan.plan) is not None:
            return
        if scan.is_first:
            self._known().update(
                updates={"order_key": "''"},
                predicate=f"order_key >= {_quoted(scan.floor)}",
                commit_properties=self._note(scan.plan, _BEGUN),
            )
        elif not self._is_empty() and not scan.was_over:
            raise invalid_request(
                "checkpoint",
                "was not given when the snapshot began; now older rows cannot be distinguished from the "
                "rows of the snapshot",
                f"start a query {_NEW_QUERY}, and pass checkpoint= from its first batch on",
            )
        self._ensure(scan.plan, _ENDED if scan.was_over else _BEGUN)

    def end(self, scan: Scan) -> None:
        """Delete the documents that a snapshot did not contain, after the snapshot's last rows were merged.

        Such a document was deleted before the snapshot. Its row becomes a tombstone.

        Args:
            scan: The snapshot; its scan is over.
        """
        if self._stage(scan.plan) == _ENDED:
            return
        table = self._known()
        kept = {*_TEXT, DELETED_AT, *table.metadata().partition_columns}
        fields = table.schema().fields
        if DELETED_AT not in {field.name for field in fields}:
            self.prepare(pa.schema([(name, pa.string()) for name in _TEXT]))
        micros = int(datetime.now(UTC).timestamp() * 1_000_000)
        table.update(
            updates={
                f"`{field.name}`": "NULL" for field in fields if field.nullable and field.name not in kept
            }
            | {
                "order_key": _quoted(scan.floor),
                DELETED_AT: f"coalesce({DELETED_AT}, to_timestamp_micros({micros}))",
            },
            predicate=f"order_key < {_quoted(scan.floor)}",
            commit_properties=self._note(scan.plan, _ENDED),
        )
        self._ensure(scan.plan, _ENDED)

    def accept(self, plan: str, *, strict: bool) -> None:
        """Accept rows of a snapshot if the sink does not know where the snapshot begins and ends.

        Args:
            plan: The id of the snapshot.
            strict: True to refuse any snapshot if the table already has rows, False to refuse only a second
                snapshot.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the snapshot is refused. If it were accepted, documents
                that were deleted before the snapshot would stay in the table.
        """
        if self._stage(plan) is not None:
            return
        table = self._known()
        if not self._is_empty() and (strict or table.transaction_version(_SNAPSHOT) is not None):
            raise invalid_request(
                "batch",
                f"contains rows of a snapshot, and {self._where} contains older rows; without the "
                f"checkpoint, documents that were deleted in the meantime would stay in the table",
                f"pass checkpoint=, and start a query {_NEW_QUERY}; or use a new table",
            )
        self._ensure(plan, _BEGUN)

    def check_unused(self, scan: Scan, app_id: str) -> None:
        """Refuse a batch that is recorded as merged although its snapshot has not begun.

        Args:
            scan: The snapshot.
            app_id: The name under which merged batches are recorded.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if another query has used `app_id` for this table.
        """
        if scan.is_first and self._stage(scan.plan) is None:
            raise invalid_request(
                "app_id",
                f"is {app_id!r}, under which another query has merged batches with these numbers into "
                f"{self._where}",
                "use another app_id for each checkpoint",
            )

    def _known(self) -> DeltaTable:
        assert self._table is not None, "there is no table yet"
        names = {field.name for field in self._table.schema().fields}
        for name in _TEXT:
            if name not in names:
                raise _foreign(self._where, name)
        return self._table

    def _stage(self, plan: str) -> int | None:
        return self._known().transaction_version(f"{_SNAPSHOT}:{plan}")

    def _is_empty(self) -> bool:
        return not self._known().file_uris()

    def _note(self, plan: str, stage: int) -> CommitProperties:
        """Return the text that a commit stores about a snapshot."""
        from deltalake import CommitProperties, Transaction

        marks = [Transaction(_SNAPSHOT, 0), Transaction(f"{_SNAPSHOT}:{plan}", stage)]
        return CommitProperties(app_transactions=marks)

    def _ensure(self, plan: str, stage: int) -> None:
        """Store the stage of a snapshot in a separate commit, unless an earlier commit has stored it."""
        from deltalake import write_deltalake

        if self._stage(plan) != stage:
            nothing = self._known().to_pyarrow_dataset().schema.empty_table()
            properties = self._note(plan, stage)
            write_deltalake(self._known(), nothing, mode="append", commit_properties=properties)
            self._known().update_incremental()

    def merge(self, rows: pa.Table, done: Transaction | None) -> None:
        """Merge the last changes of some keys in one commit. If nothing changes, there is no commit.

        Args:
            rows: The rows in the prepared schema, with the column `type`; at most one row per key.
            done: The data to store with the commit that completes a batch.
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
            writer_properties=_written(source.column_names),
            # deltalake finds the lowest and the highest key of the rows, and skips files that cannot match.
            streamed_exec=False,
        ).when_matched_update(columns, "s.order_key > t.order_key").when_not_matched_insert(columns).execute()


def live_rows(table_path: str | os.PathLike[str], columns: list[str] | None = None) -> pa.RecordBatchReader:
    """Read the documents of a table that `merge_into_delta` writes, without the tombstones.

    A SQL query with `WHERE _deleted_at IS NULL` returns the same rows as this function.

    Args:
        table_path: The path of the table, as in `merge_into_delta`.
        columns: The columns to read; by default all except `_deleted_at`.

    Returns:
        The rows, in batches; `.read_all()` returns them as one table.

    Raises:
        MulticloudDbError: `NOT_FOUND` if the table does not exist.
    """
    path = local_path("table_path", table_path)
    check_type("columns", columns, list, type(None))
    for name in columns or ():
        check_type("columns", name, str)
    table = _opened(path)
    if table is None:
        raise _missing(path)
    dataset = table.to_pyarrow_dataset()
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

    A tombstone prevents an older change from restoring its row, so a tombstone may be removed only when no
    older change can arrive. The lifetime of a tombstone must be longer than the time for which the service
    keeps changes. The lifetime must also be longer than the longest time for which a query that writes this
    table is stopped. While a snapshot is read, an older version of a row can arrive at any time. So if a
    query begins with a snapshot, pass its `checkpoint`: then nothing is removed until the query has completed
    a batch after the end of the scan.

    Args:
        table_path: The path of the table, as in `merge_into_delta`. Call this function in the process that
            merges, or while no process is merging.
        older_than: The lifetime of a tombstone, counted from the time when its delete was merged.
        checkpoint: The `checkpointLocation` of the query, as in `merge_into_delta`.

    Returns:
        The number of tombstones that were removed.

    Raises:
        MulticloudDbError: `NOT_FOUND` if the table does not exist.
    """
    path = local_path("table_path", table_path)
    check_type("older_than", older_than, timedelta)
    if checkpoint is not None:
        local_path("checkpoint", checkpoint)
    if older_than < timedelta(0):
        raise invalid_request("older_than", "is negative", "give the lifetime of a tombstone")
    table = _opened(path)
    if table is None:
        raise _missing(path)
    if DELETED_AT not in {field.name for field in table.schema().fields}:
        return 0
    if checkpoint is not None and not Checkpoint(os.fspath(checkpoint)).is_scanned():
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


def _foreign(where: str, name: str) -> MulticloudDbError:
    return invalid_request(
        "table_path", f"{where} has no column {name}", "give a table that this sink created"
    )


def _written(names: list[str]) -> WriterProperties:
    """Return file settings: no dictionary of unique texts, and no statistics of documents."""
    from deltalake import ColumnProperties, WriterProperties

    properties = {name: ColumnProperties(dictionary_enabled=False) for name in _TEXT}
    if _DOCUMENT in names:
        properties[_DOCUMENT] = ColumnProperties(statistics_enabled="NONE")
    return WriterProperties(compression="SNAPPY", column_properties=properties)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _stored(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(DELETED_AT, _TIME))


def _with_tombstones(rows: pa.Table) -> pa.Table:
    """Return the rows in the form in which they are stored.

    The row of a deleted document contains the time at which the delete is merged.
    """
    now = pa.scalar(datetime.now(UTC), _TIME)
    deleted = pc.if_else(pc.equal(rows["type"], "DELETE"), now, pa.scalar(None, _TIME))
    return rows.drop_columns("type").append_column(pa.field(DELETED_AT, _TIME), deleted)


def _kind(of: object) -> str:
    """Return the name of a Delta type. The name does not say whether the type is nullable."""
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":(true|false)', "", _json(of))


def _name(of: object) -> str:
    return _json(of).strip('"')


def _json(of: object) -> str:
    return str(of.to_json())  # type: ignore[attr-defined]
