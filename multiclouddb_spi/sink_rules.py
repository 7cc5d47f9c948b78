"""Defines the rules of all sinks, whatever table they write (extra `arrow`).

A sink merges by `key` and `order_key`, and leaves a tombstone for a delete. `merge_batch` is the order of its
steps, and `SinkTable` what a kind of table does in each.

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

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Protocol, TypeAlias, assert_never

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import (
    BackfillDone,
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
    invalid_request,
)
from multiclouddb_api.arrow import EVENT_SCHEMA, events_to_arrow
from multiclouddb_api.redaction import rfc3339
from multiclouddb_api.validators import check_type, type_name
from multiclouddb_spi.faults import AFTER_AN_OUTAGE, key_digest
from multiclouddb_spi.scan.contract import LATEST_MARK, plan_id_of
from multiclouddb_spi.table_mark import FeedSource, TableMark

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

MissingState: TypeAlias = Literal["refuse", "keep"]
"""What a sink does with a change without its document."""

Create: TypeAlias = Literal["first", "always", "never"]
"""When a sink makes a table, or takes over one without a mark."""

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


_LOG: Final = logging.getLogger("multiclouddb.spark")
_SNAPSHOT: Final = "multiclouddb-snapshot"
"""The name of the mark that records how far a snapshot was merged; the snapshot's id follows."""
_LATEST: Final = "multiclouddb-latest"
"""The name of the mark that records whether the table was filled from a feed of latest versions."""
_QUERY: Final = "multiclouddb-query:"
"""The name of the mark that records that a query has begun in the table; the query's id follows."""
_LACKING: Final = "multiclouddb-lacking"
"""The name of the mark that records which gap a snapshot repairs; the snapshot's id follows."""
_BEGUN: Final = 0
_ENDED: Final = 1
_SAID: Final = set[tuple[str, str]]()
"""The tables and names about which a warning was logged."""
_NEW_QUERY: Final = "with startingPosition=snapshot, this table, and a checkpointLocation of its own"
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
class Scan:
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
    """The number of a batch in its query, with what its commit says about changes that it lacks.

    `begin` and `end` are digests of the offsets between which it lies; None without a checkpoint.
    """

    app_id: str | None
    batch_id: int
    query: str | None
    notes: Mapping[str, str] = attrs.field(factory=dict)
    begin: str | None = None
    end: str | None = None


@attrs.frozen
class Batch:
    """What a sink has to merge, and what is known about it."""

    pieces: Callable[[], Generator[Piece, None, None]]
    empty_schema: Callable[[], pa.Schema]  # the columns that a batch without rows gives the table
    done: Numbered | None
    begun: Sequence[Scan]
    ended: Sequence[Scan]
    scan: Scan | None = None  # the snapshot to which the checkpoint of a query says that the batch belongs
    is_told: bool = False  # the checkpoint of a query was given
    is_page: bool = False
    source: FeedSource | None = None  # the feed, if the caller or a page says it
    has_gap: bool = False  # changes were lost, and its user has chosen to go on without them
    is_first: bool | None = None  # its query has delivered no row before; None if nobody knows
    create: Create | None = "first"  # None if the function of the sink has no such argument

    @property
    def query(self) -> str | None:
        """The name of the query in the table: its own id, or else the caller's name for it."""
        return None if self.done is None else self.done.query or self.done.app_id

    @property
    def begins_anew(self) -> bool:
        """True if a snapshot of the whole collection begins, after which the table has no older rows."""
        return any(each.whole and each.is_first for each in self.begun)


