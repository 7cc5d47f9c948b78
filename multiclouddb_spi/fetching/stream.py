"""Keeps what is known of one partition that is read: its records, its running fetch, and when it is due."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

import attrs
from attrs import define

from multiclouddb_spi.batch import Batch, Continue
from multiclouddb_spi.contract import Feed, Reader
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.positions import open_reader
from multiclouddb_spi.time_limits import ANSWER_SECONDS, SILENT_SECONDS, AnswerSize, Arrival

TURN_SECONDS: Final = 2.0
"""The turn: how many seconds the other partitions wait for the front of the queue."""


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
class Pace:
    """How fast the segments of one scan are read together; rows and charges are counted alike.

    A fetch is counted when it starts, as if it cost what it requests, and corrected when its answer is there.
    """

    rate: float  # how many rows, or how much charge, a second
    due_at: float = 0.0  # the monotonic time before which no segment is asked

    def starts(self, most: int) -> int:
        """Count a fetch of at most `most` rows; return how many it may request: those of about one second."""
        asked = self._of_a_second(most)
        self._spend(asked / self.rate)
        return asked

    def landed(self, batch: Batch, most: int) -> None:
        """Correct what `starts` has counted, now that the cost of the fetch is known."""
        cost = len(batch) if batch.charge is None else batch.charge
        self._spend((cost - self._of_a_second(most)) / self.rate)

    def _of_a_second(self, most: int) -> int:
        return max(1, int(min(self.rate, most)))

    def _spend(self, seconds: float) -> None:
        self.due_at = max(self.due_at, time.monotonic() if seconds > 0 else 0.0) + seconds


@define(eq=False, repr=False)
class Stream:
    """One partition at one position: at most one answer in hand, and at most one on its way.

    What is known of a position does not hold for another one, and a fetch that is given up may still end in
    its thread, so a stream that is moved or given up is replaced by another one (`Consumer.drop`).
    """

    feed: Feed
    partition_id: str
    cursor: Cursor  # after the records that were returned
    budget: Budget
    observing: Observing
    pace: Pace | None = None  # of its scan, if it is a segment of one with a rate
    position: Cursor = attrs.Factory(lambda self: self.cursor, takes_self=True)  # after the batch
    due_at: float = 0.0  # the monotonic time before which a request is not useful
    # Why the running fetch was retried, or why the service wants no request before `due_at`.
    error: Exception | None = None
    size: AnswerSize = attrs.field(factory=AnswerSize)  # how much its fetches request
    reader: Reader | None = None
    batch: Batch | None = None
    taken: int = 0  # the number of records of the batch that were returned
    is_new: bool = False  # nobody has looked at the batch before
    future: Future[Batch] | None = None  # of the running fetch
    at_once: bool = False  # the last fetch was answered in the thread of the caller
    fetches: int = 0  # those that have finished
    # How many records of its answer may be taken, if a share was kept for it when it was asked.
    most: int | None = None
    window: int = 0  # how many records the next fetch requests; grows while the stream is read
    # When the last fetch started, or 0: the answer does not show what happened after that.
    asked_at: float = 0.0
    retries: int = 0  # of the last fetch
    # The last fetch has failed after a long time, so the next failure is reported whichever call has asked.
    has_failed: bool = False
    waiting: bool = False  # the running fetch waits for new records, because there were none
    arrival: Arrival | None = None  # the limits on the answer of the running fetch, once it has begun
    cancelled: bool = False  # no call needs the result of the running fetch any longer
    held_ask: int = 0  # the bytes of the budget that are held for the running fetch
    held_batch: int = 0  # and for the batch

    def next_at(self) -> float:
        """Return the monotonic time before which another request is not useful, or too early for its scan."""
        return self.due_at if self.pace is None else max(self.due_at, self.pace.due_at)

    def hold(self, ask: int | None = None, batch: int | None = None) -> None:
        """Change the number of bytes that this stream holds in the budget; None keeps the previous value."""
        with (budget := self.budget).lock:
            ask, batch = self.held_ask if ask is None else ask, self.held_batch if batch is None else batch
            budget.used += ask + batch - self.held_ask - self.held_batch
            self.held_ask, self.held_batch = ask, batch

    def fetched(self, asked: int, nbytes: int) -> None:
        """Record that the running fetch has received its answer."""
        self.hold(nbytes)
        self.budget.learn(asked, nbytes)

    def nbytes(self) -> int:
        """The bytes that this stream holds, including those of its running fetch."""
        return self.held_ask + self.held_batch

    def empty(self) -> bool:
        """True if no record is fetched or requested; discarding the stream loses no records."""
        return self.batch is None and self.future is None

    def open(self) -> Reader:
        """Return the provider's reader; if there is none, open one at the current position."""
        if self.reader is None:
            self.reader = open_reader(self.feed, self.partition_id, self.position)
            self.observing.reader_opened(self.feed.spec.address, self.feed.public_id(self.partition_id))
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
        if (reader := self.reader) is not None:
            with suppress(Exception):
                reader.close()
            self.reader = None
            self.observing.reader_closed(self.feed.spec.address, self.feed.public_id(self.partition_id))

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
        if self.held_batch:
            self.hold(batch=0)

    def discard(self) -> None:
        """Free everything; a running fetch is cancelled, and the reader is closed when the fetch ends."""
        future, self.cancelled = self.future, True
        if (arrival := self.arrival) is not None:
            arrival.cancel()
        self.used_up()
        if future is not None and not future.done():
            if not future.cancel():
                self._cancel()
            future.add_done_callback(lambda _: self.ended())
        elif arrival is None:
            self.ended()
        else:  # its future is not known here yet; the running fetch frees everything when it ends
            self._cancel()
        self.future = None

    def _cancel(self) -> None:
        if self.reader is not None:
            with suppress(Exception):
                self.reader.cancel()

    def ended(self) -> None:
        """Free what a fetch holds that nobody waits for; it may be called more than once."""
        self.drop_reader()
        self.hold(ask=0)
