"""Which partitions are read, which wait for their parents, and in which order they get their turn.

A lineage is the changing part of a token. Each partition in it is in one of three states:

    Active    it is read from its cursor
    Drained   it is read to its end, and the service has not named its children yet
    Waiting   a child: some of its parents are not drained; it has what the drained ones said

A child starts when *every* parent has named it. A parent that is not in the lineage is one that
has not been discovered yet, because every partition of the feed descends from its seeds: so an
unknown parent is waited for, and the start of a child is never early. The exception is a partition
that was lost to retention (`replace`, `strangers`): it can no longer name anybody. What may come of several
that are gone waits for one of them as for a parent, and is named by none (`Retention`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from multiclouddb_spi.contract import Child, Seed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.fault import InvalidCursor

__all__ = ["Active", "Drained", "Entry", "Join", "Lineage", "Waiting", "entry_to_json"]


@attrs.frozen
class Active:
    """A partition that is read.

    Attributes:
        partition_id: The service's own id.
        cursor: Everything up to here has been delivered.
        suspect: True when its last read failed for good behind events that were delivered: it is
            read first and alone, so that the failure is not put off for ever.
    """

    partition_id: str
    cursor: Cursor
    suspect: bool = False


@attrs.frozen
class Drained:
    """A partition that has ended and whose children are not named yet."""

    partition_id: str
    cursor: Cursor


@attrs.frozen
class Waiting:
    """A child whose parents are not all drained.

    Attributes:
        partition_id: The service's own id.
        said: Distinct cursors from its seed and its drained parents.
        parents: The parents that have not named it yet, and a lost one that it may have come of.
    """

    partition_id: str
    said: tuple[Cursor, ...]
    parents: tuple[str, ...]


Entry: TypeAlias = Active | Drained | Waiting
Join: TypeAlias = Callable[[str, Sequence[Cursor]], Cursor]
_SUSPECT, _DRAINED = 2, 1


class Lineage:
    """The partitions of one feed; its order is the fair queue. Not thread-safe.

    Args:
        entries: The partitions in the order of the queue.
        join: Where a child starts, from what its parents said (`Feed.join`).
    """

    def __init__(self, entries: Iterable[Entry], join: Join) -> None:
        self._entries: dict[str, Entry] = {entry.partition_id: entry for entry in entries}
        self._join = join
        self._waiting_for: dict[str, set[str]] = {}
        for entry in self._entries.values():
            if isinstance(entry, Waiting):
                self._index(entry)

    @classmethod
    def from_seeds(cls, seeds: Sequence[Seed], join: Join) -> Lineage:
        """A fresh lineage; a parent that is no seed itself is gone and counts as drained.

        Args:
            seeds: What `Feed.start` gave.
            join: `Feed.join`.
        """
        present = {seed.partition_id for seed in seeds}
        return cls((_seeded(seed, present) for seed in seeds), join)

    @classmethod
    def from_json(cls, value: object, join: Join) -> Lineage:
        """The inverse of `to_json`.

        Args:
            value: What `to_json` gave.
            join: `Feed.join`.

        Raises:
            InvalidCursor: The value was not made by `to_json`.
        """
        if not isinstance(value, list):
            raise InvalidCursor("the list of partitions is missing")
        entries = [_entry_from_json(item) for item in value]
        if len({entry.partition_id for entry in entries}) != len(entries):
            raise InvalidCursor("a partition is listed twice")
        return cls(entries, join)

    def to_json(self) -> Cursor:
        """JSON with six characters of ours for an active partition."""
        return [entry_to_json(entry) for entry in self._entries.values()]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, partition_id: object) -> bool:
        return partition_id in self._entries

    def active(self) -> list[Active]:
        """Partitions to read, in the order of the queue."""
        return [entry for entry in self._entries.values() if type(entry) is Active]

    def drained(self) -> dict[str, Cursor]:
        """Partitions whose children have to be discovered, with their final cursors."""
        return {entry.partition_id: entry.cursor for entry in self if type(entry) is Drained}

    def cursor(self, partition_id: str) -> Cursor:
        """Where an active or drained partition stands.

        Args:
            partition_id: The service's own id.
        """
        entry = self._entries[partition_id]
        assert not isinstance(entry, Waiting)
        return entry.cursor

    def advance(self, partition_id: str, cursor: Cursor) -> None:
        """Everything up to the cursor has been delivered; an earlier suspicion is over.

        Args:
            partition_id: The service's own id.
            cursor: Behind what has been delivered.
        """
        self._entries[partition_id] = Active(partition_id, cursor)

    def suspect(self, partition_id: str) -> None:
        """Read this partition first and alone next time.

        Args:
            partition_id: The service's own id.
        """
        self._entries[partition_id] = Active(partition_id, self.cursor(partition_id), suspect=True)

    def rotate(self, partition_ids: Iterable[str]) -> None:
        """These have had their turn: to the back of the queue, in this order.

        Args:
            partition_ids: In the order served.
        """
        for partition_id in partition_ids:
            entry = self._entries.pop(partition_id, None)
            if entry is not None:
                self._entries[partition_id] = entry

    def await_children(self, partition_id: str) -> None:
        """The partition has ended; its children are not named yet.

        Args:
            partition_id: The service's own id.
        """
        self._entries[partition_id] = Drained(partition_id, self.cursor(partition_id))

    def strangers(self, partition_id: str, children: Sequence[Child]) -> set[str]:
        """Parents, beside the partition, of children that it is the first to name, none known here.

        They are not discovered yet, or they were lost to retention and can name nobody any more.

        Args:
            partition_id: The service's own id.
            children: What it names.
        """
        fresh = [child for child in children if child.partition_id not in self._entries]
        return {parent for child in fresh for parent in child.parents} - self._entries.keys() - {partition_id}

    def retire(
        self, partition_id: str, children: Sequence[Child] = (), lost: Collection[str] = frozenset()
    ) -> list[str]:
        """The partition is drained and names its children.

        Args:
            partition_id: The partition.
            children: All its children.
            lost: Strangers among their parents that retention has taken: not waited for.

        Returns:
            The ids that start now.
        """
        del self._entries[partition_id]
        for child in children:
            self._named(partition_id, child, lost)
        return self._release(partition_id)

    def replace(
        self,
        partition_id: str,
        seeds: Sequence[Seed],
        coming: Collection[str] = frozenset(),
        holds: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The partition's records are lost to retention; go on with what is left of its branch.

        Args:
            partition_id: The partition.
            seeds: It again, or what is left of its descendants (`Feed.oldest`).
            coming: Partitions that are not discovered yet and will be: a parent among these is still
                waited for.
            holds: Partition, of the seeds or of those that wait → entry that it waits for as for a parent.

        Returns:
            The ids that start now.
        """
        del self._entries[partition_id]
        known = self._entries.keys() | {seed.partition_id for seed in seeds} | set(coming)
        fresh = [seed for seed in seeds if seed.partition_id not in self._entries]
        for seed in fresh:
            again = seed.partition_id == partition_id  # it was read: its parents are drained
            entry = _seeded(seed, () if again else known)
            self._entries[entry.partition_id] = entry
            if isinstance(entry, Waiting):
                self._index(entry)
        for held, leader in (holds or {}).items():
            self._hold(held, leader)
        started = [seed.partition_id for seed in fresh if type(self._entries[seed.partition_id]) is Active]
        if partition_id not in self._entries:
            for gone in [parent for parent in self._waiting_for if parent not in known]:
                started += self._release(gone)
        return started

    def _hold(self, partition_id: str, leader: str) -> None:
        match self._entries[partition_id]:
            case Active(_, cursor):
                entry = Waiting(partition_id, (cursor,), (leader,))
            case Waiting(_, said, parents) if leader not in parents:
                entry = Waiting(partition_id, said, (*parents, leader))
            case _:
                return
        self._entries[partition_id] = entry
        self._index(entry)

    def _named(self, parent: str, child: Child, lost: Collection[str]) -> None:
        entry = self._entries.get(child.partition_id)
        if entry is None:
            others = tuple(other for other in child.parents if other != parent and other not in lost)
            entry = Waiting(child.partition_id, (child.cursor,), others)
            self._entries[child.partition_id] = entry
            self._index(entry)
            self._waiting_for.setdefault(parent, set()).add(child.partition_id)
        elif isinstance(entry, Waiting) and child.cursor not in entry.said:
            self._entries[child.partition_id] = attrs.evolve(entry, said=(*entry.said, child.cursor))

    def _release(self, parent: str) -> list[str]:
        started = []
        for child_id in sorted(self._waiting_for.pop(parent, ())):
            entry = self._entries.get(child_id)
            if not isinstance(entry, Waiting):
                continue
            left = tuple(other for other in entry.parents if other != parent)
            if left:
                self._entries[child_id] = attrs.evolve(entry, parents=left)
                continue
            del self._entries[child_id]
            self._entries[child_id] = Active(child_id, self._join(child_id, entry.said))
            started.append(child_id)
        return started

    def _index(self, entry: Waiting) -> None:
        for parent in entry.parents:
            self._waiting_for.setdefault(parent, set()).add(entry.partition_id)


