"""Scans of a container for `Snapshot()`, and for `Beginning()` and `AtTime(…)` with the option `backfill`.

First, a scan records the current position N of each range, in the feed of all versions. Then the scan reads
the feed of latest versions from the beginning. The feed of latest versions contains every item once, at the
place of its last change. Items that were changed after N are left out, because the stream contains their
changes. Therefore a scan ends at N, no matter how much is written during the scan.

The name of a segment is its range. `Segment.after` is an LSN, followed by a colon and the place within this
LSN if the position lies within it; `Segment.last` is N. `Scan.shared` is the second before which changes
are left out, and the rest of a plan is `[[range, N], …]`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product
from typing import Any, Final, cast

import attrs
from attrs import frozen
from azure.cosmos.exceptions import CosmosHttpResponseError

from multiclouddb_api import ChangeEvent, LookupAnswer, MulticloudDbKey, NotKnown, invalid_request
from multiclouddb_cosmos.client import RangePage, is_plain
from multiclouddb_cosmos.mapping import CosmosMapper
from multiclouddb_cosmos.position import Place, is_number, place_of, range_of
from multiclouddb_cosmos.ranges import pieces_after, read_settled
from multiclouddb_cosmos.records import (
    MARKED,
    ROW,
    CosmosView,
    Records,
    bared,
    is_halved,
    is_of,
    kind_of,
    normal_key,
    order_key,
    place_after,
    records_of,
    spellings,
)
from multiclouddb_cosmos.source import LAG_SECONDS, ReaderContext
from multiclouddb_cosmos.transport import MovedError
from multiclouddb_spi import (
    AnsweredRows,
    Batch,
    Continue,
    Cursor,
    Deadline,
    InvalidCursor,
    Outcome,
    Reader,
    RecordFault,
    RowMapper,
    Rows,
    Scan,
    Scanned,
    ScanPlan,
    Seed,
    Segment,
    cancelled,
    check_components,
    look_up,
    looked_up,
)

_FLOOR: Final = order_key(0)
_AMBIGUOUS: Final = NotKnown("two items have this key, one with 0 and one with -0.0 in its partition key")
_UNINDEXED: Final = NotKnown("the id needs a query, and the container's index may lack items")
"""Queries of a container with lazy indexing may lack items.

