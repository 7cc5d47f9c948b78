"""Scans a simulated collection: the plan of a snapshot, its segments, and the reader of a segment.

A segment is a range of hashes. Each hash is computed from the whole key of a document. The rows of
a segment show the documents at the time of reading. With `ServiceBehaviour.point_in_time`, the rows
show the documents at the commit of the snapshot, which is `Scan.shared`.

The rest of a plan is `[width, next hash]`. A segment is read after a hash, and ends before another one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, TypeAlias

import attrs

from multiclouddb_api import ChangeEvent, LookupAnswer, MulticloudDbKey
from multiclouddb_conformance.simulation.calls import Calls
from multiclouddb_conformance.simulation.errors import CancelledError, MissingError, ServerError
from multiclouddb_conformance.simulation.log import PLACES, Document, place_in_scan
from multiclouddb_conformance.simulation.simulation import FETCH
from multiclouddb_conformance.simulation.view import View
from multiclouddb_spi import (
    AnsweredRows,
    Batch,
    Continue,
    Cursor,
    Deadline,
    InvalidCursor,
    Outcome,
    Reader,
    RowMapper,
    Rows,
    Scan,
    Scanned,
    ScanPlan,
    Seed,
    Segment,
    check_components,
    look_up,
    looked_up,
)
from multiclouddb_spi import View as CommonView

__all__ = ["SegmentReader", "answers", "cut_segments", "floor_of", "plan_scan"]

Row: TypeAlias = tuple[MulticloudDbKey, Document]

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
    scan = Scan(floor_of(sim.head), sim.now, sim.head, plan_id)
    rows = len(sim.documents())
    return ScanPlan(scan, [-(-PLACES // count), 0], tuple(seeds), count, rows, rows + count)


def cut_segments(scan: Scan, rest: Cursor, count: int) -> tuple[list[Segment], Cursor | None]:
    """Take the next segments from a plan."""
    match rest:
        case [int() as width, int() as low] if width > 0 and 0 <= low < PLACES:
            pass
        case _:
            raise InvalidCursor("it is not a plan of the simulation")
    found = list[Segment]()
    while low < PLACES and len(found) < count:
        high = min(PLACES, low + width)
        found.append(scan.segment(f"{low:x}-{high:x}", str(low - 1), str(high), 100))
        low = high
    return found, None if low >= PLACES else [width, low]


@attrs.frozen(eq=False)
class _Mapper(RowMapper):
    view: CommonView
    segment: Segment
    calls: Calls

    def events(self, records: list[Row], start: int, stop: int) -> list[ChangeEvent]:
        self.calls.count("mapped", stop - start)
        return super().events(records, start, stop)

    def rows(self, records: list[Row], start: int, stop: int, *, texts: bool) -> Rows | None:
        if texts:
            return None
        keys, documents = [row[0] for row in records[start:stop]], [row[1] for row in records[start:stop]]
        return Rows(
            keys,
            documents if self.view.with_new else [None] * len(keys),
            natives=documents if self.view.native else [None] * len(keys),
        )

    def place_after(self, records: list[Row], count: int) -> str:
        return str(place_in_scan(records[count - 1][0]))


def _mapper(view: View, public_id: str, segment: Segment) -> _Mapper:
    spec = view.spec
    common = CommonView(spec.address, public_id, with_new=spec.with_new, native=spec.include_native)
    return _Mapper(common, segment, view.calls)


class SegmentReader(Reader):
    """Reads one segment, row after row in the order of their hashes."""

    def __init__(self, view: View, public_id: str, segment: Segment) -> None:
        try:
            last, high = int(segment.after), int(segment.last)
        except ValueError as error:
            raise InvalidCursor("it is not a segment of the simulation") from error
        if not (-1 <= last < high <= PLACES and isinstance(segment.scan.shared, int)):
            raise InvalidCursor("it is not a segment of the simulation")
        self._view, self._sim, self._calls = view, view.sim, view.calls
        self._segment, self._id = segment, segment.segment_id
        self._last, self._high, self._commit = last, high, segment.scan.shared
        self._mapper = _mapper(view, public_id, segment)
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
            self._segment.piece(f"{low:x}-{high:x}", str(low - 1), str(high))
            for low, high in bounds
            if low < high
        )

    def _cursor(self) -> Cursor:
        return self._segment.at(str(self._last)).cursor

    def _rows(self) -> list[Row]:
        commit = self._commit if self._sim.behaviour.point_in_time else None
        return self._sim.rows(self._last + 1, self._high, commit)


def answers(view: View, keys: Sequence[MulticloudDbKey]) -> dict[MulticloudDbKey, LookupAnswer]:
    """Return the rows of at most four keys, so that every larger lookup takes several calls."""
    sim, documents = view.sim, view.sim.documents()

    def normal(key: MulticloudDbKey) -> MulticloudDbKey:
        check_components(key, list(next(iter(documents), key).components))
        return key

    def ask(asked: list[MulticloudDbKey]) -> AnsweredRows:
        rows = [(key, documents[key]) for key in asked if key in documents]
        return AnsweredRows(_mapper(view, "", looked_up(sim.now)).events(rows, 0, len(rows)))

    return look_up(keys, _LOOKED_UP, normal, ask)
