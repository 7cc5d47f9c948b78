"""Defines the rules of a batch, for all sinks, whatever table they write.

A sink merges by `key` and `order_key`, and leaves a tombstone for a delete. Here is what a batch must
contain, which of its rows count, and what its notices and options mean; `merging.py` merges it.

A CREATE or UPDATE may come without `new_item_state`, for example because the image of the change has expired.
The document exists, but its content is not known. A sink must not write such a change as an empty document.
Its user chooses one of two ways:

- `"refuse"`: nothing of the batch is written, and the error names one of the keys.
- `"keep"`: the row keeps its document, and its `order_key` becomes that of the change, so that no older
  change replaces the row. The column `STALE_SINCE` contains the time at which the change was merged. The next
  change with a document, and a delete, empty this column.

The rule applies to the last change of each key in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar, assert_never

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import (
    BackfillDone,
    ChangeEvent,
    ChangeFeedPage,
    ChangeType,
    Dropped,
    ErrorCategory,
    ErrorDetail,
    FeedEnded,
    Gap,
    Invalidated,
    MulticloudDbError,
    Notice,
    PartitionFoundLate,
    RecordSkipped,
    Renamed,
    ResourceAddress,
    SnapshotStarted,
    encode_json,
    invalid_request,
)
from multiclouddb_api.arrow import EVENT_SCHEMA, events_to_arrow
from multiclouddb_api.validators import check_type, type_name
from multiclouddb_spi.faults import AFTER_AN_OUTAGE, key_digest
from multiclouddb_spi.scan.contract import LATEST_MARK
from multiclouddb_spi.segment import plan_id_of
from multiclouddb_tables.mark import FeedSource, TableMark

DELETED_AT: Final = "_deleted_at"
"""The column that contains the time at which the sink merged a delete; null in the row of a document."""

TIME: Final = pa.timestamp("us", tz="UTC")
"""The type of all times."""

CHANGE_TYPES: Final = tuple(kind.value for kind in ChangeType)
"""The values of the column `type`."""

NEEDED: Final = ("key", "order_key", "type")
"""The columns that a batch must have, with a value in each row."""

_ORIGIN: Final = ("event_id", "backfilled")
"""The columns that say whether a row comes from a snapshot, or from a feed of latest versions."""

_Kind = TypeVar("_Kind")
"""A type of a column, in the form of a kind of table."""

MissingState: TypeAlias = Literal["refuse", "keep"]
"""What a sink does with a change that has no document: refuse the batch, or keep the document of the row."""

Create: TypeAlias = Literal["first", "always", "never"]
"""When a sink creates its table, or takes over one without a mark: in the first batch of a query, always or
never."""

DOCUMENT: Final = "new_item_state"
"""The column with the document. A batch without this column is not checked."""

STALE_SINCE: Final = "_stale_since"
"""The column with the time from which the document of a row is older than its last change; null otherwise."""

LACKS_STATE: Final = f"type <> 'DELETE' AND {DOCUMENT} IS NULL"
"""The rule as a condition in SQL."""


def lacks_state(rows: pa.Table) -> pa.ChunkedArray:
    """Return for each row whether it is a change without its document; at most one row for each key."""
    if DOCUMENT not in rows.column_names:
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])
    return pc.and_(pc.not_equal(rows["type"].cast(pa.string()), "DELETE"), pc.is_null(rows[DOCUMENT]))


def missing_state_error(key: str, count: int) -> MulticloudDbError:
    """Make the error for a batch with `count` changes without their documents, one of them of `key`."""
    return invalid_request(
        "batch",
        f"contains {count} changes without their documents, for example of the key {key_digest(key)}: "
        "images are switched off or have expired, the stream keeps only keys or old images, a document was "
        "deleted before it was looked up, or the feed was read with new_item_state_mode=OMIT",
        "switch full images on, and read with new_item_state_mode=REQUIRE (in Spark newItemState=require); "
        'or let MongoDB look documents up (full_document="updateLookup"); or keep the old documents with '
        f'missing_state="keep"; or leave the column {DOCUMENT} out if you need no documents',
    )


_TOLD: Final = ("event_id", "type", "old_item_state", "by_expiry", "backfilled")
OF_THE_EVENT: Final = frozenset((*_TOLD, "database", "collection", "partition_id", "sequence"))
"""The columns of a batch that describe the change, and are not stored."""
PLACES: Final = ("partition_id", "database", "collection")
"""The columns that say which feed a row comes from."""
PAGE_SCHEMA: Final = pa.schema([field for field in EVENT_SCHEMA if field.name not in OF_THE_EVENT])
"""The columns that a table gets from a page."""


def new_query(sink: str) -> str:
    """Return the advice to start the query that repairs a table of a sink."""
    return (
        "start a query with startingPosition=snapshot, a new checkpointLocation and a new app_id, and pass "
        f"checkpoint= to {sink}"
    )


def repair(sink: str) -> str:
    """Return the way out if a query has missed changes, or may have missed them."""
    return (
        "rows that were deleted or changed while no query read the feed stay wrong; to repair the table, "
        f"{new_query(sink)}; see {AFTER_AN_OUTAGE}"
    )


@attrs.frozen
class MergedSnapshot:
    """The snapshot to which a micro-batch belongs."""

    plan: str
    floor: str  # rows of the target table with a lower `order_key` are older than the snapshot
    is_first: bool  # no earlier batch of the query belongs to this snapshot
    was_over: bool  # the scan was over before the batch
    is_over: bool  # the scan is over when the batch is merged
    whole: bool = True  # the scan reads every row of the collection


@attrs.frozen
class Piece:
    """One part of a batch: the last change of some of its keys."""

    rows: Any  # an Arrow table, or what else the kind of table merges
    is_last: bool
    plan: str | None
    is_incomplete: bool
    is_latest: bool  # the feed contains only latest versions
    source: FeedSource | None  # the feed of the rows, if their columns say it

    @property
    def schema(self) -> pa.Schema:
        """The columns that the table must have."""
        return self.rows.drop_columns("type").schema


@attrs.frozen
class Numbered:
    """The number of a batch in its query, with what its commit has about changes that it lacks.

    `begin` and `end` are digests of the offsets between which it lies; None without a checkpoint.
    """

    app_id: str | None
    batch_id: int
    query: str | None
    notes: Mapping[str, str] = attrs.field(factory=dict)
    begin: str | None = None
    end: str | None = None


@attrs.frozen
class Told:
    """What is known about a batch from its query and checkpoint.

    Attributes:
        query: The id of the query.
        scan: The snapshot to which the batch belongs.
        notes: What the table's commit has to contain about changes that the batch lacks.
        feed: The feed that the query reads.
        is_first: True if no row was delivered before the batch; None if the checkpoint is not known.
        has_gap: True if the batch comes after changes that `failOnDataLoss=false` has skipped.
        begin: A digest of the offset at which the batch begins, as in `Numbered`.
        end: A digest of the offset at which it ends.
    """

    query: str | None = None
    scan: MergedSnapshot | None = None
    notes: Mapping[str, str] = attrs.field(factory=dict)
    feed: FeedSource | None = None
    is_first: bool | None = None
    has_gap: bool = False
    begin: str | None = None
    end: str | None = None


@attrs.frozen
class MergeBatch:
    """What a sink has to merge, and what is known about it."""

    pieces: Callable[[], Generator[Piece, None, None]]
    empty_schema: Callable[[], pa.Schema]  # the columns that a batch without rows gives the table
    done: Numbered | None
    begun: Sequence[MergedSnapshot]
    ended: Sequence[MergedSnapshot]
    scan: MergedSnapshot | None = (
        None  # the snapshot to which the batch belongs, from the checkpoint of its query
    )
    is_told: bool = False  # the checkpoint of a query was given
    is_page: bool = False
    source: FeedSource | None = None  # the feed, if the caller or a page names it
    has_gap: bool = False  # changes were lost, and its user has chosen to go on without them
    is_first: bool | None = None  # its query has delivered no row before; None if it is not known
    create: Create | None = "first"  # None if the function of the sink has no such argument
    notices: Sequence[Notice] = ()

    @property
    def query(self) -> str | None:
        """The name of the query in the table: its own id, or else the caller's name for it."""
        return None if self.done is None else self.done.query or self.done.app_id

    @property
    def begins_anew(self) -> bool:
        """True if a snapshot of the whole collection begins, after which the table has no older rows."""
        return any(each.whole and each.is_first for each in self.begun)


