"""Plans bounded reads: from one lineage to the next, by as many records as wanted.

The plan of a step is the difference of two lineages (`ranges_between`), so both ends can be stored
and the step be read again, anywhere, with the same result. A step never reads a child together
with its parent: the ranges of one step may be read in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from multiclouddb_api import ErrorCategory, Fail, OnExpired, SkipToOldest
from multiclouddb_spi.contract import (
    Awaiting,
    Continue,
    Drained,
    Ended,
    Feed,
    FeedStart,
    Head,
    Outcome,
    Provider,
    SupportsHeads,
)
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.failure import fault_of
from multiclouddb_spi.lineage import Active, Lineage, Waiting
from multiclouddb_spi.ranges import Range

__all__ = ["Planner", "Target", "ranges_between"]

_PASSES: Final = 4
_RECORDS: Final = 10_000
_BYTES: Final = 8 * 1024 * 1024


@attrs.frozen
class Target:
    """How far a run that ends by itself may read.

    Attributes:
        cursors: Partition → where to stop in it.
        passed: Partitions that ended before: they are read to their end.
    """

    cursors: Mapping[str, Cursor]
    passed: frozenset[str]


def ranges_between(before: Lineage, after: Lineage) -> list[Range]:
    """What lies between two lineages of one feed, `after` planned from `before`; pure."""
    ends = {entry.partition_id: entry.cursor for entry in after if not isinstance(entry, Waiting)}
    parts = [
        Range(entry.partition_id, entry.cursor, ends.get(entry.partition_id)) for entry in before.active()
    ]
    return [part for part in parts if part.until != part.start]


class Planner:
    """Plans the reads of one feed.

    Args:
        provider: Classifies failures.
        feed: The opened feed; one with `SupportsHeads` is planned without reading.
        on_expired: `SkipToOldest()` to plan past what retention has taken.
    """

    def __init__(self, provider: Provider, feed: Feed, on_expired: OnExpired | None = None) -> None:
        self._provider, self._feed = provider, feed
        self._on_expired = on_expired or Fail()

    def start(self, position: FeedStart, deadline: Deadline) -> Lineage:
        """Resolve a start."""
        return Lineage.from_seeds(self._feed.start(position, None, deadline), self._feed.join)

    def restore(self, value: Any) -> Lineage:
        """A lineage out of its JSON.

        Raises:
            InvalidCursor: It is none.
        """
        return Lineage.from_json(value, self._feed.join)

    def advance(
        self, before: Lineage, max_records: int | None, deadline: Deadline, target: Target | None = None
    ) -> Lineage:
        """The lineage one step on; equal to `before` when there is nothing to read.

        Args:
            before: Where reading stands; it is not changed.
            max_records: Hard bound on the records of the step; None = up to the present end.
            deadline: When planning has to be over.
            target: Not further than this.
        """
        after = self.restore(before.to_json())
        self._discover(after, deadline)
        heads = self._heads(after, max_records, deadline, target)
        if not any(self._worth(after, name, head) for name, head in heads.items()):
            return after
        for name, head in heads.items():
            _apply(after, name, head)
        after.rotate(heads)
        return after

    def target(self, before: Lineage, deadline: Deadline) -> Target:
        """The present end of the feed: what is written later lies behind it."""
        passed: set[str] = set()
        lineage = before
        while True:
            after = self.advance(lineage, None, deadline)
            passed |= {entry.partition_id for entry in lineage} - {entry.partition_id for entry in after}
            if after.to_json() == lineage.to_json():
                cursors = {entry.partition_id: entry.cursor for entry in after.active()}
                return Target(cursors, frozenset(passed))
            lineage = after

    def _worth(self, lineage: Lineage, name: str, head: Head) -> bool:
        """Only records or an end are worth a step: an idle position alone is not."""
        moved = head.records is None and head.cursor != lineage.cursor(name)
        return bool(head.records) or moved or not isinstance(head.outcome, Continue)

    def _discover(self, lineage: Lineage, deadline: Deadline) -> None:
        drained = lineage.drained()
        if drained:
            for name, outcome in self._feed.discover(drained, deadline).items():
                _end(lineage, name, outcome)

    def _heads(
        self, lineage: Lineage, max_records: int | None, deadline: Deadline, target: Target | None
    ) -> dict[str, Head]:
        """Where each partition is read until; the records of all together are bounded."""
        wanted = [entry for entry in lineage.active() if _within(self._feed, entry, target)]
        if max_records is None:
            return self._clip(
                self._ask({e.partition_id: e.cursor for e in wanted}, None, lineage, deadline), target
            )
        heads: dict[str, Head] = {}
        left, hungry = max_records, {entry.partition_id: entry.cursor for entry in wanted}
        for _ in range(_PASSES):
            if left <= 0 or not hungry:
                break
            share = max(1, left // len(hungry))
            asked = dict(list(hungry.items())[:left])
            for name, head in self._clip(self._ask(asked, share, lineage, deadline), target).items():
                count = share if head.records is None else head.records
                left -= count
                before = heads[name].records if name in heads else 0
                heads[name] = attrs.evolve(
                    head, records=None if head.records is None else (before or 0) + count
                )
                if count < share or not isinstance(head.outcome, Continue):
                    hungry.pop(name, None)
                else:
                    hungry[name] = head.cursor
        return heads

    def _ask(
        self, cursors: dict[str, Cursor], most: int | None, lineage: Lineage, deadline: Deadline
    ) -> dict[str, Head]:
        try:
            if isinstance(self._feed, SupportsHeads):
                return self._feed.heads(cursors, most, deadline)
            return {name: self._read_head(name, cursor, most, deadline) for name, cursor in cursors.items()}
        except Exception as error:
            fault = fault_of(self._provider, error)
            if fault.category != ErrorCategory.CHECKPOINT_EXPIRED or not isinstance(
                self._on_expired, SkipToOldest
            ):
                raise
        return self._ask(self._skip(cursors, lineage, deadline), most, lineage, deadline)

    def _skip(self, cursors: dict[str, Cursor], lineage: Lineage, deadline: Deadline) -> dict[str, Cursor]:
        """Go on at the oldest record in each partition that has expired."""
        for seed in self._feed.oldest(list(cursors), deadline):
            name = seed.partition_id
            if name not in cursors or self._feed.compare(cursors[name], seed.cursor) == -1:
                if name not in lineage:
                    lineage.replace(next(iter(cursors)), [seed])
                cursors = {**cursors, name: seed.cursor}
        return {name: cursor for name, cursor in cursors.items() if name in lineage}

    def _read_head(self, name: str, cursor: Cursor, most: int | None, deadline: Deadline) -> Head:
        """Find a head by reading, where the service has no cheaper way."""
        reader = self._feed.open(name, cursor)
        count, outcome = 0, Continue()
        try:
            while most is None or count < most:
                batch = reader.fetch(
                    _RECORDS if most is None else min(_RECORDS, most - count), _BYTES, 0.0, deadline
                )
                count += len(batch)
                cursor = batch.cursor_after(len(batch))
                if not isinstance(batch.outcome, Continue) or (
                    not len(batch) and batch.caught_up is not False
                ):
                    return Head(cursor, count, batch.outcome)
        finally:
            reader.close()
        return Head(cursor, count, outcome)

    def _clip(self, heads: dict[str, Head], target: Target | None) -> dict[str, Head]:
        if target is None:
            return heads
        clipped = {}
        for name, head in heads.items():
            bound = target.cursors.get(name)
            if name in target.cursors and self._feed.compare(head.cursor, bound) == 1:
                head = Head(bound, None, Continue())
            clipped[name] = head
        return clipped


def _within(feed: Feed, entry: Active, target: Target | None) -> bool:
    if target is None or entry.partition_id in target.passed:
        return True
    bound = target.cursors.get(entry.partition_id)
    return entry.partition_id in target.cursors and feed.compare(entry.cursor, bound) == -1


def _apply(lineage: Lineage, name: str, head: Head) -> None:
    lineage.advance(name, head.cursor)
    _end(lineage, name, head.outcome)


def _end(lineage: Lineage, name: str, outcome: Outcome) -> None:
    match outcome:
        case Drained(children):
            lineage.retire(name, children)
        case Ended():
            lineage.retire(name)
        case Awaiting():
            lineage.await_children(name)
        case _:
            pass
