"""Plans bounded reads of a snapshot scan: one step defines whole segments, and the next step reads them.

A step is the difference between two lineages. So the lineage before a step must contain the segments that the
step reads, because dividing a plan again could give other segments. Changes are not read until the scan is
over, whatever the `SnapshotOrder`.
"""

from __future__ import annotations

from typing import Final

from multiclouddb_api import Snapshot, SnapshotOrder, invalid_request
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.snapshots import resolve_snapshot
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.faults import unwritten
from multiclouddb_spi.planning.step import Step
from multiclouddb_spi.scan import SupportsSnapshot

__all__ = ["plan_snapshot", "scan_step"]

_MOST_SEGMENTS: Final = 64
_MOST_EMPTY_CUTS: Final = 100


def plan_snapshot(feed: Feed, wanted: Snapshot, deadline: Deadline) -> Lineage:
    """Start a snapshot whose scan is read before any change.

    Args:
        feed: The opened feed.
        wanted: The snapshot; `AUTO` is read as `ORDERED`.
        deadline: The time limit.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` for `INTERLEAVED`.
    """
    if wanted.order is SnapshotOrder.INTERLEAVED:
        raise invalid_request(
            "Snapshot.order",
            "is INTERLEAVED, which a planned read does not do",
            "leave it out: rows are read before changes",
        )
    if not isinstance(feed, SupportsSnapshot):
        raise unwritten(type(feed), "snapshot", "how to scan its collection")
    return resolve_snapshot(
        feed, wanted, lambda: feed.clock(deadline), lambda: feed.snapshot(wanted.segments, deadline)
    )


def scan_step(feed: Feed, before: Lineage, max_records: int | None, deadline: Deadline) -> Step:
    """Return the next step of a lineage that contains a plan.

    Args:
        feed: The opened feed.
        before: The lineage at which the step starts; it is not changed.
        max_records: The approximate maximum number of rows in a step, rounded to whole segments, and at least
            one segment; None means as many segments as useful.
        deadline: The time limit.

    Returns:
        A step that reads every segment of `before` to its end. If the step reads nothing, it has defined
        segments or ended the scan.
    """
    if not isinstance(feed, SupportsSnapshot):
        raise unwritten(type(feed), "segments", "how to scan its collection")
    after, plan = before.copy(), before.plan
    assert plan is not None
    for entry in before.active():
        if before.is_segment(entry.partition_id):
            after.scanned(entry.partition_id, ())
    rest, count = plan.cursor, _segments(plan.records, plan.segments, max_records)
    for _ in range(_MOST_EMPTY_CUTS):
        if rest is None or after.segment_count:
            break
        segments, rest = feed.segments(rest, count, deadline)
        after.check_cut(segments)
        after.cut(segments, rest)
    if after.is_scanned():
        after.end_scan()
    return Step(before, after, {})


def _segments(records: int | None, segments: int | None, most: int | None) -> int:
    """Return the number of segments that have about `most` rows in total."""
    if most is None or not records or not segments:
        return _MOST_SEGMENTS if most is None else 1
    return max(1, min(_MOST_SEGMENTS, most * segments // records))
