"""Computes the diagnostics of a call: watermark, lag, headroom and cost."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from multiclouddb_api import OperationDiagnostics
from multiclouddb_spi.continuation.entry import Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.plan import Plan
from multiclouddb_spi.continuation.state import FeedState, Retired
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.reading.fetcher import Fetcher
from multiclouddb_spi.reading.result import PollResult

__all__ = ["diagnose", "open_watches", "watermark_micros"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO: Final = timedelta(microseconds=1)


def watermark_micros(
    feed: Feed, lineage: Lineage, result: PollResult[Any], previous: int | None
) -> int | None:
    """Return the watermark of the page, in µs since 1970; it is never less than `previous`.

    The watermark is the minimum over all partitions. The watermark of a partition is the watermark
    of its last batch. If the watermark of the last batch is not known, the watermark of the
    partition is the time of its position. A waiting child has start positions from its seed and
    from its ended parents. The watermark of a waiting child is the earliest time of its start
    positions. During the scan of a snapshot, the watermark is the snapshot's moment.
    """
    if (plan := lineage.plan) is not None:
        return plan.moment if previous is None else max(plan.moment, previous)
    least: datetime | None = None
    for entry in lineage:
        if isinstance(entry, Plan):
            continue
        if entry.stage is Stage.END and entry.children:
            continue  # its known children are in the lineage, and the times of unknown children are unknown
        if entry.stage is Stage.WAIT:
            times = [feed.describe(cursor).time for cursor in entry.said]
        else:
            turn = result.turns.all.get(entry.partition_id)
            said = turn.watermark if turn is not None else None
            times = [said if said is not None else feed.describe(entry.cursor).time]
        for time in times:
            if time is None:
                return previous
            least = time if least is None else min(least, time)
    if least is None:
        return previous
    now = (least - _EPOCH) // _MICRO
    return now if previous is None else max(now, previous)


def diagnose(
    feed: Feed,
    fetcher: Fetcher,
    state: FeedState,
    result: PollResult[Any],
    watermark: int | None,
    now: datetime | None,
    headroom: float,
    elapsed: float,
) -> OperationDiagnostics:
    """Return the diagnostics of one call.

    Args:
        feed: The feed, which names the partitions.
        fetcher: The fetcher, which classifies failures.
        state: The token's content.
        result: The result that the call produced.
        watermark: From `watermark_micros`.
        now: The service's time, or None if the service does not report it.
        headroom: The number of seconds until the first of the positions expires; infinite if this is not
            known.
        elapsed: The duration of the call in seconds.
    """
    mark = None if watermark is None else _EPOCH + watermark * _MICRO
    lag: float | None = None
    if result.idle:
        lag = 0.0
    elif mark is not None and now is not None:
        lag = max(0.0, (now - mark).total_seconds())
    errors = {}
    for turn in result.turns.failed.values():
        assert turn.error is not None
        errors[feed.public_id(turn.partition_id)] = fetcher.fault(turn.error).message
    watches = open_watches(state)
    if now is not None and isinstance(state, Lineage):
        for entry in state.waiting():
            for cursor in entry.said:
                seconds = feed.headroom(cursor, now)
                headroom = headroom if seconds is None else min(headroom, seconds)
    return OperationDiagnostics(
        watermark=mark,
        lag_seconds=lag,
        retention_headroom_seconds=None if headroom == math.inf else headroom,
        requests=result.requests,
        native_charge=result.charge,
        retries=result.retries,
        open_watches=watches,
        found_late=result.found_late,
        partition_errors=errors,
        elapsed_seconds=elapsed,
        snapshot=state.plan.progress() if isinstance(state, Lineage) and state.plan is not None else None,
    )


def open_watches(state: FeedState) -> int:
    """Return the number of ended partitions for which the engine is still searching for children."""
    match state:
        case Lineage():
            return sum(bool(end.children) for end in state.ends())
        case Retired(watch=watch):
            return int(watch is not None)
        case _:
            return 0
