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
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from multiclouddb_api import BackfillDone, ChangeFeedPage, RecordSkipped, SnapshotStarted, invalid_request
from multiclouddb_api.arrow import EVENT_SCHEMA, events_to_arrow
from multiclouddb_api.validators import check_type, local_path, type_name
from multiclouddb_spi.scan.contract import LATEST_MARK, plan_id_of
from multiclouddb_spi.sink_rules import MissingState, lacks_state, missing_state_error
from multiclouddb_verify.delta import DELETED_AT, committed, in_backticks, missing, opened
from pyspark_multiclouddb.checkpoint import Checkpoint, Scan, query_of
from pyspark_multiclouddb.delta import (
    CHANGE_TYPES,
    PLAN,
    Numbered,
    Piece,
    Target,
    check_cases,
    incomplete_rows,
)
from pyspark_multiclouddb.errors import check_has

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Events = TypeVar("_Events", bound="pa.Table | DataFrame")
_NEEDED: Final = ("key", "order_key", "type")
_TOLD: Final = ("event_id", "type", "old_item_state", "by_expiry", "backfilled")
_OF_THE_EVENT: Final = frozenset((*_TOLD, "database", "collection", "partition_id", "sequence"))
_PAGE_SCHEMA: Final = pa.schema([field for field in EVENT_SCHEMA if field.name not in _OF_THE_EVENT])
"""The columns that the table gets from a page."""


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
    if not events.num_rows:
        return events
    return cast("_Events", events.take(_last_of_each(events)))


