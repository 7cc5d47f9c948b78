"""Computes the diagnostics of a call: lag, headroom and cost."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from multiclouddb_api import OperationDiagnostics
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.standings import Progress
from multiclouddb_spi.continuation.state import FeedState, Retired
from multiclouddb_spi.continuation.token import to_moment
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.reading.fetcher import Fetcher
from multiclouddb_spi.reading.result import PollResult

__all__ = ["diagnose", "open_watches"]


def diagnose(
    feed: Feed,
    fetcher: Fetcher,
    state: FeedState,
    result: PollResult[Any],
    progress: Progress,
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
        progress: How far the feed was read.
        now: The service's time, or None if the service does not report it.
        headroom: The number of seconds until the first of the positions expires; infinite if this is not
            known.
        elapsed: The duration of the call in seconds.
    """
    until = progress.read_until
    lag: float | None = None
    if until is not None and now is not None:
        lag = max(0.0, (now - to_moment(until.micros)).total_seconds())
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
        watermark=None if progress.watermark is None else to_moment(progress.watermark),
        read_until=None if until is None else to_moment(until.micros),
        read_until_estimated=until is not None and until.estimated,
        partitions_read_until={
            feed.public_id(name): to_moment(each.micros) for name, each in progress.partitions.items()
        },
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
