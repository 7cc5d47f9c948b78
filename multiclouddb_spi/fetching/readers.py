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
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from multiclouddb_api.value import define
from multiclouddb_spi.batch import Batch, Continue
from multiclouddb_spi.contract import Feed, Reader
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.time_limits import ANSWER_SECONDS, SILENT_SECONDS, Arrival

if TYPE_CHECKING:
    from random import Random


class Budget:
    """Counts the bytes that were fetched or requested but not returned yet; each client has one budget."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        # The number of bytes that a fetch is likely to return, even if it requests fewer bytes. A service
        # returns at least one record, however large the record is.
        self.expected = 0
        self.lock = threading.Lock()  # for `used` together with the bytes that a partition holds

    def learn(self, asked: int, nbytes: int) -> None:
        """Adapt `expected` after a fetch that requested `asked` bytes and returned `nbytes`."""
        if not (nbytes or self.expected):
            return
        with self.lock:
            self.expected = max(self.expected, nbytes) if nbytes > asked else self.expected * 9 // 10

    def over(self, more: int = 0) -> int:
        """Return how many bytes must be freed to make room for `more` bytes; 0 or less if they fit."""
        return self.used + more - self.limit


@define(eq=False, repr=False)
class PartitionReader:
    """The reader of one partition, with at most one batch of its records and at most one running fetch."""

    feed: Feed
    partition_id: str
    cursor: Cursor  # after the records that were returned
    _budget: Budget
    _observing: Observing
    position: Cursor = attrs.Factory(lambda self: self.cursor, takes_self=True)  # after the batch
    reader: Reader | None = None
    batch: Batch | None = None
    taken: int = 0  # the number of records of the batch that were returned
    future: Future[Batch] | None = None  # of the running fetch
    at_once: bool = False  # the last fetch was answered in the thread of the caller
    fetches: int = 0  # those that have finished
    window: int = 0  # how many records the next fetch requests; grows while the reader is reused
    not_before: float = 0.0  # the monotonic time before which another request is not useful
    asked_at: float = 0.0  # when the last fetch started; the answer does not show what happened after that
    used_at: float = 0.0
    retries: int = 0  # of the last fetch
    trouble: Exception | None = None  # why the running fetch was retried or, without a fetch, of `not_before`
    waiting: bool = False  # the running fetch waits for new records, because there were none
    arrival: Arrival | None = None  # the limits on the answers of its fetches, once the first has begun
    cancelled: bool = False  # no call needs the result of the running fetch any longer
    call: object = None  # the call that used this reader last
    proven: bool = False  # a later call has used this reader again
    _held_ask: int = 0
    _held_batch: int = 0

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
        self.batch = None
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
        """Keep a reader for the next call."""
        reader.used_at = time.monotonic()
        gone: list[PartitionReader] = []
        partition = (id(reader.feed), reader.partition_id)
        with self._lock:
            if self._closed:
                reader.discard()
                return
            crowd = self._crowds.get(partition)
            if crowd is None:
                crowd = self._crowds[partition] = {}
            elif not reader.proven:
                # Two readers at one position belong to two consumers only if one was used a second time.
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
        """Discard readers that were unused for a minute, and records that exceed the budget."""
        if self._budget.used > self._budget.limit:
            self.make_room(0, in_use)
        now, gone = time.monotonic(), list[PartitionReader]()
        with self._lock:
            for reader in self._unused_since(now - _IDLE_SECONDS / 2):
                if in_use(reader):  # one round over many partitions takes longer than a minute
                    reader.used_at = now
                    (self._resident if reader in self._resident else self._passing).move_to_end(reader)
                elif reader.used_at < now - _IDLE_SECONDS:
                    gone.append(self._taken(reader))
        for old in gone:
            old.discard()

    def make_room(self, nbytes: int, in_use: Callable[[PartitionReader], bool]) -> bool:
        """Evict records of other readers until `nbytes` fit, in the order of `_unused_since`."""
        missing, gone = self._budget.over(nbytes), list[PartitionReader]()
        with self._lock:
            for reader in self._unused_since(time.monotonic() - _RESTING_SECONDS):
                # Another consumer that has just used its reader would have to fetch the records again.
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


@cache
def _dice() -> Random:
    from random import Random  # a process with few readers needs none

    return Random(0)  # always the same sequence, so that two runs of a program keep the same readers


def _surplus(crowd: dict[PartitionReader, None], most: int) -> PartitionReader:
    """Return the reader to close, of the cached readers of one partition, the oldest first."""
    # A reader is proven once its consumer has used it a second time. A consumer that continues in another
    # process never uses its old reader again. Therefore, the cache first closes a random reader that is not
    # proven. If it closed the oldest one first, consumers that take turns would always find that their reader
    # had just been closed. At most seven eighths count as proven, the newest first, so there is room for new
    # consumers when old ones have stopped.
    proven = [reader for reader in reversed(crowd) if reader.proven]
    return _dice().choice([*(reader for reader in crowd if not reader.proven), *proven[most * 7 // 8 :]])