def merge_into_delta(
    batch: DataFrame | pa.Table | ChangeFeedPage,
    batch_id: int | None,
    table_path: str | os.PathLike[str],
    app_id: str | None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    create: bool = True,
    new_columns: Literal["add", "refuse"] = "refuse",
    missing_state: MissingState = "refuse",
    max_bytes: int = 64 << 20,
) -> bool:
    """Merge changes into a Delta table: one row per document, and a tombstone for a deleted one.

    The sink replaces a row only if the new one has a higher `order_key`, so changes may arrive in any order
    and more than once. In the row of a deleted document, `_deleted_at` contains the time at which the delete
    was merged; in all others it is null (see `live_rows` and `drop_tombstones`).

    Spark finds the last change of each key, and sends only these, with only the columns of the table, to the
    driver. They come in pieces of at most `max_bytes`, and each piece is a commit. Spark reads the source
    once and keeps the last changes on its executors, in memory or on disk, until all pieces are merged. A
    process that is killed between two commits merges the batch again when it restarts; rows that were already
    merged do not change. The last commit stores the number of the batch. If the table already contains the
    number of a batch, the batch is left out.

    The notices of a page tell the sink where a snapshot begins and ends. So pass every page, even a page
    without events, and store its token afterwards. A snapshot of pages, from `Snapshot()` or
    `on_expired=Resnapshot()`, then repairs the table like a snapshot with `checkpoint`.

    A stream that begins with a snapshot needs `checkpoint` if the table may have older rows, or if the
    stream's options include `snapshotOrder=interleaved`, `snapshotOrder=auto` or `failOnDataLoss=resnapshot`.
    The offsets in the checkpoint show to which snapshot a batch belongs, and whether its scan is over. Such a
    snapshot repairs the table: its rows replace older ones, and after the last one, a document that it did
    not contain becomes a tombstone. So the table must not contain rows of other collections. If the table
    contains older rows, and the sink has not seen the start of a snapshot, it refuses the rows of this
    snapshot. It recognizes them by `event_id` and `backfilled`, so do not remove these columns from the
    batch.

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
            number are always merged; a second merge of the same changes has no effect.
        table_path: The path of a folder, or a URL that `deltalake` supports. Other threads and processes may
            write the table at the same time, for example `multiclouddb verify --repair`, or a job that
            compacts and vacuums it: a commit that another one prevents is made again.
        app_id: A name that identifies the query and its checkpoint. With a new checkpoint directory the
            numbering starts again, so use another `app_id`. The table stores the id of the query beside the
            number, and the sink refuses another query under the same `app_id`. Over Spark Connect, the sink
            reads this id from `checkpoint`, so pass both `app_id` and `checkpoint`. Give both `app_id` and
            `batch_id`, or None for both.
        checkpoint: The `checkpointLocation` of the query: a folder, or a URL that Spark can read.
        create: False to raise an error if the table does not exist.
        new_columns: What to do if the batch contains a column that the table does not have: `"add"` adds the
            column, with null in the existing rows; `"refuse"` refuses the batch.
        missing_state: What to do if the last change of a key has no document: `"refuse"` refuses the batch;
            `"keep"` keeps the document and the other columns of the row, moves its `order_key`, and writes
            the time of the merge into the column `_stale_since`. If the key has no row yet, a row without a
            document is written. The next change with a document empties `_stale_since`.
        max_bytes: The maximum size of a piece in bytes, as the sink estimates it in Arrow. Pieces are smaller
            if Spark's setting `spark.driver.maxResultSize` requires it. A single row is never split.

    Returns:
        True if the batch was merged; False if it was empty or the table already contained it.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a column is missing, has a different type than in
            the table, has a type that a Delta table cannot store, or is new and refused; if a row
            has no key, no `order_key`, or a `type` that is not the type of a change; if a change has no
            document and `missing_state` is `"refuse"`; if the table was filled from a feed of another
            kind; if another query has used `app_id`; if a snapshot needs `checkpoint`, or the checkpoint
            belongs to another query; `NOT_FOUND` if the table does not exist and `create` is False.
            If the category is `INVALID_REQUEST` or `NOT_FOUND`, no row was written. `CONFLICT` if
            other processes change the table all the time, for five minutes; merge the batch again.
        ImportError: Raised if `deltalake` is not installed: `pip install "multiclouddb-spark[delta]"`.
    """
    _check_merge(
        batch, table_path, batch_id=batch_id, app_id=app_id, checkpoint=checkpoint, create=create,
        new_columns=new_columns, missing_state=missing_state, max_bytes=max_bytes,
    )  # fmt: skip
    query, scan, notes = _told(batch, batch_id, app_id, checkpoint)
    begun, ended = _scans_in(batch)
    if scan is not None:
        begun, ended = [*begun, scan], [*ended, scan]
    is_told = checkpoint is not None and not isinstance(batch, ChangeFeedPage)
    target = Target(os.fspath(table_path), create=create, new_columns=new_columns)
    done = None if batch_id is None or app_id is None else Numbered(app_id, batch_id, query, notes)
    merged = False
    if done is not None and target.has(done):
        for each in begun:
            target.check_unused(each, done)
    else:
        for each in begun if isinstance(batch, ChangeFeedPage) else ():
            if not target.exists:
                target.prepare(_PAGE_SCHEMA)
            target.begin(each)
        with closing(_pieces(batch, max_bytes, missing_state)) as pieces:
            for piece in pieces:
                if not merged:
                    target.prepare(piece.rows.drop_columns("type").schema, may_be_stale=piece.is_incomplete)
                    if piece.is_latest is not None:
                        target.check_mode(is_latest=piece.is_latest)
                    _begin(target, scan, piece.plan, is_told=is_told)
                    if scan is None and done is not None:
                        done = target.noted(done)
                target.merge(piece.rows, done, is_last=piece.is_last)
                merged = True
        if done is not None and done.notes and not target.has(done):
            # No row has changed, for example because no change could be decoded.
            if not target.exists:
                target.prepare(_stored_schema(batch))
            _begin(target, scan, None, is_told=is_told)
            target.note(done)
    _end(target, ended)
    return merged


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
    # Arrow's threads may still read when the interpreter ends. With deltalake's own file system, which is
    # written in Python, they would then abort the process.
    dataset = table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(str(path), LocalFileSystem()))
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


def _check_rows(name: str, value: object, *, or_page: bool = False) -> None:
    """Accept only a DataFrame or a pyarrow table, and with `or_page` also a page."""
    if isinstance(value, pa.Table) or (or_page and isinstance(value, ChangeFeedPage)):
        return
    wanted = "a DataFrame, a pyarrow table or a page" if or_page else "a DataFrame or a pyarrow table"
    check_has(name, value, "sparkSession", wanted)