def place_of(batch: MergeBatch) -> Mapping[str, Any]:
    """Return what each commit says about its batch."""
    place: dict[str, Any] = {"query": batch.query}
    if batch.done is not None:
        place |= {"batch": batch.done.batch_id, "begin": batch.done.begin, "end": batch.done.end}
    return {**place, "anew": True} if batch.begins_anew else place


def is_first(batch: object, batch_id: int | None, told: bool | None) -> bool | None:
    """Return whether the query of a batch has delivered no row before; None if it is not known.

    Args:
        batch: The batch; a page shows it itself.
        batch_id: The number of the batch. Number 0 is the first one, even if it is repeated.
        told: What is known from the checkpoint.
    """
    if isinstance(batch, ChangeFeedPage):
        return batch.resumed_from is None
    if told is not None or batch_id is None:
        return told
    return batch_id == 0


def batch_of(
    batch: object,
    batch_id: int | None,
    app_id: str | None,
    told: Told,
    *,
    pieces: Callable[[], Generator[Piece, None, None]],
    empty_schema: Callable[[], Any],
    is_told: bool = False,
    create: Create | None = "first",
    source: str | None = None,
) -> MergeBatch:
    """Return what is known about a batch, from the batch itself, its query, its checkpoint and the options.

    Args:
        batch: The batch; a page has notices.
        batch_id: Its number.
        app_id: The caller's name of the query.
        told: What is known from the query and its checkpoint.
        pieces: Makes what is merged.
        empty_schema: Makes the columns that a batch without rows gives the table.
        is_told: True if the checkpoint was given.
        create: The argument of the sink; None if it has no such argument.
        source: The argument of the sink.
    """
    is_page = isinstance(batch, ChangeFeedPage)
    done = None
    if batch_id is not None:
        done = Numbered(app_id, batch_id, told.query, told.notes, told.begin, told.end)
    begun, ended = scans_in(batch)
    if told.scan is not None:
        begun, ended = [*begun, told.scan], [*ended, told.scan]
    return MergeBatch(
        pieces, empty_schema, done, begun, ended, told.scan,
        is_told=is_told and not is_page,
        is_page=is_page,
        source=feed_of(batch, source, told.feed),
        has_gap=has_gap(batch) or told.has_gap,
        is_first=is_first(batch, batch_id, told.is_first),
        create=create,
        notices=batch.notices if isinstance(batch, ChangeFeedPage) else (),
    )  # fmt: skip


