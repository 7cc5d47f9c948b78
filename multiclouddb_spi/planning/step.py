"""Represents one planned step, and the target up to which a run may read."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from multiclouddb_api import PartitionFoundLate
from multiclouddb_spi.abilities import Answer
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.planning.ranges import Range

__all__ = ["Step", "Target", "ranges_between"]


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
