"""Keeps the consumers of one client between their calls."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import ClassVar, Final

from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import state_from_json
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_spi.contract import Feed, FeedSpec
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.stream import Budget, Stream

_MOST_KEYS: Final = 16384
_MOST_PARTITIONS: Final = 100_000
_IDLE_SECONDS: Final = 60.0
# A consumer that reads page after page comes back within this time.
_UNUSED_SECONDS: Final = 10.0
_MOST_AT_ONCE: Final = 8


class Consumers:
    """Finds the consumer for a request by its token or its start; for the keys see `Calls._used`.

    A call takes a consumer out for its own use, so another call with the same token begins without one. The
    least recently used one is discarded first, and any that was not used for a minute; of one that still
    searches for children, only the readers are then closed. Ages are looked at when a call gives a consumer
    back.

    Attributes:
        most_readers: The most readers that stay open between calls.
        checks: True to compare each consumer with the content of its token; only tests set it.
    """

    checks: ClassVar[bool] = False

    def __init__(self, budget: Budget, most_readers: int) -> None:
        self._budget, self.most_readers = budget, most_readers
        self._kept: OrderedDict[Hashable, Consumer] = OrderedDict()
        self._used = dict[Consumer, int]()  # those that a call uses, and in which thread
        self._partitions = self._open = 0  # those of the kept ones
        self._lock = threading.Lock()
        # Streams to discard, which may take a request to the service: after the lock is free.
        self._dropped = deque[Stream]()
        self._sweeping = threading.Lock()
        self._closed = False

    def take(self, key: Hashable, spec: FeedSpec, scope: str) -> Consumer | None:
        """Return the consumer for a key, for the use of one call; None if there is none, or if it is in use.

        Args:
            key: A token or a start.
            spec: The feed of the request.
            scope: The scope of the request; a token of one scope must be refused for another one.
        """
        with self._lock:
            found = self._kept.get(key)
            if found is None or found.feed.spec != spec or found.scope != scope:
                return None
            if self.checks:
                _check(found)
            self._used[found] = threading.get_ident()
            self._take_out(found)
        return found

    def use(self, consumer: Consumer, instead: Consumer | None = None) -> None:
        """Record that a call uses a new consumer, which has taken over what another one had in use."""
        self._used[consumer] = threading.get_ident()
        if instead is not None:
            self._used.pop(instead, None)

    def put(self, consumer: Consumer, *keys: Hashable) -> None:
        """Keep a consumer for later calls with these keys, after a call has used it."""
        consumer.used_at = time.monotonic()
        if self._budget.used > self._budget.limit:
            self.make_room(0)
        with self._lock:
            if self._closed:
                consumer.detach_all(self._dropped)
            else:
                for key in keys:
                    if (other := self._kept.get(key)) is not None and other is not consumer:
                        self._remove(other)
                    self._kept[key] = consumer
                consumer.keys = keys
                self._count(consumer, 1)
                self._trim(consumer)
            self._used.pop(consumer, None)
        self._sweep()

    def release(self, consumer: Consumer) -> None:
        """Give a consumer back that the call has not changed."""
        self.put(consumer, *consumer.keys)

    def discard(self, consumer: Consumer) -> None:
        """Discard a consumer that a call uses."""
        consumer.discard()
        self._used.pop(consumer, None)

    def make_room(self, nbytes: int) -> bool:
        """Free fetched records until `nbytes` fit: of unused consumers, the longest unused first."""
        missing = self._budget.over(nbytes)
        with self._lock:
            before = time.monotonic() - _UNUSED_SECONDS
            for consumer in list(self._kept.values()):
                if missing <= 0 or consumer.used_at >= before:
                    break  # another consumer that was just used would have to fetch the records again
                for stream in list(consumer.streams.values()):
                    if missing > 0 and not stream.empty():
                        missing -= stream.nbytes()
                        consumer.detach(stream, self._dropped)
                        self._open -= 1
        self._sweep()
        return self._budget.over(nbytes) <= 0

    def forget(self, feed: Feed | None = None) -> None:
        """Discard the consumers of one feed, or of all feeds, that no call uses."""
        with self._lock:
            for each in list(self._kept.values()):
                if each.keys and (feed is None or each.feed is feed):
                    self._remove(each)
        self._sweep()

    def close(self) -> None:
        """Discard all consumers: those that calls of other threads use are discarded when they come back."""
        self._closed = True
        self.forget()
        here = threading.get_ident()
        for consumer in [each for each, thread in list(self._used.items()) if thread == here]:
            self.discard(consumer)

    def __len__(self) -> int:
        return len({id(each) for each in self._kept.values()})

    def _sweep(self) -> None:
        with self._sweeping:
            while self._dropped:
                self._dropped[0].discard()
                self._dropped.popleft()

    # -- The caller of these methods holds the lock

    def _count(self, consumer: Consumer, sign: int) -> None:
        """Count a consumer that is kept from now on, or was kept until now."""
        self._partitions += sign * (len(consumer.state) if isinstance(consumer.state, Lineage) else 1)
        self._open += sign * consumer.open_streams

    def _take_out(self, consumer: Consumer) -> None:
        self._count(consumer, -1)
        for key in consumer.keys:
            if self._kept.get(key) is consumer:
                del self._kept[key]

    def _remove(self, consumer: Consumer) -> None:
        """Discard a consumer that is kept."""
        self._take_out(consumer)
        consumer.keys = ()
        consumer.detach_all(self._dropped)

    def _close_readers(self, consumer: Consumer, most: int) -> None:
        """Close readers of a kept consumer until so many are open; those that were made last go first."""
        for stream in list(reversed(consumer.streams.values())):
            if consumer.open_streams <= most:
                return
            if stream.asked_at:
                consumer.detach(stream, self._dropped)
                self._open -= 1

    def _trim(self, newest: Consumer) -> None:
        """Discard what is too much; the newest consumer stays, but may lose readers."""
        idle = newest.used_at - _IDLE_SECONDS
        for consumer in self._oldest():
            if consumer is newest:
                continue
            is_much = len(self._kept) > _MOST_KEYS or self._partitions > _MOST_PARTITIONS
            if not (is_much or self._open > self.most_readers or consumer.used_at < idle):
                break
            if consumer.is_searching() and not is_much:
                self._close_readers(consumer, 0)
                consumer.used_at = newest.used_at
                for key in consumer.keys:
                    self._kept.move_to_end(key)
            else:
                self._remove(consumer)
        if self._open > self.most_readers:
            self._close_readers(newest, self.most_readers)

    def _oldest(self) -> list[Consumer]:
        """Return the consumers that are looked at for their age after one call."""
        # Only a few at a time, because closing their readers delays the call.
        found = list[Consumer]()
        for consumer in self._kept.values():
            if consumer not in found:
                found.append(consumer)
            if len(found) > _MOST_AT_ONCE:
                break
        return found


def _check(consumer: Consumer) -> None:
    """Compare what is kept with the content of its token."""
    if consumer.token is None or not isinstance(consumer.state, Lineage):
        return
    parsed = decode_token(consumer.token)
    state = state_from_json(parsed.state, consumer.feed)
    assert isinstance(state, Lineage)
    assert list(state) == list(consumer.state), "a token differs from the lineage that was kept"
    assert state.audited == consumer.state.audited
    kept = (consumer.watermark, consumer.read_until, consumer.skipped, consumer.scope, consumer.digest)
    assert kept == (
        parsed.watermark, parsed.read_until, parsed.skipped, parsed.scope, parsed.options_digest
    ), "a token differs from what was kept"  # fmt: skip
    assert consumer.incarnation == parsed.incarnation
    assert consumer.resumed_from == (None if parsed.fresh else consumer.token)
    for name, stream in consumer.streams.items():
        entry = state.reading(name)
        is_there = entry is not None and stream.cursor == entry.said[0]
        assert is_there or not stream.asked_at, "a stream is elsewhere"
