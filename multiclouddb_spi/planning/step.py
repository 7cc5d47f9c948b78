"""Represents one planned step, the target up to which a run may read, and the heads up to which it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from multiclouddb_api import PartitionFoundLate
from multiclouddb_spi.abilities import Answer, Head
from multiclouddb_spi.batch import Continue, goes_on
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.planning.ranges import Range

__all__ = [
    "Step",
    "Target",
    "added",
    "check_kept",
    "clip",
    "is_news",
    "ranges_between",
    "records_before",
    "within",
]

_BYTES: Final = 1 << 20


@attrs.frozen
class Target:
    """The end position of a run that ends by itself.

    Attributes:
        cursors: Maps a partition to the position at which to stop reading it.
        passed: Partitions that ended before the target; a run reads them to their ends. None means
            that every partition without a cursor is read to its end. If a partition has no cursor
            and is not in `passed`, the partition appeared after the target.
    """

    cursors: Mapping[str, Cursor]
    passed: frozenset[str] | None


@attrs.frozen
class Step:
    """One planned step.

    Attributes:
        before: The lineage before this step.
        after: The lineage after all ranges of the step are read.
        ends: Maps each partition that ended in this step to the position of its end; `after` no longer
            contains them.
        empty: True if only positions have moved, without any records.
        found_late: Partitions that an audit found; the next step reads them.
        news: Partitions that end in this step, and partitions that have or may have records in this
            step. In all other partitions, only the positions have moved.
        records: The number of records in this step, or None if the service does not report it.
        skipped: The parts that were left out because they are older than the retention, as readable text with
            partition and position.
        answers: What each partition that was asked has told about the moment up to which `after` has read it.
    """

    before: Lineage
    after: Lineage
    ends: Mapping[str, Cursor]
    empty: bool = False
    found_late: tuple[PartitionFoundLate, ...] = ()
    news: frozenset[str] = frozenset()
    records: int | None = 0
    skipped: tuple[str, ...] = ()
    answers: Mapping[str, Answer] = attrs.field(factory=dict)

    @property
    def moved(self) -> bool:
        """False if no position has moved, even if there was a search for children or an audit."""
        return not self.after.stands_like(self.before)

    def ranges(self) -> list[Range]:
        """The ranges to read in this step, in any order."""
        return [] if self.empty else ranges_between(self.before, self.after, self.ends)


def ranges_between(before: Lineage, after: Lineage, ends: Mapping[str, Cursor]) -> list[Range]:
    """Return the ranges between two lineages of one feed, without I/O.

    Args:
        before: The lineage at which the ranges begin, `Step.before`.
        after: The lineage at which the ranges end, `Step.after`.
        ends: The end positions of the partitions that end between the two lineages, `Step.ends`.
    """
    until = {**ends}
    until.update(
        {
            entry.partition_id: entry.cursor
            for entry in after
            if not (isinstance(entry, Entry) and (entry.stage is Stage.WAIT or not entry.said))
        }
    )
    parts = [
        Range(entry.partition_id, entry.cursor, until.get(entry.partition_id))
        for entry in before.active()
        # A partition that has left without an end was lost; a segment leaves when it is read to its end.
        if entry.partition_id in until or not entry.listed
    ]
    return [part for part in parts if part.until != part.start]


def clip(feed: Feed, heads: dict[str, Head], target: Target | None) -> dict[str, Head]:
    """Return the heads; if a head is or may be after the target, return the target instead."""
    if target is None:
        return heads
    clipped = {}
    for name, head in heads.items():
        if name in target.cursors:
            bound = target.cursors[name]
            order = feed.compare(head.cursor, bound)
            if order != -1:
                # An end exactly at the target is also left for a later step, because its children lie after
                # the target.
                head = Head(bound, None if order != 0 and head.records else head.records, Continue())
        clipped[name] = head
    return clipped


def is_news(head: Head, moved: bool) -> bool:
    """Return True if there may be records or an end; False if only the position has moved."""
    return bool(head.records) or (head.records is None and moved) or not goes_on(head.outcome)


def records_before(head: Head, asked: Cursor, share: int) -> int:
    """Return the maximum number of records before a head."""
    if head.records is not None:
        return head.records
    return 0 if head.cursor == asked else share


def added(before: Head | None, head: Head) -> Head:
    """Combine two heads of one partition that were requested one after the other."""
    if before is None or before.records is None or head.records is None:
        return head if before is None else attrs.evolve(head, records=None)
    return attrs.evolve(head, records=before.records + head.records)


def within(feed: Feed, entry: Entry, target: Target | None) -> bool:
    """Return True if a partition may have records between its position and the target."""
    if target is None:
        return True
    if entry.partition_id not in target.cursors:
        return target.passed is None or entry.partition_id in target.passed
    bound = target.cursors[entry.partition_id]
    order = feed.compare(entry.cursor, bound)
    # If both positions are the same, only different hints matter, because they record what was already
    # scanned.
    return order in (-1, None) or (order == 0 and entry.cursor != bound and _hints(feed, entry.cursor, bound))


def _hints(feed: Feed, a: Cursor, b: Cursor) -> bool:
    """Return whether two cursors stand for the same position and differ only in their hints."""
    return bool(feed.without_hints(a) == feed.without_hints(b))


def check_kept(feed: Feed, lineage: Lineage, deadline: Deadline, *, surely: bool = False) -> None:
    """Read from every position that may be older than the service's retention.

    A provider may plan up to the current end without reading. Without this check, a loss would be
    found only when the range is read. When the range is read, it is too late to plan another start.
    """
    now = feed.clock(deadline)
    for entry in lineage.active():
        left = feed.headroom(entry.cursor, now) if entry.listed and now is not None else None
        if entry.listed and (surely or (left is not None and left <= 0)):
            reader = feed.open(entry.partition_id, entry.cursor)
            try:
                reader.fetch(1, _BYTES, 0.0, deadline)
            finally:
                reader.close()
