"""Scans of a container for `Snapshot()`, and for `Beginning()` and `AtTime(…)` with the option `backfill`.

First, a scan records the current position N of each range, in the feed of all versions. Then the scan reads
the feed of latest versions from the beginning. The feed of latest versions contains every item once, at the
place of its last change. Items that were changed after N are left out, because the stream contains their
changes. Therefore a scan ends at N, no matter how much is written during the scan.

A segment is a range, and its id names the range. The cursor of a segment is `[plan id, N, moment, since,
lsn]`; if the position lies within an LSN, the cursor has a sixth part. A plan's cursor is `[plan id, moment,
since, [[range, N], …]]`.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product, repeat
from typing import Any, Final

import attrs
from attrs import frozen
from azure.cosmos.exceptions import CosmosHttpResponseError
from azure.cosmos.partition_key import NonePartitionKeyValue

from multiclouddb_api import ChangeEvent, LookupAnswer, MulticloudDbKey, NotKnown, invalid_request
from multiclouddb_cosmos.client import Answer
from multiclouddb_cosmos.mapping import CosmosMapper
from multiclouddb_cosmos.position import KeyRange, Place, is_number, place_of, range_of
from multiclouddb_cosmos.ranges import pieces_after
from multiclouddb_cosmos.records import (
    MARKED,
    ROW,
    Records,
    View,
    bared,
    is_of,
    kind_of,
    normal_key,
    order_key,
    place_after,
    records_of,
    spellings,
)
from multiclouddb_cosmos.source import Source
from multiclouddb_cosmos.transport import MovedError
from multiclouddb_spi import (
    Batch,
    Continue,
    Cursor,
    Deadline,
    InvalidCursor,
    Outcome,
    Reader,
    Scanned,
    ScanPlan,
    Seed,
    Segment,
    cancelled,
    segment_id_of,
    snapshot_event_id,
)
from multiclouddb_spi.abilities import LOOKUP_PLAN, answers_of, check_components

_FLOOR: Final = order_key(0)
_AMBIGUOUS: Final = NotKnown("two items have this key, one with 0 and one with -0.0 in its partition key")
_PAUSE: Final = 0.1
_AT_A_TIME: Final = 16
_MOST_KEYS: Final = 100
_MOST_SECONDS: Final = 253_402_300_799
_MOST_PLAN: Final = 64
_NONE: Final = Records([], [])


@frozen
class Scan:
    """A position in the scan of a range."""

    plan_id: str  # the id of the snapshot
    bound: int  # the position N of the range
    moment: int  # the time at which the snapshot began, in seconds since 1970
    since: int | None  # items whose last change was before this second are left out
    place: Place  # the position up to which the range was read

    @property
    def cursor(self) -> Cursor:
        """Return the position as a cursor, which is the form that a token stores."""
        found: list[Cursor] = [self.plan_id, self.bound, self.moment, self.since, self.place.lsn]
        return found if self.place.inner is None else [*found, self.place.inner]


def is_scan(cursor: Cursor) -> bool:
    """Return True if a cursor belongs to a scan."""
    return isinstance(cursor, list) and bool(cursor) and isinstance(cursor[0], str)


def scan_of(cursor: Cursor) -> Scan:
    """Convert a stored position to a `Scan`; the inverse of `Scan.cursor`."""
    match cursor:
        case [str() as plan_id, bound, moment, since, lsn, *inner] if (
            0 < len(plan_id) <= _MOST_PLAN
            and is_number(bound)
            and is_number(moment, _MOST_SECONDS)
            and (since is None or is_number(since, _MOST_SECONDS))
            and len(inner) < 2
        ):
            place = place_of([lsn, None, *inner] if inner else [lsn])
            return Scan(plan_id, bound, moment, since, place)  # type: ignore[arg-type]
    raise InvalidCursor("it is not a scan of Cosmos DB")


# -- Plans


def plan_scan(seeds: Sequence[Seed], since: datetime | None, late: int = 0) -> ScanPlan:
    """Plan a scan."""
    places = [place_of(seed.cursor) for seed in seeds]
    # No change of the stream is older than the first of these times.
    times = [place.seconds for place in places if place.seconds is not None]
    moment = max(0, min(times, default=int(datetime.now(UTC).timestamp())) - late)
    plan_id = secrets.token_hex(6)
    whole = None if since is None else int(since.timestamp())
    ranges: list[Cursor] = [[seed.partition_id, place.lsn] for seed, place in zip(seeds, places, strict=True)]
    cursor: Cursor = [plan_id, moment, whole, ranges]
    started = datetime.fromtimestamp(moment, UTC)
    return ScanPlan(plan_id, cursor, tuple(seeds), _FLOOR, started, len(ranges))


def cut_segments(cursor: Cursor, count: int) -> tuple[list[Segment], Cursor | None]:
    """Take the next ranges from a plan."""
    bounds = list[tuple[str, int]]()
    match cursor:
        case [str() as plan_id, moment, since, [*ranges]]:
            for each in ranges:
                match each:
                    case [str() as name, int() as bound] if range_of(name) is not None and is_number(bound):
                        bounds.append((name, bound))
            if len(bounds) < len(ranges):
                raise InvalidCursor("it is not a plan of Cosmos DB")
        case _:
            raise InvalidCursor("it is not a plan of Cosmos DB")
    found = [
        Segment(segment_id_of(plan_id, name), scan_of([plan_id, bound, moment, since, 0]).cursor)
        for name, bound in bounds[:count]
    ]
    rest = ranges[count:]
    return found, [plan_id, moment, since, rest] if rest else None


# -- Rows


@frozen
class _RowMapper(CosmosMapper):
    """Maps the items of one segment."""

    scan: Scan  # the segment's position

    def cursor_after(self, records: Records, count: int) -> Cursor:
        """Return the position after the first `count` rows."""
        return attrs.evolve(self.scan, place=place_after(records, count)).cursor

    def columns(self, records: Records, start: int, stop: int, *, texts: bool) -> Any:
        """Return the columns of rows; none for Arrow, because rows are read only once."""
        if texts:
            return None
        found = super().columns(records, start, stop, texts=False)
        return attrs.evolve(
            found,
            event_ids=[snapshot_event_id(self.scan.plan_id, key) for key in found.keys],
            timestamps=repeat(datetime.fromtimestamp(self.scan.moment, UTC)),
            backfilled=repeat(True),
        )


class ScanReader(Reader):
    """Reads one segment."""

    def __init__(self, source: Source, view: View, span: KeyRange, scan: Scan) -> None:
        self._source, self._span, self._scan = source, span, scan
        self._mapper = _RowMapper(view, scan)
        self._rest, self._over = _NONE, False
        self._next = scan.place
        self._outcome: Outcome = Continue()
        self._cancelled = threading.Event()

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Return the next rows."""
        if self._cancelled.is_set():
            raise cancelled()
        begin, answer = self._scan, None
        if isinstance(self._outcome, Continue) and not len(self._rest) and not self._over:
            answer = self._page(self._source.limit(max_records, max_bytes), deadline)
        if not isinstance(self._outcome, Continue):
            return self._batch(_NONE, begin, answer)
        rows, self._rest = self._rest.part(0, max_records), self._rest.part(max_records)
        if not len(self._rest):
            self._scan = attrs.evolve(self._scan, place=self._next)
            if self._over:
                self._outcome = Scanned()
        elif len(rows):
            last = place_after(rows, len(rows))
            inner = rows.inner(len(rows) - 1) if self._rest.lsns[0] == last.lsn else last.inner
            self._scan = attrs.evolve(self._scan, place=Place(last.lsn, None, inner))
        return self._batch(rows, begin, answer)

    def cancel(self) -> None:
        """Prevent further fetches. A running call ends at the latest after its read timeout of 10 s."""
        self._cancelled.set()

    def close(self) -> None:
        """Do nothing, because the service holds no resources for a reader."""

    def _page(self, limit: int, deadline: Deadline) -> Answer | None:
        """Request and return one page."""
        seen, scan = self._source.ranges(), self._scan
        pieces = seen.cut(self._span)
        if len(pieces) == 1:
            try:
                etag = scan.place.etag or None
                answer = self._source.read_latest(self._span, etag, limit, scan.since, deadline)
                began = scan.moment + self._source.late
                self._source.check_kept(self._span, scan.place.etag, began, deadline)
            except (MovedError, CosmosHttpResponseError) as error:
                pieces = pieces_after(self._source, seen, self._span, error)
                if pieces == [self._span]:
                    return None
            else:
                self._take(answer)
                return answer
        self._outcome = Scanned(
            tuple(Segment(segment_id_of(scan.plan_id, each.partition_id), scan.cursor) for each in pieces)
        )
        return None

    def _take(self, answer: Answer) -> None:
        scan, view = self._scan, self._mapper.view
        items = answer.items
        if self._source.wanted:
            items = [item for item in items if is_of(item, view, self._source.wanted)]
        found = records_of(items, scan.place, view, reached=answer.etag)
        kept = []
        for index in range(len(found)):
            if kind_of(found.items[index], view) == MARKED:
                continue  # a row that is marked as deleted is no row
            seconds = found.seconds(index)
            is_early = scan.since is not None and seconds is not None and seconds < scan.since
            # An item without an LSN is kept, and cannot be mapped.
            is_within = found.lsns[index] <= scan.bound or not found.is_numbered(index)
            if is_within and not is_early:
                kept.append(index)
        self._rest = found.chosen(kept)
        reached = answer.etag
        # Another replica may lag behind, so a page without rows is no proof. Only the LSN of the page proves
        # that no rows are left up to the bound. If the position has moved, the page may be only a part of
        # what the service searches.
        still = not answer.items and answer.etag == scan.place.etag
        self._over = reached >= scan.bound or (still and (answer.newest or 0) >= scan.bound)
        self._next = Place(reached) if reached >= scan.place.lsn or scan.place.inner is None else scan.place

    def _batch(self, rows: Records, begin: Scan, answer: Answer | None) -> Batch:
        found_none = answer is not None and not answer.items
        waits = found_none and not len(rows) and isinstance(self._outcome, Continue)
        return Batch(
            rows,
            attrs.evolve(self._mapper, scan=begin),
            begin.cursor,
            self._scan.cursor,
            self._outcome,
            0 if answer is None else answer.nbytes,
            caught_up=False,
            poll_after=_PAUSE if waits else 0.0,
            charge=None if answer is None else answer.charge,
            requests=0 if answer is None else answer.requests,
        )


