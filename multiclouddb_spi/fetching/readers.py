"""Keeps the readers of partitions: each with its records and its running fetch, and between calls in a cache.

A `PartitionReader` belongs either to one call or to the cache, never to both. A call takes a reader from the
cache, uses it, and puts it back under its new position. If a reader is lost, this costs time but no events,
because the token contains the position.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from random import Random
from typing import Final, TypeAlias

from multiclouddb_spi.arrival import ANSWER_SECONDS, SILENT_SECONDS, Arrival
from multiclouddb_spi.batch import Batch, Continue
from multiclouddb_spi.contract import Feed, Reader
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.observing import Observing

__all__ = ["Budget", "PartitionReader", "ReaderCache"]


class Budget:
    """Counts the bytes that were fetched or requested but not returned yet; each client has one budget.

    Attributes:
        limit: The limit in bytes.
        used: The current number of bytes.
        expected: The number of bytes that a fetch is likely to return, even if the fetch requests
            fewer bytes. A service returns at least one record, however large the record is.
        lock: The lock for changing `used` together with the number of bytes that a partition holds.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = self.expected = 0
        self.lock = threading.Lock()

    def learn(self, asked: int, nbytes: int) -> None:
        """Adapt `expected` after a fetch that requested `asked` bytes and returned `nbytes`."""
        if not (nbytes or self.expected):
            return
        with self.lock:
            self.expected = max(self.expected, nbytes) if nbytes > asked else self.expected * 9 // 10

    def over(self, more: int = 0) -> int:
        """Return how many bytes must be freed to make room for `more` bytes; 0 or less if they fit."""
        return self.used + more - self.limit


class PartitionReader:
    """The reader of one partition, with at most one batch of its records and at most one running fetch.

    Attributes:
        cursor: The position after the records that were returned.
        position: The reader's position, which is after the batch.
        batch: The batch of fetched records, or None.
        taken: The number of records of the batch that were returned.
        future: The future of the running fetch, or None.
        fetches: The number of fetches that have finished.
        window: The number of records that the next fetch requests; it grows while the reader is reused.
        not_before: The monotonic time before which another request is not useful.
        asked_at: The monotonic time at which the last fetch started. The answer does not show what happened
            after this time.
        retries: The number of retries of the last fetch.
        trouble: The reason for the last retry of the running fetch, or, without a fetch, the reason for
            `not_before`; else None.
        waiting: True while the running fetch waits for new records, because there were none when it started.
        arrival: The limits on the answers of the running fetch; None until its thread has begun.
        cancelled: True if no call needs the result of the running fetch any longer.
        call: Identifies the call that used this reader last.
        proven: True after a later call has used this reader again.
    """

    __slots__ = (
        "_budget",
        "_held_ask",
        "_held_batch",
        "_observing",
        "arrival",
        "asked_at",
        "batch",
        "call",
        "cancelled",
        "cursor",
        "feed",
        "fetches",
        "future",
        "not_before",
        "partition_id",
        "position",
        "proven",
        "reader",
        "retries",
        "taken",
        "trouble",
        "used_at",
        "waiting",
        "window",
    )

    def __init__(
        self, feed: Feed, partition_id: str, cursor: Cursor, budget: Budget, observing: Observing
    ) -> None:
        self.feed = feed
        self.partition_id = partition_id
        self.cursor = self.position = cursor
        self.reader: Reader | None = None
        self.batch: Batch | None = None
        self.taken = 0
        self.future: Future[Batch] | None = None
        self.window = 0
        self.not_before = self.asked_at = self.used_at = 0.0
        self.retries = 0
        self.trouble: Exception | None = None
        self.arrival: Arrival | None = None
        self.cancelled = self.waiting = False
        self.fetches = 0
        self.call: object = None
        self.proven = False
        self._budget, self._observing, self._held_ask, self._held_batch = budget, observing, 0, 0

    def hold(self, ask: int | None = None, batch: int | None = None) -> None:
        """Change the number of bytes that this reader holds in the budget; None keeps the previous value."""
        with self._budget.lock:
            before = self._held_ask + self._held_batch
            self._held_ask = self._held_ask if ask is None else ask
            self._held_batch = self._held_batch if batch is None else batch
            self._budget.used += self._held_ask + self._held_batch - before

    def fetched(self, asked: int, nbytes: int) -> None:
        """Record that the running fetch has received its answer."""
        self.hold(nbytes)
        self._budget.learn(asked, nbytes)

    def nbytes(self) -> int:
        """The bytes that this reader holds, including those of its running fetch."""
        return self._held_ask + self._held_batch

    def empty(self) -> bool:
        """True if no record is fetched or requested; discarding the reader loses no records."""
        return self.batch is None and self.future is None

    def open(self) -> Reader:
        """Return the provider's reader; if there is none, open one at the current position."""
        if self.reader is None:
            self.reader = self.feed.open(self.partition_id, self.position)
            self._observing.reader_opened(self.feed.spec.address, self.feed.public_id(self.partition_id))
        return self.reader

    def takes_too_long(self) -> bool:
        """Return True if the running fetch is to be given up."""
        reader, future = self.reader, self.future
        if future is None or future.done():
            return False
        longest = ANSWER_SECONDS + SILENT_SECONDS if reader is None else reader.longest_fetch()
        return time.monotonic() - self.asked_at > longest

    def drop_reader(self) -> None:
        """Close the provider's reader; the next `open` opens another reader at the same position."""
        reader, self.reader = self.reader, None
        if reader is not None:
            with suppress(Exception):
                reader.close()
            self._observing.reader_closed(self.feed.spec.address, self.feed.public_id(self.partition_id))

    def land(self) -> Batch:
        """Take over the batch from the finished fetch."""
        assert self.future is not None
        future, self.future = self.future, None
        self.batch, self.taken = future.result(), 0
        self.fetches += 1
        self.position = self.batch.end
        if self._held_ask:  # now the size of the answer; an empty answer holds no bytes
            self.hold(ask=0, batch=self.batch.nbytes)
        return self.batch

    def has_more(self, batch: Batch) -> bool:
        """Return whether to fetch the next batch at once; the first page may be the only one."""
        return (
            isinstance(batch.outcome, Continue)
            and batch.caught_up is not True
            and not batch.poll_after
            and self.fetches > 1
        )

    def used_up(self) -> None:
        """Record that all fetched records have been returned."""
        self.batch, self.taken = None, 0
        if self._held_batch:
            self.hold(batch=0)

    def discard(self) -> None:
        """Free everything; a running fetch is cancelled, and the reader is closed when the fetch ends."""
        future, self.future = self.future, None
        self.cancelled = True
        if self.arrival is not None:
            self.arrival.cancel()
        self.used_up()
        if future is None or future.done():
            self._ended()
            return
        if not future.cancel() and self.reader is not None:
            with suppress(Exception):
                self.reader.cancel()
        future.add_done_callback(lambda _: self._ended())

    def _ended(self) -> None:
        self.drop_reader()
        self.hold(ask=0)


