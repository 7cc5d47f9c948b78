"""Sinks for `foreachBatch` that keep a table equal to the collection.

If a query is killed after the sink's commit and before Spark's own commit, Spark delivers the batch again,
with the same number and the same rows. An older change can also arrive after a newer one: from a second query
on the table, from a query that starts again, or from a scan. So the sink finds the last change of each key,
and then merges these changes by `order_key`; it can safely repeat both.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import ChangeFeedPage, invalid_request
from multiclouddb_api.validators import check_type, local_path
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.delta_log import committed, dataset_of, opened, writable
from multiclouddb_tables.delta_refusals import missing
from multiclouddb_tables.merging import merge_batch
from multiclouddb_tables.rules import (
    DELETED_AT,
    OF_THE_EVENT,
    Create,
    MissingState,
    Piece,
    batch_of,
    check_options,
    last_changes,
    piece_of,
    place_of,
    stored_schema,
    table_of,
    usual_types,
)
from multiclouddb_tables.sql import in_backticks
from pyspark_multiclouddb.checkpoint import Checkpoint, told
from pyspark_multiclouddb.errors import check_has

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Events = TypeVar("_Events", bound="pa.Table | DataFrame")


def latest_by_key(events: _Events) -> _Events:
    """Keep the last change of each key.

    Args:
        events: A DataFrame or a pyarrow table with the columns `key` and `order_key`. Other columns
            are allowed.

    Returns:
        For each `key`, the row with the highest `order_key`, only once even if an event was delivered twice.
        A missing `order_key` counts as higher than any other. A table keeps the order of its rows. A
        DataFrame has no order, and Spark evaluates it only when you use it.
    """
    _check_rows("events", events)
    if not isinstance(events, pa.Table):
        from pyspark_multiclouddb.pieces import latest_rows

        return cast("_Events", latest_rows(events))
    return cast("_Events", last_changes(events))


def merge_into_delta(
    batch: DataFrame | pa.Table | ChangeFeedPage,
    batch_id: int | None,
    table_path: str | os.PathLike[str],
    app_id: str | None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    create: Create = "first",
    new_columns: Literal["add", "refuse"] = "refuse",
    missing_state: MissingState = "refuse",
    max_bytes: int = 64 << 20,
    source: str | None = None,
) -> bool:
    """Merge changes into a Delta table: one row per document, and a tombstone for a deleted one.

    The sink replaces a row only if the new one has a higher `order_key`, so changes may arrive in any order
    and more than once. In the row of a deleted document, `_deleted_at` contains the time at which the delete
    was merged; in all others it is null (see `live_rows` and `drop_tombstones`).

    Spark finds the last change of each key, and sends only these, with only the columns of the table, to the
    driver. They come in pieces of at most `max_bytes`, and each piece is a commit. Spark reads the source
    once and keeps the last changes on its executors, in memory or on disk, until all pieces are merged. A
    process that is killed between two commits merges the batch again when it restarts; rows that were already
    merged do not change. No batch is ever left out: a checkpoint that was restored from a copy delivers other
    rows under a number that was used before.

    A query delivers each row once, so a table that has lost rows is refused: one that was dropped or made
    again, one that `RESTORE` took back further than the checkpoint, and the table of another query. Each
    commit names its batch, so the sink sees in the log whether the table was restored.

    The notices of a page tell the sink where a snapshot begins and ends. So pass every page, even a page
    without events, and store its token afterwards. A snapshot of pages, from `Snapshot()` or
    `on_expired=Resnapshot()`, then repairs the table like a snapshot with `checkpoint`.

    A stream that begins with a snapshot needs `checkpoint` if the table may have older rows, or if the
    stream's options include `snapshotOrder=interleaved`, `snapshotOrder=auto` or `failOnDataLoss=resnapshot`.
    The offsets in the checkpoint show to which snapshot a batch belongs, and whether its scan is over. Such a
    snapshot repairs the table: its rows replace older ones, and after the last one, a document that it did
    not contain becomes a tombstone. So the table must not contain rows of other collections. If the table
    contains older rows, and the sink has not seen the start of a snapshot, or the table was dropped after the
    start, the sink refuses the rows of this snapshot. It recognizes them by `event_id` and `backfilled`, and
    refuses a batch without these columns.

    The first merge creates the table, with the columns `key`, `order_key`, `timestamp`, `new_item_state` and
    `_deleted_at`. Additional columns of the batch are also kept, so you can parse documents first:
    `frame.withColumn("total", get_json_object("new_item_state", "$.total"))`. A column of the table that is
    missing from the batch keeps its values.

    A table is filled either from a feed with every change, or from one that contains only latest versions
    (`CosmosOptions(mode="latest")`). The sink refuses a batch of the other kind, which it recognizes by
    `event_id`.

    A CREATE or UPDATE may come without its document, for example because the image of the change has expired.
    Such a change is never written as an empty document. The sink checks the column `new_item_state`, so leave
    it in the batch.

    Args:
        batch: The DataFrame that `foreachBatch` passes, a pyarrow table with its columns, or a page. A table
            or a page is merged in one commit.
        batch_id: The batch number that Spark passes, or None for changes without one. Changes without a
            number are merged too. A second merge of the same changes has no effect.
        table_path: The path of a folder, or a URL that `deltalake` supports. Other threads and processes may
            write the table at the same time, for example `multiclouddb verify --repair`, or a job that
            compacts and vacuums it: a commit that another one prevents is made again.
        app_id: A name that identifies the query and its checkpoint. With a new checkpoint directory the
            numbering starts again, so use another `app_id`. The table stores that the query has begun in it,
            by the id that Spark gives the query, or else by `app_id`. Over Spark Connect, the sink reads this
            id from `checkpoint`, so pass both `app_id` and `checkpoint`. Give both `app_id` and `batch_id`,
            or None for both.
        checkpoint: The `checkpointLocation` of the query: a folder, or a URL that Spark can read. A DataFrame
            carries no notices, so the sink knows only from there that `failOnDataLoss=false` has skipped
            changes, and that the collection was dropped or renamed. Without it, such a table is not marked as
            incomplete, and the last batch before a drop is merged; then only the log of the driver, and the
            end of the query, tell you.
        create: When the sink makes the table, and takes over a table that it has not marked: `"first"`, if
            the query of the batch has delivered no row before; `"always"`; or `"never"`: the table must
            exist. A later batch without its table is refused, because the rows before it would be missing
            for good: the table was dropped, or the checkpoint is that of another table. A page says by
            `resumed_from` whether it is the first, and a batch of Spark by its number and `checkpoint`. A
            pyarrow table without a number does not say it, and counts as the first.
        new_columns: What to do if the batch contains a column that the table does not have: `"add"` adds the
            column, with null in the existing rows; `"refuse"` refuses the batch.
        missing_state: What to do if the last change of a key has no document: `"refuse"` refuses the batch;
            `"keep"` keeps the document and the other columns of the row, moves its `order_key`, and writes
            the time of the merge into the column `_stale_since`. If the key has no row yet, a row without a
            document is written. The next change with a document empties `_stale_since`.
        max_bytes: The maximum size of a piece in bytes, as the sink estimates it in Arrow. Pieces are smaller
            if Spark's setting `spark.driver.maxResultSize` requires it. A single row is never split.
        source: The feed of the rows, as `provider:database/collection`, if the batch lacks the columns
            `partition_id`, `database` and `collection`, from which the sink otherwise knows it.

    Returns:
        True if the batch was merged; False if it was empty.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a column is missing, has a different type than in
            the table, has a type that a Delta table cannot store, or is new and refused; if a row
            has no key, no `order_key`, or a `type` that is not the type of a change; if a change has no
            document and `missing_state` is `"refuse"`; if the table was filled from a feed of another
            kind; if it lacks what the query has delivered before; if a snapshot needs `checkpoint`, or the
            checkpoint belongs to another query; `NOT_FOUND` if the table does not exist and `create` does not
            allow to make it. If the category is `INVALID_REQUEST` or `NOT_FOUND`, no row was written.
            `CONFLICT` if other processes change the table all the time, for five minutes; merge the batch
            again.
        ImportError: Raised if `deltalake` is not installed: `pip install "multiclouddb-spark[delta]"`.
    """
    _check_rows("batch", batch, or_page=True)
    local_path("table_path", table_path)
    if checkpoint is not None:
        local_path("checkpoint", checkpoint)
    check_type("max_bytes", max_bytes, int)
    check_options(
        batch_id=batch_id, app_id=app_id, create=create, new_columns=new_columns,
        missing_state=missing_state, source=source,
    )  # fmt: skip
    if max_bytes < 1:
        raise invalid_request("max_bytes", "is less than 1", "give the maximum number of bytes of a piece")
    work = batch_of(
        batch, batch_id, app_id, told(batch, batch_id, app_id, checkpoint),
        pieces=lambda: _pieces(batch, max_bytes, missing_state), empty_schema=lambda: _stored_schema(batch),
        is_told=checkpoint is not None, create=create, source=source,
    )  # fmt: skip
    table = DeltaTarget(os.fspath(table_path), new_columns=new_columns, place=place_of(work))
    if not table.exists and create == "never":
        raise missing(table.where)
    return merge_batch(table, "merge_into_delta", work)


def live_rows(table_path: str | os.PathLike[str], columns: list[str] | None = None) -> pa.RecordBatchReader:
    """Read the documents of a table that `merge_into_delta` writes, without the tombstones.

    A SQL query with `WHERE _deleted_at IS NULL` returns the same rows.

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
    dataset = dataset_of(table, path)
    if unknown := [name for name in columns or () if name not in dataset.schema.names]:
        raise invalid_request(
            "columns", f"{path} has no column {unknown[0]}", f"choose among {', '.join(dataset.schema.names)}"
        )
    if columns is None:
        columns = [name for name in dataset.schema.names if name != DELETED_AT]
    live = pc.field(DELETED_AT).is_null() if DELETED_AT in dataset.schema.names else None
    return dataset.scanner(columns=columns, filter=live, use_threads=False).to_reader()


