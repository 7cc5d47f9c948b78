"""Makes the lineage with which reading a `Snapshot()` begins, and one lineage for each segment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final

import attrs

from multiclouddb_api import AtTime, Beginning, Now, Snapshot, SnapshotOrder
from multiclouddb_spi.batch import Segment
from multiclouddb_spi.continuation.coverage import begun
from multiclouddb_spi.continuation.entry import Active, Waiting
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.plan import Plan, plan_of, shown
from multiclouddb_spi.continuation.starting import check_not_ahead, not_startable
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.scan import ScanPlan

__all__ = ["cut_all", "resolve_backfill", "resolve_snapshot", "segment_lineage", "stream_headroom"]

_LONG: Final = 1e12


def resolve_snapshot(
    feed: Feed,
    wanted: Snapshot,
    clock: Callable[[], datetime | None],
    snapshot: Callable[[], ScanPlan],
) -> Lineage:
    """Start a snapshot.

    Args:
        feed: The feed to start.
        wanted: The requested snapshot.
        clock: Asks for the service's time before the start, like `Feed.clock`.
        snapshot: Asks for the plan; as `SupportsSnapshot.snapshot`.

    Raises:
        Exception: The error of `clock` or `snapshot`.
    """
    now = clock()
    audited = begun(feed, Now(), now)
    scan = snapshot()
    lineage = Lineage.from_seeds(scan.seeds, feed.join, audited)
    kept = [] if now is None else [feed.headroom(seed.cursor, now) for seed in scan.seeds]
    known = [int(seconds) for seconds in kept if seconds is not None and seconds < _LONG]
    retention = min(known, default=None)
    plan = attrs.evolve(plan_of(scan, wanted), retention=None if retention is None else max(0, retention))
    lineage.begin_scan(plan)
    return lineage


def resolve_backfill(
    feed: Feed,
    position: Beginning | AtTime,
    clock: Callable[[], datetime | None],
    backfill: Callable[[], ScanPlan | None],
    *,
    only: str | None,
) -> Lineage:
    """Start a feed that begins with an ordered scan, because its service can start only at now.

    Args:
        feed: The feed to start.
        position: The start position.
        clock: Asks for the service's time before the start, like `Feed.clock`.
        backfill: Asks for the plan; as `SupportsBackfill.backfill`.
        only: The only partition to start, or None for the feed's whole scope.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` for a time in the future, or for a partition that cannot be
            started.
        Exception: The error of `clock` or `backfill`.
    """
    now = clock()
    if isinstance(position, AtTime):
        check_not_ahead(position.utc, now, "AtTime.utc", "pass a moment that has been, or start now")
    scan = backfill()
    if scan is None:
        raise not_startable()
    audited = None if only is not None else begun(feed, Now(), now)
    lineage = Lineage.from_seeds(scan.seeds, feed.join, audited)
    lineage.begin_scan(plan_of(scan, Snapshot(SnapshotOrder.ORDERED)))
    return lineage


def cut_all(plan: Plan, cut: Callable[[Cursor], tuple[list[Segment], Cursor | None]]) -> Iterator[Segment]:
    """Every segment of a plan.

    Args:
        plan: The plan.
        cut: Cuts segments off a cursor; as `SupportsSnapshot.segments`.
    """
    rest: Cursor | None = plan.cursor
    while rest is not None:
        segments, rest = cut(rest)
        yield from segments


def segment_lineage(feed: Feed, plan: Plan, segment: Segment, count: int) -> Lineage:
    """A lineage that reads one segment alone, and reports when the segment has been read.

    Args:
        feed: The feed of the snapshot.
        plan: The plan of the whole scan.
        segment: The segment.
        count: How many segments share the plan's rate.
    """
    rate = None if plan.rate is None else plan.rate / count
    alone = attrs.evolve(
        plan, cursor=None, announced=False, rate=rate, done=0, segments=1, records=shown(segment.records)
    )
    return Lineage([alone, Active(segment.segment_id, segment.cursor, listed=False)], feed.join)


def stream_headroom(feed: Feed, lineage: Lineage, now: datetime) -> float:
    """How long the service keeps the stream's positions; infinite if the service does not report it.

    Args:
        feed: The feed of the lineage.
        lineage: The lineage; partitions that wait for the scan count too.
        now: The service's time.
    """
    least = math.inf
    for entry in lineage:
        cursors: Iterable[Cursor] = ()
        if isinstance(entry, Waiting):
            cursors = entry.said
        elif isinstance(entry, Active) and entry.listed:
            cursors = (entry.cursor,)
        for cursor in cursors:
            seconds = feed.headroom(cursor, now)
            least = least if seconds is None else min(least, seconds)
    return least
