"""The partitions of one feed as they stand; `Lineage` moves them on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from multiclouddb_spi.batch import Child
from multiclouddb_spi.checkpoint.entry import (
    Active,
    Audited,
    Drained,
    Entry,
    Waiting,
    audited_to_json,
    entry_to_json,
    place_of,
)
from multiclouddb_spi.cursor import Cursor

__all__ = ["Entries"]


class Entries:
    """What is read, what waits and what has ended, in the order of the queue.

    Args:
        entries: In that order.
        audited: What is kept for audits; None for a feed that is not audited.

    Attributes:
        audited: The same.
    """

    def __init__(self, entries: Iterable[Entry], audited: Audited | None) -> None:
        self._entries = dict[str, Entry]()
        for entry in entries:
            self._entries[entry.partition_id] = entry
        self.audited = audited

    def to_json(self) -> Cursor:
        """JSON with six characters of ours for an active partition."""
        value: dict[str, Cursor] = {"p": [entry_to_json(entry) for entry in self._entries.values()]}
        if self.audited is not None:
            value["a"] = audited_to_json(self.audited)
        return value

    def stands_like(self, other: Entries) -> bool:
        """Whether both hold the same partitions at the same positions; looks and audits do not count.

        Args:
            other: Another lineage of the feed.
        """
        if self._entries.keys() != other._entries.keys():
            return False
        return all(place_of(entry) == place_of(other._entries[name]) for name, entry in self._entries.items())

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, partition_id: object) -> bool:
        return partition_id in self._entries

    def active(self) -> list[Active]:
        """Partitions to read, in the order of the queue."""
        return [entry for entry in self._entries.values() if type(entry) is Active]

    def drained(self) -> list[Drained]:
        """Partitions that may have more children than are known."""
        return [entry for entry in self._entries.values() if type(entry) is Drained]

    def waiting(self) -> list[Waiting]:
        """Children that wait for a parent."""
        return [entry for entry in self._entries.values() if type(entry) is Waiting]

    def listed(self) -> set[str]:
        """Ids of those that the service has a partition for; audits and retention look at no others."""
        return {entry.partition_id for entry in self if isinstance(entry, Drained) or entry.listed}

    def is_quiet(self, quiet: Collection[str]) -> bool:
        """Whether all that is read is `quiet`, none waits for it, and each that has ended has a known child.

        Without audits some may wait for strangers (`Strangers`), and others for those.
        """
        waiting = self.waiting()
        if self.unnamed() or (waiting and self.audited is not None):
            return False
        awaited = {parent for entry in waiting for parent in entry.parents}
        return all(
            entry.partition_id in quiet and entry.partition_id not in awaited for entry in self.active()
        )

    def ending(self, partition_id: str) -> Drained | None:
        """The partition `partition_id` that has ended and may have more children; None when it is no such."""
        entry = self._entries.get(partition_id)
        return entry if type(entry) is Drained else None

    def unnamed(self) -> list[Drained]:
        """Those of them without a known child."""
        return [entry for entry in self.drained() if not entry.children]

    def cursor(self, partition_id: str) -> Cursor:
        """Where an active or drained partition stands.

        Args:
            partition_id: The service's own id.
        """
        entry = self._entries[partition_id]
        assert not isinstance(entry, Waiting)
        return entry.cursor

    def fresh_children(self, partition_id: str, children: Sequence[Child]) -> list[Child]:
        """The children that the partition has not named before.

        Args:
            partition_id: The partition.
            children: What it names.
        """
        entry = self._entries[partition_id]
        named = entry.children if type(entry) is Drained else ()
        return [child for child in children if child.partition_id not in named]

    def strangers(self, partition_id: str, children: Sequence[Child]) -> set[str]:
        """Parents, beside the partition, of children that it is the first to name, none known here.

        They are not discovered yet, or they were lost to retention and can name nobody any more.

        Args:
            partition_id: The service's own id.
            children: What it names.
        """
        fresh = [child for child in children if child.partition_id not in self._entries]
        return {parent for child in fresh for parent in child.parents} - self._entries.keys() - {partition_id}
