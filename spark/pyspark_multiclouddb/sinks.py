"""Sinks for `foreachBatch` that keep a table equal to the collection.

If a query is killed after the sink's commit and before Spark's own commit, Spark delivers the batch again,
with the same number and the same rows. An older change can also arrive after a newer one: from a second query
on the table, from a query that starts again, or from a scan. So the sink finds the last change of each key,
and then merges these changes by `order_key`; it can safely repeat both.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeVar, cast
from urllib.parse import unquote

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import ChangeFeedPage, invalid_request
from multiclouddb_api.validators import check_type, local_path
from multiclouddb_tables.batch import Create, MissingState, Piece, batch_of, check_options, place_of
from multiclouddb_tables.changes import last_changes, piece_of, stored_schema, table_of, usual_types
from multiclouddb_tables.columns import Columns
from multiclouddb_tables.conversion import cutter
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.delta_log import committed, dataset_of, opened, unread, writable
from multiclouddb_tables.delta_refusals import damaged, missing
from multiclouddb_tables.delta_upkeep import drop_tombstones as drop_delta_tombstones
from multiclouddb_tables.delta_upkeep import remove_empty_folders
from multiclouddb_tables.merging import merge_batch
from multiclouddb_tables.rules import DELETED_AT, OF_THE_EVENT
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
        For each `key` the one row with the highest `order_key`, even if an event was delivered twice; a
        missing `order_key` counts as higher than any other. A table keeps the order of its rows; a DataFrame
        has none, and is evaluated only when you use it.
    """
    _check_rows("events", events)
    if not isinstance(events, pa.Table):
        from pyspark_multiclouddb.functions import check_functions
        from pyspark_multiclouddb.pieces import latest_rows

        check_functions(events.sparkSession)
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
    columns: Columns | None = None,
    refill: bool = False,
) -> bool:
    """Merge changes into a Delta table: one row per document, and a tombstone for a deleted one.

    Changes may come in any order and more than once, because a row is replaced only by one with a higher
    `order_key`. The row of a deleted document stays, and its `_deleted_at` contains the time at which the
    delete was merged; this column is null in all other rows (see `live_rows` and `drop_tombstones`).

    The first merge creates the table, with the columns `key`, `order_key`, `timestamp`, `new_item_state` and
    `_deleted_at`, and with those of the declaration (`columns`). Without one, additional columns of the batch
    are stored, which you have made of the documents. A column of the sink that is missing from the batch
    becomes null with each change. Leave `new_item_state` in the batch, because it shows a change whose
    document is missing (`missing_state`).

    Spark finds the last change of each key, and sends only these changes, with only the columns of the table,
    to the driver. They come in pieces of at most `max_bytes`, each of which is a commit; until all pieces are
    merged, the executors keep the changes in memory or on disk, so the source is read once. A process that is
    killed between two commits merges the whole batch again when it restarts; a change that was merged before
    has no effect then.

    A query delivers each row once, so the sink refuses a table that has lost rows: one that was dropped or
    made again, one that `RESTORE` took back further than the checkpoint, and the table of another query. It
    also refuses to mix a feed of every change with one of latest versions (`CosmosOptions(mode="latest")`).

    A snapshot repairs the table: its rows replace older ones, and after the last one, each document that it
    did not contain becomes a tombstone. So the table must not contain rows of other collections, and the sink
    must see where the snapshot begins and ends. Without Spark, the notices of pages show it: pass every page,
    also one without events, and store its token afterwards. With Spark, the offsets in `checkpoint` show it;
    pass `checkpoint` if the table may have older rows, and with `snapshotOrder=interleaved`,
    `snapshotOrder=auto` or `failOnDataLoss=resnapshot`. The rows of a snapshot are recognized by `event_id`
    and `backfilled`, so a batch without these columns is refused.

    Args:
        batch: The DataFrame that `foreachBatch` passes, a pyarrow table with its columns, or a page. A table
            or a page is merged in one commit.
        batch_id: The batch number that Spark passes, or None for changes without one. Either way, a second
            merge of the same changes has no effect.
        table_path: The path of a folder, or a URL that `deltalake` supports. Other threads and processes may
            write the table at the same time, for example `multiclouddb verify --repair`, or a job that
            compacts and vacuums it: a commit that another one prevents is made again.
        app_id: A name for the query and its checkpoint; None if and only if `batch_id` is None. With a new
            checkpoint folder the numbering starts again, so use another `app_id` with it. The table stores
            which queries have begun in it, by the id that Spark gives a query, or by `app_id` if the sink
            does not know that id. Over Spark Connect, the sink reads that id from `checkpoint`, so pass both.
        checkpoint: The `checkpointLocation` of the query: a folder, or a URL that Spark can read. A DataFrame
            carries no notices, so only in the checkpoint the sink sees that `failOnDataLoss=false` has
            skipped changes, or that the collection was dropped or renamed. Without it, a table that lacks
            changes is not marked as incomplete, and the last batch before a drop is merged; you then see the
            loss or the drop only in the log of the driver and in the end of the query.
        create: When the sink creates the table, and takes over one that it has not marked: `"first"`, the
            default, if the query of the batch has delivered no row before; `"always"`; or `"never"`. A later
            batch whose table does not exist is refused: the table was dropped, or the checkpoint is that of
            another table, and the rows of earlier batches would be missing for good. The sink learns whether
            a batch is the first from `resumed_from` of a page, or from the number and the `checkpoint` of a
            batch of Spark; it treats a pyarrow table without a number as the first.
        new_columns: What to do about a column that the table does not have: `"add"` adds it, with null in the
            existing rows; `"refuse"`, the default, refuses the batch.
        missing_state: What to do if the last change of a key has no document: `"refuse"`, the default,
            refuses the batch; `"keep"` keeps the document and the other columns of the row, sets its
            `order_key` to that of the change, and writes the time of the merge into the column
            `_stale_since`; the next change with a document clears this column. If the key has no row yet, it
            gets one without a document.
        max_bytes: The maximum size of a piece in bytes of Arrow, as the sink estimates it; 64 MiB by default.
            Pieces are smaller if `spark.driver.maxResultSize` requires it, but a row is never split.
        source: The feed of the rows, as `provider:database/collection`. Needed only if the batch lacks the
            columns `partition_id`, `database` and `collection`, which show it.
        columns: The declaration of the table's columns, whose values the sink makes of the documents; the
            batch then has the columns of a change only. None, the default, for a table without declared
            columns. A table keeps its declaration, and refuses another one.
        refill: True to let the table take another declaration: its columns are emptied, and the snapshot of
            the whole collection that has to begin on this batch fills them. False by default.

    Returns:
        True if the batch was merged; False if it was empty.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` or `NOT_FOUND` if the batch or the table is refused for one of
            the reasons above; no row was written then. `INVALID_REQUEST` also if a column is missing, has
            another type than in the table or one that Delta cannot store, or if a row has no key, no
            `order_key` or an unknown `type`. `CONFLICT` if other processes have changed the table all the
            time for five minutes; merge the batch again.
        ImportError: `deltalake` is not installed: `pip install "multiclouddb-spark[delta]"`.
    """
    _check_rows("batch", batch, or_page=True)
    local_path("table_path", table_path)
    if checkpoint is not None:
        local_path("checkpoint", checkpoint)
    check_type("max_bytes", max_bytes, int)
    check_options(
        batch_id=batch_id, app_id=app_id, create=create, new_columns=new_columns,
        missing_state=missing_state, source=source, columns=columns, refill=refill,
    )  # fmt: skip
    if max_bytes < 1:
        raise invalid_request("max_bytes", "is less than 1", "give the maximum number of bytes of a piece")
    work = batch_of(
        batch, batch_id, app_id, told(batch, batch_id, app_id, checkpoint),
        pieces=lambda: _pieces(batch, max_bytes, missing_state, columns),
        empty_schema=lambda: _stored_schema(batch),
        is_told=checkpoint is not None, create=create, source=source, columns=columns, refill=refill,
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
        columns: The columns to read; all except `_deleted_at` by default.

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
    # Arrow would pass by a file whose statistics have a range of times, and no number of nulls.
    deleted = [name for name in dataset.schema.names if name == DELETED_AT]
    scanner = dataset.scanner(columns=[*columns, *deleted], use_threads=False)
    asked = list(range(len(columns)))

    def batches() -> Generator[pa.RecordBatch, None, None]:
        try:
            for batch in scanner.to_batches():
                live = batch.filter(pc.is_null(batch.column(len(columns)))) if deleted else batch
                yield live.select(asked)
        except pa.ArrowInvalid as error:
            raise damaged(path, error) from error
        except OSError as error:
            raise unread(table, path, error) from error

    schema = pa.schema([scanner.projected_schema.field(at) for at in asked])
    return pa.RecordBatchReader.from_batches(schema, batches())


def drop_tombstones(
    table_path: str | os.PathLike[str],
    older_than: timedelta = timedelta(days=30),
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    spark: SparkSession | None = None,
) -> int:
    """Remove the tombstones of keys that were deleted long ago.

    A tombstone prevents an older change from restoring its row, so it may be removed only when no older
    change can come. `older_than` must therefore be longer than the service keeps changes, and longer than any
    interruption of a query that writes this table. During a snapshot, an older version of a row can come at
    any time: if a query begins with a snapshot, pass its `checkpoint`, and nothing is removed until the query
    has completed a batch after the end of the scan.

    Args:
        table_path: The path of the table, as in `merge_into_delta`. Other threads and processes may write
            the table at the same time.
        older_than: How long ago the delete must have been merged; 30 days by default.
        checkpoint: The `checkpointLocation` of the query, as in `merge_into_delta`. None for a loop over
            pages, which has none: call this function when the loop has ended.
        spark: For a table of `merge_into_table`, the session that knows it; `table_path` is then its name.

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
        from pyspark_multiclouddb.named_table import check_table
        from pyspark_multiclouddb.table_target import drop_table_tombstones

        check_table(path)
        if checkpoint is not None and not Checkpoint(os.fspath(checkpoint), spark).is_scanned():
            return 0
        return drop_table_tombstones(spark, path, older_than)
    if writable(path) is None:
        raise missing(path)
    if checkpoint is not None and not Checkpoint(os.fspath(checkpoint)).is_scanned():
        return 0
    try:
        before = datetime.now(UTC) - older_than
    except OverflowError:
        return 0  # no tombstone is from before the year 1
    return drop_delta_tombstones(path, before)


def remove_history(table_path: str | os.PathLike[str], older_than: timedelta = timedelta(days=7)) -> None:
    """Remove what older versions of a Delta table keep of rows that are no longer in it.

    After a delete, the document stays in older files, and the key in older entries of the log, in the
    statistics of these files. This function removes both, and sets the table's property
    `delta.logRetentionDuration`, so that other writers of the table keep the log no longer either. The table
    then has no version that is older than this; whoever reads such a version, or has begun to write a commit
    before it, gets an error.

    Call it after `drop_tombstones`. If files were merged by OPTIMIZE, they count from that moment.

    It removes every Parquet file of the folder that no younger version of the table has, with the checksums
    that Hadoop leaves beside such files. A folder with other files, such as those of a checkpoint or of
    another table inside of it, is refused before anything is done. What is in a folder whose name begins with
    `_` or `.` stays. On a file system, empty folders of partitions are removed too, because their names have
    a value of the rows that were in them.

    Args:
        table_path: The path of the table, as in `merge_into_delta`.
        older_than: How long ago a version must have been replaced; 7 days by default. With less, nobody may
            read or write the table meanwhile.

    Raises:
        MulticloudDbError: `NOT_FOUND` if the table does not exist; `INVALID_REQUEST` if its folder has other
            files; `CONFLICT` if other processes change the table all the time; `PERMANENT_FAILURE` if an
            empty folder cannot be removed.
    """
    path = local_path("table_path", table_path)
    check_type("older_than", older_than, timedelta)
    if older_than < timedelta(0):
        raise invalid_request("older_than", "is negative", "give the age of the versions to remove")
    table = writable(path)
    if table is None:
        raise missing(path)
    listed = committed(
        table, lambda: table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
    )
    held = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    if others := _others(listed, map(unquote, held)):
        raise invalid_request(
            "table_path",
            f"{path} has files that are not of this table and would be removed, such as {others[0]}",
            "move them into a folder beside the table",
        )
    seconds = older_than // timedelta(seconds=1)
    kept = {"delta.logRetentionDuration": f"interval {seconds} seconds"}
    if not kept.items() <= table.metadata().configuration.items():
        committed(table, lambda: table.alter.set_table_properties(kept, raise_if_not_exists=False))
    hours = -(-seconds // 3600)
    committed(
        table,
        # A full one also removes the files of versions that are before the last checkpoint of the log.
        lambda: table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True),
    )
    table.update_incremental()
    remove_empty_folders(table)
    table.create_checkpoint()
    table.cleanup_metadata()


def _others(listed: Sequence[str], held: Iterable[str]) -> list[str]:
    """Return which files that VACUUM would remove are surely not of the table.

    Args:
        listed: The paths of the files, in the folder of the table.
        held: Those of the files that the table has.
    """
    # Some storages list a folder, such as that of a partition, as a file without content.
    folders = {str(folder) for each in (*listed, *held) for folder in PurePosixPath(each).parents}
    files = sorted({*listed} - folders)
    # Hadoop leaves a checksum beside each file on a disk, and compares nothing if it is gone.
    ours = (".parquet", ".parquet.crc")
    return [each for each in files if not each.endswith(ours) or "_delta_log" in each.split("/")]


def _check_rows(name: str, value: object, *, or_page: bool = False) -> None:
    """Accept only a DataFrame or a pyarrow table, and with `or_page` also a page."""
    if isinstance(value, pa.Table) or (or_page and isinstance(value, ChangeFeedPage)):
        return
    wanted = "a DataFrame, a pyarrow table or a page" if or_page else "a DataFrame or a pyarrow table"
    check_has(name, value, "sparkSession", wanted)


def _pieces(
    batch: DataFrame | pa.Table | ChangeFeedPage,
    max_bytes: int,
    missing_state: MissingState,
    columns: Columns | None,
) -> Generator[Piece, None, None]:
    cut = cutter(columns, DeltaTarget.unheld)
    if isinstance(batch, pa.Table | ChangeFeedPage):
        yield from piece_of(table_of(batch), missing_state, cut)
        return
    from pyspark_multiclouddb.declared import declared_rows
    from pyspark_multiclouddb.pieces import check_arrow, collected_in_pieces, needed

    check_arrow(batch)

    def check(rows: DataFrame) -> None:
        # A misfit in a later piece has to be found before the first one is committed.
        if columns is not None and columns.misfits == "refuse":
            with declared_rows(rows, columns, DeltaTarget.unheld, once=False):
                pass

    with closing(collected_in_pieces(needed(batch), max_bytes, missing_state, check)) as pieces:
        for piece in pieces:
            rows = usual_types(piece.rows)
            yield attrs.evolve(piece, rows=rows if cut is None else cut(rows))


def _stored_schema(batch: DataFrame | pa.Table | ChangeFeedPage) -> pa.Schema:
    """Return the columns that a batch without rows gives the table."""
    if isinstance(batch, pa.Table | ChangeFeedPage):
        return stored_schema(batch)
    from pyspark_multiclouddb.pieces import check_arrow, column

    check_arrow(batch)
    kept = [name for name in batch.columns if name not in OF_THE_EVENT]
    return usual_types(cast("pa.Table", batch.select(*map(column, kept)).limit(0).toArrow())).schema
