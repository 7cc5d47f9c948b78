"""Reads for one call: asks the partitions of a lineage until the page is full or all have answered.

Fetches run in the thread pool; the code in this module runs in the caller's thread. `turns.py` defines the
stage of each partition. This module moves the partitions from stage to stage; the numbers in the code mark
where this happens:

 1. The poll asks partitions in the order of the lineage, several at once. The poll first uses records that an
    earlier call has fetched but not returned. No partition starves, because the token preserves the order.
 2. The poll takes answers in the order in which they arrive. Records are mapped, and cut at the size limit of
    the page. The cursor moves only past returned records, so a token skips only records that were returned.
 3. A partition that has ended leaves the lineage once its last record is returned; its children are read in
    the same call.
 4. If there is something to return, the poll ends as soon as no further answer is ready. However, it first
    waits for the turn of the first partition in the queue. A place on the page is kept for the first
    partition in the queue, so a slow partition is never starved. If the first partition takes longer than
    `HEAD_SECONDS`, its turn is over.
 5. If there is nothing to return, the poll continues until every partition has reported that it has no
    records. Then the poll waits as long as the caller wants to wait, unless it has a notice to report.
 6. After a notice, the poll returns nothing more from the partition of the notice. The poll also returns
    nothing from the partitions that are read because of the notice. A later call returns the records of the
    partitions that were left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from multiclouddb_api import OnExpired
from multiclouddb_spi.batch import Batch
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.faults import ProviderFault, RecordFault
from multiclouddb_spi.reading.answers import Answers
from multiclouddb_spi.reading.context import ReadContext
from multiclouddb_spi.reading.fetcher import late_fault
from multiclouddb_spi.reading.fetches import Fetches
from multiclouddb_spi.reading.partition_reader import PartitionReader
from multiclouddb_spi.reading.result import PollResult
from multiclouddb_spi.reading.scanning import Clock, Scanning
from multiclouddb_spi.reading.turns import Stage, Turn, Turns
from multiclouddb_spi.reading.waiting import HEAD_SECONDS, Waiting

__all__ = ["Poll"]

T = TypeVar("T")


class Poll(Generic[T]):
    """Reads for one call; each call makes its own instance.

    Args:
        context: The objects that all calls share.
        feed: The opened feed.
        lineage: Changed in place.
        limit: The largest number of records to return.
        view: A function that makes the values for the caller from the records `[i, j)` of a batch.
        deadline: The time limit of the call.
        wait: The number of seconds to wait for a first record.
        on_expired: What to do if a position is older than the retention.
        single: True to report the end of a partition instead of continuing with its children.
        now: A function that asks for the service's time; needed only for a snapshot.
    """

    def __init__(
        self,
        context: ReadContext,
        feed: Feed,
        lineage: Lineage,
        limit: int,
        view: Callable[[Batch, int, int], T],
        deadline: Deadline,
        *,
        wait: float,
        on_expired: OnExpired,
        single: bool,
        now: Clock,
    ) -> None:
        self._context, self._lineage = context, lineage
        self._turns = turns = Turns(lineage)
        self._answers = Answers(
            context, feed, lineage, turns, limit, view, deadline, on_expired=on_expired, single=single
        )
        self._result = self._answers.result
        self._waiting, self._longest_wait = Waiting(deadline, wait), feed.longest_wait
        self._scanning = Scanning(context, feed, lineage, self._result, deadline, now, single=single)
        self._first, self._rest = list[str](), list[str]()
        for entry in (active := self._scanning.active):
            turns.of(entry.partition_id).failed_last = entry.failed_last
            (self._first if entry.failed_last else self._rest).append(entry.partition_id)
        self._head = turns.of(active[0].partition_id) if active else None
        self._fetches = Fetches(context, feed, turns, len(active), limit, deadline)

    def run(self) -> PollResult[T]:
        """Read one page.

        Raises:
            Exception: An error from the provider in a call that does not belong to a single partition.
        """
        result, turns = self._result, self._turns
        try:
            turns.ask(self._answers.discover())
            if self._first:
                self._read_alone()
            turns.ask([*self._rest, *self._scanning.refill()] if self._scanning.runs else self._rest)
            self._answers.audit_when_due(self._context.audit_seconds, self._launch)
            self._read()
            if not result.count:
                # Before an empty page is returned, read the children of partitions that ended in this call.
                while not (result.in_hand() or result.full()) and self._answers.has_ended():
                    turns.ask(self._answers.discover())
                    self._read()
                if not (result.stopped() or result.in_hand()):
                    self._wait()
        except BaseException:
            self._fetches.abandon()
            raise
        self._finish()
        return result

    # -- Rounds

    def _read_alone(self) -> None:
        """First read the partitions whose errors ended the last call, to find a lasting error early."""
        self._turns.ask(self._first)
        while not (self._result.full() or all(name in self._turns.served for name in self._first)):
            self._launch()
            turn = self._fetches.land(self._waiting.for_head()) if self._turns.asked else None
            if turn is None:
                return
            self._answer(turn)

    def _read(self) -> None:
        """Read the partitions that are due, including newly started ones, until the call must end."""
        turns = self._turns
        while not self._result.full():
            self._launch()
            if self._may_begin_again():
                return
            turn = self._fetches.land(self._patience()) if turns.asked else None
            if turn is not None:
                self._answer(turn)
            elif not (self._keep_polling() if turns.asked or turns.held else self._sleep_until_paced()):
                return

    def _wait(self) -> None:
        """5. After every partition has answered, wait for new records as long as the caller wants to."""
        waiting = self._waiting
        while not (self._result.full() or self._result.in_hand()) and time.monotonic() < waiting.until:
            self._context.pause(waiting.before_round())
            waiting.begin_round()
            self._turns.ask(self._answers.discover())
            asked = self._answers.worth_asking()
            if not asked and self._lineage.active():
                break
            self._turns.ask(asked)
            self._read()

    # -- 1. Ask

    def _launch(self) -> None:
        """Start reads of as many partitions as threads and bytes allow."""
        turns, fetches = self._turns, self._fetches
        wait = 0.0  # in the first round, no fetch blocks
        if self._waiting.rounds and not self._result.count and len(self._lineage) <= self._context.width:
            wait = self._waiting.of_fetch(self._longest_wait())
        scanning, scans = self._scanning, self._scanning.runs
        while fetches.may_ask():
            turn = next(iter(turns.due.values()))
            if self._head is not None and self._head.partition_id in fetches.overtaken:
                self._has_had_turn(self._head, answered=False)
            if not self._lineage.reads(turn.partition_id):
                turns.move(turn, Stage.ANSWERED)
                continue
            reader = fetches.take(turn.partition_id, self._lineage.cursor(turn.partition_id))
            now, starts = time.monotonic(), reader.batch is None and reader.future is None
            not_before = max(reader.not_before, scanning.not_before(turn)) if scans else reader.not_before
            if starts and not_before > now:
                turns.pace(turn, not_before)
                self._context.cache.put(reader)
                self._has_had_turn(turn, answered=False)
                continue
            slow = reader.future is not None and now - reader.asked_at > HEAD_SECONDS
            if reader.waiting or slow:
                self._has_had_turn(turn, answered=False)
            fetches.launch(turn, reader, wait, scanning.most_records(turn) if scans and starts else None)

    # -- 4. Wait for answers

    def _patience(self) -> float:
        """Return how long to wait for the next answer."""
        if self._head is not None and (self._result.count or self._turns.held):
            return self._waiting.for_head()
        if self._turns.held and self._scanning.is_sharing():
            return self._scanning.patience(self._waiting.for_head())
        if self._result.count:
            return self._waiting.for_more()
        return self._waiting.for_answer(more_to_ask=bool(self._turns.due))

    def _may_begin_again(self) -> bool:
        """5. Return whether to read all partitions again; waiting or slow partitions do not prevent this."""
        turns, now = self._turns, time.monotonic()
        if now >= self._waiting.until or turns.due or turns.held or self._result.in_hand():
            return False
        readers = [turn.reader for turn in turns.asked.values()]
        if not all(reader and (reader.waiting or now - reader.asked_at > HEAD_SECONDS) for reader in readers):
            return False
        return 0 < len(readers) < len(self._lineage.active())  # last, because it visits the whole lineage

    def _keep_polling(self) -> bool:
        """Handle the case that no answer arrived in time; return True if there is still something to do."""
        now = time.monotonic()
        more = bool(self._turns.held) or (not self._result.count and now < self._waiting.end())
        over = now >= self._waiting.head_until or not self._turns.asked
        if over and self._head is not None:
            self._has_had_turn(self._head)
        elif (over or (self._head is None and self._scanning.is_stuck())) and self._scanning.share_no_more():
            self._fetches.ask_held()
        return more

    def _sleep_until_paced(self) -> bool:
        """If there is nothing else to do, sleep until the next partition may be read."""
        paced = self._turns.paced
        if self._result.in_hand() or not paced:
            return False
        soonest = min(turn.not_before for turn in paced.values())
        if soonest >= (self._waiting.until if self._waiting.rounds else self._waiting.last_ask):
            return False
        self._context.pause(soonest - time.monotonic())
        self._turns.ask_paced()
        return True

    def _has_had_turn(self, turn: Turn, *, answered: bool = True) -> None:
        """Stop waiting for the first partition; other partitions and the scan may use its place.

        A partition that has not answered keeps its place in the queue.
        """
        if answered:
            self._turns.serve(turn)
        shared = self._scanning.runs and self._scanning.has_had_turn(turn)
        if shared or turn is self._head:
            self._head = None if turn is self._head else self._head
            if self._turns.held:
                self._fetches.ask_held()

    # -- 2. Take an answer

    def _answer(self, turn: Turn) -> None:
        reader = self._turns.landed(turn)
        if not self._lineage.is_read(turn.partition_id, reader.cursor):
            # A loss has moved or removed the partition: what was fetched of it is dropped.
            reader.discard()
            if self._lineage.reads(turn.partition_id):
                self._turns.ask([turn.partition_id])
            return
        try:
            batch = reader.batch
            if batch is None:
                batch = self._answers.landed(turn, reader)
                if self._scanning.runs:
                    self._scanning.landed(turn, batch)
        except RecordFault as fault:
            reader.discard()
            self._has_had_turn(turn)
            self._result.poison = (turn.partition_id, fault)
        except Exception as error:  # noqa: BLE001 - classified by the provider
            reader.discard()
            if reader.asked_at < self._waiting.began:
                self._turns.ask([turn.partition_id])  # an earlier call's fetch: a new one may succeed
                return
            self._has_had_turn(turn)
            self._turns.ask(self._answers.failed(turn, error))
        else:
            if turn.error is not None:
                self._turns.recover(turn)
            self._take(turn, reader, batch)

    def _take(self, turn: Turn, reader: PartitionReader, batch: Batch) -> None:
        scanning, count = self._scanning, len(batch.records)
        # 4. The place of the first partition on the page is kept for it.
        kept = self._head is not None and turn is not self._head and not turn.failed_last
        places = self._result.limit - self._result.count - kept
        if scanning.runs:
            places = scanning.places(turn, places)
        if reader.taken < count and not places and not turn.noticed:
            self._context.cache.put(reader)
            self._turns.move(turn, Stage.HELD)
            return
        self._has_had_turn(turn)
        if turn.noticed:  # 6.
            self._context.cache.put(reader)
            return
        stop = min(count, reader.taken + places)
        try:
            if stop == count > 0 and reader.has_more(batch) and not scanning.not_before(turn):
                self._fetches.prefetch(reader)
            if scanning.runs:
                scanning.takes(turn, stop - reader.taken)
            if not self._answers.take(turn, reader, batch, stop):
                reader.discard()
            elif reader.taken == count:
                self._used_up(turn, reader, batch)
            else:
                self._context.cache.put(reader)
                self._turns.move(turn, Stage.HELD)
        except BaseException:
            reader.discard()
            raise

    def _used_up(self, turn: Turn, reader: PartitionReader, batch: Batch) -> None:
        """3. After the last record of an ended partition is returned, end the partition."""
        fresh = reader.asked_at >= self._waiting.began
        reader.used_up()
        started = self._answers.finish(turn, batch, reader.asked_at)
        if started is not None:
            self._turns.ask([*started, *self._scanning.refill()])
            reader.discard()
            return
        reader.not_before = reader.asked_at + batch.poll_after if batch.poll_after else 0.0
        self._context.cache.put(reader)
        if batch.notices:
            return
        if fresh and not len(batch) and batch.caught_up is not False:
            turn.silent = True
        elif not (len(batch) and batch.caught_up):
            self._turns.ask([turn.partition_id])
            self._scanning.asks_again(turn)

    # -- The end

    def _finish(self) -> None:
        result, turns = self._result, self._turns
        late = self._fetches.park()
        if not (result.count or result.stopped()):
            result.idle = self._lineage.is_quiet(turns.quiet())
        for name, trouble in late.items():  # the error of a throttled call explains more than a late answer
            turn = turns.of(name)
            turns.fail(turn, trouble or turn.error or ProviderFault(late_fault()))
        self._lineage.rotate([*turns.served, *late])
        stuck = result.failure or result.poison
        if stuck is not None and stuck[0] in self._lineage:
            self._lineage.failed_last(stuck[0])
