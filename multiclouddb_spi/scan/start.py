"""Begins a scan: makes its plan and the first lineage, and tells the application that it begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Final

import attrs

from multiclouddb_api import AtTime, Beginning, Gap, Now, Snapshot, SnapshotOrder, SnapshotStarted
from multiclouddb_spi.continuation.entry import Entry, Plan, Stage, shown
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import begun, check_has_partitions, check_not_ahead, not_startable
from multiclouddb_spi.continuation.token import to_micros
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import unsupported, unwritten
from multiclouddb_spi.fetching.page_content import PageContent
from multiclouddb_spi.retry import Call
from multiclouddb_spi.scan.contract import ScanPlan, SupportsBackfill, SupportsSnapshot
from multiclouddb_spi.segment import Segment
from multiclouddb_spi.time_limits import Deadline

_LONG: Final = 1e12
_CUT: Final = 1000


def resolve_snapshot(
    feed: Feed,
    asked: Feed,
    wanted: Snapshot,
    clock: Callable[[], datetime | None],
    call: Call,
    deadline: Deadline,
) -> Lineage:
    """Make the first lineage of a snapshot; `asked` is `feed.for_one_call()`."""
    has_own_floors = isinstance(asked, SupportsBackfill)
    if not isinstance(asked, SupportsSnapshot):
        raise unwritten(type(feed), "snapshot", "how to scan its collection")
    if not wanted.changes:
        scan = call(lambda: asked.snapshot(wanted.segments, deadline), deadline)
        lineage = Lineage((), feed)
        lineage.begin_scan(_plan_of(scan, wanted))
        return lineage
    if has_own_floors and wanted.order is SnapshotOrder.INTERLEAVED:
        raise unsupported(
            "Snapshot(order=INTERLEAVED) is not available: rows have no floor in this feed",
            "pass SnapshotOrder.ORDERED or AUTO",
        )
    now = clock()
    audited = begun(feed, Now(), now)
    scan = call(lambda: asked.snapshot(wanted.segments, deadline), deadline)
    lineage = check_has_partitions(Lineage.from_seeds(scan.seeds, feed, audited))
    kept = [] if now is None else [feed.headroom(seed.cursor, now) for seed in scan.seeds]
    known = [int(seconds) for seconds in kept if seconds is not None and seconds < _LONG]
    retention = min(known, default=None)
    plan = attrs.evolve(_plan_of(scan, wanted), retention=None if retention is None else max(0, retention))
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
    lineage.begin_scan(_plan_of(scan, Snapshot(SnapshotOrder.ORDERED)))
    return lineage


def _plan_of(scan: ScanPlan, wanted: Snapshot) -> Plan:
    """Return the token's entry for a new snapshot."""
    common = scan.scan
    return Plan(
        common.partition_id,
        scan.rest,
        common.floor,
        to_micros(common.moment),
        holds=wanted.changes and wanted.order is not SnapshotOrder.INTERLEAVED,
        auto=wanted.changes and wanted.order is SnapshotOrder.AUTO,
        rate=wanted.max_scan_rate,
        segments=shown(scan.segments),
        records=shown(scan.records),
        units=shown(scan.units),
        shared=common.shared,
    )


def segment_lineages(
    feed: Feed, lineage: Lineage, call: Call, deadline: Deadline
) -> list[tuple[str, Lineage]]:
    """Return the segments of a scan, each with a lineage that reads only it and reports its end."""
    plan = lineage.plan
    if plan is None or not isinstance(feed, SupportsSnapshot):
        return []
    segments = [Segment.of(each.partition_id, each.cursor) for each in lineage.active() if not each.listed]
    rest: Cursor | None = plan.cursor
    while rest is not None:
        more, rest = call(partial(feed.segments, plan.scan, rest, _CUT, deadline), deadline)
        lineage.check_cut(more)
        segments += more
    found = []
    for each in segments:
        rate = None if plan.rate is None else plan.rate / len(segments)
        alone = attrs.evolve(
            plan,
            cursor=None,
            announced=False,
            rate=rate,
            done=0,
            segments=1,
            rows=0,
            records=shown(each.records),
            units=None,
        )
        entry = Entry.read(each.segment_id, each.cursor, listed=False)
        found.append((each.segment_id, Lineage([alone, entry], feed)))
    return found


def stream_wear(feed: Feed, lineage: Lineage, now: datetime | None) -> tuple[float, bool]:
    """Return how long the service keeps the stream's positions, and whether half of that time has passed.

    The first time that is known is recorded in the plan; infinite and False if none is known.
    """
    left, plan = math.inf, lineage.plan
    if now is not None:
        for entry in lineage.listed():
            for cursor in () if entry.stage is Stage.END else entry.said:
                seconds = feed.headroom(cursor, now)
                left = left if seconds is None else min(left, seconds)
    if plan is None or left == math.inf:
        return left, False
    if plan.retention is None:
        lineage.change_plan(retention=max(0, int(min(left, _LONG))))
        return left, False
    return left, left <= plan.retention / 2


def announced(feed: Feed, lineage: Lineage, *, whole: bool) -> PageContent[Any] | None:
    """Return the result of a call that only reports the begin of a snapshot, or None."""
    plan = lineage.plan
    if plan is None or plan.announced:
        return None
    lineage.change_plan(announced=True)
    result: PageContent[Any] = PageContent()
    started = SnapshotStarted(plan.floor, feed.public_id(plan.partition_id), whole)
    result.tell(started, plan.partition_id)
    return result


def lost(feed: Feed, lineage: Lineage, name: str) -> Gap:
    """Make the notice for a position that is older than the retention; a new snapshot replaces it."""
    position = "its position"
    entry = next((entry for entry in lineage.active() if entry.partition_id == name), None)
    if entry is not None and entry.listed:
        position = feed.describe(entry.cursor).text
    return Gap(feed.public_id(name), position, "a new snapshot")
