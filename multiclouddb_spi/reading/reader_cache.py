"""Keeps the readers of partitions that no call is using at present."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from random import Random
from typing import Final, TypeAlias

import orjson

from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.reading.partition_reader import Budget, PartitionReader

__all__ = ["ReaderCache"]

_IDLE_SECONDS: Final = 60.0
# A consumer that reads page after page comes back within this time.
_RESTING_SECONDS: Final = 10.0
# One thirty-second of a full cache is reserved for new readers.
_PASSING_PART: Final = 32
# The random sequence is always the same, so that two runs of a program keep the same readers.
_dice: Final = Random(0)
_NOBODY: Final[dict[PartitionReader, bytes]] = {}

_Partition: TypeAlias = tuple[int, str]


def _at(feed: Feed, cursor: Cursor) -> bytes:
    """Return a position in a form that can be compared."""
    return orjson.dumps(feed.without_hints(cursor))


class ReaderCache:
    """Maps feed, partition and position to readers that no call is using at present.

    The cache keeps several readers of one partition: one for each consumer in this process. Some of the kept
    readers belong to consumers that now run in other processes; each of these readers may still use a
    resource of the service.

    A consumer reads its partitions in turn. If there are more partitions than the cache keeps, the consumer
    next needs the reader that has been unused for the longest time. Therefore, a full cache keeps its old
    readers, and new readers go into a small part of the cache. A new reader is kept only if a consumer uses
    this reader again before the cache closes it.

    Args:
        budget: The memory budget; it counts the bytes that the readers hold.
        capacity: The maximum number of readers.
        most_of_one: The maximum number of readers of one partition.
    """

    def __init__(self, budget: Budget, capacity: int, most_of_one: int = 64) -> None:
        self._budget, self._capacity, self._most_of_one = budget, capacity, most_of_one
        self._residents = capacity - max(1, capacity // _PASSING_PART)
        # Each part maps a reader to its partition, and each crowd maps a reader to its position; both are in
        # the order in which the readers were put into the cache.
        self._resident: OrderedDict[PartitionReader, _Partition] = OrderedDict()
        self._passing: OrderedDict[PartitionReader, _Partition] = OrderedDict()
        self._crowds: dict[_Partition, dict[PartitionReader, bytes]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def pop(self, feed: Feed, partition_id: str, cursor: Cursor) -> PartitionReader | None:
        """Return the reader at exactly this position, or None."""
        at = _at(feed, cursor)
        with self._lock:
            here = self._here((id(feed), partition_id), at)
            return None if here is None else self._taken(here)

    def holds(self, feed: Feed, partition_id: str, cursor: Cursor) -> bool:
        """Return whether a reader at exactly this position has fetched or requested records."""
        at = _at(feed, cursor)
        with self._lock:
            here = self._here((id(feed), partition_id), at)
            return here is not None and not here.empty()

    def put(self, reader: PartitionReader) -> None:
        """Keep a reader for the next call.

        A reader that is already cached at the same position is closed if no consumer has used either of the
        two readers a second time. Otherwise, the two readers belong to different consumers, and both are
        kept.
        """
        reader.used_at = time.monotonic()
        at = _at(reader.feed, reader.cursor)
        with self._lock:
            gone = [reader] if self._closed else self._added(reader, at)
        for old in gone:
            old.discard()

    def tidy(self, in_use: Callable[[PartitionReader], bool]) -> None:
        """Discard readers that were unused for a minute, and records that exceed the budget.

        For a reader that is `in_use`, the unused time starts again at zero, because one round over many
        partitions takes longer than a minute.
        """
        if self._budget.used > self._budget.limit:
            self.make_room(0, in_use)
        now, gone = time.monotonic(), list[PartitionReader]()
        with self._lock:
            for reader in self._unused_since(now - _IDLE_SECONDS / 2):
                if in_use(reader):
                    reader.used_at = now
                    (self._resident if reader in self._resident else self._passing).move_to_end(reader)
                elif reader.used_at < now - _IDLE_SECONDS:
                    gone.append(self._taken(reader))
        for old in gone:
            old.discard()

    def make_room(self, nbytes: int, in_use: Callable[[PartitionReader], bool]) -> bool:
        """Evict records of other readers until `nbytes` fit, in the order of `_unused_since`.

        Readers that are `in_use` are never evicted. Readers that another consumer has just used are never
        evicted either. Otherwise, the consumers would have to fetch the records of these readers again.

        Returns:
            True if the budget now has room for the bytes.
        """
        missing, gone = self._budget.over(nbytes), list[PartitionReader]()
        with self._lock:
            for reader in self._unused_since(time.monotonic() - _RESTING_SECONDS):
                if missing > 0 and not reader.empty() and not in_use(reader):
                    missing -= reader.nbytes()
                    gone.append(self._taken(reader))
        for old in gone:
            old.discard()
        return self._budget.over(nbytes) <= 0

    def forget(self, feed: Feed | None = None) -> None:
        """Discard the readers of one feed, or of all feeds."""
        with self._lock:
            readers = [*self._passing, *self._resident]
            gone = [self._taken(reader) for reader in readers if feed is None or reader.feed is feed]
        for old in gone:
            old.discard()

    def close(self) -> None:
        """Discard all readers, including the readers that running calls put back later."""
        with self._lock:
            self._closed = True
        self.forget()

    def __len__(self) -> int:
        return len(self._resident) + len(self._passing)

    # -- The caller of these methods holds the lock

    def _here(self, partition: _Partition, at: bytes) -> PartitionReader | None:
        """Return the reader that was put last at this position."""
        for reader, position in reversed(self._crowds.get(partition, _NOBODY).items()):
            if position == at:
                return reader
        return None

    def _taken(self, reader: PartitionReader) -> PartitionReader:
        """Remove a reader from the cache."""
        partition = self._resident.pop(reader, None) or self._passing.pop(reader)
        crowd = self._crowds[partition]
        del crowd[reader]
        if not crowd:
            del self._crowds[partition]
        return reader

    def _added(self, reader: PartitionReader, at: bytes) -> list[PartitionReader]:
        """Add a reader; return the readers that are removed to make room."""
        partition, gone = (id(reader.feed), reader.partition_id), list[PartitionReader]()
        crowd = self._crowds.get(partition)
        if crowd is None:
            crowd = self._crowds[partition] = {}
        elif not reader.proven:
            gone += [twin for twin, position in crowd.items() if position == at and not twin.proven]
        crowd[reader] = at  # before the twins are removed, because a crowd without readers is forgotten
        stays = reader.proven or len(self._resident) < self._residents
        (self._resident if stays else self._passing)[reader] = partition
        for twin in gone:
            self._taken(twin)
        if len(self._resident) > self._residents:
            oldest, partition = self._resident.popitem(last=False)
            self._passing[oldest] = partition
        if len(crowd) > self._most_of_one:
            gone.append(self._taken(_surplus(crowd, self._most_of_one)))
        if len(self._resident) + len(self._passing) > self._capacity:
            oldest = next(iter(self._passing))
            gone.append(self._taken(next((each for each in self._passing if each.empty()), oldest)))
        return gone

    def _unused_since(self, moment: float) -> list[PartitionReader]:
        """Return readers that were not used since the given time.

        The readers in the small part of the cache come first. Each part is sorted by the time at which the
        readers entered the part.
        """
        found = []
        for part in (self._passing, self._resident):
            for reader in part:
                if reader.used_at >= moment:
                    break
                found.append(reader)
        return found


def _surplus(crowd: dict[PartitionReader, bytes], most: int) -> PartitionReader:
    """Return the reader to close, of the cached readers of one partition.

    Each of these readers belongs to an active consumer or to a consumer that has left. A reader is called
    proven once its consumer has used it a second time. A consumer that continues in another process never
    uses its old reader again. Therefore, the cache first closes a random reader that is not proven. If the
    cache closed the oldest reader first, consumers that take turns would always find that their reader had
    just been closed. At most seven eighths of the readers count as proven, the newest first, so there is room
    for new consumers when old consumers have stopped.

    Args:
        crowd: The readers, the oldest first; there are more than `most`.
        most: The maximum number of readers.
    """
    proven = [reader for reader in reversed(crowd) if reader.proven]
    return _dice.choice([*(reader for reader in crowd if not reader.proven), *proven[most * 7 // 8 :]])
