"""Stores the partitions of one feed and their states; `Lineage` changes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from multiclouddb_spi.batch import Child
from multiclouddb_spi.continuation.entry import (
    Active,
    Audited,
    AwaitingChildren,
    Entry,
    Waiting,
    audited_to_json,
    entry_to_json,
    place_of,
)
from multiclouddb_spi.continuation.plan import Plan
from multiclouddb_spi.cursor import Cursor

__all__ = ["Entries"]

_READ_OR_WAITING: Final = (Active, Waiting)


class Entries:
    """The partitions of a feed (being read, waiting, or ended), in the order in which they are read.

    Args:
        entries: The partitions in the order in which they are read.
        audited: The data for the audits of this feed; None if the feed is not audited.

    Attributes:
        audited: The audit data that was passed as argument.
    """

    def __init__(self, entries: Iterable[Entry], audited: Audited | None) -> None:
        self._entries = dict[str, Entry]()
        self._plan_id: str | None = None
        self._segments: dict[str, None] = {}
        self._waiting_for: dict[str, set[str]] = {}
        for entry in entries:
            self._entries[entry.partition_id] = entry
            if type(entry) is Plan:
                self._plan_id = entry.partition_id
            elif type(entry) is Active and not entry.listed:
                self._segments[entry.partition_id] = None
            elif type(entry) is Waiting:
                self._index(entry)
        self.audited = audited

    def to_json(self) -> Cursor:
        """Return the entries as JSON.

        The JSON of an active partition consists of its id, its cursor and six more characters.
        """
        value: dict[str, Cursor] = {"p": list(map(entry_to_json, self._entries.values()))}
        if self.audited is not None:
            value["a"] = audited_to_json(self.audited)
        return value

    def stands_like(self, other: Entries) -> bool:
        """Return whether another lineage contains the same partitions at the same positions.

        The comparison ignores audits and searches for children.

        Args:
            other: Another lineage of the same feed.
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
        """The partitions to read, in the order of the queue."""
        return [entry for entry in self._entries.values() if type(entry) is Active]

    def awaiting_children(self) -> list[AwaitingChildren]:
        """The ended partitions that may have more children than are known."""
        return [entry for entry in self._entries.values() if type(entry) is AwaitingChildren]

    def waiting(self) -> list[Waiting]:
        """The child partitions that wait for a parent."""
        if not self._waiting_for:
            return []
        return [entry for entry in self._entries.values() if type(entry) is Waiting]

    def listed(self) -> set[str]:
        """The ids of the entries that are partitions of the service.

        Audits and retention consider only the partitions in this result.
        """
        return {
            entry.partition_id
            for entry in self._entries.values()
            if (entry.listed if isinstance(entry, _READ_OR_WAITING) else isinstance(entry, AwaitingChildren))
        }

    def waiting_for(self, partition_id: str) -> list[Waiting]:
        """The child partitions that wait for a partition.

        Args:
            partition_id: The partition.
        """
        entries = map(self._entries.get, sorted(self._waiting_for.get(partition_id, ())))
        return [entry for entry in entries if type(entry) is Waiting and partition_id in entry.parents]

    @property
    def plan(self) -> Plan | None:
        """The plan of the unfinished snapshot scan, or None."""
        entry = None if self._plan_id is None else self._entries.get(self._plan_id)
        return entry if type(entry) is Plan else None

    def is_segment(self, partition_id: str) -> bool:
        """Return whether an entry is a segment of a scan.

        Args:
            partition_id: The id of the entry.
        """
        return partition_id in self._segments

    @property
    def segment_count(self) -> int:
        """The number of segments of the scan that are currently read."""
        return len(self._segments)

    def is_quiet(self, quiet: Collection[str]) -> bool:
        """Return whether the feed has nothing to read at present.

        The feed is quiet if every active partition is `quiet`, no child waits for one of them, and each ended
        partition has a known child. In a feed without audits, children may wait for undiscovered parents
        (`UndiscoveredParents`), and other children may wait for those children.
        """
        waiting = self.waiting()
        if self._plan_id is not None or self.unnamed() or (waiting and self.audited is not None):
            return False
        awaited = {parent for entry in waiting for parent in entry.parents}
        return all(
            entry.partition_id in quiet and entry.partition_id not in awaited for entry in self.active()
        )

    def ending(self, partition_id: str) -> AwaitingChildren | None:
        """Return the entry of `partition_id` if that partition has ended but may have more children."""
        entry = self._entries.get(partition_id)
        return entry if type(entry) is AwaitingChildren else None

    def unnamed(self) -> list[AwaitingChildren]:
        """The partitions that were read to their end and that have no known child yet."""
        return [entry for entry in self.awaiting_children() if not entry.children]

    def cursor(self, partition_id: str) -> Cursor:
        """Return the cursor of an active partition, an ended partition or a plan.

        The cursor of a partition is its position. The cursor of a plan identifies the part of the
        scan that is not divided into segments yet.

        Args:
            partition_id: The service's own id of the partition.
        """
        entry = self._entries[partition_id]
        assert not isinstance(entry, Waiting)
        return entry.cursor

    def fresh_children(self, partition_id: str, children: Sequence[Child]) -> list[Child]:
        """Return the children that the partition has not named before.

        Args:
            partition_id: The partition.
            children: The children that the partition names.
        """
        entry = self._entries[partition_id]
        named = entry.children if type(entry) is AwaitingChildren else ()
        return [child for child in children if child.partition_id not in named]

    def undiscovered(self, partition_id: str, children: Sequence[Child]) -> set[str]:
        """Return the parents of these children, except this partition and the lineage's entries.

        These parents are not discovered yet, or they are older than the retention and can no longer name
        their children.

        Args:
            partition_id: The service's own id of the partition.
            children: The children that the partition names.
        """
        fresh = [child for child in children if child.partition_id not in self._entries]
        parents = {parent for child in fresh for parent in child.parents}
        return {parent for parent in parents if parent != partition_id and parent not in self._entries}

    def _index(self, entry: Waiting) -> None:
        for parent in entry.parents:
            self._waiting_for.setdefault(parent, set()).add(entry.partition_id)
