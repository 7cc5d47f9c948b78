"""Runs the fetches of one call: as many at once as threads and bytes allow."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from multiclouddb_api.pacing import Wakeup, still_waiting
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.fetching.consumer import ConsumedPartition, Consumer
from multiclouddb_spi.fetching.fetcher import ReadContext, closed_fault
from multiclouddb_spi.fetching.readers import PartitionReader
from multiclouddb_spi.fetching.turns import HEAD_SECONDS, Phase, Turn, Turns
from multiclouddb_spi.time_limits import Deadline

_MIN_ASK: Final = 4096
_MAX_ASK: Final = 8 * 1024 * 1024
_LOOK_SECONDS: Final = 0.2
_SEND_SECONDS: Final = 50e-6


class Fetches:
    """The fetches of one call.

    The first read of a partition requests at most `limit` records; later reads may request more.
    """

    def __init__(
        self,
        context: ReadContext,
        consumer: Consumer,
        turns: Turns,
        active: int,
        limit: int,
        most_bytes: int,
        deadline: Deadline,
    ) -> None:
        self._context, self._consumer, self._turns = context, consumer, turns
        self._limit, self._deadline, self._budget = limit, deadline, context.budget
        share = min(context.budget.limit // (active + 1), most_bytes)
        self._share = min(_MAX_ASK, max(_MIN_ASK, share))
        self._most = max(limit, context.page_records)
        self._no_room = self._sorted = self._at_once = False
        self._landed: deque[Turn] = deque()
        self._slow_from = 0.0  # before this time, no partition that is being read counts as slow
        self._wakeup = Wakeup()
        # They wait for memory while records of others are returned, and keep their place in the lineage.
        self.overtaken: frozenset[str] = frozenset()

    def may_ask(self) -> bool:
        """Return whether one more partition can be read now."""
        if not self._turns.due or (len(self._turns.asked) >= self._context.width and self._full()):
            return False
        if self._at_once and (self._landed or self._deadline.passed()):
            return False  # the answer is there already; the next partition may not be needed
        reserve = max(self._share, self._budget.expected)
        fits = self._budget.used + reserve <= self._budget.limit
        return fits or self._make_room(reserve) or self._may_ask_without()

    def _full(self) -> bool:
        """Return whether enough partitions are being read."""
        now = time.monotonic()
        if now < self._slow_from:
            return True
        began = [turn.reader.asked_at for turn in self._turns.asked.values() if turn.reader]
        fresh = [at for at in began if at > now - HEAD_SECONDS]
        if len(fresh) == len(began):
            self._slow_from = min(fresh, default=now) + HEAD_SECONDS
        return len(fresh) >= self._context.width

    def _make_room(self, reserve: int) -> bool:
        """Free other consumers' records; return whether enough bytes are then free for one more answer."""
        if not self._no_room:  # no room was found before, so there is none for the rest of this call
            self._no_room = not self._context.consumers.make_room(reserve)
        return self._budget.over(reserve) <= 0

    def _may_ask_without(self) -> bool:
        """Return whether a partition may be read although no bytes are left for an answer."""
        due = self._turns.due
        if not self._sorted:  # partitions with records go first, because returning records frees bytes
            self._sorted = True
            fetched = [name for name in due if self._holds(name)]
            for name in reversed(fetched):
                due.move_to_end(name, last=False)
            self.overtaken = frozenset(due).difference(fetched) if fetched else frozenset()
        return not self._turns.asked or self._holds(next(iter(due)))

    def _holds(self, partition_id: str) -> bool:
        part = self._consumer.partitions.get(partition_id)
        return part is not None and part.reader is not None and not part.reader.empty()

    def part_at(self, partition_id: str, cursor: Cursor) -> ConsumedPartition:
        """Return what an earlier call has left of a partition, but no reader that is given up."""
        part = self._consumer.at(partition_id, cursor)
        if part.reader is not None and (part.reader.cancelled or part.reader.takes_too_long()):
            self._consumer.drop_reader(part)
        return part

    def reader_of(self, partition_id: str, part: ConsumedPartition) -> PartitionReader:
        """Return the reader of a partition that is asked now; it is made if there is none."""
        part.not_before, part.trouble = 0.0, None
        context = self._context
        return self._consumer.reader_of(partition_id, part, context.budget, context.observing)

    def paced_until(self) -> float:
        """Return when the first of the paced partitions is worth asking."""
        return min(self._paced().values())

    def ask_paced(self) -> None:
        """Ask the paced partitions whose time has come."""
        now = time.monotonic()
        self._turns.ask([name for name, at in self._paced().items() if at <= now])

    def _paced(self) -> dict[str, float]:
        consumer = self._consumer
        return {name: consumer.not_before(name, consumer.partitions[name]) for name in self._turns.paced}

    def ask_held(self) -> None:
        """Read again from partitions that have records left, because the page may have room for them now."""
        self._turns.ask(list(self._turns.held))
        self._sorted = False

    def launch(self, turn: Turn, reader: PartitionReader, wait: float, most: int | None = None) -> None:
        """Start a fetch of a partition; it is finished at once if the reader still has records."""
        turn.reader, turn.awaited, turn.silent = reader, turn.silent and wait > 0, False
        turn.phase, self._turns.asked[turn.partition_id] = Phase.ASKED, turn
        del self._turns.due[turn.partition_id]
        if reader.batch is not None:
            self._landed.append(turn)
            return
        if reader.future is None:
            self._start(reader, wait, most)
        if reader.at_once:
            self._landed.append(turn)
            return
        assert reader.future is not None
        self._slow_from = min(self._slow_from, reader.asked_at + HEAD_SECONDS)

        def arrived(_: object) -> None:
            """Record that an answer arrived; any thread may call this method."""
            self._landed.append(turn)
            self._wakeup.send()

        reader.future.add_done_callback(arrived)

    def land(self, patience: float) -> Turn | None:
        """Return the next partition that has answered; None if none answers within `patience` seconds."""
        until = time.monotonic() + patience
        while True:
            landed = bool(self._landed)  # read before `closed`: closing cancels fetches, which then arrive
            if self._context.closed.is_set():
                raise closed_fault()
            if landed:
                return self._landed.popleft()
            left = until - time.monotonic()
            if left <= 0:
                return None
            if not self._wakeup.wait(min(_LOOK_SECONDS, left)):
                still_waiting(self._trouble)

    def _trouble(self) -> str | None:
        """Return the reason for the last retry of a running fetch."""
        readers = [turn.reader for turn in self._turns.asked.values() if turn.reader]
        failures = [reader.trouble for reader in readers if reader.trouble is not None]
        return self._context.fetcher.fault(failures[-1]).message if failures else None

    def prefetch(self, reader: PartitionReader) -> None:
        """Start the next read of a partition that has more records, if enough bytes are free."""
        if (
            reader.future is None
            and not reader.at_once
            and len(self._turns.asked) < self._context.width
            and not self._no_room  # otherwise, other partitions are waiting for these bytes
            and self._budget.over(max(self._share, self._budget.expected)) <= 0
        ):
            self._start(reader, 0.0)
            if not self._landed:
                # Let the pool's thread send the request now, because the mapping that follows does not
                # release the interpreter lock. If another answer has already arrived, this call is not
                # waiting for the service.
                time.sleep(_SEND_SECONDS)

    def park(self) -> dict[str, Exception | None]:
        """Leave running fetches to the next call, except those that have been running for too long."""
        passed, asked = time.monotonic() >= self._deadline.at, self._turns.asked
        late: dict[str, Exception | None] = {}
        while asked:
            turn = next(iter(asked.values()))
            reader = turn.reader
            assert reader is not None
            if passed and reader.future is not None and not reader.future.done():
                if not (turn.awaited and reader.trouble is None):  # else there are just no records
                    late[turn.partition_id] = reader.trouble
                if reader.takes_too_long():
                    self._consumer.drop_reader(self._consumer.partitions[turn.partition_id])
            del asked[turn.partition_id]
        return late

    def _start(self, reader: PartitionReader, wait: float, most: int | None = None) -> None:
        reader.window = min(self._most, max(self._limit, 2 * reader.window))
        reader.waiting = wait > 0
        reserve = max(self._share, self._budget.expected)
        records = reader.window if most is None else min(reader.window, most)
        reader.hold(reserve)
        self._context.fetcher.start(reader, records, self._share, wait, self._deadline)
        self._at_once = reader.at_once