# -- Single rows


def look_up(
    source: Source, keys: Sequence[MulticloudDbKey], deadline: Deadline
) -> dict[MulticloudDbKey, LookupAnswer]:
    """Return the items of some of the keys, with one point read for each key."""
    asked, view = keys[:_MOST_KEYS], attrs.evolve(source.view(""), usual=ROW, single=True)
    places = [
        place
        for key in dict.fromkeys(map(normal_key, asked))
        for place in _places_of(key, view, hierarchical=source.definition.hierarchical)
    ]

    def read(place: tuple[str, Any]) -> tuple[dict[str, Any], int | None] | None:
        return source.calls.item(source.spec.address, *place, deadline)

    with ThreadPoolExecutor(min(_AT_A_TIME, len(places))) as pool:
        answers = list(pool.map(read, places))
    # Another container may have the same name since the feed was opened.
    source.check_same(deadline)
    rows = list[ChangeEvent]()
    for answer in answers:
        if answer is None:
            continue
        item, lsn = answer
        if kind_of(item, view) == MARKED:
            continue  # a row that is marked as deleted is no row
        mapper = _RowMapper(view, Scan(LOOKUP_PLAN, 0, item["_ts"], None, Place(0)))
        records = bared(Records([item], [lsn or 0]), view)
        (event,) = mapper.events(records, 0, 1)
        rows.append(event if lsn is not None else attrs.evolve(event, order_key=""))
    found = answers_of(asked, rows, normal_key)
    seen = Counter(row.key for row in rows)
    return {key: _AMBIGUOUS if seen[normal_key(key)] > 1 else answer for key, answer in found.items()}


def _places_of(key: MulticloudDbKey, view: View, *, hierarchical: bool) -> list[tuple[str, Any]]:
    """Return the `id` and the partition key of an item, with each spelling of the latter."""
    names = list(dict.fromkeys((*view.names, "id")))
    given = list(key.components)
    # If an item lacks its partition key, its key lacks the component.
    if not given or given[-1] != names[-1] or given != [name for name in names if name in given]:
        check_components(key, names)
    if not isinstance(key["id"], str):
        raise invalid_request("keys", "has a key whose 'id' is no text", "give the id as event.key has it")
    # azure-cosmos cannot send its own mark within a list; there, its form for a missing property is {}, which
    # is the service's own (Azure/cosmos-explorer PR 2085).
    missing: Any = {} if hierarchical else NonePartitionKeyValue
    values = [spellings(key[name]) if name in given else (missing,) for name in view.names]
    return [(key["id"], list(each) if hierarchical else each[0]) for each in product(*values)]
