"""Partitions being read: their readers, what is fetched and not handed out, and what that may hold.

A `Live` belongs to one call or to the cache, never to both: it is popped, used, and put back under
the position it has then. Losing one costs time, not events: the token has the position.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from itertools import takewhile
from typing import Final, TypeAlias

import orjson

from multiclouddb_spi.batch import Batch, Continue
from multiclouddb_spi.contract import Feed, Reader
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.reading.crowd import Crowd
from multiclouddb_spi.watch import Watch

__all__ = ["Budget", "Live", "LiveCache"]

_IDLE_SECONDS: Final = 60.0
# A consumer who comes back page by page is back in that time.
_RESTING_SECONDS: Final = 10.0
# Newcomers to a full cache have this part of it.
_PASSING_PART: Final = 32

_Place: TypeAlias = tuple[int, str, bytes]


def _place(feed: Feed, partition_id: str, cursor: Cursor) -> _Place:
    return id(feed), partition_id, orjson.dumps(feed.without_hints(cursor))


class Budget:
    """Bytes that are fetched or asked for and not handed out yet; one for a client.

    Attributes:
        limit: Bound in bytes.
        used: How many there are at present.
        expected: What a fetch is likely to bring although less is asked for: a service hands out at
            least one record, however large it is.
        lock: Held while `used` changes together with what a partition holds.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = self.expected = 0
        self.lock = threading.Lock()

    def learn(self, asked: int, nbytes: int) -> None:
        """A fetch has brought so many bytes where so many were asked for."""
        with self.lock:
            self.expected = max(self.expected, nbytes) if nbytes > asked else self.expected * 9 // 10

    def over(self, more: int = 0) -> int:
        """How many bytes would have to go to take `more`; 0 or less when it fits."""
        return self.used + more - self.limit


