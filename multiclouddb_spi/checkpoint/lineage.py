"""Which partitions are read, which wait for their parents, and in which order they get their turn.

A lineage is the changing part of a token. Each partition in it is in one of three states:

    Active    it is read from its cursor
    Drained   it is read to its end, and the service may name more children than it has named so far
    Waiting   a child: some of its parents are not drained; it has what the drained ones said

A known child starts at once: its parent stays here as Drained, and is asked again (`watch`), until the
service proves that all children are known or the watch has lasted long enough. While it is here, whatever
comes of it is covered. A lineage also keeps when the feed began and when its coverage was last audited.

A child starts when *every* parent has named it. A parent that is not in the lineage is one that
has not been discovered yet, because every partition of the feed descends from its seeds: so an
unknown parent is waited for, and the start of a child is never early. The exception is a partition
that was lost to retention (`replace`, `strangers`). What may come of several that are gone waits for one of
them as for a parent (`Retention`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from multiclouddb_spi.batch import Child
from multiclouddb_spi.checkpoint.entry import (
    Active,
    Audited,
    Drained,
    Entry,
    Waiting,
    audited_from_json,
    audited_to_json,
    entry_from_json,
    entry_to_json,
    place_of,
    seeded,
)
from multiclouddb_spi.contract import Seed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.fault import InvalidCursor

__all__ = ["Join", "Lineage"]

Join: TypeAlias = Callable[[str, Sequence[Cursor]], Cursor]


class Lineage:
    """The partitions of one feed; its order is the fair queue. Not thread-safe.

    Args:
        entries: The partitions in the order of the queue.
        join: Where a child starts, from what its parents said (`Feed.join`).
        audited: What is kept for audits; None for the lineage of one partition, which is not audited.

    Attributes:
        audited: The same.
    """

    def __init__(self, entries: Iterable[Entry], join: Join, audited: Audited | None = None) -> None:
        self._entries: dict[str, Entry] = {entry.partition_id: entry for entry in entries}
        self._join = join
        self.audited = audited
        self._waiting_for: dict[str, set[str]] = {}
        for entry in self._entries.values():
            if isinstance(entry, Waiting):
                self._index(entry)

    @classmethod
    def from_seeds(cls, seeds: Sequence[Seed], join: Join, audited: Audited | None = None) -> Lineage:
        """A fresh lineage; a parent that is no seed itself is gone and counts as drained.

        Args:
            seeds: What `Feed.start` gave.
            join: `Feed.join`.
            audited: What is kept for audits.
        """
        present = {seed.partition_id for seed in seeds}
        return cls((seeded(seed, present) for seed in seeds), join, audited)

    @classmethod
    def from_json(cls, value: Any, join: Join) -> Lineage:
        """The inverse of `to_json`.

        Args:
            value: What `to_json` gave.
            join: `Feed.join`.

        Raises:
            InvalidCursor: The value was not made by `to_json`.
            MulticloudDbError: `INVALID_REQUEST`: a newer version has made it.
        """
        if not (isinstance(value, dict) and isinstance(value.get("p"), list)):
            raise InvalidCursor("the list of partitions is missing")
        audited = audited_from_json(value["a"]) if "a" in value else None
        entries = [entry_from_json(item) for item in value["p"]]
        if len({entry.partition_id for entry in entries}) != len(entries):
            raise InvalidCursor("a partition is listed twice")
        return cls(entries, join, audited)

    def to_json(self) -> Cursor:
        """JSON with six characters of ours for an active partition."""
        value: dict[str, Cursor] = {"p": [entry_to_json(entry) for entry in self._entries.values()]}
        if self.audited is not None:
            value["a"] = audited_to_json(self.audited)
        return value

    def stands_like(self, other: Lineage) -> bool:
        """Whether both hold the same partitions at the same positions; looks and audits do not count.

        Args:
            other: Another lineage of the feed.
        """
        if self._entries.keys() != other._entries.keys():
            return False
        return all(place_of(entry) == place_of(other._entries[name]) for name, entry in self._entries.items())

    def copy(self) -> Lineage:
        """The same, to be moved on apart."""
        return Lineage(self._entries.values(), self._join, self.audited)

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
        return [entry for entry in self if type(entry) is Drained]

    def is_quiet(self, quiet: Collection[str]) -> bool:
        """Whether all that is read is `quiet`, none waits, and each that has ended has a known child."""
        if self.unnamed() or any(isinstance(entry, Waiting) for entry in self):
            return False
        return all(entry.partition_id in quiet for entry in self.active())

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
        """These have had their turn: to the back of the queue.

        Args:
            partition_ids: In the order served.
        """
        for partition_id in partition_ids:
            if (entry := self._entries.pop(partition_id, None)) is not None:
                self._entries[partition_id] = entry

    def await_children(self, partition_id: str) -> None:
        """The partition has ended; its children are not named yet.

        Args:
            partition_id: The service's own id.
        """
        if type(self._entries[partition_id]) is not Drained:
            self._entries[partition_id] = Drained(partition_id, self.cursor(partition_id))

    def watch(self, partition_id: str, watched: int) -> None:
        """The children of a drained partition have been looked for.

        Args:
            partition_id: The service's own id.
            watched: For how long in all, in tenths of a second of running time.
        """
        entry = self._entries[partition_id]
        assert type(entry) is Drained
        self._entries[partition_id] = attrs.evolve(entry, watched=watched)

    def forget(self, partition_id: str) -> list[str]:
        """No more children of a drained partition are looked for.

        Args:
            partition_id: The service's own id.

        Returns:
            The ids that start now.
        """
        del self._entries[partition_id]
        self._note_retired()
        return self.release(partition_id)

    def add(self, seeds: Sequence[Seed]) -> list[str]:
        """Partitions that an audit found; those that are here already stay as they are.

        Args:
            seeds: What `Feed.uncovered` gave.

        Returns:
            The ids of all that are new, also of those that wait for another of the seeds.
        """
        fresh = [seed for seed in seeds if seed.partition_id not in self._entries]
        present = {seed.partition_id for seed in fresh} | self._entries.keys()
        for seed in fresh:
            self._seed(seed, present)
        return [seed.partition_id for seed in fresh]

    def _seed(self, seed: Seed, present: Collection[str]) -> None:
        """Take up a partition that waits for those of its parents that are present and not drained."""
        watched = self._watched_among(seed.parents, seed.partition_id)
        entry = self._entries[seed.partition_id] = seeded(seed, set(present) - watched)
        if isinstance(entry, Waiting):
            self._index(entry)

    def _watched_among(self, parents: Sequence[str], child_id: str) -> set[str]:
        """Those of a child's parents that are drained and are only watched: they have named it with that."""
        found = set()
        for parent in parents:
            entry = self._entries.get(parent)
            if type(entry) is Drained and entry.children:
                found.add(parent)
                if child_id not in entry.children:
                    self._entries[parent] = attrs.evolve(entry, children=(*entry.children, child_id))
        return found

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
        self,
        partition_id: str,
        children: Sequence[Child] = (),
        lost: Collection[str] = frozenset(),
        *,
        complete: bool = True,
    ) -> list[str]:
        """The partition is drained and names children.

        Args:
            partition_id: The partition.
            children: Its children, as far as they are known. One that it has named before is left out.
            lost: Strangers among their parents that retention has taken: not waited for.
            complete: False to keep the partition here, because it may have more children.

        Returns:
            The ids that start now.
        """
        entry = self._entries.pop(partition_id)
        named = entry.children if type(entry) is Drained else ()
        assert not isinstance(entry, Waiting)
        for child in children:
            if child.partition_id not in named:
                self._named(partition_id, child, lost)
        waited = self._waiting_for.get(partition_id, ())
        if complete:
            self._note_retired()
        else:
            freed = [name for name in sorted(waited) if isinstance(self._entries.get(name), Waiting)]
            known = dict.fromkeys((*named, *(child.partition_id for child in children), *freed))
            watched = entry.watched if type(entry) is Drained else 0
            self._entries[partition_id] = Drained(partition_id, entry.cursor, tuple(known), watched)
        return self.release(partition_id)

    def fresh_children(self, partition_id: str, children: Sequence[Child]) -> list[Child]:
        """The children that the partition has not named before.

        Args:
            partition_id: The partition.
            children: What it names.
        """
        entry = self._entries[partition_id]
        named = entry.children if type(entry) is Drained else ()
        return [child for child in children if child.partition_id not in named]

    def _note_retired(self) -> None:
        if self.audited is not None and not self.audited.retired:
            self.audited = attrs.evolve(self.audited, retired=True)

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
        self._note_retired()
        known = self._entries.keys() | {seed.partition_id for seed in seeds} | set(coming)
        fresh = [seed for seed in seeds if seed.partition_id not in self._entries]
        for seed in fresh:
            again = seed.partition_id == partition_id  # it was read: its parents are drained
            self._seed(seed, () if again else known)
        for held, leader in (holds or {}).items():
            self._hold(held, leader)
        started = [seed.partition_id for seed in fresh if type(self._entries[seed.partition_id]) is Active]
        if partition_id not in self._entries:
            for gone in [parent for parent in self._waiting_for if parent not in known]:
                started += self.release(gone)
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
            drained = {parent, *lost, *self._watched_among(child.parents, child.partition_id)}
            others = tuple(other for other in child.parents if other not in drained)
            entry = Waiting(child.partition_id, (child.cursor,), others)
            self._entries[child.partition_id] = entry
            self._index(entry)
            self._waiting_for.setdefault(parent, set()).add(child.partition_id)
        elif isinstance(entry, Waiting) and child.cursor not in entry.said:
            self._entries[child.partition_id] = attrs.evolve(entry, said=(*entry.said, child.cursor))

    def release(self, parent: str) -> list[str]:
        """Nobody waits for a parent any more; the ids that start now.

        Args:
            parent: The parent.
        """
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
