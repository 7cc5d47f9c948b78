"""Stores the state of reading one partition: the provider's reader, its records, and the current fetch.

A `PartitionReader` belongs either to one call or to the cache, never to both. A call takes a reader from the
cache, uses it, and puts it back under its new position. If a reader is lost, this costs time but no events,
because the token contains the position.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import suppress

from multiclouddb_spi.arrival import ANSWER_SECONDS, SILENT_SECONDS, Arrival
from multiclouddb_spi.batch import Batch, Continue
from multiclouddb_spi.contract import Feed, Reader
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.observing import Observing

__all__ = ["Budget", "PartitionReader"]


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
        trouble: The reason for the last retry of the running fetch, or None.
        waiting: True while the running fetch waits for new records, because there were none when it started.
        arrival: The limits on the answers of the last fetch.
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
        """Change the number of bytes that this reader holds in the budget; None keeps the previous value.

        Args:
            ask: The bytes that are reserved for the running fetch or, after its answer has arrived, the size
                of the answer.
            batch: The size of the fetched batch in bytes.
        """
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
        """Take over the batch from the finished fetch.

        Raises:
            Exception: The error with which the fetch ended.
        """
        assert self.future is not None
        future, self.future = self.future, None
        self.batch, self.taken = future.result(), 0
        self.fetches += 1
        self.position = self.batch.end
        if self._held_ask:  # now the size of the answer; an empty answer holds no bytes
            self.hold(ask=0, batch=self.batch.nbytes)
        return self.batch

    def has_more(self, batch: Batch) -> bool:
        """Return whether to fetch the next batch at once.

        Return False for the first page, because the caller may want only one page.
        """
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
