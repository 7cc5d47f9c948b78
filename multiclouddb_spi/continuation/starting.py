"""Makes the first lineage of a feed from a start position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs

from multiclouddb_api import (
    AtTime,
    Beginning,
    MulticloudDbError,
    Now,
    Snapshot,
    SnapshotOrder,
    invalid_request,
)
from multiclouddb_spi.batch import Segment
from multiclouddb_spi.continuation.entry import Entry, Plan, Stage, plan_of, shown
from multiclouddb_spi.continuation.follow import begun
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.contract import Feed, FeedStart, Seed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import no_partition_named
from multiclouddb_spi.scan import ScanPlan

__all__ = [
    "check_has_partitions",
    "check_not_ahead",
    "cut_all",
    "not_startable",
    "resolve_backfill",
    "resolve_snapshot",
    "resolve_start",
    "segment_lineage",
    "stream_headroom",
]

_AHEAD: Final = timedelta(seconds=60)


def resolve_start(
    feed: Feed,
    position: FeedStart,
    clock: Callable[[], datetime | None],
    start: Callable[[], Sequence[Seed]],
    *,
    only: str | None = None,
    field: str = "AtTime.utc",
) -> Lineage:
    """Convert a start position into a lineage."""
    now = None if isinstance(position, Beginning) else clock()
    if isinstance(position, AtTime):
        check_not_ahead(position.utc, now, field, "pass a time in the past, or start now")
    audited = begun(feed, position, now)
    seeds = start()
    if only is None:
        return Lineage.from_seeds(seeds, feed, audited)
    mine = [Entry.read(seed.partition_id, seed.cursor) for seed in seeds if seed.partition_id == only]
    if not mine:
        raise not_startable()
    return Lineage(mine, feed, root=only)


def not_startable() -> MulticloudDbError:
    """Make the error for a partition that cannot be started."""
    return invalid_request(
        "PhysicalPartition.partition_id",
        "names no partition that can be read from this start position",
        "list the open ones with client.list_physical_partitions(address)",
    )


def check_has_partitions(lineage: Lineage) -> Lineage:
    """Return the given lineage, but only if it contains a partition of the stream."""
    if not len(lineage):
        raise no_partition_named()
    return lineage


def check_not_ahead(
    moment: datetime, now: datetime | None, field: str, way_out: str = "pass a time in the past"
) -> None:
    """Refuse a start time in the future."""
    if now is not None and moment - now > _AHEAD:
        ahead = (moment - now).total_seconds()
        raise invalid_request(field, f"is {ahead:.0f} s ahead of the service's clock", way_out)


_LONG: Final = 1e12


def resolve_snapshot(
    feed: Feed,
    wanted: Snapshot,
    clock: Callable[[], datetime | None],
    snapshot: Callable[[], ScanPlan],
) -> Lineage:
    """Start a snapshot."""
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
    """Start a feed with an ordered scan, for a service that can start a stream only at the current time."""
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
    """Divide a plan completely, and return every segment."""
    rest: Cursor | None = plan.cursor
    while rest is not None:
        segments, rest = cut(rest)
        yield from segments


def segment_lineage(feed: Feed, plan: Plan, segment: Segment, count: int) -> Lineage:
    """Return a lineage that reads only one segment, and reports when the segment was read completely."""
    rate = None if plan.rate is None else plan.rate / count
    alone = attrs.evolve(
        plan, cursor=None, announced=False, rate=rate, done=0, segments=1, records=shown(segment.records)
    )
    return Lineage([alone, Entry.read(segment.segment_id, segment.cursor, listed=False)], feed)


def stream_headroom(feed: Feed, lineage: Lineage, now: datetime) -> float:
    """Return how long the service keeps the stream's positions; infinite if this time is unknown."""
    least = math.inf
    for entry in lineage.listed():
        for cursor in () if entry.stage is Stage.END else entry.said:
            seconds = feed.headroom(cursor, now)
            least = least if seconds is None else min(least, seconds)
    return least