def drop_tombstones(
    table_path: str | os.PathLike[str],
    older_than: timedelta = timedelta(days=30),
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    spark: SparkSession | None = None,
) -> int:
    """Remove the tombstones of keys that were deleted long ago.

    A tombstone prevents an older change from restoring its row, so it may be removed only when no older
    change can arrive. Its lifetime must be longer than the service keeps changes, and longer than the longest
    interruption of a query that writes this table. While a snapshot is read, an older version of a row can
    arrive at any time. So if a query begins with a snapshot, pass its `checkpoint`: nothing is then removed
    until the query has completed a batch after the end of the scan.

    Args:
        table_path: The path of the table, as in `merge_into_delta`. Other threads and processes may write
            the table at the same time.
        older_than: The lifetime of a tombstone, counted from the time when its delete was merged.
        checkpoint: The `checkpointLocation` of the query, as in `merge_into_delta`.
        spark: The session that knows the table, for a table of `merge_into_table`; `table_path` is then its
            name.

    Returns:
        The number of tombstones that were removed.

    Raises:
        MulticloudDbError: `NOT_FOUND` if the table does not exist; `CONFLICT` if other processes change the
            table all the time.
    """
    path = local_path("table_path", table_path)
    check_type("older_than", older_than, timedelta)
    if checkpoint is not None:
        local_path("checkpoint", checkpoint)
    if older_than < timedelta(0):
        raise invalid_request("older_than", "is negative", "give the lifetime of a tombstone")
    if spark is not None:
        check_has("spark", spark, "table", "a SparkSession")
        from pyspark_multiclouddb.table_target import check_table, drop_table_tombstones

        check_table(path)
        if checkpoint is not None and not Checkpoint(os.fspath(checkpoint), spark).is_scanned():
            return 0
        return drop_table_tombstones(spark, path, older_than)
    table = writable(path)
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