def scans_in(batch: object) -> tuple[list[MergedSnapshot], list[MergedSnapshot]]:
    """Return the snapshots that begin on a page, and those that end on it, from its notices."""
    begun, ended = [], []
    for notice in batch.notices if isinstance(batch, ChangeFeedPage) else ():
        match notice:
            case SnapshotStarted(floor, where, whole):
                begun.append(MergedSnapshot(_plan_of(where) or where, floor, True, False, False, whole))
            case BackfillDone(where, floor):
                ended.append(MergedSnapshot(_plan_of(where) or where, floor, False, False, True))
            case RecordSkipped(where, position) if _plan_of(where) is not None:
                raise invalid_request(
                    "batch",
                    f"lacks a row of a snapshot that cannot be decoded ({position}); at the end of the "
                    "snapshot, the sink would treat the document as deleted",
                    "change or delete the document in the database, and begin another Snapshot()",
                )
            case _:
                pass  # `merge_batch` judges the others, because it knows the collection of the table
    return begun, ended


def concerns(notice: Notice, source: FeedSource) -> bool:
    """Return whether a notice may be about the collection of a feed, or is about no collection in particular.

    Args:
        notice: The notice.
        source: The feed. One of a database or a cluster also tells what happened to its other collections.
    """
    if (one := source.collection) is None:
        return True
    places = (str(one), one.database)
    match notice:
        case Dropped(name):
            return name in places
        case Renamed(name, new_name):
            return name in places or new_name in places
        case _:
            return True


def other_rows(notice: Notice) -> str | None:
    """Return why other rows exist after a notice, if the feed does not deliver them; else None."""
    match notice:
        case Dropped(name):
            return f"{name} was dropped"
        case Renamed(name, new_name):
            return f"{name} was renamed to {new_name}"
        case Invalidated(reason):
            return f"the feed has lost its resource ({reason})"
        case SnapshotStarted() | BackfillDone():
            return None  # the sink begins and ends the snapshot
        case RecordSkipped() | Gap() | FeedEnded() | PartitionFoundLate():
            return None  # a gap marks the table; the others change no row
        case _:
            assert_never(notice)


