"""Handles a snapshot scan during one call: defines segments, and shares pages between scan and stream.

Partitions of the change stream are read first, in the order of their positions from the oldest to the newest.
Then the segments of the scan are read. Therefore, the positions of the change stream do not expire, even if a
scan takes days. A quarter of each page is kept for the scan, so that it ends even if changes arrive as fast
as they are read. If half of the retention time of any stream position has passed, no part of the page is kept
for the scan. On small pages, a quarter is not a whole number of places; the token stores the sum of the
fractions (`Plan.credit`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from multiclouddb_api import BackfillDone
from multiclouddb_spi.continuation.entry import Plan
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import Retired
from multiclouddb_spi.cursor import Cursor, InvalidCursor
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.fetcher import ReadContext
from multiclouddb_spi.fetching.page_content import PageContent
from multiclouddb_spi.fetching.queue import HEAD_SECONDS
from multiclouddb_spi.fetching.stream import Pace, Stream
from multiclouddb_spi.scan.contract import SupportsSnapshot
from multiclouddb_spi.scan.start import stream_wear
from multiclouddb_spi.segment import Segment
from multiclouddb_spi.time_limits import Deadline

Clock: TypeAlias = Callable[[], datetime | None]
"""A function that asks for the service's time; None if the service does not report its time."""

_ACTIVE: Final = 8
_CUT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.1
_FEW: Final = 4
_MOST_EMPTY_CUTS: Final = 100
_SHARE: Final = 4
_OVER: Final = "the rows have been read to their end"
_LATE: Final = datetime.max.replace(tzinfo=UTC)


class Scanning:
    """Handles the scan in one call; `active` has the partitions and segments to read, in this order."""

    def __init__(
        self,
        context: ReadContext,
        consumer: Consumer,
        result: PageContent[Any],
        deadline: Deadline,
        now: Clock,
        *,
        single: bool,
    ) -> None:
        lineage = consumer.state
        assert isinstance(lineage, Lineage)
        self._context, self._consumer, self._feed, self._lineage = context, consumer, consumer.feed, lineage
        self._result, self._deadline, self._single = result, deadline, single
        self._rows = self._kept = 0
        self._unasked = set[str]()
        self._stream_first = False
        self.active = lineage.active()
        if (plan := lineage.plan) is not None:
            self._begin(plan, now)

    # -- The stream and its positions

    def _begin(self, plan: Plan, now: Clock) -> None:
        lineage, consumer = self._lineage, self._consumer
        if plan.rate is None:
            consumer.pace = None
        elif consumer.pace is None or consumer.pace.rate != plan.rate:
            consumer.pace = Pace(plan.rate)
        left, worn = stream_wear(self._feed, lineage, now())
        if plan.holds and plan.auto and worn:
            lineage.release_stream()
            self._context.observing.snapshot_interleaved(self._feed.spec.address, left)
        listed = (entry for entry in lineage.active() if entry.listed)
        stream = sorted(listed, key=lambda entry: self._feed.describe(entry.cursor).time or _LATE)
        self.active = [*stream, *(entry for entry in lineage.active() if not entry.listed)]
        if stream:
            self._stream_first = True
            self._unasked = {entry.partition_id for entry in stream}
            self._kept, credit = divmod(0 if worn else self._result.limit + plan.credit, _SHARE)
            lineage.change_plan(credit=credit)

    # -- Places on the page

    def places(self, name: str, places: int) -> int:
        """Return how many of the page's places a partition or segment may take."""
        if self._lineage.plan is None:
            return places
        kept = max(0, self._kept - self._rows)
        if self._lineage.is_segment(name):
            return min(places, kept) if self._unasked else places
        return max(0, places - kept)

    def has_had_turn(self, name: str) -> bool:
        """Record that a partition has had its turn; return True if it was the last of the stream."""
        if name not in self._unasked:
            return False
        self._unasked.discard(name)
        return not self._unasked

    def asks_again(self, name: str) -> None:
        """Record that a partition has more records, so the scan must not use the partition's places yet."""
        if self._stream_first and not self._lineage.is_segment(name):
            self._unasked.add(name)

    def is_sharing(self) -> bool:
        """Return whether places on the page are kept for the stream or the scan."""
        return bool(self._unasked) or self._kept > self._rows

    def patience(self, running: Mapping[str, Stream], longest: float) -> float:
        """Return how many seconds to wait for the reads that have reserved places on the page."""
        return 0.0 if self.is_stuck(running) else min(_LOOK_SECONDS, longest)

    def is_stuck(self, running: Mapping[str, Stream]) -> bool:
        """Return whether every segment that is being read is late or fails."""
        if self._kept <= self._rows or not self._unasked.isdisjoint(running):
            return False
        slow = time.monotonic() - HEAD_SECONDS
        return not any(
            stream.error is None and stream.asked_at > slow
            for name, stream in running.items()
            if self._lineage.is_segment(name)
        )

    def share_no_more(self) -> bool:
        """Release the reserved places of the page for all partitions; return False if none were reserved."""
        shared, self._stream_first = self.is_sharing(), False
        self._unasked.clear()
        self._kept = 0
        return shared

    # -- The scan

    def takes(self, name: str, count: int) -> None:
        """Record that the page returns records of a partition or segment."""
        plan = self._lineage.plan
        if plan is not None and count and self._lineage.is_segment(name):
            self._rows += count
            self._lineage.change_plan(rows=plan.rows + count)

    def refill(self) -> list[str]:
        """Define more segments if few are left, end the scan if none are; return the ids that start."""
        started = list[str]()
        if self._lineage.segment_count < _FEW:
            started += self._cut()
        if not self._lineage.is_scanned():
            return started
        plan = self._lineage.plan
        assert plan is not None
        stream = self._lineage.end_scan()
        where = self._feed.public_id(plan.partition_id)
        self._result.tell(BackfillDone(where, plan.floor))
        self._result.moved = self._result.ended = True  # nothing follows the notice on its page
        if not len(self._lineage):
            if self._single:
                self._result.retired = Retired(plan.partition_id, ())
            else:
                self._result.over = _OVER
        return [*started, *stream]

    def _cut(self) -> list[str]:
        lineage, started = self._lineage, list[str]()
        # Half of the time is reserved for reading, so that a service that is slow to define segments does not
        # block the stream forever.
        deadline = self._deadline.sooner(min(_CUT_SECONDS, self._deadline.remaining() / 2))
        for _ in range(_MOST_EMPTY_CUTS):
            plan = lineage.plan
            if plan is None or plan.cursor is None:
                return started
            try:
                segments, rest = self._ask(plan, _ACTIVE - lineage.segment_count, deadline)
                lineage.check_cut(segments)
            except Exception as error:  # noqa: BLE001 - classified by the provider
                self._result.failed[plan.partition_id] = error
                if not self._context.fetcher.fault(error).retryable:
                    self._result.failure = (plan.partition_id, error)
                return started
            self._result.requests += 1
            self._result.moved = True
            started += lineage.cut(segments, rest)
            if segments:
                return started
        return started

    def _ask(self, plan: Plan, count: int, deadline: Deadline) -> tuple[list[Segment], Cursor | None]:
        feed, scan, rest = self._feed, plan.scan, plan.cursor
        if not isinstance(feed, SupportsSnapshot):
            raise InvalidCursor("it contains a snapshot, but this provider does not support snapshots")
        return self._context.fetcher.call(lambda: feed.segments(scan, rest, count, deadline), deadline)