https://learn.microsoft.com/javascript/api/@azure/cosmos/indexingmode
"""
_PAUSE: Final = 0.1
_AT_A_TIME: Final = 16
_MOST_KEYS: Final = 100
_MOST_SECONDS: Final = 253_402_300_799
_MOST_DIGITS: Final = 20  # of an LSN
_NONE: Final = Records([], [])


def text_of(place: Place) -> str:
    """Return a position in a scan as text."""
    return str(place.lsn) if place.inner is None else f"{place.lsn}:{place.inner}"


def place_in(text: str) -> Place:
    """Return the position that `text_of` has converted."""
    lsn, colon, inner = text.partition(":")
    if not (lsn.isascii() and lsn.isdecimal()) or len(lsn) > _MOST_DIGITS:
        raise InvalidCursor("it is not a position in a scan of Cosmos DB")
    return place_of([int(lsn), None, inner] if colon else [int(lsn)])


# -- Plans


def plan_scan(seeds: Sequence[Seed], since: datetime | None, late: int = 0) -> ScanPlan:
    """Plan a scan."""
    places = [place_of(seed.cursor) for seed in seeds]
    # No change of the stream is older than the first of these times.
    times = [place.seconds for place in places if place.seconds is not None]
    moment = max(0, min(times, default=int(datetime.now(UTC).timestamp())) - late)
    whole = None if since is None else int(since.timestamp())
    if whole is not None and times:  # the rows have this time, and no row of a start is from before it
        moment = max(moment, min(whole, min(times) + LAG_SECONDS))
    ranges: list[Cursor] = [[seed.partition_id, place.lsn] for seed, place in zip(seeds, places, strict=True)]
    scan = Scan(_FLOOR, datetime.fromtimestamp(moment, UTC), whole)
    return ScanPlan(scan, ranges, tuple(seeds), len(ranges))


def cut_segments(scan: Scan, rest: Cursor, count: int) -> tuple[list[Segment], Cursor | None]:
    """Take the next ranges from a plan."""
    bounds = list[tuple[str, int]]()
    for each in rest if isinstance(rest, list) else ():
        match each:
            case [str() as name, int() as bound] if range_of(name) is not None and is_number(bound):
                bounds.append((name, bound))
    if not (isinstance(rest, list) and rest and len(bounds) == len(rest)):
        raise InvalidCursor("it is not a plan of Cosmos DB")
    found = [scan.segment(name, text_of(Place(0)), str(bound)) for name, bound in bounds[:count]]
    return found, rest[count:] or None


# -- Rows


@frozen
class _RowMapper(RowMapper):
    """Maps the items of one segment."""

    view: CosmosView
    segment: Segment

    def rows(self, records: Records, start: int, stop: int, *, texts: bool) -> Rows | None:
        """Return what is in the rows, each with the order key of its last change; nothing for Arrow."""
        if texts:
            return None  # rows are read only once
        found = CosmosMapper(self.view).columns(records, start, stop, texts=False)
        return Rows(found.keys, found.new_states, order_keys=found.order_keys, natives=found.natives)

    def place_after(self, records: Records, count: int) -> str:
        return text_of(place_after(records, count))

    def fault(self, records: Records, index: int, error: Exception | None) -> RecordFault:
        found, after = CosmosMapper(self.view).fault(records, index, error), index + 1
        return RecordFault(index, found.position, found.reason, self.cursor_after(records, after))


class ScanReader(Reader):
    """Reads one segment."""

    def __init__(self, source: ReaderContext, view: CosmosView, segment: Segment) -> None:
        span, bound, since = range_of(segment.name), place_in(segment.last), segment.scan.shared
        if span is None or bound.inner is not None or not (since is None or is_number(since, _MOST_SECONDS)):
            raise InvalidCursor("it is not a segment of Cosmos DB")
        self._source, self._span, self._segment, self._bound = source, span, segment, bound.lsn
        self._since = cast("int | None", since)  # items whose last change was before this second are left out
        self._mapper = _RowMapper(view, segment)
        self._rest, self._over = _NONE, False
        self._place = self._next = place_in(segment.after)
        self._outcome: Outcome = Continue()
        self._cancelled = threading.Event()

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Return the next rows."""
        if self._cancelled.is_set():
            raise cancelled()
        begin, answer = self._place, None
        if isinstance(self._outcome, Continue) and not len(self._rest) and not self._over:
            answer = self._page(self._source.limit(max_records, max_bytes), deadline)
        if not isinstance(self._outcome, Continue):
            return self._batch(_NONE, begin, answer)
        rows, self._rest = self._rest.part(0, max_records), self._rest.part(max_records)
        if not len(self._rest):
            self._place = self._next
            if self._over:
                self._outcome = Scanned()
        elif len(rows):
            last = place_after(rows, len(rows))
            inner = rows.inner(len(rows) - 1) if self._rest.lsns[0] == last.lsn else last.inner
            self._place = Place(last.lsn, None, inner)
        return self._batch(rows, begin, answer)

    def cancel(self) -> None:
        """Prevent further fetches. A running call ends at the latest after its read timeout of 10 s."""
        self._cancelled.set()

    def close(self) -> None:
        """Do nothing, because the service holds no resources for a reader."""

    def _page(self, limit: int, deadline: Deadline) -> RangePage | None:
        seen, place = self._source.ranges(), self._place
        pieces = seen.cut(self._span)
        if len(pieces) == 1:
            try:
                etag = place.etag or None
                answer = self._source.read_latest(self._span, etag, limit, self._since, deadline)
                began = int(self._segment.scan.moment.timestamp()) + self._source.late
                self._source.check_kept(self._span, place.etag, began, deadline)
            except (MovedError, CosmosHttpResponseError) as error:
                pieces = pieces_after(self._source, seen, self._span, error)
                if pieces == [self._span]:
                    return None
            else:
                self._take(answer)
                return answer
        after, last = text_of(place), self._segment.last
        self._outcome = Scanned(tuple(self._segment.piece(each.partition_id, after, last) for each in pieces))
        return None

    def _take(self, answer: RangePage) -> None:
        place, view = self._place, self._mapper.view
        items = answer.items
        if self._source.wanted:
            items = [item for item in items if is_of(item, view, self._source.wanted)]
        found = records_of(items, place, view, reached=answer.etag)
        kept = []
        for index in range(len(found)):
            if kind_of(found.items[index], view) == MARKED:
                continue  # a row that is marked as deleted is no row
            seconds = found.seconds(index)
            is_early = self._since is not None and seconds is not None and seconds < self._since
            # An item without an LSN is kept, and cannot be mapped.
            is_within = found.lsns[index] <= self._bound or not found.is_numbered(index)
            if is_within and not is_early:
                kept.append(index)
        self._rest = found.chosen(kept)
        reached = answer.etag
        # Another replica may lag behind, so a page without rows is no proof. Only the LSN of the page proves
        # that no rows are left up to the bound. If the position has moved, the page may be only a part of
        # what the service searches.
        still = not answer.items and answer.etag == place.etag
        self._over = reached >= self._bound or (still and (answer.newest or 0) >= self._bound)
        self._next = Place(reached) if reached >= place.lsn or place.inner is None else place

    def _batch(self, rows: Records, begin: Place, answer: RangePage | None) -> Batch:
        found_none = answer is not None and not answer.items
        waits = found_none and not len(rows) and isinstance(self._outcome, Continue)
        return Batch(
            rows,
            self._mapper,
            self._segment.at(text_of(begin)).cursor,
            self._segment.at(text_of(self._place)).cursor,
            self._outcome,
            0 if answer is None else answer.nbytes,
            caught_up=False,
            poll_after=_PAUSE if waits else 0.0,
            charge=None if answer is None else answer.charge,
            requests=0 if answer is None else answer.requests,
        )


