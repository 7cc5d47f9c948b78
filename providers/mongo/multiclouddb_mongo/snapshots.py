"""Scans a collection: the plan, the segments and their readers."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from itertools import accumulate, chain
from typing import Any, Final

import attrs
import bson
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from multiclouddb_api import (
    Dropped,
    EntireCollection,
    ErrorCategory,
    ErrorReason,
    LogicalPartition,
    MulticloudDbKey,
    NewItemStateMode,
    Notice,
    Renamed,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_mongo.catalog import FoundResource, check_provisioned, find, name_of
from multiclouddb_mongo.driver import Rows, milliseconds_of
from multiclouddb_mongo.mapping import MongoView
from multiclouddb_mongo.options import MongoOptions
from multiclouddb_mongo.position import (
    MAX_KEY,
    Place,
    Rest,
    UnreadRange,
    as_field,
    id_of,
    place_of,
    range_of,
    scan_at,
    ticks_at,
)
from multiclouddb_mongo.rows import ROW_CODEC, DocumentMapper, copied, rows_of
from multiclouddb_mongo.source import BY_MINIMUM, REFUSALS, ReaderContext
from multiclouddb_mongo.values import CODEC, asked_key, to_bson
from multiclouddb_spi import (
    Batch,
    Continue,
    Cursor,
    Deadline,
    Ended,
    FeedSpec,
    Outcome,
    ProviderFault,
    Reader,
    Scanned,
    ScanPlan,
    Seed,
    Segment,
    cancelled,
    unsupported,
)
from multiclouddb_spi.faults import START_AGAIN

_BY_ID: Final = {"_id": 1}
_SORTED: Final = [("_id", 1)]
_EXACT: Final = {"locale": "simple"}
_MAJORITY: Final = ReadConcern("majority")
_COMMENT: Final = "multiclouddb scan"
_LOOKUP: Final = "multiclouddb lookup"
_SHORT: Final = 600
"""The largest number of hexadecimal digits in an `_id` that may be the end of a segment.

