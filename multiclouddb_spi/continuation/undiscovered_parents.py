"""Decides when a child partition starts if the feed may never read some of the child's parents.

A feed of a whole collection waits for every parent, because an audit finds parents that the feed
would not discover. Two kinds of feeds have no audit: a feed of a partition with its descendants,
and a feed of one partition key. In these feeds, a parent that is not in the lineage is called
undiscovered. There are two cases. In the first case, another reader reads the parent. In the second
case, the parent descends from a partition of the lineage, and this partition has not been read to
its end. In most cases the service's listing shows which case applies. A child does not wait for a
parent that another reader reads (`Retention.after_end`). If the listing does not show which case
applies, the following rule decides:

An undiscovered parent existed before its child was created, so the parent's ancestors had already
ended. Therefore, no undiscovered parent descends from a partition that has not ended and was read
past the time at which the child was named. A partition may report that it has no more records. If
the partition reports this after the child was named, no undiscovered parent descends from the
partition.

Because of this rule, a child may start late, but every child starts. Children start one at a time,
the oldest first, because a waiting child may be an ancestor of another waiting child.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from multiclouddb_spi.continuation.entry import Waiting
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.moment import to_moment
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor

__all__ = ["UndiscoveredParents"]

_LATE: Final = datetime.max.replace(tzinfo=UTC)


class UndiscoveredParents:
    """The children of a lineage that wait only for undiscovered parents.

    If a feed has no audits, each call makes its own instance before it reads. A child starts at once if the
    positions show that its wait would never end.

    Args:
        feed: The feed of the lineage.
        lineage: Changed in place.
    """

    def __init__(self, feed: Feed, lineage: Lineage) -> None:
        self._feed, self._lineage = feed, lineage
        self._start_passed()
        self._before = {child.partition_id for child in _waiting_for_undiscovered(lineage)}

    def settle(self) -> bool:
        """Start a child whose wait would never end.

        Call this method only after every active partition was asked in this call and none had more records.

        Returns:
            True if no child waits for a parent, which means that the feed is idle.
        """
        child = self._oldest()
        if child is None:
            return True
        # A child that was named in this call may be newer than the answers. A child that has not been found
        # yet may be an ancestor of that child.
        if child.partition_id in self._before and not self._lineage.awaiting_children():
            self._lineage.start(child.partition_id)
        return False

    def _oldest(self) -> Waiting | None:
        """Return the child with the earliest start position.

        If no start position is known, return the child that was named first.
        """
        return min(_waiting_for_undiscovered(self._lineage), key=self._begins, default=None)

    def _begins(self, child: Waiting) -> datetime:
        times = [self._feed.describe(cursor).time for cursor in child.said]
        return min((time for time in times if time is not None), default=_LATE)

    def _start_passed(self) -> None:
        """Start children, the oldest first, up to the first child that was named after some position."""
        lineage = self._lineage
        children = sorted(_waiting_for_undiscovered(lineage), key=self._begins)
        if not children or lineage.awaiting_children():
            return
        least = self._least(entry.cursor for entry in lineage.active() if entry.listed)
        for child in children:
            if least is None or child.named_at is None or least <= to_moment(child.named_at):
                return
            if lineage.start(child.partition_id) and child.listed:
                began = self._least([lineage.cursor(child.partition_id)])
                least = None if began is None else min(least, began)

    def _least(self, cursors: Iterable[Cursor]) -> datetime | None:
        """Return the earliest time of these positions; None if a position has no time."""
        least = _LATE
        for cursor in cursors:
            time = self._feed.describe(cursor).time
            if time is None:
                return None
            least = min(least, time)
        return least


def _waiting_for_undiscovered(lineage: Lineage) -> list[Waiting]:
    """Return the children without a parent in the lineage."""
    return [child for child in lineage.waiting() if not any(parent in lineage for parent in child.parents)]
