"""Divides a page between the rows of a scan and the changes beside it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.fetching.stream import TURN_SECONDS, Stream

_LOOK_SECONDS: Final = 0.1


class ScanShare:
    """Divides a page between the rows of a scan and the changes beside it.

    Changes are read first. So rows get at most the `kept` places until every partition has had its turn, and
    changes never get these, so that a scan ends even if changes come as fast as they are read.

    Args:
        lineage: What is read; it says which partitions are segments, and its plan counts the rows.
        changes: The partitions that are no segments.
        kept: How many places are kept for rows.
    """

    def __init__(self, lineage: Lineage, changes: Iterable[str], kept: int) -> None:
        self._lineage, self._kept, self._rows = lineage, kept, 0
        self._unasked = set(changes)
        self._is_shared = bool(self._unasked)

    def places(self, partition_id: str, places: int) -> int:
        """Return how many of these places a partition or segment may take."""
        if self._lineage.plan is None:
            return places
        kept = max(0, self._kept - self._rows)
        if self._lineage.is_segment(partition_id):
            return min(places, kept) if self._unasked else places
        return max(0, places - kept)

    def took(self, partition_id: str, count: int) -> None:
        """Record that the page has more records of a partition or segment."""
        plan = self._lineage.plan
        if plan is not None and count and self._lineage.is_segment(partition_id):
            self._rows += count
            self._lineage.change_plan(rows=plan.rows + count)

    def has_had_turn(self, partition_id: str) -> bool:
        """Record that a partition has had its turn; return True if it was the last one with changes."""
        if partition_id not in self._unasked:
            return False
        self._unasked.discard(partition_id)
        return not self._unasked

    def asks_again(self, partition_id: str) -> None:
        """Record that a partition has more records, so that rows do not use its places yet."""
        if self._is_shared and not self._lineage.is_segment(partition_id):
            self._unasked.add(partition_id)

    def patience(self, running: Mapping[str, Stream], longest: float) -> float | None:
        """Return how many seconds to wait for those that places are kept for; None if there are none."""
        if not (self._unasked or self._kept > self._rows):
            return None
        return 0.0 if self.is_stuck(running) else min(_LOOK_SECONDS, longest)

    def is_stuck(self, running: Mapping[str, Stream]) -> bool:
        """Return whether places are kept for nobody but segments that are all late or fail."""
        if self._kept <= self._rows or not self._unasked.isdisjoint(running):
            return False
        slow = time.monotonic() - TURN_SECONDS
        return not any(
            stream.error is None and stream.asked_at > slow
            for name, stream in running.items()
            if self._lineage.is_segment(name)
        )

    def end(self) -> bool:
        """Keep no places on this page any more; return whether any were kept."""
        shared, self._is_shared = bool(self._unasked) or self._kept > self._rows, False
        self._unasked.clear()
        self._kept = 0
        return shared