def _seeded(seed: Seed, present: Iterable[str] | Mapping[str, object]) -> Entry:
    parents = tuple(parent for parent in seed.parents if parent in present and parent != seed.partition_id)
    if parents:
        return Waiting(seed.partition_id, (seed.cursor,), parents)
    return Active(seed.partition_id, seed.cursor)


def entry_to_json(entry: Entry) -> Cursor:
    """One partition as it stands in a token."""
    if type(entry) is Active:
        if entry.suspect:
            return [entry.partition_id, entry.cursor, _SUSPECT]
        return [entry.partition_id, entry.cursor]
    if type(entry) is Drained:
        return [entry.partition_id, entry.cursor, _DRAINED]
    assert isinstance(entry, Waiting)
    return [entry.partition_id, list(entry.said), list(entry.parents)]


def _entry_from_json(item: Any) -> Entry:
    match item:
        case [str() as partition_id, cursor]:
            return Active(partition_id, cursor)
        case [str() as partition_id, cursor, int() as state] if state in (_SUSPECT, _DRAINED):
            return (
                Drained(partition_id, cursor)
                if state == _DRAINED
                else Active(partition_id, cursor, suspect=True)
            )
        case [str() as partition_id, [_, *_] as said, [str(), *_] as parents] if all(
            isinstance(parent, str) for parent in parents
        ):
            return Waiting(partition_id, tuple(said), tuple(parents))
        case _:
            raise InvalidCursor("a partition has an unknown form")
