"""From `Snapshot()` to the lineage that reading begins with, and to one lineage for each segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

import attrs

from multiclouddb_api import Now, Snapshot
from multiclouddb_spi.batch import Segment
from multiclouddb_spi.continuation.coverage import begun
from multiclouddb_spi.continuation.entry import Active
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.plan import Plan, plan_of
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.scan import ScanPlan

__all__ = ["cut_all", "resolve_snapshot", "segment_lineage"]


def resolve_snapshot(
    feed: Feed,
    wanted: Snapshot,
    clock: Callable[[], datetime | None],
    snapshot: Callable[[], ScanPlan],
) -> Lineage:
    """Start a snapshot.

    Args:
        feed: What is started.
        wanted: How.
        clock: Asks for the service's time, before the start; as `Feed.clock`.
        snapshot: Asks for the plan; as `SupportsSnapshot.snapshot`.

    Raises:
        Exception: What `clock` or `snapshot` raised.
    """
    now = clock()
    audited = begun(feed, Now(), now)
    scan = snapshot()
    lineage = Lineage.from_seeds(scan.seeds, feed.join, audited)
    kept = [] if now is None else [feed.headroom(seed.cursor, now) for seed in scan.seeds]
    retention = min((int(seconds) for seconds in kept if seconds is not None), default=None)
    plan = attrs.evolve(plan_of(scan, wanted), retention=None if retention is None else max(0, retention))
    lineage.begin_scan(plan)
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
    """A lineage that reads one segment alone, and says when it is read.

    Args:
        feed: Whose snapshot.
        plan: The plan of all of it.
        segment: The segment.
        count: How many segments share the plan's rate.
    """
    rate = None if plan.rate is None else plan.rate / count
    alone = attrs.evolve(
        plan, cursor=None, announced=False, rate=rate, done=0, segments=1, records=segment.records
    )
    return Lineage([alone, Active(segment.segment_id, segment.cursor, listed=False)], feed.join)