class Live:
    """One partition: a reader, at most one batch of it, and at most one fetch in flight.

    Attributes:
        cursor: Where reading goes on behind what was handed out.
        position: Where the reader stands, behind the batch.
        batch: What was fetched, or None.
        taken: How many records of the batch were handed out.
        future: The fetch in flight, or None.
        fetches: How many fetches have landed.
        window: How many records the next fetch asks for; grows while the reader is reused.
        not_before: Monotonic time before which asking again makes no sense.
        asked_at: Monotonic time of the last fetch's start: an older answer proves nothing now.
        retries: Calls that were made again in the last fetch.
        trouble: Why the fetch in flight was made again the last time, or None.
        waiting: True while the fetch in flight blocks for news: it had nothing when it was asked.
        cancelled: True once nobody wants the fetch in flight any more.
        call: Stands for the call that has had it last.
        proven: True once a later call has come back to it.
    """

    __slots__ = (
        "_budget",
        "_held_ask",
        "_held_batch",
        "_watch",
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

    def __init__(self, feed: Feed, partition_id: str, cursor: Cursor, budget: Budget, watch: Watch) -> None:
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
        self._budget, self._watch, self._held_ask, self._held_batch = budget, watch, 0, 0

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
        """What it holds, or may hold once its fetch has landed."""
        return self._held_ask + self._held_batch

    def empty(self) -> bool:
        """True when nothing is fetched nor asked for: only the reader would be lost."""
        return self.batch is None and self.future is None

    def open(self) -> Reader:
        """The reader, opened at the position when there is none."""
        if self.reader is None:
            self.reader = self.feed.open(self.partition_id, self.position)
            self._watch.reader_opened(self.feed.spec.address, self.feed.public_id(self.partition_id))
        return self.reader

    def outlasts(self) -> bool:
        """True when the fetch in flight is to be waited for by the next call, not begun again."""
        reader = self.reader
        return reader is not None and reader.outlasts()

    def drop_reader(self) -> None:
        """Close the reader; the next `open` makes another at the same position."""
        reader, self.reader = self.reader, None
        if reader is not None:
            with suppress(Exception):
                reader.close()
            self._watch.reader_closed(self.feed.spec.address, self.feed.public_id(self.partition_id))

    def land(self) -> Batch:
        """Take over what the fetch brought.

        Raises:
            Exception: What ended the fetch.
        """
        assert self.future is not None
        future, self.future = self.future, None
        self.batch, self.taken = future.result(), 0
        self.fetches += 1
        self.position = self.batch.cursor_after(len(self.batch))
        self.hold_ask(0)
        self._hold_batch(self.batch.nbytes)
        return self.batch

    def has_more(self, batch: Batch) -> bool:
        """Worth reading on at once: not for the first page of a caller who may want one only."""
        return (
            isinstance(batch.outcome, Continue)
            and batch.caught_up is not True
            and not batch.poll_after
            and self.fetches > 1
        )

    def used_up(self) -> None:
        """Everything that has landed has been handed out."""
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


class LiveCache:
    """Live partitions that no call uses at present, by feed, partition and position.

    Of one partition several are kept: one for each consumer in this process. More of them are what is left
    behind by consumers who go on in other processes, and each may hold something of the service's.

    A consumer asks its partitions in turns. When there are more of them than are kept, the longest unused
    reader is the one that is needed next. So a full cache keeps what it has: newcomers pass through a small
    part of it, and stay only if somebody comes back to them meanwhile.

    Args:
        budget: What they hold counts there.
        capacity: How many at most.
        most_of_one: How many of one partition at most.
    """

    def __init__(self, budget: Budget, capacity: int, most_of_one: int = 64) -> None:
        self._budget, self._capacity, self._most_of_one = budget, capacity, most_of_one
        self._residents = capacity - max(1, capacity // _PASSING_PART)
        self._resident: OrderedDict[Live, _Place] = OrderedDict()
        self._passing: OrderedDict[Live, _Place] = OrderedDict()
        self._places: dict[_Place, list[Live]] = {}
        self._crowds: dict[tuple[int, str], Crowd[Live]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def pop(self, feed: Feed, partition_id: str, cursor: Cursor) -> Live | None:
        """A live partition at this very position, or None."""
        with self._lock:
            here = self._places.get(_place(feed, partition_id, cursor)) or []
            return self._taken(here[-1]) if here else None

    def holds(self, feed: Feed, partition_id: str, cursor: Cursor) -> bool:
        """Whether something is fetched, or asked for, at this very position."""
        with self._lock:
            here = self._places.get(_place(feed, partition_id, cursor)) or []
            return bool(here) and not here[-1].empty()

    def put(self, live: Live) -> None:
        """Keep it for the next call.

        Another one under the same position is closed, unless somebody has come back to one of the two: then
        they belong to consumers that stand at one position.
        """
        live.used_at = time.monotonic()
        with self._lock:
            gone = [live] if self._closed else self._added(live)
        for old in gone:
            old.discard()

    def tidy(self, in_use: Callable[[Live], bool]) -> None:
        """Discard what nobody has used for a minute.

        What the caller says is `in_use` counts as used now: with many partitions a round takes longer.
        """
        now, gone = time.monotonic(), list[Live]()
        with self._lock:
            for live in self._unused_since(now - _IDLE_SECONDS / 2):
                if in_use(live):
                    live.used_at = now
                    (self._resident if live in self._resident else self._passing).move_to_end(live)
                elif live.used_at < now - _IDLE_SECONDS:
                    gone.append(self._taken(live))
        for old in gone:
            old.discard()

    def make_room(self, nbytes: int, in_use: Callable[[Live], bool]) -> bool:
        """Evict what others have fetched and left until that many bytes fit, the longest unused first.

        Never what is `in_use`, nor what another consumer has used a moment ago: it would be fetched again.

        Returns:
            Whether they fit.
        """
        missing, gone = self._budget.over(nbytes), list[Live]()
        with self._lock:
            for live in self._unused_since(time.monotonic() - _RESTING_SECONDS) if missing > 0 else ():
                if missing > 0 and not live.empty() and not in_use(live):
                    missing -= live.nbytes()
                    gone.append(self._taken(live))
        for old in gone:
            old.discard()
        return self._budget.over(nbytes) <= 0

    def forget(self, feed: Feed | None = None) -> None:
        """Discard the lives of one feed, or all."""
        with self._lock:
            lives = [*self._passing, *self._resident]
            gone = [self._taken(live) for live in lives if feed is None or live.feed is feed]
        for old in gone:
            old.discard()

    def close(self) -> None:
        """Discard all, and whatever calls that are still in flight put back."""
        with self._lock:
            self._closed = True
        self.forget()

    def __len__(self) -> int:
        return len(self._resident) + len(self._passing)

    # -- All of these with the lock held

    def _taken(self, live: Live) -> Live:
        """Take it out."""
        place = self._resident.pop(live, None) or self._passing.pop(live)
        self._places[place].remove(live)
        if not self._places[place]:
            del self._places[place]
        crowd = self._crowds[place[:2]]
        crowd.remove(live)
        if not crowd:
            del self._crowds[place[:2]]
        return live

    def _added(self, live: Live) -> list[Live]:
        """Put it in; what has to go for it."""
        place = _place(live.feed, live.partition_id, live.cursor)
        twins = [] if live.proven else [twin for twin in self._places.get(place, ()) if not twin.proven]
        gone = [self._taken(twin) for twin in twins]
        self._places.setdefault(place, []).append(live)
        crowd = self._crowds.setdefault(place[:2], Crowd())
        crowd.add(live, proven=live.proven)
        stays = live.proven or len(self._resident) < self._residents
        (self._resident if stays else self._passing)[live] = place
        if len(self._resident) > self._residents:
            oldest, place = self._resident.popitem(last=False)
            self._passing[oldest] = place
        surplus = crowd.surplus(self._most_of_one)
        if surplus is not None:
            gone.append(self._taken(surplus))
        if len(self) > self._capacity:
            oldest = next(iter(self._passing))
            gone.append(self._taken(next((each for each in self._passing if each.empty()), oldest)))
        return gone

    def _unused_since(self, moment: float) -> list[Live]:
        """The longest unused first, of either part."""
        return [
            live
            for part in (self._passing, self._resident)
            for live in takewhile(lambda each: each.used_at < moment, part)
        ]