This limit keeps tokens small, because every token contains the ends of several segments.
"""
_CANDIDATES: Final = 20
_SAMPLES: Final = 20
_MOST_SAMPLED: Final = 10_000
_MOST_BYTES: Final = 12 * 1024 * 1024
# To 8.1, a shard deletes the documents that it has given away after 900 s, also under the cursors of its
# secondaries. A new cursor reads them where they are.
_CURSOR_SECONDS: Final = 300.0


class ScanSource:
    """The objects that the readers of one collection's segments share.

    Args:
        source: The objects that all readers of the feed share.
        collection: The collection, if the feed reads a whole database.
    """

    def __init__(self, source: ReaderContext, collection: str = "") -> None:
        self.client, self._source = source.client, source
        self.address = source.address
        if collection:
            self.address = attrs.evolve(source.address, collection=collection)
        self.at_work, self.opening = source.at_work, source.opening
        self.calm, self.be_patient = source.calm, source.be_patient
        spec = source.spec
        self._key = spec.scope.key if isinstance(spec.scope, LogicalPartition) else None
        self._keys_only = spec.new_item_state_mode is NewItemStateMode.OMIT and not spec.include_native

    def of(self, collection: str) -> ScanSource:
        """Return the source of a collection of the database that the feed reads; itself if it is empty."""
        return ScanSource(self._source, collection) if collection else self

    def longest_answer(self) -> float:
        """Return for how many seconds the server may not answer."""
        return self._source.patience

    # -- Rows

    def session(self, place: UnreadRange) -> ClientSession:
        """Return a session whose reads show the data at or after the start of the stream."""
        session = self.client.start_session(causal_consistency=True)
        session.advance_operation_time(place.timestamp())
        return session

    def rows(self, place: UnreadRange, session: ClientSession, batch_size: int) -> Rows:
        """Return a cursor over undecoded rows."""
        hint = _BY_ID if self._key is None else None
        # Two shards may contain keys that the collection's collation takes for equal. Only exact texts have
        # an order in which each row has a position. Without a collation, it is the order of the index.
        collation = _EXACT if place.names else None
        return self._find(
            place, self._wanted(place), hint=hint, sort=_SORTED, batch_size=batch_size, comment=_COMMENT,
            session=session, collation=collation,
        )  # fmt: skip

    def found(
        self,
        place: UnreadRange,
        keys: Sequence[MulticloudDbKey],
        deadline: Deadline,
        *,
        clustered: bool = False,
    ) -> list[bytes]:
        """Return the undecoded rows with these keys, in any order; see `FoundResource.clustered`."""
        rows: list[bytes] = []
        # For several keys, the server scans a whole clustered collection. With notablescan, it refuses even
        # one key without the hint.
        groups = ([key] for key in keys) if clustered else [keys]
        settings: dict[str, Any] = {"hint": _BY_ID if clustered else None, "comment": _LOOKUP}
        for wanted in chain.from_iterable(_in_commands(place, group) for group in groups):
            settings["max_time_ms"] = milliseconds_of(deadline)
            with (
                self.opening(),
                self.session(place) as session,
                closing(self._find(place, wanted, session=session, **settings)) as cursor,
            ):
                rows += copied(cursor)
            self.calm()
        return rows

    def _find(self, place: UnreadRange, wanted: dict[str, Any], **settings: Any) -> Rows:
        rows = self._collection().with_options(codec_options=ROW_CODEC)
        projected = dict.fromkeys(("_id", *place.names), 1) if self._keys_only else None
        return rows.find(wanted, projected, **settings)

    def close(self, rows: Rows) -> None:
        """Close a cursor, also on the server. This method raises no error."""
        self._source.close(rows)

    def _wanted(self, place: UnreadRange) -> dict[str, Any]:
        wanted = place.filter()
        if self._key is None:
            return wanted
        # The server compares with the collation of the collection, and can use its index; see `in_scope`.
        components = self._key.partition_key
        if not components.keys() <= {"_id", *place.names}:
            return {"_id": {"$in": []}}  # keys in the stream do not contain this field either
        return {**wanted, **{name: {"$eq": to_bson(value)} for name, value in components.items()}}

    def in_scope(self, rows: list[bytes], mapper: DocumentMapper) -> list[bytes]:
        """Return the rows whose keys have the texts that the scope names, whatever the collation is."""
        if self._key is None:
            return rows
        wanted = asked_key(MulticloudDbKey(self._key.partition_key))
        return [row for row in rows if mapper.has(row, wanted)]

    def _collection(self) -> Collection[dict[str, Any]]:
        address = self.address
        assert address.database is not None
        assert address.collection is not None
        database = self.client.get_database(address.database, codec_options=CODEC, read_concern=_MAJORITY)
        return database.get_collection(address.collection)

    # -- Whether the collection still exists

    def gone(self, place: UnreadRange) -> Notice | None:
        """Return the notice for a collection that was dropped or renamed."""
        address = self.address
        found = find(self.client, address)
        if found.uuid == place.uuid:
            return None
        name = f"{address.database}/{address.collection}"
        if found.there and self._source.sharded:
            raise ProviderFault.of(
                ErrorCategory.CHECKPOINT_EXPIRED,
                f"{name} was resharded or created again since the snapshot began; {START_AGAIN}",
                reason=ErrorReason.REPLACED,
            )
        assert address.database is not None
        now = name_of(self.client, address.database, place.uuid)
        return Dropped(name) if now is None else Renamed(name, f"{address.database}/{now}")

    # -- Planning

    def shard_key(self) -> tuple[str, ...]:
        """Return the fields of the shard key; empty for a collection that is not sharded."""
        if not self._source.sharded:
            return ()
        address = self.address
        config = self.client.get_database("config", codec_options=CODEC, read_concern=_MAJORITY)
        wanted = {"_id": f"{address.database}.{address.collection}"}
        entry = config.collections.find_one(wanted, {"key": 1, "dropped": 1}) or {}
        return () if entry.get("dropped") else tuple(entry.get("key", ()))

    def count(self) -> int:
        """Return the approximate number of rows, from the collection's metadata."""
        return self._collection().estimated_document_count()

    def counted(self, rest: Rest) -> str | None:
        """Find the end of a plan's next segment by counting keys. Return None for the last segment."""
        # Only the keys in the index are counted, and no documents are read: 100,000 keys take 0.05 seconds.
        # The server's option `min` does not find MaxKey, the key that sorts after all other keys. However,
        # MaxKey is never the end of a segment.
        try:
            return self._end_of(rest, strictly=BY_MINIMUM in self._source.refused)
        except OperationFailure as error:
            if not rest.low or error.code not in REFUSALS:
                raise
            found = self._end_of(rest, strictly=True)
            self._source.leave_out(BY_MINIMUM, error)
            return found

    def _end_of(self, rest: Rest, *, strictly: bool) -> str | None:
        """Find the end of the next segment; `strictly` means with what the strict Stable API allows."""
        low = rest.low or None
        found = self._collection().find_raw_batches(
            {"$expr": {"$gte": ["$_id", as_field("$literal", low)]}} if low and strictly else {},
            _BY_ID,
            hint=_BY_ID,
            sort=_SORTED,
            skip=rest.width,
            limit=_CANDIDATES,
            min=as_field("_id", low) if low and not strictly else None,
            comment=_COMMENT,
        )
        return next((each for each in _ids(found) if _is_end(each)), None)

    def sampled(self, rest: Rest, count: int) -> list[str]:
        """Return the ends of a plan's next segments; all segments have about the same number of rows."""
        size = min(_MOST_SAMPLED, _SAMPLES * rest.left)
        stages: list[dict[str, Any]] = [{"$sample": {"size": size}}, {"$project": _BY_ID}]
        if rest.low:
            stages.append({"$match": {"$expr": {"$gt": ["$_id", as_field("$literal", rest.low)]}}})
        stages.append({"$sort": _BY_ID})
        collation = _EXACT if rest.names else None
        found = self._collection().aggregate_raw_batches(stages, comment=_COMMENT, collation=collation)
        ids = list(_ids(found))
        places = (ids[number * len(ids) // rest.left] for number in range(1, count + 1) if ids)
        return list(dict.fromkeys(each for each in places if _is_end(each)))


def _in_commands(place: UnreadRange, keys: Sequence[MulticloudDbKey]) -> Iterator[dict[str, Any]]:
    """Return filters that find the keys; each is small enough for a command, which may have 16 MB."""
    group: list[Any] = []
    size = 0
    for key in keys:
        names = key.components if place.names else ("_id",)
        values = {name: to_bson(key[name]) for name in names}
        nbytes = len(bson.encode(values, codec_options=CODEC))
        if group and size + nbytes > _MOST_BYTES:
            yield _any_of(place, group)
            group, size = [], 0
        group.append(values)
        size += nbytes
    if group:
        yield _any_of(place, group)


def _any_of(place: UnreadRange, group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if place.names:
        return {"$or": [{name: {"$eq": value} for name, value in values.items()} for values in group]}
    return {"_id": {"$in": [values["_id"] for values in group]}}


def _ids(answers: Iterable[Any]) -> Iterator[str]:
    for answer in answers:
        yield from map(id_of, rows_of(bytes(answer)))


def _is_end(wanted: str) -> bool:
    return len(wanted) <= _SHORT and wanted != MAX_KEY


_LEAST_BATCH: Final = 100
_MOST_BATCH: Final = 1000
_ENOUGH_BYTES: Final = 4 << 20


class SegmentReader(Reader):
    """Reads the rows of a segment in the order of their `_id`, through a cursor that is kept for minutes."""

    # The server ends the cursor of a collection that is dropped or renamed. A new cursor finds the collection
    # by name, so the UUID is checked for each new cursor, after its first answer.

    def __init__(
        self, source: ScanSource, view: MongoView, segment: Segment, look: Callable[[], None]
    ) -> None:
        self._source, self._view, self._segment, self._look = source, view, segment, look
        self._place = start = range_of(segment)
        self._rows: list[bytes] = []
        self._cursor: Rows | None = None
        self._session: ClientSession | None = None
        self._opened_at, self._first = 0.0, start  # of the cursor
        # The segment is empty if the collection had no rows when the snapshot began, or if nothing sorts
        # after the last row.
        self._exhausted = not start.uuid or start.begin == f"({MAX_KEY}"
        self._outcome: Outcome = Continue()
        self._cancelled = threading.Event()
        self._requests = self._size = 0

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Return the next rows: the rest of the server's last answer, or one more answer."""
        # `max_bytes` has no effect, but an answer has at most 16 MB. If the cursor is lost, a new cursor is
        # opened after the last row, but only once per fetch.
        start, self._requests = self._place, 0
        rows: list[bytes] = []
        if isinstance(self._outcome, Continue):
            if not self._rows and not self._exhausted:
                self._answer(max_records)
                self._source.calm()
            rows = self._taken(max_records, max_bytes)
        self._look()
        mapper = self._mapper(start)
        self._place = mapper.range_after(start, rows, len(rows))
        if isinstance(self._outcome, Continue) and self._exhausted and not self._rows:
            self._outcome = Scanned()
        return Batch(
            rows,
            mapper,
            self._segment.at(start.text).cursor,
            self._segment.at(self._place.text).cursor,
            self._outcome,
            sum(map(len, rows)),
            caught_up=not isinstance(self._outcome, Continue),
            requests=self._requests,
        )

    def longest_fetch(self) -> float:
        """See `MongoReader.longest_fetch`; the server may search for a row that fits the scope."""
        return self._source.longest_answer()

    def cancel(self) -> None:
        """Close the cursor that a running fetch is reading."""
        if not self._cancelled.is_set():
            self._source.be_patient()
        self.halt()
        self._close_cursor()

    def halt(self) -> None:
        """Prevent further calls."""
        self._cancelled.set()

    def close(self) -> None:
        """Close the cursor, also on the server."""
        self._close_cursor()
        self._rows = []

    def _mapper(self, start: UnreadRange) -> DocumentMapper:
        return DocumentMapper(self._view, self._segment, start)

    def _taken(self, max_records: int, max_bytes: int) -> list[bytes]:
        sizes = list(accumulate(map(len, self._rows[:max_records])))
        count = max(1, bisect_right(sizes, max_bytes))
        rows, self._rows = self._rows[:count], self._rows[count:]
        return rows

    def _answer(self, max_records: int) -> None:
        """Take one answer from the server. PyMongo retries a `find`, but not a `getMore`."""
        if time.monotonic() - self._opened_at >= _CURSOR_SECONDS and self._place != self._first:
            self._close_cursor()
        lost = self._cursor is not None
        while True:
            if self._cancelled.is_set():
                raise cancelled()
            try:
                self._next(max_records)
                return
            except PyMongoError:
                self._close_cursor()
                if not lost or self._cancelled.is_set() or not self._source.client.options.retry_reads:
                    raise
                lost = False

    def _next(self, max_records: int) -> None:
        fresh = self._cursor is None
        with self._source.at_work():
            if self._cursor is None:
                self._open(max_records)
            cursor = self._cursor
            assert cursor is not None
            self._requests += 1
            rows = self._next_rows(cursor)
        if fresh:
            self._requests += 1
            notice = self._source.gone(self._place)
            if notice is not None:
                self._end(notice)
                return
        # If the cursor was closed in the meantime, it is not known whether rows are left. `cancel` may also
        # close it during the following lines, so `alive` is read first.
        alive = self._cursor is not cursor or cursor.alive
        if self._cancelled.is_set():
            self._close_cursor()
            raise cancelled()
        mapper = self._mapper(self._place)
        self._rows = self._source.in_scope(mapper.unread(self._place, rows), mapper)
        if not alive:
            self._exhausted = True
            self._close_cursor()

    def _next_rows(self, cursor: Rows) -> list[bytes]:
        """Return about as many rows as an answer has; what is left of an answer stays in the cursor."""
        rows: list[bytes] = []
        nbytes = 0
        try:
            for row in cursor:
                rows.append(bytes(row.raw))
                nbytes += len(rows[-1])
                if len(rows) >= self._size or nbytes >= _ENOUGH_BYTES:
                    break
        except PyMongoError:
            if not rows:
                raise
            self._close_cursor()  # a new one continues after these rows
        return rows

    def _open(self, max_records: int) -> None:
        self._size = min(_MOST_BATCH, max(_LEAST_BATCH, max_records))
        self._opened_at, self._first = time.monotonic(), self._place
        with self._source.opening():
            self._session = self._source.session(self._place)
            self._cursor = self._source.rows(self._place, self._session, self._size)

    def _end(self, notice: Notice) -> None:
        self._close_cursor()
        self._rows, self._exhausted = [], True
        if not self._segment.collection:
            self._outcome = Ended(notice)
            return
        # The feed of a database goes on. The stream tells that a collection was dropped, or has another name.
        if isinstance(notice, Renamed):
            raise ProviderFault.of(
                ErrorCategory.CHECKPOINT_EXPIRED,
                f"{notice.name} was renamed while the snapshot read it; {START_AGAIN}",
                reason=ErrorReason.REPLACED,
            )
        self._outcome = Scanned()

    def _close_cursor(self) -> None:
        cursor, self._cursor = self._cursor, None
        session, self._session = self._session, None
        if cursor is not None:
            self._source.close(cursor)
        if session is not None:
            with suppress(Exception):
                session.end_session()


# Eight segments are read at a time, so a larger collection should have more segments. On the other hand,
# larger segments need fewer cursors.
_LEAST_WIDTH: Final = 5_000
_MOST_WIDTH: Final = 50_000
_FEW_SEGMENTS: Final = 16
# Counting this many keys takes half a second. For larger segments, samples are accurate enough to find the
# ends.
_MOST_COUNTED: Final = 1_000_000
_MOST_SAMPLED_SEGMENTS: Final = 500


def check_snapshot(
    spec: FeedSpec, address: ResourceAddress, found: FoundResource, *, encrypted: bool
) -> None:
    """Refuse a snapshot whose content would differ from that of the stream."""
    if encrypted:
        raise encrypted_refused("Snapshot()")
    options = spec.options
    assert isinstance(options, MongoOptions)
    native = options.start()
    if native is not None:
        raise invalid_request(
            f"MongoOptions.{native}",
            "is given together with Snapshot()",
            "leave it out, because a snapshot starts the stream itself",
        )
    if options.pipeline:
        raise invalid_request(
            "MongoOptions.pipeline",
            "is given together with Snapshot(), but its stages apply only to changes, not to rows",
            "leave it out and filter the events",
        )
    check_provisioned(spec, address, found)
    if address.collection is not None:
        check_has_uuid(found)


def check_has_uuid(found: FoundResource) -> None:
    """Refuse a collection whose UUID is not known."""
    if found.there and found.uuid is None:
        raise unsupported(
            "Snapshot() needs the UUID of the collection, which this server does not tell; without it, a "
            "collection that is dropped or replaced during the scan would not be noticed",
            "use MongoDB, or read the rows with its own driver",
        )


def encrypted_refused(what: str) -> ProviderFault:
    """Return the refusal of a client that encrypts."""
    return unsupported(
        f"{what} is not supported by a client with auto_encryption_opts, because PyMongo cannot read raw "
        "batches with that option",
        "connect without auto_encryption_opts, and decrypt the fields of the events",
    )


def plan_scan(
    source: ScanSource,
    spec: FeedSpec,
    found: FoundResource,
    seeds: list[Seed],
    segments: int | None,
    began: datetime,
) -> ScanPlan:
    """Plan a scan whose stream has begun, after a time by the server's clock."""
    names = source.shard_key() if found.there else ()
    scan = scan_at(time_in(place_of(seeds[0].cursor)), began, found.uuid or "", names)
    records = source.count() if found.there else 0
    whole = isinstance(spec.scope, EntireCollection)
    width, left = (0, 1) if found.clustered or not whole else cuts(records, segments, sharded=bool(names))
    rest = Rest(scan, found.uuid or "", width, left, names=names)
    number = left or max(1, -(-records // width))
    if segments is not None and width:
        number = max(1, min(segments, -(-records // width)))
    return ScanPlan(scan, rest.cursor(), tuple(seeds), number, records if whole else None)


def time_in(place: Place) -> str:
    """Return the cluster time of a position, as resume tokens have it after their first two characters."""
    if (ticks := ticks_at(place)) is None:
        raise unsupported(
            "Snapshot() and lookup need resume tokens that begin with the cluster time, as those of MongoDB "
            "do",
            "use MongoDB, or read the rows with its own driver",
        )
    return f"{ticks:016X}"


def cuts(records: int, segments: int | None, *, sharded: bool) -> tuple[int, int]:
    """Return the number of rows per segment and the maximum number of segments."""
    if segments is None:
        width = min(_MOST_WIDTH, max(_LEAST_WIDTH, -(-records // _FEW_SEGMENTS)))
    else:
        width = max(1, -(-records // segments))
    if not sharded and width <= _MOST_COUNTED:
        return width, segments or 0
    wanted = -(-records // width) if segments is None else segments
    return 0, max(1, min(_MOST_SAMPLED_SEGMENTS, wanted))


def cut(
    source: ScanSource, rest: Rest, count: int, deadline: Deadline
) -> tuple[list[Segment], Cursor | None]:
    """Take the next segments from a plan."""
    found: list[Segment] = []
    for end in _ends(source, rest, count):
        found.append(rest.until(end))
        if not end:
            return found, None
        rest = rest.after(end)
        if len(found) >= count or deadline.passed():
            break
    return found, rest.cursor()


def _ends(source: ScanSource, rest: Rest, count: int) -> Iterator[str]:
    """Return the ends of the next `count` segments. The end of the last segment is an empty text."""
    if not rest.uuid or rest.left == 1:
        yield ""
    elif rest.width:
        while rest.left != 1 and (end := source.counted(rest)) is not None:
            yield end
            rest = rest.after(end)
        yield ""
    else:
        ends = source.sampled(rest, min(count, rest.left - 1))
        yield from ends
        if len(ends) < count:
            yield ""
