"""One planned step, and how far a run may go."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from multiclouddb_api import PartitionFoundLate
from multiclouddb_spi.checkpoint.entry import Waiting
from multiclouddb_spi.checkpoint.lineage import Lineage
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.planning.ranges import Range

__all__ = ["Step", "Target", "ranges_between"]


@attrs.frozen
class Target:
    """How far a run that ends by itself may read.

    Attributes:
        cursors: Partition → where to stop in it.
        passed: Partitions that ended before, which are read to their end; None = every partition
            that has no cursor. What is neither passed nor has a cursor came later.
    """

    cursors: Mapping[str, Cursor]
    passed: frozenset[str] | None


@attrs.frozen
class Step:
    """One planned step.

    Attributes:
        before: Where reading stands.
        after: Where it stands when the ranges are read.
        ends: Partition → where it ended, for those that ended in this step: `after` does not have
            them any more.
        empty: True when only positions have moved: there is nothing to read between.
        found_late: Partitions that an audit found; the next step reads them.
    """

    before: Lineage
    after: Lineage
    ends: Mapping[str, Cursor]
    empty: bool = False
    found_late: tuple[PartitionFoundLate, ...] = ()

    @property
    def moved(self) -> bool:
        """False when reading stands where it stood; a look for children or an audit is no move."""
        return not self.after.stands_like(self.before)

    def ranges(self) -> list[Range]:
        """What to read, in any order."""
        return [] if self.empty else ranges_between(self.before, self.after, self.ends)


def ranges_between(before: Lineage, after: Lineage, ends: Mapping[str, Cursor]) -> list[Range]:
    """What lies between two lineages of one feed; pure.

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
