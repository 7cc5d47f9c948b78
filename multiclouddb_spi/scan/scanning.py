"""Handles a snapshot scan during one call: defines segments, and says what is kept of a page for them.

Partitions of the change stream are read first, in the order of their positions from the oldest to the newest.
Then the segments of the scan are read. Therefore, the positions of the change stream do not expire, even if a
scan takes days. A quarter of each page is kept for the scan, so that it ends even if changes arrive as fast
as they are read. If half of the retention time of any stream position has passed, no part of the page is kept
for the scan. On small pages, a quarter is not a whole number of places; the token stores the sum of the
fractions (`Plan.credit`).
"""

from __future__ import annotations

from collections.abc import Callable
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
from multiclouddb_spi.fetching.scan_share import ScanShare
from multiclouddb_spi.fetching.stream import Pace
from multiclouddb_spi.scan.contract import SupportsSnapshot
from multiclouddb_spi.scan.start import stream_wear
from multiclouddb_spi.segment import Segment
from multiclouddb_spi.time_limits import Deadline

Clock: TypeAlias = Callable[[], datetime | None]
"""A function that asks for the service's time; None if the service does not report its time."""

_ACTIVE: Final = 8
_CUT_SECONDS: Final = 10.0
_FEW: Final = 4
_MOST_EMPTY_CUTS: Final = 100
_SHARE: Final = 4
_OVER: Final = "the rows have been read to their end"
_LATE: Final = datetime.max.replace(tzinfo=UTC)


class Scanning:
    """Handles the scan in one call.

    Attributes:
        active: The partitions and segments to read, in this order.
        share: What is kept of the page for the scan, and from it.
    """

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
        self._context, self._feed, self._lineage = context, consumer.feed, lineage
        self._result, self._deadline, self._single = result, deadline, single
        plan = lineage.plan
        assert plan is not None
        if plan.rate is None:
            consumer.pace = None
        elif consumer.pace is None or consumer.pace.rate != plan.rate:
            consumer.pace = Pace(plan.rate)
        left, worn = stream_wear(self._feed, lineage, now())
        if plan.holds and plan.auto and worn:
            lineage.release_stream()
            context.observing.snapshot_interleaved(self._feed.spec.address, left)
        listed = (entry for entry in lineage.active() if entry.listed)
        stream = sorted(listed, key=lambda entry: self._feed.describe(entry.cursor).time or _LATE)
        self.active = [*stream, *(entry for entry in lineage.active() if not entry.listed)]
        kept = 0
        if stream:
            kept, credit = divmod(0 if worn else result.limit + plan.credit, _SHARE)
            lineage.change_plan(credit=credit)
        self.share = ScanShare(lineage, [entry.partition_id for entry in stream], kept)

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
