"""Tracks the partitions that are being read, those that wait for parents, and the order of reading.

A lineage is the part of a token that changes. Each partition in a lineage is in one of three states:

    Active    the engine reads it from its cursor
    AwaitingChildren   it was read to its end, and the service may name more children later
    Waiting   a child with parents that are not drained yet; it stores the cursors from its drained parents

A known child starts at once, unless it waits for another parent. The ended parent of a known child stays in
the lineage as AwaitingChildren, and the engine keeps searching for more of its children (`watch`). The search
ends when it is certain that all children are known, or when the search has lasted long enough. As long as the
parent is in the lineage, none of its descendants can be missed. A lineage also contains the times when the
feed began and when its coverage was last audited.

A child starts when *every* parent has named it. Every partition of the feed descends from the
feed's seeds, so a parent that is not in the lineage has not been discovered yet. The child also
waits for a parent that has not been discovered, and therefore never starts too early. However, a
child does not wait for a parent that is older than the retention (`replace`, `undiscovered`). A
child also does not wait for a parent that does not descend from the partitions that are read
(`UndiscoveredParents`). If a partition may descend from several lost partitions, the partition
waits for one of these lost partitions in the same way as for a parent (`Retention`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from multiclouddb_spi.batch import Child
from multiclouddb_spi.continuation.entry import (
    Active,
    Audited,
    AwaitingChildren,
    Entry,
    Plan,
    Waiting,
    audited_from_json,
    entry_from_json,
    seeded,
)
from multiclouddb_spi.continuation.scan_entries import ScanEntries
from multiclouddb_spi.contract import Seed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import InvalidCursor

__all__ = ["Join", "Lineage"]

Join: TypeAlias = Callable[[str, Sequence[Cursor]], Cursor]


class Lineage(ScanEntries):
    """The partitions of one feed, in the order in which they are read. Not thread-safe.

    Args:
        entries: The partitions in the order in which they are read.
        join: A function that computes a child's start from the positions that its parents gave (`Feed.join`).
        audited: The data for the audits of this lineage; None for the lineage of one partition, which is not
            audited.

    Attributes:
        join: The function that was passed as argument.
        audited: The audit data that was passed as argument.
    """

    def __init__(self, entries: Iterable[Entry], join: Join, audited: Audited | None = None) -> None:
        super().__init__(entries, audited)
        self.join = join

    @classmethod
    def from_seeds(cls, seeds: Sequence[Seed], join: Join, audited: Audited | None = None) -> Lineage:
        """Build a new lineage.

        If a parent is not among the seeds, the parent no longer exists and is treated as read to
        its end.

        Args:
            seeds: The partitions and start positions that `Feed.start` returned.
            join: `Feed.join`.
            audited: The data for audits.
        """
        present = {seed.partition_id for seed in seeds}
        return cls((seeded(seed, present) for seed in seeds), join, audited)

    @classmethod
    def from_json(cls, value: Any, join: Join) -> Lineage:
        """Rebuild a lineage from the value that `to_json` returned.

        Args:
            value: The value that `to_json` returned.
            join: `Feed.join`.

        Raises:
            InvalidCursor: Raised if `to_json` did not make the value.
            MulticloudDbError: `INVALID_REQUEST` if a newer version of the library made the value.
        """
        if not (isinstance(value, dict) and isinstance(value.get("p"), list)):
            raise InvalidCursor("the list of partitions is missing")
        audited = audited_from_json(value["a"]) if "a" in value else None
        entries = list(map(entry_from_json, value["p"]))
        if sum(type(entry) is Plan for entry in entries) > 1:
            raise InvalidCursor("it contains two snapshots")
        if len({entry.partition_id for entry in entries}) != len(entries):
            raise InvalidCursor("a partition is listed twice")
        return cls(entries, join, audited)

    def copy(self) -> Lineage:
        """Return a copy of this lineage; changing the copy does not change the original."""
        return Lineage(self._entries.values(), self.join, self.audited)

    def start(self, partition_id: str) -> bool:
        """Start a child without waiting for its parents any longer; return False if it waits for a scan.

        Args:
            partition_id: The child.
        """
        entry = self._entries[partition_id]
        assert type(entry) is Waiting
        plan = self.plan
        if plan is not None and plan.holds and entry.listed:
            self._entries[partition_id] = entry = attrs.evolve(entry, parents=(plan.partition_id,))
            self._index(entry)
            return False
        cursor = self.join(partition_id, entry.said)
        del self._entries[partition_id]
        self._entries[partition_id] = Active(partition_id, cursor, listed=entry.listed)
        return True

    def advance(self, partition_id: str, cursor: Cursor) -> None:
        """Record that everything up to the cursor has been delivered; this also clears `failed_last`.

        Args:
            partition_id: The service's own id of the partition.
            cursor: The position after the delivered changes.
        """
        entry = self._entries[partition_id]
        listed = entry.listed if type(entry) is Active else True
        self._entries[partition_id] = Active(partition_id, cursor, listed=listed)

    def failed_last(self, partition_id: str) -> None:
        """Mark this partition: the next call reads this partition first and alone.

        Args:
            partition_id: The service's own id of the partition.
        """
        entry = self._entries[partition_id]
        if type(entry) is Active:  # the plan of a scan is always processed
            self._entries[partition_id] = attrs.evolve(entry, failed_last=True)

    def rotate(self, partition_ids: Iterable[str]) -> None:
        """Move partitions that were just read to the back of the queue.

        Args:
            partition_ids: The partitions, in the order in which they were read.
        """
        for partition_id in partition_ids:
            if (entry := self._entries.pop(partition_id, None)) is not None:
                self._entries[partition_id] = entry

    def await_children(self, partition_id: str) -> None:
        """Record that the partition has ended and that its children are not named yet.

        Args:
            partition_id: The service's own id of the partition.
        """
        if type(self._entries[partition_id]) is not AwaitingChildren:
            self._entries[partition_id] = AwaitingChildren(partition_id, self.cursor(partition_id))

    def watch(self, partition_id: str, watched: int) -> None:
        """Record that the engine has searched for the children of an ended partition.

        Args:
            partition_id: The service's own id of the partition.
            watched: How long the search has lasted while the process was running, in tenths of a second.
        """
        entry = self._entries[partition_id]
        assert type(entry) is AwaitingChildren
        self._entries[partition_id] = attrs.evolve(entry, watched=watched)

    def forget(self, partition_id: str) -> list[str]:
        """Stop searching for more children of an ended partition.

        Args:
            partition_id: The service's own id of the partition.

        Returns:
            The ids of the partitions that start now.
        """
        del self._entries[partition_id]
        self._note_retired()
        return self.release(partition_id)

    def add(self, seeds: Sequence[Seed]) -> list[str]:
        """Add partitions that an audit found; partitions that the lineage already contains do not change.

        Args:
            seeds: The partitions that `Feed.uncovered` returned.

        Returns:
            The ids of all new partitions. A new partition that waits for another seed is included
            too.
        """
        fresh = [seed for seed in seeds if seed.partition_id not in self._entries]
        present = {seed.partition_id for seed in fresh} | self._entries.keys()
        for seed in fresh:
            self._seed(seed, present)
        self.hold_for_scan(seed.partition_id for seed in fresh)
        return [seed.partition_id for seed in fresh]

    def _seed(self, seed: Seed, present: Container[str]) -> None:
        """Add a partition; it waits for those of its parents that are present and have not ended."""
        if watched := self._watched_among(seed.parents, seed.partition_id):
            left = tuple(parent for parent in seed.parents if parent not in watched)
            seed = attrs.evolve(seed, parents=left)
        entry = self._entries[seed.partition_id] = seeded(seed, present)
        if isinstance(entry, Waiting):
            self._index(entry)

    def _watched_among(self, parents: Sequence[str], child_id: str) -> set[str]:
        """Return those parents of a child that have ended and already have known children.

        The lineage keeps these parents only to find more of their children. The child does not wait
        for these parents; the method adds the child to their known children.
        """
        found = set()
        for parent in parents:
            entry = self._entries.get(parent)
            if type(entry) is AwaitingChildren and entry.children:
                found.add(parent)
                if child_id not in entry.children:
                    self._entries[parent] = attrs.evolve(entry, children=(*entry.children, child_id))
        return found

    def retire(
        self,
        partition_id: str,
        children: Sequence[Child] = (),
        lost: Collection[str] = frozenset(),
        holds: Mapping[str, str] | None = None,
        *,
        complete: bool = True,
        now: int | None = None,
    ) -> list[str]:
        """Record that the partition was read to its end and names its children.

        Args:
            partition_id: The partition.
            children: The children of the partition, as far as they are known. Children that the partition has
                named before are ignored.
            lost: Undiscovered parents for which neither these children nor the partitions that wait for this
                partition wait any longer, because the parents are older than the retention or no entry leads
                to them.
            holds: Maps a child, or a partition that waits for this partition, to another entry. The child or
                partition waits for this entry as it waits for a parent.
            complete: False to keep the partition in the lineage, because it may have more children.
            now: The service's time, in µs since 1970; it is kept with children that wait for undiscovered
                parents.

        Returns:
            The ids of the partitions that start now.
        """
        entry = self._entries.pop(partition_id)
        self._segments.pop(partition_id, None)
        named = entry.children if type(entry) is AwaitingChildren else ()
        assert not isinstance(entry, Waiting | Plan)
        listed = isinstance(entry, AwaitingChildren) or entry.listed
        for child in children:
            if child.partition_id not in named:
                self._named(partition_id, child, lost, now, listed=listed)
        for held, leader in (holds or {}).items():
            self._hold(held, leader)
        waited = self._waiting_for.get(partition_id, ())
        if complete:
            self._note_retired(listed=listed)
        else:
            assert listed, "the service does not know this partition, so it cannot name more children"
            freed = [name for name in sorted(waited) if isinstance(self._entries.get(name), Waiting)]
            known = dict.fromkeys((*named, *(child.partition_id for child in children), *freed))
            watched = entry.watched if type(entry) is AwaitingChildren else 0
            self._entries[partition_id] = AwaitingChildren(partition_id, entry.cursor, tuple(known), watched)
        return self.release(partition_id, lost)

    def _note_retired(self, *, listed: bool = True) -> None:
        if listed and self.audited is not None and not self.audited.retired:
            self.audited = attrs.evolve(self.audited, retired=True)

    def replace(
        self,
        partition_id: str,
        seeds: Sequence[Seed],
        coming: Collection[str] = frozenset(),
        holds: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Replace a partition whose records are older than the retention with its remaining descendants.

        Args:
            partition_id: The partition.
            seeds: The result of `Feed.oldest`: the seed of this partition, or the seeds of its
                remaining descendants.
            coming: Partitions that will be discovered later. If a child's parent is one of these
                partitions, the child still waits for this parent.
            holds: Maps the id of a seed or of a waiting partition to the id of another entry. The
                seed or the waiting partition then waits for the other entry in the same way as for
                a parent.

        Returns:
            The ids of the partitions that start now.
        """
        del self._entries[partition_id]
        self._note_retired()
        fresh = [seed for seed in seeds if seed.partition_id not in self._entries]
        named = {seed.partition_id for seed in fresh}
        for seed in fresh:
            again = seed.partition_id == partition_id  # it was being read: its parents are drained
            near = () if again else (*seed.parents, *seed.children)
            self._seed(seed, {one for one in near if one in self._entries or one in named or one in coming})
        for held, leader in (holds or {}).items():
            self._hold(held, leader)
        started = [seed.partition_id for seed in fresh if type(self._entries[seed.partition_id]) is Active]
        if partition_id not in self._entries:
            waits = [parent for parent in self._waiting_for if parent not in self._entries]
            for gone in [parent for parent in waits if parent not in coming]:
                started += self.release(gone)
        return started

    def _hold(self, partition_id: str, leader: str) -> None:
        match self._entries[partition_id]:
            case Active(_, cursor, _, listed):
                entry = Waiting(partition_id, (cursor,), (leader,), listed=listed)
            case Waiting(parents=parents) as waiting if leader not in parents:
                entry = attrs.evolve(waiting, parents=(*parents, leader))
            case _:
                return
        self._entries[partition_id] = entry
        self._index(entry)

    def _named(
        self, parent: str, child: Child, lost: Collection[str], now: int | None, *, listed: bool
    ) -> None:
        entry = self._entries.get(child.partition_id)
        if entry is None:
            drained = {parent, *lost, *self._watched_among(child.parents, child.partition_id)}
            others = tuple(other for other in child.parents if other not in drained)
            led_to = self._entries.keys() >= set(others)
            moment = None if led_to else now
            entry = Waiting(child.partition_id, (child.cursor,), others, moment, listed)
            self._entries[child.partition_id] = entry
            self._index(entry)
            self._waiting_for.setdefault(parent, set()).add(child.partition_id)
        elif isinstance(entry, Waiting) and child.cursor not in entry.said:
            self._entries[child.partition_id] = attrs.evolve(entry, said=(*entry.said, child.cursor))

    def release(self, parent: str, lost: Collection[str] = frozenset()) -> list[str]:
        """End each child's wait for a parent; return the ids of the partitions that start now.

        Args:
            parent: The parent.
            lost: Other parents for which the released partitions do not wait any longer.
        """
        started = []
        for child_id in sorted(self._waiting_for.pop(parent, ())):
            entry = self._entries.get(child_id)
            if not isinstance(entry, Waiting):
                continue
            left = tuple(other for other in entry.parents if other != parent and other not in lost)
            if left:
                self._entries[child_id] = attrs.evolve(entry, parents=left)
                continue
            if self.start(child_id):
                started.append(child_id)
        return started