def _check_merge(batch: object, table_path: object, **rest: Any) -> None:
    """Refuse arguments for `merge_into_delta` that are of the wrong type or do not fit together."""
    _check_rows("batch", batch, or_page=True)
    local_path("table_path", table_path)
    check_type("batch_id", rest["batch_id"], int, type(None))
    check_type("app_id", rest["app_id"], str, type(None))
    if rest["checkpoint"] is not None:
        local_path("checkpoint", rest["checkpoint"])
    check_type("create", rest["create"], bool)
    check_type("max_bytes", rest["max_bytes"], int)
    for name, first in (("new_columns", "add"), ("missing_state", "keep")):
        if rest[name] not in (first, "refuse"):
            kind = type_name(rest[name])
            raise invalid_request(name, f"is {rest[name]!r}, a {kind}", f'pass "{first}" or "refuse"')
    if (rest["batch_id"] is None) != (rest["app_id"] is None):
        raise invalid_request("batch_id", "must be given together with app_id", "give both, or None for both")
    if rest["max_bytes"] < 1:
        raise invalid_request("max_bytes", "is less than 1", "give the maximum number of bytes of a piece")


def _end(target: Target, scans: list[Scan]) -> None:
    """Record that a batch was merged. A batch without rows may also begin or end a snapshot."""
    if target.exists:
        for scan in scans:
            target.begin(scan)
            if scan.is_over:
                target.end(scan)


def _scans_in(batch: DataFrame | pa.Table | ChangeFeedPage) -> tuple[list[Scan], list[Scan]]:
    """Return the snapshots that begin on a page, and those that end on it, as its notices say."""
    begun, ended = [], []
    for notice in batch.notices if isinstance(batch, ChangeFeedPage) else ():
        match notice:
            case SnapshotStarted(floor, where, whole):
                begun.append(Scan(_plan_of(where) or where, floor, True, False, False, whole))
            case BackfillDone(where, floor):
                ended.append(Scan(_plan_of(where) or where, floor, False, False, True))
            case RecordSkipped(where, position) if _plan_of(where) is not None:
                raise invalid_request(
                    "batch",
                    f"lacks a row of a snapshot that cannot be decoded ({position}); at the end of the "
                    "snapshot, the sink would treat the document as deleted",
                    "change or delete the document in the database, and begin another Snapshot()",
                )
            case _:
                pass
    return begun, ended


def _plan_of(partition_id: str) -> str | None:
    """Return the id of a snapshot from a public id, in which the provider and the resource come first."""
    return plan_id_of(partition_id.split(":", 2)[-1])


def _told(
    batch: DataFrame | pa.Table | ChangeFeedPage,
    batch_id: int | None,
    app_id: str | None,
    checkpoint: str | os.PathLike[str] | None,
) -> tuple[str | None, Scan | None, dict[str, str]]:
    """Return the id of the query, the snapshot to which the batch belongs, and notes for the commit."""
    frame = None if isinstance(batch, pa.Table | ChangeFeedPage) else batch
    query, is_reported = query_of(frame)
    scan, notes = None, dict[str, str]()
    if checkpoint is not None:
        if batch_id is None:
            raise invalid_request(
                "checkpoint", "must be given together with batch_id", "give both, or leave both out"
            )
        told = Checkpoint(os.fspath(checkpoint), None if frame is None else frame.sparkSession)
        query, scan = told.query(query), told.scan(batch_id)
        notes = told.notes(batch_id)
    if app_id is not None and query is None and not is_reported:
        raise invalid_request(
            "app_id",
            "is given, but over Spark Connect the sink cannot tell which query the batch number comes from",
            "also pass checkpoint=, the checkpointLocation of the query",
        )
    return query, scan, notes


def _begin(target: Target, scan: Scan | None, plan: str | None, *, is_told: bool) -> None:
    """Begin the snapshot of a batch in the table, unless this snapshot has already begun."""
    if scan is not None:
        if plan not in (None, scan.plan):
            raise invalid_request(
                "checkpoint",
                f"belongs to the snapshot {scan.plan}, but the batch contains rows of {plan}",
                "pass the checkpointLocation of the query that calls this function",
            )
        target.begin(scan)
    elif plan is not None and not is_told:
        target.accept(plan)


