"""One planned step, and the limit up to which a run may read."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from multiclouddb_api import PartitionFoundLate
from multiclouddb_spi.continuation.entry import Waiting
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.planning.ranges import Range

__all__ = ["Step", "Target", "ranges_between"]


@attrs.frozen
class Target:
    """The limit up to which a run that ends by itself may read.

    Attributes:
        cursors: Partition → the position to stop at in it.
        passed: Partitions that ended before the target and are read to their end; None = every partition
            without a cursor. A partition that is not in `passed` and has no cursor appeared after the target.
    """

    cursors: Mapping[str, Cursor]
    passed: frozenset[str] | None


@attrs.frozen
class Step:
    """One planned step.

    Attributes:
        before: The lineage before the step.
        after: The lineage after the ranges are read.
        ends: Partition → the position of its end, for partitions that ended in this step; `after` no longer
            contains them.
        empty: True if only positions have moved and there is nothing to read between them.
        found_late: Partitions that an audit found; the next step reads them.
        news: Partitions with records, possible records, or an end in this step. All other partitions only
            moved.
        records: The number of records in the step, or None if the service does not report it.
        skipped: The parts left out because they are older than retention, as text for people: partition and
            place.
    """

    before: Lineage
    after: Lineage
    ends: Mapping[str, Cursor]
    empty: bool = False
    found_late: tuple[PartitionFoundLate, ...] = ()
    news: frozenset[str] = frozenset()
    records: int | None = 0
    skipped: tuple[str, ...] = ()

    @property
    def moved(self) -> bool:
        """False if all positions are the same; looking for children and auditing do not count."""
        return not self.after.stands_like(self.before)

    def ranges(self) -> list[Range]:
        """The ranges to read, in any order."""
        return [] if self.empty else ranges_between(self.before, self.after, self.ends)


def ranges_between(before: Lineage, after: Lineage, ends: Mapping[str, Cursor]) -> list[Range]:
    """The ranges between two lineages of one feed; pure.

    Args:
        before: As in `Step`.
        after: As in `Step`.
        ends: As in `Step`.
    """
    until = {**ends}
    until.update({entry.partition_id: entry.cursor for entry in after if not isinstance(entry, Waiting)})
    parts = [
        Range(entry.partition_id, entry.cursor, until.get(entry.partition_id)) for entry in before.active()
    ]
    return [part for part in parts if part.until != part.start]
