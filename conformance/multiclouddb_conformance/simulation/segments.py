"""Scans a simulated collection: the plan of a snapshot, its segments, and the reader of a segment.

A segment is a range of hashes. Each hash is computed from the whole key of a document. The rows of
a segment show the documents at the time of reading. With `ServiceBehaviour.point_in_time`, the rows
show the documents at the commit of the snapshot.

The cursor of a plan is `[plan id, commit, µs, width, next hash]`. The cursor of a segment is
`[plan id, commit, µs, from, to, last hash]`. Before the first row, the last hash is -1.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import attrs

from multiclouddb_api import ChangeEvent, ChangeType, LookupAnswer, MulticloudDbKey
from multiclouddb_conformance.simulation.calls import Calls
from multiclouddb_conformance.simulation.errors import CancelledError, MissingError, ServerError
from multiclouddb_conformance.simulation.log import PLACES, Document, place_in_scan
from multiclouddb_conformance.simulation.simulation import FETCH
from multiclouddb_conformance.simulation.view import View
from multiclouddb_spi import (
    Batch,
    Continue,
    Cursor,
    Deadline,
    FeedSpec,
    InvalidCursor,
    Mapper,
    Outcome,
    Reader,
    Scanned,
    ScanPlan,
    Seed,
    Segment,
    segment_id_of,
    snapshot_event_id,
)
from multiclouddb_spi.abilities import LOOKUP_PLAN, answers_of, check_components

__all__ = ["SegmentReader", "cut_segments", "floor_of", "is_segment_cursor", "look_up", "plan_scan"]

Row: TypeAlias = tuple[MulticloudDbKey, Document]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SEGMENTS: Final = 4
_LOOKED_UP: Final = 4
_RECORD_BYTES: Final = 100


def floor_of(commit: int) -> str:
    """Return the `order_key` of the rows of a snapshot."""
    return f"{commit:016d}.~"


def plan_scan(view: View, seeds: list[Seed], segments: int | None) -> ScanPlan:
    """Plan a scan that starts now. `seeds` contains the current positions of the change stream."""
    sim = view.sim
    plan_id = f"{sim.incarnation}x{sim.head}x{sim.next_snapshot()}"
    count = 1 if not view.whole else segments or sim.behaviour.segments or _SEGMENTS
    micros = (sim.now - _EPOCH) // timedelta(microseconds=1)
    cursor: Cursor = [plan_id, sim.head, micros, -(-PLACES // count), 0]
    return ScanPlan(plan_id, cursor, tuple(seeds), floor_of(sim.head), sim.now, count, len(sim.documents()))


def cut_segments(cursor: Cursor, count: int) -> tuple[list[Segment], Cursor | None]:
    """Take the next segments from a plan."""
    match cursor:
        case [str() as plan_id, int() as commit, int() as micros, int() as width, int() as low] if (
            width > 0 and 0 <= low < PLACES
        ):
            pass
        case _:
            raise InvalidCursor("it is not a plan of the simulation")
    found = list[Segment]()
    while low < PLACES and len(found) < count:
        high = min(PLACES, low + width)
        found.append(_segment(plan_id, commit, micros, low, high, -1))
        low = high
    return found, None if low >= PLACES else [plan_id, commit, micros, width, low]


def _segment(plan_id: str, commit: int, micros: int, low: int, high: int, last: int) -> Segment:
    return Segment(
        segment_id_of(plan_id, f"{low:x}-{high:x}"), [plan_id, commit, micros, low, high, last], 100
    )


def is_segment_cursor(cursor: Cursor) -> bool:
    """Return True for the cursor of a segment, False for the cursor of a partition."""
    match cursor:
        case [str(), int(), int(), int() as low, int() as high, int() as last]:
            return 0 <= low < high <= PLACES and -1 <= last < high
        case _:
            return False


@attrs.frozen(eq=False)
class _Mapper(Mapper):
    spec: FeedSpec
    public_id: str
    plan_id: str
    commit: int
    micros: int
    low: int
    high: int
    calls: Calls

    def cursor_after(self, records: list[Row], count: int) -> Cursor:
        last = place_in_scan(records[count - 1][0])
        return [self.plan_id, self.commit, self.micros, self.low, self.high, last]

    def events(self, records: list[Row], start: int, stop: int) -> list[ChangeEvent]:
        self.calls.count("mapped", stop - start)
        return [self._event(*records[index]) for index in range(start, stop)]

    def _event(self, key: MulticloudDbKey, document: Document) -> ChangeEvent:
        return ChangeEvent(
            event_id=snapshot_event_id(self.plan_id, key),
            key=key,
            type=ChangeType.CREATE,
            timestamp=_EPOCH + timedelta(microseconds=self.micros),
            new_item_state=document if self.spec.with_new else None,
            old_item_state=None,
            order_key=floor_of(self.commit),
            by_expiry=False,
            backfilled=True,
            address=self.spec.address,
            partition_id=self.public_id,
            native=document if self.spec.include_native else None,
        )


class SegmentReader(Reader):
    """Reads one segment, row after row in the order of their hashes."""

    def __init__(self, view: View, segment_id: str, public_id: str, cursor: Cursor) -> None:
        if not is_segment_cursor(cursor):
            raise InvalidCursor("it is not a segment of the simulation")
        position: Any = cursor
        self._view, self._sim, self._id, self._calls = view, view.sim, segment_id, view.calls
        self._plan_id, self._commit, self._micros, self._low, self._high, self._last = position
        self._mapper = _Mapper(
            view.spec, public_id, self._plan_id, self._commit, self._micros, self._low, self._high, view.calls
        )
        self._cancelled = self._closed = False
        self._busy = threading.Lock()

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """See `Reader.fetch`; the service's faults happen here too."""
        if not self._busy.acquire(blocking=False):
            self._calls.violated(self._id, "two fetches at a time")
            self._busy.acquire()
        try:
            with self._sim.changed:
                self._calls.count_each("fetches", [self._id])
                self._sim.pass_hold(self._id, lambda: self._cancelled)
                if self._cancelled:
                    raise CancelledError(f"reader of {self._id} was cancelled")
                self._trouble()
                return self._fetch(max_records, max_bytes)
        finally:
            self._busy.release()

    def cancel(self) -> None:
        with self._sim.changed:
            self._cancelled = True
            self._calls.count("cancels")
            self._sim.changed.notify_all()

    def close(self) -> None:
        with self._sim.changed:
            if not self._closed:
                self._closed = True
                self._calls.closed()
                self._view.closed(self)

    def _trouble(self) -> None:
        scripted = self._sim.scripted(FETCH, self._id)
        if scripted is not None:
            raise scripted
        behaviour = self._sim.behaviour
        if self._sim.may_happen(behaviour.server_error + behaviour.drop + behaviour.throttle, self._id):
            raise ServerError(f"503 from {self._id}")
        if self._view.identity.incarnation != self._sim.incarnation:
            raise MissingError(f"{self._sim.address} does not exist, or was dropped")

    def _fetch(self, max_records: int, max_bytes: int) -> Batch:
        behaviour = self._sim.behaviour
        limit = max_records if behaviour.page_limit is None else min(max_records, behaviour.page_limit)
        limit = min(limit, max(1, max_bytes // _RECORD_BYTES))
        begin = self._cursor()
        rows = [row for row in self._rows() if self._view.wants_key(row[0])]
        taken, left = rows[:limit], rows[limit:]
        if taken:
            self._last = place_in_scan(taken[-1][0])
        outcome: Outcome = Continue()
        if not left:
            outcome = Scanned()
            self._last = self._high - 1
        elif len(left) > 1 and self._sim.may_happen(behaviour.splits_segments, f"split {self._id}"):
            outcome = Scanned(self._pieces(left))
        return Batch(
            taken, self._mapper, begin, self._cursor(), outcome, _RECORD_BYTES * len(taken),
            caught_up=not left, charge=1.0 + len(taken),
        )  # fmt: skip

    def _pieces(self, left: list[Row]) -> tuple[Segment, ...]:
        middle = place_in_scan(left[len(left) // 2][0])
        bounds = ((self._last + 1, middle), (middle, self._high))
        return tuple(
            _segment(self._plan_id, self._commit, self._micros, low, high, -1)
            for low, high in bounds
            if low < high
        )

    def _cursor(self) -> Cursor:
        return [self._plan_id, self._commit, self._micros, self._low, self._high, self._last]

    def _rows(self) -> list[Row]:
        low = max(self._low, self._last + 1)
        return self._sim.rows(low, self._high, self._commit if self._sim.behaviour.point_in_time else None)


def look_up(view: View, keys: Sequence[MulticloudDbKey]) -> dict[MulticloudDbKey, LookupAnswer]:
    """Return the rows of at most four keys, so that every larger lookup takes several calls."""
    sim, asked, documents = view.sim, keys[:_LOOKED_UP], view.sim.documents()
    for key in asked:
        check_components(key, list(next(iter(documents), key).components))
    micros = (sim.now - _EPOCH) // timedelta(microseconds=1)
    mapper = _Mapper(view.spec, "", LOOKUP_PLAN, sim.head, micros, 0, PLACES, view.calls)
    rows = [(key, documents[key]) for key in asked if key in documents]
    return answers_of(asked, mapper.events(rows, 0, len(rows)))