def rows_stay(what: str) -> MulticloudDbError:
    """Make the error for a batch after which other rows exist; `what` is the text of `other_rows`."""
    return invalid_request(
        "batch",
        f"says that {what}, and the table still has its rows; nothing was merged",
        "if a collection of this name exists again, read it from Snapshot(), in Spark with "
        "startingPosition=snapshot, which removes the rows of the old one from the table; else drop the "
        f"table, or stop the sink before this batch; {AFTER_AN_OUTAGE}",
    )


def has_gap(batch: object) -> bool:
    """Return whether changes were lost before a page, without a whole snapshot that begins on it for that.

    A read that fails on expired positions has no such page, so its user has chosen `SkipToOldest()`.
    """
    notices = batch.notices if isinstance(batch, ChangeFeedPage) else ()
    begins = any(isinstance(each, SnapshotStarted) and each.whole for each in notices)
    return not begins and any(isinstance(each, Gap) for each in notices)


def _plan_of(partition_id: str) -> str | None:
    """Return the id of a snapshot from a public id, in which the provider and the resource come first."""
    return plan_id_of(partition_id.split(":", 2)[-1])


def check_options(
    *,
    batch_id: object,
    app_id: object,
    create: object,
    new_columns: object,
    missing_state: object,
    source: str | None,
) -> None:
    """Refuse options of a sink that are of the wrong type or do not fit together."""
    check_type("batch_id", batch_id, int, type(None))
    check_type("app_id", app_id, str, type(None))
    if create not in ("first", "always", "never"):
        way_out = 'pass "first", "always" or "never"'
        raise invalid_request("create", f"is {create!r}, a {type_name(create)}", way_out)
    check_new_columns(new_columns)
    if missing_state not in ("keep", "refuse"):
        raise _unknown("missing_state", missing_state, "keep")
    if source is not None:
        FeedSource.of_text(source)
    if (batch_id is None) != (app_id is None):
        raise invalid_request("batch_id", "must be given together with app_id", "give both, or None for both")


def check_new_columns(value: object) -> None:
    """Refuse a value of the option `new_columns` that it does not have."""
    if value not in ("add", "refuse"):
        raise _unknown("new_columns", value, "add")


def _unknown(name: str, value: object, first: str) -> MulticloudDbError:
    return invalid_request(name, f"is {value!r}, a {type_name(value)}", f'pass "{first}" or "refuse"')


def check_needed(names: Sequence[str]) -> list[str]:
    """Refuse a batch without the columns of a change; return the columns to merge, and `type`."""
    for name in (*NEEDED, *_ORIGIN):
        if name not in names:
            problem = f"has no column {name}"
            if name in _ORIGIN:
                problem += ", without which the sink cannot tell rows of a snapshot from changes"
            way_out = "pass the rows of the data source; with .schema(…), name the columns of a change too"
            raise invalid_request("batch", problem, way_out)
    return [*(name for name in names if name not in OF_THE_EVENT), "type"]


def check_stored(schema: pa.Schema) -> None:
    """Refuse columns that the sink writes itself, and keys that are no text."""
    for name in (DELETED_AT, STALE_SINCE):
        if name in schema.names:
            raise invalid_request(
                "batch", f"has a column {name}", "the sink writes this column; rename yours"
            )
    for name in ("key", "order_key"):
        if not (pa.types.is_string(kind := schema.field(name).type) or pa.types.is_large_string(kind)):
            raise invalid_request(f"column {name}", f"is {kind}", "pass the column of the data source")


def check_cases(wanted: Iterable[str], known: Iterable[str] = ()) -> None:
    """Refuse a column whose name differs from another one only in upper and lower case."""
    spelled = {name.lower(): name for name in known}
    for name in wanted:
        other = spelled.setdefault(name.lower(), name)
        if other != name:
            raise invalid_request(
                f"column {name}",
                f"differs from the column {other} only in upper and lower case",
                "rename one of the two",
            )