def _check_rows(name: str, value: object, *, or_page: bool = False) -> None:
    """Accept only a DataFrame or a pyarrow table, and with `or_page` also a page."""
    if isinstance(value, pa.Table) or (or_page and isinstance(value, ChangeFeedPage)):
        return
    wanted = "a DataFrame, a pyarrow table or a page" if or_page else "a DataFrame or a pyarrow table"
    check_has(name, value, "sparkSession", wanted)


def _pieces(
    batch: DataFrame | pa.Table | ChangeFeedPage, max_bytes: int, missing_state: MissingState
) -> Generator[Piece, None, None]:
    if isinstance(batch, pa.Table | ChangeFeedPage):
        yield from piece_of(table_of(batch), missing_state)
        return
    from pyspark_multiclouddb.pieces import collected_in_pieces, needed

    with closing(collected_in_pieces(needed(batch), max_bytes, missing_state)) as pieces:
        for piece in pieces:
            yield attrs.evolve(piece, rows=usual_types(piece.rows))


def _stored_schema(batch: DataFrame | pa.Table | ChangeFeedPage) -> pa.Schema:
    """Return the columns that a batch without rows gives the table."""
    if isinstance(batch, pa.Table | ChangeFeedPage):
        return stored_schema(batch)
    kept = [name for name in batch.columns if name not in OF_THE_EVENT]
    return usual_types(cast("pa.Table", batch.selectExpr(*map(in_backticks, kept)).limit(0).toArrow())).schema
