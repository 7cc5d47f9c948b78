"""The state of reading one partition: the provider's reader, the fetched records, and the fetch in flight.

A `PartitionReader` belongs to one call or to the cache, never to both. A call pops it, uses it, and puts it
back under its new position. Losing a reader costs time, not events, because the token contains the position.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress

from multiclouddb_spi.batch import Batch, Continue
from multiclouddb_spi.contract import Feed, Reader
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.observing import Observing

__all__ = ["Budget", "PartitionReader"]


class Budget:
    """Bytes that were fetched or requested but are not returned yet; one budget per client.

    Attributes:
        limit: Bound in bytes.
        used: The present number of bytes.
        expected: Bytes that a fetch is likely to return although it asks for less, because a service returns
            at least one record, however large the record is.
        lock: Held while `used` changes together with what a partition holds.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = self.expected = 0
        self.lock = threading.Lock()

    def learn(self, asked: int, nbytes: int) -> None:
        """Learn from a fetch that asked for `asked` bytes and returned `nbytes`."""
        with self.lock:
            self.expected = max(self.expected, nbytes) if nbytes > asked else self.expected * 9 // 10

    def over(self, more: int = 0) -> int:
        """How many bytes must be freed to take `more`; 0 or less if `more` fits."""
        return self.used + more - self.limit


class PartitionReader:
    """One partition: a reader, at most one batch of it, and at most one fetch in flight.

    Attributes:
        cursor: The position after the returned records.
        position: The reader's position, after the batch.
        batch: The fetched records, or None.
        taken: How many records of the batch were returned.
        future: The fetch in flight, or None.
        fetches: How many fetches have landed.
        window: How many records the next fetch asks for; the number grows while the reader is reused.
        not_before: Monotonic time before which asking again makes no sense.
        asked_at: Monotonic time of the last fetch's start; an answer from before a given moment proves
            nothing about that moment.
        retries: Retries of the last fetch.
        trouble: Why the fetch in flight was last retried, or None.
        waiting: True while the fetch in flight waits for news, because there was nothing when it was asked.
        cancelled: True once nobody wants the fetch in flight any more.
        call: Identifies the call that used it last.
        proven: True once a later call has come back to it.
    """

    __slots__ = (
        "_budget",
        "_held_ask",
        "_held_batch",
        "_observing",
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
        self.cancelled = self.waiting = False
        self.fetches = 0
        self.call: object = None
        self.proven = False
        self._budget, self._observing, self._held_ask, self._held_batch = budget, observing, 0, 0

    def hold_ask(self, nbytes: int) -> None:
        """Account for the fetch in flight, or for its batch until it has landed."""
        with self._budget.lock:
            self._budget.used += nbytes - self._held_ask
            self._held_ask = nbytes

    def fetched(self, asked: int, nbytes: int) -> None:
        """The fetch in flight has its answer."""
        self.hold_ask(nbytes)
        self._budget.learn(asked, nbytes)

    def _hold_batch(self, nbytes: int) -> None:
        with self._budget.lock:
            self._budget.used += nbytes - self._held_batch
            self._held_batch = nbytes

    def nbytes(self) -> int:
        """Bytes that it holds, or may hold after its fetch has landed."""
        return self._held_ask + self._held_batch

    def empty(self) -> bool:
        """True if nothing is fetched or requested, so that only the reader would be lost."""
        return self.batch is None and self.future is None

    def open(self) -> Reader:
        """The reader; if there is none, one is opened at the position."""
        if self.reader is None:
            self.reader = self.feed.open(self.partition_id, self.position)
            self._observing.reader_opened(self.feed.spec.address, self.feed.public_id(self.partition_id))
        return self.reader

    def outlasts(self) -> bool:
        """True when the next call has to wait for the fetch in flight instead of starting it again."""
        reader = self.reader
        return reader is not None and reader.outlasts()

    def drop_reader(self) -> None:
        """Close the reader; the next `open` makes another at the same position."""
        reader, self.reader = self.reader, None
        if reader is not None:
            with suppress(Exception):
                reader.close()
            self._observing.reader_closed(self.feed.spec.address, self.feed.public_id(self.partition_id))

    def land(self) -> Batch:
        """Take over the batch of the fetch.

        Raises:
            Exception: The error that ended the fetch.
        """
        assert self.future is not None
        future, self.future = self.future, None
        self.batch, self.taken = future.result(), 0
        self.fetches += 1
        self.position = self.batch.end
        self.hold_ask(0)
        self._hold_batch(self.batch.nbytes)
        return self.batch

    def has_more(self, batch: Batch) -> bool:
        """Whether to fetch the next batch at once; not on the first page, as a caller may want only one."""
        return (
            isinstance(batch.outcome, Continue)
            and batch.caught_up is not True
            and not batch.poll_after
            and self.fetches > 1
        )

    def used_up(self) -> None:
        """Note that everything that has landed has been returned."""
        self.batch, self.taken = None, 0
        self._hold_batch(0)

    def discard(self) -> None:
        """Free everything; a fetch in flight is cancelled and closed when it ends."""
        future, self.future = self.future, None
        self.cancelled = True
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
        self.hold_ask(0)
