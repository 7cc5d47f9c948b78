"""Makes the first lineage of a read from `Snapshot()`, and one lineage for each segment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

import attrs

from multiclouddb_api import AtTime, Beginning, Now, Snapshot, SnapshotOrder
from multiclouddb_spi.batch import Segment
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.follow import begun
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.plan import Plan, plan_of, shown
from multiclouddb_spi.continuation.starting import check_has_partitions, check_not_ahead, not_startable
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
        feed: The feed that is started.
        wanted: The requested snapshot.
        clock: A function that asks for the service's time before the start, like `Feed.clock`.
        snapshot: A function that asks the feed for the plan, like `SupportsSnapshot.snapshot`.

    Raises:
        ProviderFault: `TRANSIENT_FAILURE` if the service names no partition of the stream.
        Exception: The error that `clock` or `snapshot` raised.
    """
    now = clock()
    audited = begun(feed, Now(), now)
    scan = snapshot()
    lineage = check_has_partitions(Lineage.from_seeds(scan.seeds, feed, audited))
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
    """Start a feed with an ordered scan, for a service that can start a stream only at the current time.

    Args:
        feed: The feed that is started.
        position: The start position.
        clock: A function that asks for the service's time before the start, like `Feed.clock`.
        backfill: A function that asks for the plan, like `SupportsBackfill.backfill`.
        only: The only partition to start, or None for the whole scope of the feed.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` for a time in the future, or for a partition that cannot be
            started.
        ProviderFault: `TRANSIENT_FAILURE` if the service names no partition of the stream.
        Exception: The error that `clock` or `backfill` raised.
    """
    now = clock()
    if isinstance(position, AtTime):
        check_not_ahead(position.utc, now, "AtTime.utc", "pass a time in the past, or start now")
    scan = backfill()
    if scan is None:
        raise not_startable()
    audited = None if only is not None else begun(feed, Now(), now)
    lineage = check_has_partitions(Lineage.from_seeds(scan.seeds, feed, audited))
    lineage.begin_scan(plan_of(scan, Snapshot(SnapshotOrder.ORDERED)))
    return lineage


def cut_all(plan: Plan, cut: Callable[[Cursor], tuple[list[Segment], Cursor | None]]) -> Iterator[Segment]:
    """Divide a plan completely, and return every segment.

    Args:
        plan: The plan.
        cut: A function that divides a cursor into segments, like `SupportsSnapshot.segments`.
    """
    rest: Cursor | None = plan.cursor
    while rest is not None:
        segments, rest = cut(rest)
        yield from segments


def segment_lineage(feed: Feed, plan: Plan, segment: Segment, count: int) -> Lineage:
    """Return a lineage that reads only one segment, and reports when the segment was read completely.

    Args:
        feed: The feed of the snapshot.
        plan: The plan for the whole scan.
        segment: The segment.
        count: The number of segments that share the plan's rate.
    """
    rate = None if plan.rate is None else plan.rate / count
    alone = attrs.evolve(
        plan, cursor=None, announced=False, rate=rate, done=0, segments=1, records=shown(segment.records)
    )
    return Lineage([alone, Entry.read(segment.segment_id, segment.cursor, listed=False)], feed)


def stream_headroom(feed: Feed, lineage: Lineage, now: datetime) -> float:
    """Return how long the service keeps the stream's positions; infinite if this time is unknown.

    Args:
        feed: The feed of the lineage.
        lineage: The lineage. The positions of partitions that wait for the scan are also considered.
        now: The service's time.
    """
    least = math.inf
    for entry in lineage.listed():
        for cursor in () if entry.stage is Stage.END else entry.said:
            seconds = feed.headroom(cursor, now)
            least = least if seconds is None else min(least, seconds)
    return least
