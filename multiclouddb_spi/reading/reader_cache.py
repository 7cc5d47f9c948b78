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

_Place: TypeAlias = tuple[int, str, bytes]


def _place(feed: Feed, partition_id: str, cursor: Cursor) -> _Place:
    return id(feed), partition_id, orjson.dumps(feed.without_hints(cursor))


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
        self._resident: OrderedDict[PartitionReader, _Place] = OrderedDict()
        self._passing: OrderedDict[PartitionReader, _Place] = OrderedDict()
        self._places: dict[_Place, list[PartitionReader]] = {}
        self._crowds: dict[tuple[int, str], _Crowd] = {}
        self._lock = threading.Lock()
        self._closed = False

    def pop(self, feed: Feed, partition_id: str, cursor: Cursor) -> PartitionReader | None:
        """Return the reader at exactly this position, or None."""
        with self._lock:
            here = self._places.get(_place(feed, partition_id, cursor)) or []
            return self._taken(here[-1]) if here else None

    def holds(self, feed: Feed, partition_id: str, cursor: Cursor) -> bool:
        """Return whether a reader at exactly this position has fetched or requested records."""
        with self._lock:
            here = self._places.get(_place(feed, partition_id, cursor)) or []
            return bool(here) and not here[-1].empty()

    def put(self, reader: PartitionReader) -> None:
        """Keep a reader for the next call.

        A reader that is already cached at the same position is closed if no consumer has used either of the
        two readers a second time. Otherwise, the two readers belong to different consumers, and both are
        kept.
        """
        reader.used_at = time.monotonic()
        place = _place(reader.feed, reader.partition_id, reader.cursor)
        with self._lock:
            gone = [reader] if self._closed else self._added(reader, place)
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

    def _taken(self, reader: PartitionReader) -> PartitionReader:
        """Remove a reader from the cache."""
        place = self._resident.pop(reader, None) or self._passing.pop(reader)
        self._places[place].remove(reader)
        if not self._places[place]:
            del self._places[place]
        if self._crowds[place[:2]].remove(reader):
            del self._crowds[place[:2]]
        return reader

    def _added(self, reader: PartitionReader, place: _Place) -> list[PartitionReader]:
        """Add a reader; return the readers that are removed to make room."""
        gone = list[PartitionReader]()
        if place in self._places and not reader.proven:
            gone += [self._taken(twin) for twin in tuple(self._places[place]) if not twin.proven]
        self._places.setdefault(place, []).append(reader)
        crowd = self._crowds.setdefault(place[:2], _Crowd())
        surplus = crowd.add(reader, self._most_of_one, proven=reader.proven)
        stays = reader.proven or len(self._resident) < self._residents
        (self._resident if stays else self._passing)[reader] = place
        if len(self._resident) > self._residents:
            oldest, place = self._resident.popitem(last=False)
            self._passing[oldest] = place
        if surplus is not None:
            gone.append(self._taken(surplus))
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


class _Crowd:
    """The cached readers of one partition; each belongs to an active consumer or to a consumer that has left.

    A reader is called proven once its consumer has used it a second time. A consumer that continues in
    another process never uses its old reader again. Therefore, the cache first closes a random reader that is
    not proven. The cache does not close the oldest reader first: if consumers take turns, one of them always
    needs this reader next. At most seven eighths of the readers count as proven (used a second time), so the
    readers of stopped consumers leave room for new consumers.
    """

    __slots__ = ("_new", "_proven")

    def __init__(self) -> None:
        self._new: dict[PartitionReader, None] = {}
        self._proven: OrderedDict[PartitionReader, None] = OrderedDict()

    def add(self, reader: PartitionReader, most: int, *, proven: bool) -> PartitionReader | None:
        """Add a reader; return a reader to close if there are now more than `most` readers, else None."""
        (self._proven if proven else self._new)[reader] = None
        if len(self._new) + len(self._proven) <= most:
            return None
        while len(self._proven) > most * 7 // 8:
            self._new[self._proven.popitem(last=False)[0]] = None
        return _dice.choice(list(self._new))

    def remove(self, reader: PartitionReader) -> bool:
        """Remove a reader that is now in use or closed; return whether it was the last reader."""
        self._new.pop(reader, None)
        self._proven.pop(reader, None)
        return not (self._new or self._proven)