_IDLE_SECONDS: Final = 60.0
# A consumer that reads page after page comes back within this time.
_RESTING_SECONDS: Final = 10.0
# One thirty-second of a full cache is reserved for new readers.
_PASSING_PART: Final = 32
# The random sequence is always the same, so that two runs of a program keep the same readers.
_dice: Final = Random(0)
_NOBODY: Final[dict[PartitionReader, None]] = {}

_Partition: TypeAlias = tuple[int, str]


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
        # Each part maps a reader to its partition. The readers of each part, and of each crowd, are in the
        # order in which they were put into the cache.
        self._resident: OrderedDict[PartitionReader, _Partition] = OrderedDict()
        self._passing: OrderedDict[PartitionReader, _Partition] = OrderedDict()
        self._crowds: dict[_Partition, dict[PartitionReader, None]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def pop(
        self, feed: Feed, partition_id: str, cursor: Cursor, hand: list[PartitionReader]
    ) -> PartitionReader | None:
        """Return the reader at exactly this position, or None; it is in `hand` before it leaves the cache."""
        with self._lock:
            here = _here(self._crowds.get((id(feed), partition_id), _NOBODY), cursor)
            if here is None:
                return None
            hand.append(here)
            return self._taken(here)

    def remove(self, reader: PartitionReader) -> None:
        """Take a reader out of the cache if it is there."""
        with self._lock:
            self._taken(reader)

    def holds(self, feed: Feed, partition_id: str, cursor: Cursor) -> bool:
        """Return whether a reader at exactly this position has fetched or requested records."""
        with self._lock:
            here = _here(self._crowds.get((id(feed), partition_id), _NOBODY), cursor)
            return here is not None and not here.empty()

    def put(self, reader: PartitionReader) -> None:
        """Keep a reader for the next call.

        A reader that is already cached at the same position is closed if no consumer has used either of the
        two readers a second time. Otherwise, the two readers belong to different consumers, and both are
        kept.
        """
        reader.used_at, gone = time.monotonic(), list[PartitionReader]()
        partition = (id(reader.feed), reader.partition_id)
        with self._lock:
            if self._closed:
                reader.discard()
                return
            crowd = self._crowds.get(partition)
            if crowd is None:
                crowd = self._crowds[partition] = {}
            elif not reader.proven:
                gone += [twin for twin in crowd if not twin.proven and _are_equal(twin, reader.cursor)]
            crowd[reader] = None  # before the twins are removed, because a crowd without readers is forgotten
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
        partition = (id(reader.feed), reader.partition_id)
        # An interrupt between two of these lines, or in `put`, may leave the reader in one of them only.
        self._resident.pop(reader, None)
        self._passing.pop(reader, None)
        crowd = self._crowds.get(partition, {})
        crowd.pop(reader, None)
        if not crowd:
            self._crowds.pop(partition, None)
        return reader

    def _unused_since(self, moment: float) -> list[PartitionReader]:
        """Return readers that were not used since then: first the small part, each part by its age in it."""
        found = []
        for part in (self._passing, self._resident):
            for reader in part:
                if reader.used_at >= moment:
                    break
                found.append(reader)
        return found


def _here(crowd: dict[PartitionReader, None], cursor: Cursor) -> PartitionReader | None:
    """Return the reader that was put last at this position."""
    for reader in reversed(crowd):
        if reader.cursor == cursor or _are_equal(reader, cursor):
            return reader
    return None


def _are_equal(reader: PartitionReader, cursor: Cursor) -> bool:
    without_hints = reader.feed.without_hints
    return bool(without_hints(reader.cursor) == without_hints(cursor))


def _surplus(crowd: dict[PartitionReader, None], most: int) -> PartitionReader:
    """Return the reader to close, of the cached readers of one partition, the oldest first.

    Each of these readers belongs to an active consumer or to a consumer that has left. A reader is called
    proven once its consumer has used it a second time. A consumer that continues in another process never
    uses its old reader again. Therefore, the cache first closes a random reader that is not proven. If the
    cache closed the oldest reader first, consumers that take turns would always find that their reader had
    just been closed. At most seven eighths of the readers count as proven, the newest first, so there is room
    for new consumers when old consumers have stopped.
    """
    proven = [reader for reader in reversed(crowd) if reader.proven]
    return _dice.choice([*(reader for reader in crowd if not reader.proven), *proven[most * 7 // 8 :]])
