"""Builds the page on which a snapshot begins, with notices and no events."""

from __future__ import annotations

from typing import Any

from multiclouddb_api import Gap, SnapshotStarted
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.reading.result import PollResult

__all__ = ["announced", "lost"]


def announced(feed: Feed, lineage: Lineage, *, whole: bool) -> PollResult[Any] | None:
    """Return the result of a call that only reports that a snapshot begins.

    Return None if there is no snapshot to report.

    Args:
        feed: The feed of the lineage.
        lineage: The lineage, which is changed in place so that the start is reported only once.
        whole: True if the snapshot delivers every row of the collection.
    """
    plan = lineage.plan
    if plan is None or plan.announced:
        return None
    lineage.change_plan(announced=True)
    result: PollResult[Any] = PollResult.nothing(lineage)
    started = SnapshotStarted(plan.floor, feed.public_id(plan.partition_id), whole)
    result.tell(started, plan.partition_id)
    result.moved = True
    return result


def lost(feed: Feed, lineage: Lineage, name: str) -> Gap:
    """Make the notice for a position that is older than the retention; a new snapshot replaces the position.

    Args:
        feed: The feed of the lineage.
        lineage: The lineage that contains the expired position.
        name: The partition.
    """
    position = "its position"
    entry = next((entry for entry in lineage.active() if entry.partition_id == name), None)
    if entry is not None and entry.listed:
        position = feed.describe(entry.cursor).text
    return Gap(feed.public_id(name), position, "a new snapshot")