# -- Single rows


def look_up_items(
    source: ReaderContext, keys: Sequence[MulticloudDbKey], deadline: Deadline
) -> dict[MulticloudDbKey, LookupAnswer]:
    """Return the items of some of the keys, with one point read for each key."""
    view = attrs.evolve(source.view(""), usual=ROW, single=True)

    def read(place: tuple[str, list[Any]]) -> tuple[dict[str, Any], int | None] | None:
        return source.calls.item(source.spec.address, *place, source.definition, deadline)

    def row(item: dict[str, Any], lsn: int | None) -> ChangeEvent:
        mapper = _RowMapper(view, looked_up(datetime.fromtimestamp(item["_ts"], UTC)))
        (event,) = mapper.events(bared(Records([item], [lsn or 0]), view), 0, 1)
        return event if lsn is not None else attrs.evolve(event, order_key="")

    def ask(asked: list[MulticloudDbKey]) -> AnsweredRows:
        places, whose = list[tuple[str, list[Any]]](), list[MulticloudDbKey]()
        for key in asked:
            own = _places_of(key, view)
            places, whose = places + own, whose + [key] * len(own)
        with ThreadPoolExecutor(min(_AT_A_TIME, len(places))) as pool:
            answers = list(pool.map(read, places))
        # Another container may have the same name since the feed was opened.
        if source.check_same(deadline).masked:
            # https://learn.microsoft.com/azure/cosmos-db/dynamic-data-masking
            first = source.ranges().ranges[0]
            read_settled(source, first, lambda each: source.check_unmasked(each, deadline))
        unread = [key for key, each in zip(whose, answers, strict=True) if each and is_halved(each[0])]
        there = [each for each in answers if each is not None and not is_halved(each[0])]
        # A row that is marked as deleted is no row.
        return AnsweredRows(
            [row(*each) for each in there if kind_of(each[0], view) != MARKED],
            unread=unread,
            twice=_AMBIGUOUS,
        )

    found = look_up(keys, _MOST_KEYS, normal_key, ask)
    if source.definition.indexed:
        return found
    return {
        key: _UNINDEXED if answer is None and not is_plain(key["id"]) else answer
        for key, answer in found.items()
    }


def _places_of(key: MulticloudDbKey, view: CosmosView) -> list[tuple[str, list[Any]]]:
    """Return the `id` and the partition key of an item, with each spelling of the latter."""
    names = list(dict.fromkeys((*view.names, "id")))
    given = list(key.components)
    # If an item lacks its partition key, its key lacks the component.
    if "id" not in given or given != [name for name in names if name in given]:
        check_components(key, names)
    if not isinstance(key["id"], str):
        raise invalid_request("keys", "has a key whose 'id' is no text", "give the id as event.key has it")
    # {} is the service's own form of a missing property (Azure/cosmos-explorer PR 2085).
    levels = [spellings(key[name]) if name in given else ({},) for name in view.names]
    return [(key["id"], list(each)) for each in product(*levels)]