def lacking_columns(
    where: str, wanted: Mapping[str, _Kind], known: Mapping[str, _Kind], what_to_do: Literal["add", "refuse"]
) -> list[str]:
    """Return the names of the columns that a table lacks, from the types of both by name.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a column has another type in the table, or is new and refused.
    """
    for name, kind in wanted.items():
        if known.get(name, kind) != kind:
            problem = f"is {kind} in the batch and {known[name]} in {where}"
            raise invalid_request(f"column {name}", problem, "cast it, or give it another name")
    check_cases(wanted, known)
    new = [name for name in wanted if name not in known]
    refused = ", ".join(name for name in new if name not in (DELETED_AT, STALE_SINCE))
    if refused and what_to_do == "refuse":
        problem = f"has columns that {where} does not have: {refused}"
        raise invalid_request("batch", problem, "leave them out, or set new_columns='add'")
    return new


def incomplete_rows() -> MulticloudDbError:
    """Make the error for a batch with a missing value, or with a `type` that is no change type."""
    return invalid_request(
        "batch",
        "has rows without key, order_key or type, or whose type is not CREATE, UPDATE or DELETE",
        "pass the rows of the data source, and give other names to columns that you add",
    )


def emptied(mark: TableMark | None, names: Iterable[str], written: Iterable[str] = ()) -> list[str]:
    """Return the columns of a table that a tombstone leaves empty, beside those that are written anyway.

    These are the columns that the sink has written, as the mark of the table lists them. What others write is
    not the sink's to remove. Without a mark it is not known which columns these are, so all count as its own.

    Args:
        mark: The mark of the table.
        names: The columns of the table.
        written: The columns of the batch, in each spelling.
    """
    kept = {name.lower() for name in ("key", "order_key", DELETED_AT, STALE_SINCE, *written)}
    ours = None if mark is None else {name.lower() for name in mark.columns}
    return [name for name in names if name.lower() not in kept and (ours is None or name.lower() in ours)]


def table_of(batch: pa.Table | ChangeFeedPage) -> pa.Table:
    """Return the changes of a page as a table."""
    if isinstance(batch, pa.Table):
        return batch
    try:
        return pa.Table.from_batches([events_to_arrow(batch.events)])
    except MulticloudDbError:
        for number, event in enumerate(batch.events):
            try:
                events_to_arrow([event])
            except MulticloudDbError as error:
                raise _no_json(number, event, error) from error
        raise


def _no_json(number: int, event: ChangeEvent, error: MulticloudDbError) -> MulticloudDbError:
    """Make the error for an event with a value that JSON cannot hold, such as half a surrogate pair."""
    try:
        key = encode_json(event.key.components).decode()
    except MulticloudDbError:
        key = str(event.key.components)
    problem, _, _ = error.message.removeprefix("value: ").partition("; ")
    return MulticloudDbError(
        f"batch: event {number} of the page, at {event.order_key} in {event.partition_id} of the key "
        f"{key_digest(key)}, {problem}; nothing was merged; change or delete the document in the database, "
        f"and merge the page without page.events[{number}]",
        ErrorDetail(ErrorCategory.PROVIDER_ERROR),
    )


def piece_of(batch: pa.Table, missing_state: MissingState) -> Generator[Piece, None, None]:
    """Return the last change of each key in a table, as one piece; none if the table is empty."""
    batch = usual_types(batch)
    names = batch.column_names
    kept = check_needed(names)
    known = pc.is_in(batch["type"].cast(pa.string()), pa.array(CHANGE_TYPES))
    if any(batch[name].null_count for name in NEEDED) or pc.any(pc.invert(known)).as_py():
        raise incomplete_rows()
    if not batch.num_rows:
        return
    rows = last_changes(batch.select(kept))
    lacking = rows.filter(lacks_state(rows))
    if lacking.num_rows and missing_state == "refuse":
        raise missing_state_error(pc.min(lacking["key"]).as_py(), lacking.num_rows)
    where = pc.index(batch["backfilled"], True).as_py()
    plan = None if where < 0 else plan_id_of(batch["event_id"][where].as_py() or "") or None
    is_latest = bool(pc.any(pc.starts_with(batch["event_id"].cast(pa.string()), LATEST_MARK)).as_py())
    yield Piece(rows, True, plan, bool(lacking.num_rows), is_latest, source_in(batch))


def stored_schema(batch: pa.Table | ChangeFeedPage) -> pa.Schema:
    """Return the columns that a batch without rows gives the table."""
    if isinstance(batch, ChangeFeedPage):
        return PAGE_SCHEMA
    return usual_types(batch.select([name for name in batch.column_names if name not in OF_THE_EVENT])).schema


