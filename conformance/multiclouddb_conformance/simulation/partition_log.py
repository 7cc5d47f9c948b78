"""Models the partitions of a simulated collection: their hashes, parents and children."""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import attrs

from multiclouddb_api import ChangeType, MulticloudDbKey, Notice
from multiclouddb_api.codec import canonical_json

__all__ = ["Commit", "HashRange", "PartitionLog", "RangeMap", "Written", "halves", "key_hash"]

HASHES: Final = 2**64

HashRange: TypeAlias = tuple[int, int]
"""The start (inclusive) and the end (exclusive) of a range of hashes."""


def key_hash(key: MulticloudDbKey) -> int:
    """Return the hash of a key's partition key; it is the same in every process."""
    text = canonical_json(list(key.partition_key.items()))
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


@attrs.frozen
class Written:
    """One change that was written to the collection."""

    event_id: str
    key: MulticloudDbKey
    type: ChangeType
    timestamp: datetime
    document: dict[str, Any] | None = attrs.field(hash=False)
    previous: dict[str, Any] | None = attrs.field(hash=False, repr=False)
    partition_id: str
    commit: int
    index: int
    incarnation: str
    poison: bool = False
    by_expiry: bool = False
    size: int = 0


@attrs.frozen
class Commit:
    """The records of one commit in one partition."""

    number: int
    timestamp: datetime
    records: tuple[Written, ...]
    notices: tuple[Notice, ...] = ()


class PartitionLog:
    """One partition: its parents and children, and the part of its log that is kept."""

    def __init__(
        self, partition_id: str, parents: tuple[str, ...], born: int, ranges: tuple[HashRange, ...]
    ) -> None:
        self.id = partition_id
        self.parents = parents
        self.born = born
        self.ranges = ranges
        self.closed: int | None = None
        self.children: tuple[str, ...] = ()
        self.trimmed = 0
        self.forgotten = 0
        self._numbers: list[int] = []
        self._commits: list[Commit] = []
        self._counts: list[int] = [0]
        self._noticed: list[int] = []

    @property
    def gone(self) -> bool:
        """Return True if the partition is no longer listed: it has ended and nothing in its log is kept."""
        return self.closed is not None and self.trimmed >= self.closed

    @property
    def oldest(self) -> int:
        """Return the first commit after which the partition can be read."""
        return max(self.born, self.trimmed)

    def owns(self, position: int) -> bool:
        """Return True if a hash belongs to the partition."""
        return any(low <= position < high for low, high in self.ranges)

    def alive_at(self, commit: int) -> bool:
        """Return True if the partition accepted writes directly after the given commit."""
        return self.born <= commit and (self.closed is None or commit < self.closed)

    def append(self, commit: Commit) -> None:
        """Append a commit to the end of the log."""
        self._numbers.append(commit.number)
        self._commits.append(commit)
        self._counts.append(self._counts[-1] + len(commit.records))
        if commit.notices:
            self._noticed.append(commit.number)

    def trim(self, upto: int) -> None:
        """Remove every commit up to and including the given number."""
        self.trimmed = max(self.trimmed, upto if self.closed is None else min(upto, self.closed))
        cut = bisect_right(self._numbers, self.trimmed)
        self.forgotten = self._numbers[cut - 1] if cut else self.forgotten
        del self._numbers[:cut], self._commits[:cut], self._counts[:cut]

    def keeps(self, number: int, *, strict: bool) -> bool:
        """Return True if a read may begin at a commit."""
        return number > (self.trimmed if strict else self.forgotten)

    def find(self, number: int) -> int:
        """Return the index of the first kept commit whose number is at least the given number."""
        return bisect_left(self._numbers, number)

    def commit(self, index: int) -> Commit | None:
        """Return the kept commit at an index, or None after the last commit."""
        return self._commits[index] if 0 <= index < len(self._commits) else None

    def has_notice(self, first: int, stop: int) -> bool:
        """Return True if a commit from `first` on, and before `stop`, has a notice."""
        index = bisect_left(self._noticed, first)
        return index < len(self._noticed) and self._noticed[index] < stop

    def records_before(self, index: int) -> int:
        """Return the number of records before the commit at an index, including removed records."""
        return self._counts[index]

    def index_of_record(self, count: int) -> int:
        """Return the index of the commit that contains the next record after `count` records."""
        return bisect_right(self._counts, count) - 1


class RangeMap:
    """Finds the open partition to which a hash belongs; a look-up takes O(log n) time."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._owners: list[str] = []

    def assign(self, ranges: Iterable[HashRange], owner: str) -> None:
        """Assign ranges to a partition; before the call, each range must have at most one owner."""
        for low, _ in ranges:
            index = bisect_left(self._starts, low)
            if index < len(self._starts) and self._starts[index] == low:
                self._owners[index] = owner
            else:
                self._starts.insert(index, low)
                self._owners.insert(index, owner)

    def owner(self, position: int) -> str:
        """Return the partition to which a hash belongs."""
        return self._owners[bisect_right(self._starts, position) - 1]


def halves(ranges: Sequence[HashRange], count: int) -> list[tuple[HashRange, ...]]:
    """Divide ranges among `count` partitions; while there are too few ranges, split the widest one."""
    widest = [(low - high, low, high) for low, high in ranges]
    heapq.heapify(widest)
    while len(widest) < count:
        width, low, high = widest[0]
        if width == -1:
            raise ValueError("this partition owns a single hash and cannot be split")
        middle = (low + high) // 2
        heapq.heapreplace(widest, (low - middle, low, middle))
        heapq.heappush(widest, (middle - high, middle, high))
    pieces = sorted((low, high) for _, low, high in widest)
    share, extra = divmod(len(pieces), count)
    dealt, start = [], 0
    for number in range(count):
        stop = start + share + (number < extra)
        dealt.append(tuple(pieces[start:stop]))
        start = stop
    return dealt
