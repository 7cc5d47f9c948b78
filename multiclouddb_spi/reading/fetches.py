"""The fetches of one call. They start when threads and bytes are free.

Unfinished ones are kept for the next call.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from multiclouddb_api.wakeup import Wakeup
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.reading.context import ReadContext
from multiclouddb_spi.reading.fetcher import Ask, closed_fault
from multiclouddb_spi.reading.partition_reader import PartitionReader
from multiclouddb_spi.reading.turns import Turn, Turns
from multiclouddb_spi.reading.waiting import HEAD_SECONDS

__all__ = ["Fetches"]

_MIN_ASK: Final = 4096
_MAX_ASK: Final = 8 * 1024 * 1024
_LOOK_SECONDS: Final = 0.2
_SEND_SECONDS: Final = 50e-6


class Fetches:
    """The fetches of one call, and the readers that it has taken out of the cache for them.

    Args:
        context: The objects that all calls share.
        feed: The opened feed.
        turns: The call's partitions.
        active: How many partitions share the budget.
        limit: The page's limit. A first read asks for no more than this; later reads ask for more and more.
        deadline: The time limit of the call.

    Attributes:
        overtaken: Partitions that wait for bytes while the records of others are returned. They keep their
            place in the lineage, so they are asked first when bytes become free.
    """

    def __init__(
        self, context: ReadContext, feed: Feed, turns: Turns, active: int, limit: int, deadline: Deadline
    ) -> None:
        self._context, self._feed, self._turns = context, feed, turns
        self._limit, self._deadline = limit, deadline
        self._cache, self._budget = context.cache, context.budget
        self._share = min(_MAX_ASK, max(_MIN_ASK, context.budget.limit // (active + 1)))
        self._most = max(limit, context.page_records)
        self._call, self._no_room, self._sorted = object(), False, False
        self._landed: deque[Turn] = deque()
        self._slow_from = 0.0  # no partition that is asked is slow before this moment
        self._wakeup = Wakeup()
        self.overtaken: frozenset[str] = frozenset()

    def may_ask(self) -> bool:
        """Whether one more partition can be asked now; the call may change which partition is first."""
        if not self._turns.due or (len(self._turns.asked) >= self._context.width and self._full()):
            return False
        return self._has_room() or self._may_ask_without()

    def _full(self) -> bool:
        """Whether enough partitions are being asked; slow ones do not count, so that others are asked."""
        now = time.monotonic()
        if now < self._slow_from:
            return True
        began = [turn.reader.asked_at for turn in self._turns.asked.values() if turn.reader]
        fresh = [at for at in began if at > now - HEAD_SECONDS]
        if len(fresh) == len(began):
            self._slow_from = min(fresh, default=now) + HEAD_SECONDS
        return len(fresh) >= self._context.width

    def _has_room(self) -> bool:
        """Whether there are bytes left for one more answer.

        It does not evict records that this call or another consumer will return next, because fetching them
        again would cost more than waiting until they are returned.
        """
        reserve = max(self._share, self._budget.expected)
        if self._budget.over(reserve) <= 0:
            return True
        if not self._no_room:  # no room was found once, so there is none for the rest of this call
            self._no_room = not self._cache.make_room(reserve, self._in_use)
        return self._budget.over(reserve) <= 0

    def _may_ask_without(self) -> bool:
        """Whether a partition may be asked although no bytes are left for an answer.

        Partitions that already hold records go first, so that these are returned and free their bytes.
        If no partition holds records, one partition is asked alone, whatever its size.
        """
        due = self._turns.due
        if not self._sorted:
            self._sorted = True
            fetched = [name for name in due if self._holds(name)]
            for name in reversed(fetched):
                due.move_to_end(name, last=False)
            self.overtaken = frozenset(due).difference(fetched) if fetched else frozenset()
        return not self._turns.asked or self._holds(next(iter(due)))

    def _holds(self, partition_id: str) -> bool:
        return self._cache.holds(self._feed, partition_id, self._turns.position(partition_id))

    def _in_use(self, reader: PartitionReader) -> bool:
        return reader.feed is self._feed and self._turns.position(reader.partition_id) == reader.cursor

    def ask_held(self) -> None:
        """Ask the partitions that have records left, because the page may have room for these now."""
        self._turns.ask(list(self._turns.held))
        self._sorted = False

    def take(self, partition_id: str, cursor: Cursor) -> PartitionReader:
        """The reader that an earlier call left at this position, or a new one."""
        reader = self._cache.pop(self._feed, partition_id, cursor)
        if reader is None:
            reader = PartitionReader(self._feed, partition_id, cursor, self._budget, self._context.observing)
        elif reader.call is not self._call:
            reader.proven = True
        reader.call = self._call
        return reader

    def launch(self, turn: Turn, reader: PartitionReader, wait: float, most: int | None = None) -> None:
        """Ask a partition; the fetch lands when the answer arrives, or at once if records are left.

        Args:
            turn: The partition.
            reader: From `take`.
            wait: Seconds that the service may take to wait for news.
            most: The most records to ask for, or None.
        """
        self._turns.launched(turn, reader, waits=wait > 0)
        if reader.batch is not None:
            self._landed.append(turn)
            return
        if reader.future is None:
            self._start(reader, wait, most)
        assert reader.future is not None
        self._slow_from = min(self._slow_from, reader.asked_at + HEAD_SECONDS)

        def arrived(_: object) -> None:
            """Called from any thread."""
            self._landed.append(turn)
            self._wakeup.send()

        reader.future.add_done_callback(arrived)

    def land(self, patience: float) -> Turn | None:
        """The next partition that has answered, or None after `patience` seconds.

        Raises:
            ProviderFault: The client was closed.
        """
        until = time.monotonic() + patience
        while True:
            landed = bool(self._landed)  # read first: closing cancels fetches in flight, which then land
            if self._context.closed.is_set():
                raise closed_fault()
            if landed:
                return self._landed.popleft()
            left = until - time.monotonic()
            if left <= 0:
                return None
            self._wakeup.wait(min(_LOOK_SECONDS, left))

    def prefetch(self, reader: PartitionReader) -> None:
        """Begin the next read of a partition that has more, if there is room for it."""
        if (
            reader.future is None
            and len(self._turns.asked) < self._context.width
            and not self._no_room  # otherwise other partitions have waited for these bytes
            and self._budget.over(max(self._share, self._budget.expected)) <= 0
        ):
            self._start(reader, 0.0)
            if not self._landed:
                # Let the pool's thread send the request: mapping comes next and does not release the
                # interpreter. If another answer has arrived, the service is not what this call waits for.
                time.sleep(_SEND_SECONDS)

    def park(self) -> dict[str, Exception | None]:
        """Leave fetches in flight to the next call; after the deadline, cancel those that lose nothing.

        Returns:
            The partitions whose answer is late, with the failure of their fetch so far.
        """
        passed = self._deadline.passed()
        late: dict[str, Exception | None] = {}
        for turn in self._turns.asked.values():
            reader = turn.reader
            assert reader is not None
            if passed and reader.future is not None and not reader.future.done():
                if not (turn.awaited and reader.trouble is None):  # it waits for news, and there is none
                    late[turn.partition_id] = reader.trouble
                if not reader.outlasts():
                    reader.discard()
                    continue
            self._cache.put(reader)
        self._cache.tidy(self._in_use)
        return late

    def abandon(self) -> None:
        """Cancel everything in flight."""
        for turn in self._turns.asked.values():
            if turn.reader is not None:
                turn.reader.discard()

    def _start(self, reader: PartitionReader, wait: float, most: int | None = None) -> None:
        reader.window = min(self._most, max(self._limit, 2 * reader.window))
        reader.waiting = wait > 0
        reserve = max(self._share, self._budget.expected)
        records = reader.window if most is None else min(reader.window, most)
        self._context.fetcher.start(reader, Ask(records, self._share, reserve, wait, self._deadline))