def source_in(batch: pa.Table) -> FeedSource | None:
    """Return the feed that the columns of the rows show; None if they do not show it."""
    if any(name not in batch.column_names for name in PLACES):
        return None
    # A batch has few partitions and many rows.
    columns = [_without_dictionary(batch[name]) for name in PLACES]
    places = pa.table(columns, names=PLACES).group_by(list(PLACES)).aggregate([])
    ids, *names = (places[name] for name in PLACES)
    texts = (each.to_pylist() for each in (ids.cast(pa.string()), *names))
    return source_of(zip(*texts, strict=True))


def _without_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # The chunks of a column may have different dictionaries, which cannot be grouped.
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def source_of(places: Iterable[tuple[str | None, str | None, str | None]]) -> FeedSource | None:
    """Return the feed of rows; None if one of them does not show it.

    Args:
        places: The values of `PLACES` in the rows; of the id, the beginning up to the second colon is enough.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the rows come from several feeds.
    """
    sources = {FeedSource.of_row(where, ResourceAddress(*names)) for where, *names in places}
    if None in sources or not sources:
        return None
    collections = sorted({str(each.collection) for each in sources if each is not None and each.collection})
    if len(collections) > 1:
        raise invalid_request(
            "batch",
            f"has rows of several collections: {collections[0]} and {collections[1]}; a table goes by key "
            "alone, so a document of one would replace that of another",
            "fill a table of its own from each of them, with the rows of one value of the column collection",
        )
    if len(sources) > 1:
        first, second, *_ = sorted(f"{each} ({each.incarnation})" for each in sources if each is not None)
        raise invalid_request(
            "batch",
            f"has rows of several feeds: {first} and {second}",
            "merge each of them into its own table",
        )
    return sources.pop()


def feed_of(batch: object, source: str | None, told: FeedSource | None) -> FeedSource | None:
    """Return the feed that the option `source` names, or that of a page, or what the checkpoint says."""
    if source is not None:
        return FeedSource.of_text(source)
    return FeedSource.of_page(batch) if isinstance(batch, ChangeFeedPage) else told


def nameless() -> MulticloudDbError:
    """Make the error for a batch that does not show which feed it comes from."""
    return invalid_request(
        "batch",
        f"does not say which feed its rows come from: it lacks a value of {', '.join(PLACES)}",
        'keep these columns of the data source, or pass source="provider:database/collection"; the sink '
        "stores the feed with the table, so that no other one is ever merged into it",
    )


def last_changes(events: pa.Table) -> pa.Table:
    """Return the row with the highest `order_key` of each key; rows keep their order."""
    if not events.num_rows:
        return events
    number = events["key"].combine_chunks().dictionary_encode().indices
    counts = pa.table({"number": number}).group_by("number").aggregate([("number", "count")])
    repeated = counts.filter(pc.field("number_count") > 1)["number"]
    is_repeated = pc.is_in(number, value_set=repeated)
    once, several = (pc.indices_nonzero(mask) for mask in (pc.invert(is_repeated), is_repeated))
    if not len(several):
        return events.take(once)
    order_keys = pc.fill_null(events["order_key"].take(several), "\U0010ffff")
    changes = pa.table({"number": number.take(several), "order_key": order_keys})
    order = pc.sort_indices(changes, sort_keys=[("number", "ascending"), ("order_key", "descending")])
    sorted_numbers = changes["number"].take(order).combine_chunks()
    is_last = pa.concat_arrays([pa.array([True]), pc.not_equal(sorted_numbers[1:], sorted_numbers[:-1])])
    rows = pa.concat_arrays([once, several.take(order.filter(is_last))])
    return events.take(rows.take(pc.sort_indices(rows)))


def usual_types(events: pa.Table) -> pa.Table:
    """Return the events with all times in UTC, and without texts and bytes in the form of views.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if pyarrow cannot choose rows of a column of this type.
    """
    none = pa.array([], pa.int64())
    for index, field in enumerate(events.schema):
        kind = _usual_type(field.type)
        if kind != field.type:
            usual: Any = events.column(index).cast(kind)
            events = events.set_column(index, field.name, usual)
        try:
            pa.nulls(0, kind).take(none)
        except pa.ArrowNotImplementedError as error:
            raise invalid_request(
                f"column {field.name}", f"is {kind}, of which pyarrow cannot choose rows", "cast it"
            ) from error
    return events


def _usual_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz not in (None, "UTC"):
        return TIME
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind
