"""The fetches of one call: launched, landed, and parked for the next call when it ends."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

from multiclouddb_api.bell import Bell
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.reading.fetcher import Ask, Fetcher, closed_fault
from multiclouddb_spi.reading.live import Budget, Live, LiveCache
from multiclouddb_spi.watch import Watch

__all__ = ["HEAD_SECONDS", "Flight", "Workshop"]

_MIN_ASK: Final = 4096
_MAX_ASK: Final = 8 * 1024 * 1024
_LOOK_SECONDS: Final = 0.2
_SEND_SECONDS: Final = 50e-6
HEAD_SECONDS: Final = 2.0
"""So long a partition may keep others waiting; one that takes longer is read beside them."""


@attrs.frozen
class Workshop:
    """What all calls of one client share.

    Attributes:
        fetcher: Runs reads.
        cache: Readers and buffers between calls.
        budget: Bound on buffered bytes.
        watch: Observer and logs.
        closed: Set when the client is closed.
        width: Partitions read at once by one call.
        page_records: The provider's own page size.
        watch_seconds: For how long more children of a drained partition are looked for.
        audit_seconds: How often the coverage of a collection is audited.
    """

    fetcher: Fetcher
    cache: LiveCache
    budget: Budget
    watch: Watch
    closed: threading.Event
    width: int
    page_records: int
    watch_seconds: float
    audit_seconds: float


class Flight:
    """The lives that one call has taken out of the cache.

    Args:
        shop: What all calls share.
        feed: The opened feed.
        active: How many partitions share the budget.
        limit: The page's bound: a first read asks for no more, later ones for more and more.
        deadline: When the call has to be over.
        at: Where the call stands in a partition, or None where it does not read it.
    """

    def __init__(
        self,
        shop: Workshop,
        feed: Feed,
        active: int,
        limit: int,
        deadline: Deadline,
        at: Callable[[str], Cursor | None],
    ) -> None:
        self._shop, self._feed, self._limit, self._deadline, self._at = shop, feed, limit, deadline, at
        self._call, self._searched = object(), False
        self._share = min(_MAX_ASK, max(_MIN_ASK, shop.budget.limit // (active + 1)))
        self._flying: dict[str, Live] = {}
        self._landed: deque[str] = deque()
        self._bell = Bell()

    def __len__(self) -> int:
        return len(self._flying)

    def __contains__(self, partition_id: object) -> bool:
        return partition_id in self._flying

    def full(self) -> bool:
        """True when no further partition can be asked now: enough are in flight."""
        if len(self._flying) < self._shop.width:
            return False
        slow = time.monotonic() - HEAD_SECONDS
        return sum(live.asked_at > slow for live in self._flying.values()) >= self._shop.width

    def has_room(self) -> bool:
        """True when there are bytes left for one answer more.

        What this call or another consumer will hand out next is not evicted for it: to fetch that again
        would cost more than to wait until it is handed out.
        """
        if self._shop.budget.over(self._reserve()) <= 0:
            return True
        if not self._searched:  # in vain once, in vain for the rest of this call
            self._searched = not self._shop.cache.make_room(self._reserve(), self._in_use)
        return self._shop.budget.over(self._reserve()) <= 0

    def _reserve(self) -> int:
        return max(self._share, self._shop.budget.expected)

    def _in_use(self, live: Live) -> bool:
        return live.feed is self._feed and self._at(live.partition_id) == live.cursor

    def holds(self, partition_id: str) -> bool:
        """Whether an earlier turn has left something there: to launch it takes no further bytes."""
        return self._shop.cache.holds(self._feed, partition_id, self._at(partition_id))

    def take(self, partition_id: str, cursor: Cursor) -> Live:
        """What an earlier call left at this position, or a fresh start."""
        live = self._shop.cache.pop(self._feed, partition_id, cursor)
        if live is None:
            live = Live(self._feed, partition_id, cursor, self._shop.budget, self._shop.watch)
        elif live.call is not self._call:
            live.proven = True
        live.call = self._call
        return live

    def launch(self, live: Live, wait: float) -> None:
        """Ask a partition; it lands when it answers, at once when something is buffered."""
        self._flying[live.partition_id] = live
        if live.batch is not None:
            self._arrive(live.partition_id)
            return
        if live.future is None:
            self._start(live, wait)
        assert live.future is not None
        name = live.partition_id
        live.future.add_done_callback(lambda _: self._arrive(name))

    def _arrive(self, partition_id: str) -> None:
        """From any thread."""
        self._landed.append(partition_id)
        self._bell.ring()

    def land(self, patience: float) -> Live | None:
        """The next partition that has answered, or None after `patience` seconds.

        Raises:
            ProviderFault: The client was closed.
        """
        until = time.monotonic() + patience
        while True:
            landed = bool(self._landed)  # looked at first: closing cancels what flies, and then it lands
            if self._shop.closed.is_set():
                raise closed_fault()
            if landed:
                return self._flying.pop(self._landed.popleft())
            left = until - time.monotonic()
            if left <= 0:
                return None
            self._bell.wait(min(_LOOK_SECONDS, left))

    def keep(self, live: Live) -> None:
        """Put it back for the next turn or call."""
        self._shop.cache.put(live)

    def prefetch(self, live: Live) -> None:
        """Begin the next read of a partition that has more, if there is room for it."""
        if (
            live.future is None
            and len(self._flying) < self._shop.width
            and not self._searched  # then others have waited for these bytes
            and self._shop.budget.over(self._reserve()) <= 0
        ):
            self._start(live, 0.0)
            # Let the pool's thread send the request: mapping comes next and does not give up the interpreter.
            time.sleep(_SEND_SECONDS)

    def troubled(self) -> set[str]:
        """The partitions whose fetch has failed so far, and is made again."""
        return {name for name, live in self._flying.items() if live.trouble is not None}

    def park(self) -> dict[str, Exception | None]:
        """Leave what is in flight to the next call; past the deadline it is given up, if that loses nothing.

        Returns:
            The partitions that had no answer by the deadline, with what their fetch has failed with so far.
        """
        passed = self._deadline.passed()
        late: dict[str, Exception | None] = {}
        for live in self._flying.values():
            if passed and live.future is not None and not live.future.done():
                late[live.partition_id] = live.trouble
                if not live.outlasts():
                    live.discard()
                    continue
            self._shop.cache.put(live)
        self._flying.clear()
        self._shop.cache.make_room(0, self._in_use)
        self._shop.cache.tidy(self._in_use)
        return late

    def abandon(self) -> None:
        """Give up everything in flight."""
        for live in self._flying.values():
            live.discard()
        self._flying.clear()

    def _start(self, live: Live, wait: float) -> None:
        most = max(self._limit, self._shop.page_records)
        live.window = min(most, max(self._limit, 2 * live.window))
        live.waiting = wait > 0
        self._shop.fetcher.start(live, Ask(live.window, self._share, self._reserve(), wait, self._deadline))