def _pieces(
    batch: DataFrame | pa.Table | ChangeFeedPage, max_bytes: int, missing_state: MissingState
) -> Generator[Piece, None, None]:
    """Return the last change of each key in the batch, piece by piece."""
    if isinstance(batch, ChangeFeedPage):
        batch = pa.Table.from_batches([events_to_arrow(batch.events)])
    is_table = isinstance(batch, pa.Table)
    names = cast("list[str]", batch.column_names if is_table else batch.columns)
    for name in _NEEDED:
        if name not in names:
            raise invalid_request("batch", f"has no column {name}", "pass the rows of the data source")
    kept = [*(name for name in names if name not in _OF_THE_EVENT), "type"]
    tells_plan = {"backfilled", "event_id"} <= set(names)
    if not is_table:
        from pyspark_multiclouddb.pieces import collected_in_pieces

        check_cases(names)
        plan = (
            "CASE WHEN backfilled AND event_id LIKE 'snapshot:%' THEN split(event_id, ':')[1] "
            f"WHEN event_id LIKE '{LATEST_MARK}%' THEN '{LATEST_MARK}' END"
        )
        columns = [*map(in_backticks, kept), *([f"{plan} AS {PLAN}"] if tells_plan else [])]
        selected = batch.selectExpr(*columns)
        with closing(collected_in_pieces(selected, max_bytes, missing_state)) as pieces:
            for piece in pieces:
                yield attrs.evolve(piece, rows=_in_utc(piece.rows))
        return
    known = pc.is_in(batch["type"].cast(pa.string()), pa.array(CHANGE_TYPES))
    if any(batch[name].null_count for name in _NEEDED) or pc.any(pc.invert(known)).as_py():
        raise incomplete_rows()
    if batch.num_rows:
        found = _plan_in(batch) if tells_plan else None
        rows = _in_utc(latest_by_key(batch.select(kept)))
        lacking = rows.filter(lacks_state(rows))
        if lacking.num_rows and missing_state == "refuse":
            raise missing_state_error(pc.min(lacking["key"]).as_py(), lacking.num_rows)
        is_latest = _is_latest(batch) if tells_plan else None
        yield Piece(rows, True, found, bool(lacking.num_rows), is_latest)


def _stored_schema(batch: DataFrame | pa.Table | ChangeFeedPage) -> pa.Schema:
    """Return the columns that a batch without rows gives the table."""
    if isinstance(batch, ChangeFeedPage):
        return _PAGE_SCHEMA
    names = batch.column_names if isinstance(batch, pa.Table) else batch.columns
    kept = [name for name in names if name not in _OF_THE_EVENT]
    if not isinstance(batch, pa.Table):
        batch = cast("pa.Table", batch.selectExpr(*map(in_backticks, kept)).limit(0).toArrow())
    return _in_utc(batch.select(kept)).schema


def _is_latest(events: pa.Table) -> bool:
    """Return True if `events` contains changes of a feed of latest versions."""
    return bool(pc.any(pc.starts_with(events["event_id"].cast(pa.string()), LATEST_MARK)).as_py())


def _plan_in(events: pa.Table) -> str | None:
    """Return the id of the snapshot to which rows of `events` belong, or None."""
    where = pc.index(events["backfilled"], True).as_py()
    return None if where < 0 else plan_id_of(events["event_id"][where].as_py() or "") or None


def _last_of_each(events: pa.Table) -> pa.Array:
    """Return the row numbers of the last change of each key, in ascending order."""
    number = events["key"].combine_chunks().dictionary_encode().indices
    counts = pa.table({"number": number}).group_by("number").aggregate([("number", "count")])
    repeated = counts.filter(pc.field("number_count") > 1)["number"]
    is_repeated = pc.is_in(number, value_set=repeated)
    once, several = (pc.indices_nonzero(mask) for mask in (pc.invert(is_repeated), is_repeated))
    if not len(several):
        return once
    order_keys = pc.fill_null(events["order_key"].take(several), "\U0010ffff")
    changes = pa.table({"number": number.take(several), "order_key": order_keys})
    order = pc.sort_indices(changes, sort_keys=[("number", "ascending"), ("order_key", "descending")])
    sorted_numbers = changes["number"].take(order).combine_chunks()
    is_last = pa.concat_arrays([pa.array([True]), pc.not_equal(sorted_numbers[1:], sorted_numbers[:-1])])
    rows = pa.concat_arrays([once, several.take(order.filter(is_last))])
    return rows.take(pc.sort_indices(rows))


def _in_utc(events: pa.Table) -> pa.Table:
    """Return the events with all times in UTC."""
    for index, field in enumerate(events.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz not in (None, "UTC"):
            utc: Any = events.column(index).cast(pa.timestamp("us", tz="UTC"))
            events = events.set_column(index, field.name, utc)
    return events
