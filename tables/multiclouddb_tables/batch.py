"""Says what is known about a batch: its number and query, its snapshots and its notices."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, assert_never

import attrs
import pyarrow as pa

from multiclouddb_api import (
    BackfillDone,
    ChangeFeedPage,
    Dropped,
    ErrorReason,
    FeedEnded,
    Gap,
    Invalidated,
    MulticloudDbError,
    Notice,
    PartitionFoundLate,
    RecordSkipped,
    Renamed,
    SnapshotStarted,
    invalid_request,
)
from multiclouddb_api.validators import check_type, type_name
from multiclouddb_spi.faults import AFTER_AN_OUTAGE
from multiclouddb_spi.segment import plan_id_of
from multiclouddb_tables.columns import Columns
from multiclouddb_tables.mark import FeedSource
from multiclouddb_tables.rules import check_new_columns, unknown_option

MissingState: TypeAlias = Literal["refuse", "keep"]
"""What a sink does with a change that has no document: refuse the batch, or keep the document of the row."""


Cut: TypeAlias = Callable[[pa.Table], pa.Table]
"""Makes the declared columns of the last changes of some keys."""


Create: TypeAlias = Literal["first", "always", "never"]
"""When a sink creates its table, or takes over one without a mark: in the first batch of a query, always or
never."""


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
    columns: Columns | None = None  # the declaration of the table's columns
    refill: bool = False  # True if the user has agreed to fill columns of another declaration

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
    columns: Columns | None = None,
    refill: bool = False,
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
        columns: The argument of the sink.
        refill: The argument of the sink.
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
        columns=columns,
        refill=refill,
    )  # fmt: skip


def scans_in(batch: object) -> tuple[list[MergedSnapshot], list[MergedSnapshot]]:
    """Return the snapshots that begin on a page, and those that end on it, from its notices."""
    begun, ended = [], []
    for notice in batch.notices if isinstance(batch, ChangeFeedPage) else ():
        match notice:
            case SnapshotStarted(floor, where, whole):
                begun.append(MergedSnapshot(plan_of(where) or where, floor, True, False, False, whole))
            case BackfillDone(where, floor):
                ended.append(MergedSnapshot(plan_of(where) or where, floor, False, False, True))
            case RecordSkipped(where, position) if plan_of(where) is not None:
                raise invalid_request(
                    "batch",
                    f"lacks a row of a snapshot that cannot be decoded ({position}); at the end of the "
                    "snapshot, the sink would treat the document as deleted",
                    "change or delete the document in the database, and begin another Snapshot()",
                    ErrorReason.UNDECODABLE,
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
        ErrorReason.REPLACED,
    )


def has_gap(batch: object) -> bool:
    """Return whether changes were lost before a page, without a whole snapshot that begins on it for that.

    A read that fails on expired positions has no such page, so its user has chosen `SkipToOldest()`.
    """
    notices = batch.notices if isinstance(batch, ChangeFeedPage) else ()
    begins = any(isinstance(each, SnapshotStarted) and each.whole for each in notices)
    return not begins and any(isinstance(each, Gap) for each in notices)


def is_of_scan(notice: RecordSkipped) -> bool:
    """Return whether a record that was skipped is a row of a snapshot.

    Args:
        notice: The notice.
    """
    return plan_of(notice.partition_id) is not None


def plan_of(partition_id: str) -> str | None:
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
    columns: object = None,
    refill: object = False,
) -> None:
    """Refuse options of a sink that are of the wrong type or do not fit together."""
    check_type("batch_id", batch_id, int, type(None))
    check_type("app_id", app_id, str, type(None))
    if create not in ("first", "always", "never"):
        way_out = 'pass "first", "always" or "never"'
        raise invalid_request("create", f"is {create!r}, a {type_name(create)}", way_out)
    check_new_columns(new_columns)
    if missing_state not in ("keep", "refuse"):
        raise unknown_option("missing_state", missing_state, "keep")
    if source is not None:
        FeedSource.of_text(source)
    check_type("columns", columns, Columns, type(None))
    check_type("refill", refill, bool)
    if refill and columns is None:
        raise invalid_request("refill", "is True without columns=", "pass the declaration too")
    check_beside(columns, new_columns)
    if (batch_id is None) != (app_id is None):
        raise invalid_request("batch_id", "must be given together with app_id", "give both, or None for both")


def check_beside(columns: object, new_columns: object) -> None:
    """Refuse `new_columns="add"` beside a declaration, which says which columns the table has."""
    if columns is not None and new_columns == "add":
        raise invalid_request(
            "new_columns", 'is "add" beside columns=, which says which columns the table has', "leave it out"
        )


def feed_of(batch: object, source: str | None, told: FeedSource | None) -> FeedSource | None:
    """Return the feed that the option `source` names, or that of a page, or what the checkpoint says."""
    if source is not None:
        return FeedSource.of_text(source)
    return FeedSource.of_page(batch) if isinstance(batch, ChangeFeedPage) else told