class Storage(Protocol):
    """What a kind of table does for `SinkTable`. Each method is one commit, or part of the caller's."""

    @property
    def where(self) -> str:
        """The name of the table in messages, without secrets."""
        ...

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        ...

    @property
    def keeps_marks(self) -> bool:
        """True if marks can be stored with the table."""
        ...

    def prepare(
        self, schema: pa.Schema, mark: TableMark | None = None, *, may_be_stale: bool = False
    ) -> None:
        """Make the table with a mark, or check it and add what is missing, for rows with these columns."""
        ...

    def feed_mark(self) -> TableMark | None:
        """Return the mark that says whose changes the table contains, or None if it has none."""
        ...

    def set_feed_mark(self, mark: TableMark) -> None:
        """Replace the mark that says whose changes the table contains."""
        ...

    def mark(self, name: str) -> int | None:
        """Return a number that was stored with the table."""
        ...

    def store(self, marks: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Store numbers and texts in a commit that changes no row."""
        ...

    def is_empty(self) -> bool:
        """Return True if the table has never had a row, as far as it can tell."""
        ...

    def gone_back(self, query: str | None, done: Numbered | None) -> bool:
        """Return True if the table may have lost changes that the query will not deliver again."""
        ...

    def outdate(self, floor: str, marks: Mapping[str, int]) -> None:
        """Give rows from the floor on the lowest `order_key`; store marks in the same commit, if possible."""
        ...

    def bury(self, floor: str, marks: Mapping[str, int]) -> None:
        """Make tombstones of rows below the floor; store marks in the same commit, if possible."""
        ...

    def merge(self, rows: Any, notes: Mapping[str, str], *, is_last: bool) -> None:
        """Merge the last changes of some keys, with `is_last` the last ones of a batch; no row may change."""
        ...


class SinkTable:
    """The rules of snapshots and batch numbers, over the storage of a table.

    Args:
        storage: The table.
        sink: The name of the sink's function, for messages.
    """

    def __init__(self, storage: Storage, sink: str) -> None:
        self._storage, self._repair = storage, repair(sink)

    def claim(
        self, batch: Batch, source: FeedSource | None, schema: Any, *, may_be_stale: bool = False
    ) -> None:
        """Make the table ready for columns of a feed, and refuse another feed than that of its mark.

        Args:
            batch: The batch.
            source: The feed that the rows name.
            schema: The columns of the rows.
            may_be_stale: True if the table needs the column `STALE_SINCE`.
        """
        stored = self._storage.feed_mark() if self._storage.exists else None
        wanted = self._marked(stored, batch, source, schema.names)
        stale = (STALE_SINCE,) if may_be_stale else ()
        wanted = None if wanted is None else wanted.with_columns(stale)
        self._storage.prepare(schema, wanted, may_be_stale=may_be_stale)
        found = self._storage.feed_mark()
        if found not in (stored, wanted):
            # Another sink has made or marked the table since it was looked at.
            wanted = self._marked(found, batch, source, schema.names)
            wanted = None if wanted is None else wanted.with_columns(stale)
        if wanted is not None and found != wanted:
            self._storage.set_feed_mark(wanted)

    def claim_empty(self, batch: Batch) -> None:
        """Make the table for a batch without rows, or check the mark of the table that there is."""
        if not self._storage.exists:
            self.claim(batch, None, PAGE_SCHEMA if batch.is_page else batch.empty_schema())
            return
        stored = self._storage.feed_mark()
        wanted = self._marked(stored, batch, None, ())
        if wanted is not None and wanted != stored:
            self._storage.set_feed_mark(wanted)

    def _marked(
        self, stored: TableMark | None, batch: Batch, rows: FeedSource | None, names: Sequence[str]
    ) -> TableMark | None:
        where, source, columns = self._storage.where, rows or batch.source, (*names, DELETED_AT)
        if rows is not None and batch.source is not None and not rows.may_be(batch.source):
            problem = f"is {batch.source} in source= or in the checkpoint, but the rows come from {rows}"
            if batch.source.address == rows.address and batch.source.provider == rows.provider:
                problem += ", which was dropped and created again"
            raise invalid_request("source", problem, "pass the rows of that feed")
        if source is None:
            return stored  # a batch without rows
        if stored is None or (batch.begins_anew and stored.source != source):
            return _since(TableMark(source, columns), batch)
        if not stored.source.may_be(source):
            if (stored.provider, stored.address) == (source.provider, source.address):
                problem = f"comes from {source}, which was dropped and created again after {where} was filled"
                way_out = f"rows of the old collection would stay; {new_query('the sink')}"
            else:
                problem = f"comes from {source}, but {where} is filled from {stored.source}"
                way_out = "use a table of its own for each collection"
            raise invalid_request("batch", problem, way_out)
        return _since(stored.learned(source).with_columns(columns), batch)

    def check_place(self, batch: Batch) -> None:
        """Refuse a batch whose query has delivered rows before, if the table does not contain them.

        A batch is never left out, because merging it again changes nothing. But what came before it is not
        delivered again: if the table was dropped, replaced or restored since, or the checkpoint is that of
        another table, then rows would be missing for good.
        """
        if batch.is_first is not False or batch.begins_anew or batch.create == "always":
            return
        where = self._storage.where
        way_out, because = self._repair, ""
        if batch.create is not None:
            way_out += '; or pass create="always" if you know that no row is missing'
            because = ", for example because the checkpoint was restored to the same time"
        if not self._storage.exists:
            raise MulticloudDbError(
                f"table: {where} does not exist, but the query of this batch has delivered rows before; it "
                f"was dropped, or the checkpoint is that of another table; {way_out}",
                ErrorDetail(ErrorCategory.NOT_FOUND),
            )
        if not self._is_known(batch.query):
            raise invalid_request(
                "table",
                f"{where} does not contain what the query of this batch has delivered before: it has no mark "
                "of it, so it was made again or belongs to another query, or the first batch, number 0, was "
                "not passed",
                f"pass every batch, also an empty one, or checkpoint=; else {way_out}",
            )
        if self._storage.gone_back(batch.query, batch.done):
            raise invalid_request(
                "table",
                f"{where} was restored to an earlier version, and the query does not deliver again what the "
                "table has lost by that",
                way_out + because,
            )

    def _is_known(self, query: str | None) -> bool:
        """Return whether the table has a mark of the query, or of a feed if the query has no name."""
        if not self._storage.keeps_marks:
            return True
        if query is None:
            return self._storage.feed_mark() is not None
        return self._storage.mark(_QUERY + query) is not None

    def begun(self, batch: Batch) -> None:
        """Record that the query of a batch has begun in the table."""
        if batch.query is not None and self._storage.keeps_marks:
            name = _QUERY + batch.query
            if self._storage.mark(name) is None:
                self._storage.store({name: 1}, {})

    def begin(self, scan: Scan) -> None:
        """Mark all rows of the table as older than a snapshot, before its first rows are merged."""
        # 1. Rows of the snapshot, and every change after it, then have priority over the rows in the table. A
        #    row below the floor needs no change; every other row gets the lowest `order_key`.
        # 2. One commit marks the rows and contains the snapshot's id, so they are marked once.
        # 3. Later batches need the mark: without it, earlier rows of the snapshot were in another table, or
        #    cannot be told apart from older ones. A table with rows may get its checkpoint after the scan.
        if self._storage.exists and self._stage(scan.plan) is not None:
            return
        if scan.is_first and scan.whole:
            marks = {**_staged(scan.plan, _BEGUN), **self._lacking(scan.plan)}
            self._storage.outdate(scan.floor, marks)
            if self._stage(scan.plan) is None:
                self._storage.store(marks, {})
        elif scan.is_first:
            self._check_empty()
        elif not (scan.was_over and self._storage.exists and not self._storage.is_empty()):
            raise self._unmarked()
        self._ensure(scan.plan, _ENDED if scan.was_over else _BEGUN)

    def end(self, scan: Scan) -> None:
        """Turn documents that a snapshot did not contain into tombstones, after its last rows were merged."""
        if self._stage(scan.plan) == _ENDED:
            return
        self._storage.bury(scan.floor, _staged(scan.plan, _ENDED))
        # A whole snapshot has brought what was lost before it began. What is lost during its scan may be a
        # change of a row that it had read already.
        mark, lacking = self._storage.feed_mark(), self._lacking(scan.plan)
        if mark is not None and any(self._storage.mark(name) == each for name, each in lacking.items()):
            self._storage.set_feed_mark(attrs.evolve(mark, incomplete_since=None))
        self._ensure(scan.plan, _ENDED)

    def _lacking(self, plan: str) -> Mapping[str, int]:
        """Return the mark that says which gap a snapshot repairs; none if the table lacks nothing."""
        mark = self._storage.feed_mark() if self._storage.exists else None
        if mark is None or mark.incomplete_since is None:
            return {}
        at = datetime.fromisoformat(mark.incomplete_since)
        return {f"{_LACKING}:{plan}": (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)}

    def accept(self, plan: str, *, is_page: bool) -> None:
        """Accept rows of a snapshot if the sink does not know where the snapshot begins and ends."""
        # Otherwise, documents that were deleted before the snapshot would stay in the table. Of a page, the
        # sink knows that an earlier one has begun the snapshot.
        if self._stage(plan) is None:
            if is_page:
                raise self._unmarked()
            self._check_empty()
            self._ensure(plan, _BEGUN)

    def notes(self, batch: Batch) -> Mapping[str, str]:
        """Return the notes of a batch, and a warning if its query is new here and begins with no snapshot."""
        # Nobody knows which changes lie between the rows of a table and a query that is new there.
        done, where = batch.done, self._storage.where
        if done is None:
            return {}
        if batch.scan is not None or done.query is None or self._is_known(batch.query):
            return done.notes
        if self._storage.is_empty():
            return done.notes
        text = (
            f"the query {done.app_id or done.query!r} is new in {where}, which has rows, and does not begin "
        )
        text += f"with a snapshot; if the query replaces another one, then {self._repair}"
        if (where, done.query) not in _SAID:
            _SAID.add((where, done.query))
            _LOG.warning("%s", text)
        return {"multiclouddb.warning": text, **done.notes}

    def check_mode(self, *, is_latest: bool) -> None:
        """Refuse changes of a feed of latest versions in a table of another feed, and the other way round."""
        stored = self._storage.mark(_LATEST)
        if (stored == 1) == is_latest:
            return
        if not self._storage.is_empty():
            ours, theirs = ("only latest versions", "all versions and deletes")[:: 1 if is_latest else -1]
            raise invalid_request(
                "batch",
                f"comes from a feed with {ours}, but {self._storage.where} was filled from a feed with "
                f"{theirs}: deletes would be missing, or come back",
                "read with the mode with which the table was filled; or begin again in a new table, with a "
                "checkpointLocation and an app_id of its own, and start this feed at its beginning",
            )
        self._storage.store({_LATEST: int(is_latest)}, {})

    def _stage(self, plan: str) -> int | None:
        return self._storage.mark(f"{_SNAPSHOT}:{plan}")

    def _ensure(self, plan: str, stage: int) -> None:
        """Store the stage of a snapshot in a separate commit, unless an earlier commit has stored it."""
        if self._stage(plan) != stage:
            self._storage.store(_staged(plan, stage), {})

    def _check_empty(self) -> None:
        """Refuse a snapshot of which the table has no mark, unless the table has no rows."""
        if not self._storage.is_empty():
            raise self._unmarked()

    def _unmarked(self) -> MulticloudDbError:
        return invalid_request(
            "batch",
            f"belongs to a snapshot of which {self._storage.where} has no mark, so the table may lack rows, "
            "or have rows from before the snapshot: it was dropped or made again meanwhile, or checkpoint= "
            "was not given when the snapshot began, or its page with SnapshotStarted was not passed, or the "
            "snapshot does not deliver every row",
            f"start a query {_NEW_QUERY}, and pass checkpoint= from its first batch on; without Spark, "
            "read the whole collection from Snapshot(), and pass every page; or use a new table; see "
            f"{AFTER_AN_OUTAGE}",
        )


def merge_batch(storage: Storage, sink: str, batch: Batch) -> bool:
    """Merge a batch into a table, in the order in which a process may be killed between any two commits.

    Args:
        storage: The table.
        sink: The name of the sink's function, for messages.
        batch: The batch.

    Returns:
        True if rows were merged.
    """
    table, merged = SinkTable(storage, sink), False
    table.check_place(batch)
    for each in batch.begun if batch.is_page else ():
        table.claim_empty(batch)
        table.begin(each)
    notes: Mapping[str, str] = {}
    with closing(batch.pieces()) as pieces:
        for piece in pieces:
            if not merged:
                if piece.source is None and batch.source is None:
                    raise nameless()
                notes = table.notes(batch) if storage.exists else _notes(batch)
                table.claim(batch, piece.source, piece.schema, may_be_stale=piece.is_incomplete)
                table.check_mode(is_latest=piece.is_latest)
                table.begun(batch)
                _begin(table, batch, piece.plan)
            storage.merge(piece.rows, notes, is_last=piece.is_last)
            merged = True
    if batch.has_gap and not merged:
        table.claim_empty(batch)
    if not merged and batch.done is not None and (batch.is_first or batch.begins_anew or batch.done.notes):
        # 1. The first batch of a query may have no rows. It makes the table, so that a later batch can tell
        #    whether the table was dropped since.
        # 2. No row has changed, for example because no change could be decoded.
        notes = table.notes(batch) if storage.exists else batch.done.notes
        table.claim_empty(batch)
        table.begun(batch)
        if batch.done.notes:
            _begin(table, batch, None)
        if notes:
            storage.store({}, notes)
    # A batch without rows may also begin or end a snapshot.
    for scan in batch.ended:
        if scan.is_first and not merged:
            table.claim_empty(batch)
        table.begin(scan)
        if scan.is_over:
            table.end(scan)
    return merged


def _since(mark: TableMark, batch: Batch) -> TableMark:
    """Return the mark of a table that lacks changes from now on, if the batch says so."""
    if not batch.has_gap:
        return mark
    # Each gap has a time of its own, because neither a snapshot nor a comparison that was under way has
    # brought what a later gap has lost.
    return attrs.evolve(mark, incomplete_since=rfc3339(datetime.now(UTC)))


def _notes(batch: Batch) -> Mapping[str, str]:
    return {} if batch.done is None else batch.done.notes


def place_of(batch: Batch) -> Mapping[str, Any]:
    """Return what each commit says about its batch."""
    place: dict[str, Any] = {"query": batch.query}
    if batch.done is not None:
        place |= {"batch": batch.done.batch_id, "begin": batch.done.begin, "end": batch.done.end}
    return {**place, "anew": True} if batch.begins_anew else place


def is_first(batch: object, batch_id: int | None, told: bool | None) -> bool | None:
    """Return whether the query of a batch has delivered no row before; None if nobody knows.

    Args:
        batch: The batch; a page says it itself.
        batch_id: The number of the batch. Number 0 is the first one, even if it is repeated.
        told: What the checkpoint says.
    """
    if isinstance(batch, ChangeFeedPage):
        return batch.resumed_from is None
    if told is not None or batch_id is None:
        return told
    return batch_id == 0


def _begin(table: SinkTable, batch: Batch, plan: str | None) -> None:
    """Begin the snapshot of a batch in the table, unless this snapshot has already begun."""
    if batch.scan is not None:
        if plan not in (None, batch.scan.plan):
            raise invalid_request(
                "checkpoint",
                f"belongs to the snapshot {batch.scan.plan}, but the batch contains rows of {plan}",
                "pass the checkpointLocation of the query that calls this function",
            )
        table.begin(batch.scan)
    elif plan is not None and not batch.is_told:
        table.accept(plan, is_page=batch.is_page)


def _staged(plan: str, stage: int) -> Mapping[str, int]:
    return {f"{_SNAPSHOT}:{plan}": stage}


def scans_in(batch: object) -> tuple[list[Scan], list[Scan]]:
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
                if (what := other_rows(notice)) is not None:
                    raise rows_stay(what)
    return begun, ended


def other_rows(notice: Notice) -> str | None:
    """Return what a notice says if other rows exist after it, and the feed does not say which; else None."""
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
    """Return whether a page says that changes were lost, and no whole snapshot begins on it for that reason.

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
    for name, value, first in (("new_columns", new_columns, "add"), ("missing_state", missing_state, "keep")):
        if value not in (first, "refuse"):
            raise invalid_request(name, f"is {value!r}, a {type_name(value)}", f'pass "{first}" or "refuse"')
    if source is not None:
        FeedSource.of_text(source)
    if (batch_id is None) != (app_id is None):
        raise invalid_request("batch_id", "must be given together with app_id", "give both, or None for both")


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


def incomplete_rows() -> MulticloudDbError:
    """Make the error for a batch with a missing value, or with a `type` that is no change type."""
    return invalid_request(
        "batch",
        "has rows without key, order_key or type, or whose type is not CREATE, UPDATE or DELETE",
        "pass the rows of the data source, and give other names to columns that you add",
    )


def table_of(batch: pa.Table | ChangeFeedPage) -> pa.Table:
    """Return the changes of a page as a table."""
    return batch if isinstance(batch, pa.Table) else pa.Table.from_batches([events_to_arrow(batch.events)])


def piece_of(batch: pa.Table, missing_state: MissingState) -> Generator[Piece, None, None]:
    """Return the last change of each key in a table, as one piece; none if the table is empty."""
    names = batch.column_names
    kept = check_needed(names)
    known = pc.is_in(batch["type"].cast(pa.string()), pa.array(CHANGE_TYPES))
    if any(batch[name].null_count for name in NEEDED) or pc.any(pc.invert(known)).as_py():
        raise incomplete_rows()
    if not batch.num_rows:
        return
    rows = in_utc(last_changes(batch.select(kept)))
    lacking = rows.filter(lacks_state(rows))
    if lacking.num_rows and missing_state == "refuse":
        raise missing_state_error(pc.min(lacking["key"]).as_py(), lacking.num_rows)
    where = pc.index(batch["backfilled"], True).as_py()
    plan = None if where < 0 else plan_id_of(batch["event_id"][where].as_py() or "") or None
    is_latest = bool(pc.any(pc.starts_with(batch["event_id"].cast(pa.string()), LATEST_MARK)).as_py())
    yield Piece(rows, True, plan, bool(lacking.num_rows), is_latest, source_in(batch))


def source_in(batch: pa.Table) -> FeedSource | None:
    """Return the feed that the columns of the rows name; None if they do not say it."""
    if any(name not in batch.column_names for name in PLACES):
        return None
    ids = batch["partition_id"].cast(pa.string())
    resources = pc.replace_substring_regex(ids, "^([^:]*:[^:]*):.*$", r"\1")
    places = pa.table([resources, batch["database"], batch["collection"]], names=PLACES)
    found = places.group_by(list(PLACES)).aggregate([]).to_pylist()
    return source_of((row["partition_id"], row["database"], row["collection"]) for row in found)


def source_of(places: Iterable[tuple[str | None, str | None, str | None]]) -> FeedSource | None:
    """Return the feed of rows; None if one of them does not say it.

    Args:
        places: The values of `PLACES` in the rows; of the id, the beginning up to the second colon is enough.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the rows come from several feeds.
    """
    sources = {FeedSource.of_row(where, ResourceAddress(*names)) for where, *names in places}
    if None in sources or not sources:
        return None
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
    """Make the error for a batch that does not say which feed it comes from."""
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


def in_utc(events: pa.Table) -> pa.Table:
    """Return the events with all times in UTC."""
    for index, field in enumerate(events.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz not in (None, "UTC"):
            utc: Any = events.column(index).cast(TIME)
            events = events.set_column(index, field.name, utc)
    return events
