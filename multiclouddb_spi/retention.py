"""What retention does to a lineage: what takes the place of a lost partition, and who is waited for in vain.

A partition that is gone names no children. What the service still lists may descend from several that are
gone, and by a merge from more than one entry of the lineage. It is then left to the last of these entries:
it neither starts while one of them is still read, nor once more when one of them turns out to be lost too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from multiclouddb_spi.contract import Child, Partition, Seed
from multiclouddb_spi.lineage import Lineage

__all__ = ["Retention"]


@attrs.frozen
class Retention:
    """What a service still has; it is asked when that is needed.

    Attributes:
        partitions: `Feed.partitions`.
        oldest: `Feed.oldest`.
    """

    partitions: Callable[[], Sequence[Partition]]
    oldest: Callable[[Sequence[str]], Sequence[Seed]]

    def heirs(self, lineage: Lineage, name: str, seeds: Sequence[Seed]) -> tuple[list[Seed], set[str]]:
        """What takes the place of a partition whose position has expired.

        Args:
            lineage: It still holds the partition.
            name: The partition.
            seeds: It again, or what is left of its descendants (`Feed.oldest`).

        Returns:
            Those of the seeds that no other entry leads to, and every partition that is discovered later.
        """
        if any(seed.partition_id == name for seed in seeds):
            return list(seeds), set()
        listed = self.partitions()
        others = {entry.partition_id for entry in lineage} - {name}
        left = self._left_to(others, listed)
        late = left | _descendants(others | left, listed)
        heirs = [seed for seed in seeds if seed.partition_id not in late]
        return heirs, late | _descendants([seed.partition_id for seed in heirs], listed)

    def named(
        self, lineage: Lineage, name: str, children: Sequence[Child]
    ) -> tuple[Sequence[Child], set[str]]:
        """What a drained partition names, without what another entry has to lead to.

        Args:
            lineage: It still holds the partition.
            name: The partition.
            children: All its children.

        Returns:
            The children to take in, and those of their parents that nobody waits for: they are lost.
        """
        strangers = lineage.strangers(name, children)
        if not strangers:
            return children, strangers
        listed = self.partitions()
        entries = {entry.partition_id for entry in lineage}
        left = self._left_to(entries - {name}, listed)
        leading = entries | left | self._left_to({name}, listed)
        still = self._left_to(strangers, listed)
        taken = [
            child for child in children if child.partition_id in entries or child.partition_id not in left
        ]
        return taken, strangers - leading - _descendants(leading, listed) - still

    def _left_to(self, names: Iterable[str], listed: Sequence[Partition]) -> set[str]:
        """What reading goes on with in the place of those that are not listed any more."""
        gone = sorted(set(names) - {partition.partition_id for partition in listed})
        return {seed.partition_id for seed in self.oldest(gone)} if gone else set()


def _descendants(roots: Iterable[str], listed: Iterable[Partition]) -> set[str]:
    """Of the partitions that a service lists, those that follow these, however far."""
    children: dict[str, list[str]] = {}
    for partition in listed:
        for parent in partition.parents:
            children.setdefault(parent, []).append(partition.partition_id)
    found: set[str] = set()
    pending = list(roots)
    while pending:
        fresh = [child for child in children.get(pending.pop(), ()) if child not in found]
        found.update(fresh)
        pending += fresh
    return found
