"""Plans bounded reads of a snapshot scan: one step defines whole segments, and the next step reads them.

A step is the difference between two lineages. The lineage before a step must contain the segments
that the step reads, because dividing the plan again could result in other segments. While the
change stream waits for the scan, a step reads only segments. With `AUTO`, the stream stops waiting
when half of the retention time of a stream position has passed. With `INTERLEAVED`, the stream
never waits for the scan. If the stream does not wait, a step reads both the stream and segments.
The stream goes first: at least a quarter of a limited step is reserved for it. The scan gets at
most three quarters of the step, and less if the stream needs more.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from multiclouddb_spi.continuation.entry import Plan
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.faults import unwritten
from multiclouddb_spi.retry import Call
from multiclouddb_spi.scan.contract import SupportsSnapshot
from multiclouddb_spi.scan.start import stream_wear
from multiclouddb_spi.time_limits import Deadline

_MOST_SEGMENTS: Final = 64
_MOST_EMPTY_CUTS: Final = 100
_SHARE: Final = 4


def scan_step(
    feed: Feed, call: Call, before: Lineage, max_records: int | None, deadline: Deadline
) -> Lineage:
    """Return the lineage after the next step of `before`, in which the change stream waits for the scan."""
    after = before.copy()
    _scan(feed, call, before, after, max_records, deadline)
    if after.plan is not None and after.plan.auto and _is_worn(feed, call, after, deadline):
        after.release_stream()
    return after


def stream_limit(before: Lineage, max_records: int | None) -> int | None:
    """Return how many changes a step may read in addition to the segments of the scan."""
    plan = before.plan
    if max_records is None or plan is None or not before.segment_count:
        return max_records
    left = max_records - max_records // _SHARE
    if plan.records and plan.segments:
        left = max_records - before.segment_count * plan.records // plan.segments
    return max(1, max_records // _SHARE, left)


def scan_beside(
    feed: Feed,
    call: Call,
    before: Lineage,
    after: Lineage,
    used: int | None,
    max_records: int | None,
    deadline: Deadline,
) -> None:
    """Add segments of the scan to a step of the stream, which reads `used` records; changes `after`."""
    limit = stream_limit(before, max_records)
    most = max_records
    if max_records is not None and limit is not None:
        is_full = used is None or used >= limit
        left = max_records - (limit if used is None else used)
        most = max(1, max_records // _SHARE, min(left, max_records - max_records // _SHARE))
        if is_full and _is_worn(feed, call, after, deadline):
            most = 0
    _scan(feed, call, before, after, most, deadline)


def _scan(
    feed: Feed, call: Call, before: Lineage, after: Lineage, most: int | None, deadline: Deadline
) -> None:
    """Plan to read the segments of `before` to their ends, and define the segments of the next step."""
    if not isinstance(feed, SupportsSnapshot):
        raise unwritten(type(feed), "segments", "how to scan its collection")
    for entry in before.active():
        if before.is_segment(entry.partition_id):
            after.scanned(entry.partition_id, ())
    plan = after.plan
    assert plan is not None
    rest, count = plan.cursor, _segments(plan, most)
    for _ in range(_MOST_EMPTY_CUTS if count else 0):
        if rest is None or after.segment_count:
            break
        segments, rest = call(partial(feed.segments, plan.scan, rest, count, deadline), deadline)
        after.check_cut(segments)
        after.cut(segments, rest)
    if after.is_scanned():
        after.end_scan()


def _segments(plan: Plan, most: int | None) -> int:
    """Return how many segments together contain about `most` rows."""
    if most == 0:
        return 0
    if most is None or not plan.records or not plan.segments:
        return _MOST_SEGMENTS if most is None else 1
    return max(1, min(_MOST_SEGMENTS, most * plan.segments // plan.records))


def _is_worn(feed: Feed, call: Call, lineage: Lineage, deadline: Deadline) -> bool:
    return stream_wear(feed, lineage, call(lambda: feed.clock(deadline), deadline))[1]
