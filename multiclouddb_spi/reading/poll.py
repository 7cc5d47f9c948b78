"""Reads for one call: asks the partitions of a lineage until the page is full or all have answered.

Fetches run in the thread pool; the code in this module runs in the caller's thread. It moves the partitions
from phase to phase: `turns.py` defines the phases, and `answers.py` what follows the end, the loss or the
failure of a partition. The rules:

- Partitions are asked in the order of the lineage, several at once, and records that an earlier call has
  fetched but not returned come first. No partition starves, because the token keeps the order.
- Answers are taken in the order in which they arrive. Records are mapped, and cut at the size limit of the
  page. The cursor moves only past returned records, so a token skips nothing else.
- A partition that has ended leaves the lineage once its last record is returned; its children are read in the
  same call.
- If there is something to return, the poll ends as soon as no further answer is ready. But it first waits for
  the turn of the first partition in the queue, for which a place on the page is kept, so that a slow
  partition never starves. If that takes longer than `HEAD_SECONDS`, its turn is over. And if the caller wants
  a page that is larger than usual, the poll waits up to half a second for the answer after a full one.
- If there is nothing to return, the poll goes on until every partition has reported that it has no records.
  Then it waits as long as the caller wants to, unless it has a notice to report.
- After a notice, nothing more is returned from its partition, nor from the partitions that are read because
  of it. Their records come in a later call.
- With `leaves_out`, partitions that are not worth asking yet are left out, and the page is not idle. Without
  it, the poll waits for them.
- The page ends before its records have more bytes than it may have. While the first partition in the queue
  has its turn, others that do not fit wait for it, as they do for its place.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from multiclouddb_api import OnExpired
from multiclouddb_api.pacing import answered
from multiclouddb_spi.batch import Batch, collector_paused
from multiclouddb_spi.computed_once import computed_once
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.faults import ProviderFault, RecordFault
from multiclouddb_spi.fetching.consumer import ConsumedPartition, Consumer
from multiclouddb_spi.fetching.fetcher import ReadContext, late_fault
from multiclouddb_spi.fetching.fetches import Fetches
from multiclouddb_spi.fetching.readers import PartitionReader
from multiclouddb_spi.fetching.turns import HEAD_SECONDS, Phase, PollResult, Turn, Turns, is_full_answer
from multiclouddb_spi.reading.answers import Answers
from multiclouddb_spi.time_limits import Deadline

if TYPE_CHECKING:
    from multiclouddb_spi.scan.scanning import Clock, Scanning

T = TypeVar("T")
_LINGER_SECONDS: Final = 0.002
# Records that have arrived wait so long for others, also those of another partition.
_FILL_SECONDS: Final = 0.5
_RETURN_SECONDS: Final = 1.0
# The first pause is short, because from the second round on, most services wait for new records themselves.
_FIRST_PAUSE_SECONDS: Final = 0.002
_LEAST_PAUSE_SECONDS: Final = 0.02
_MOST_PAUSE_SECONDS: Final = 0.5
# How long a loop that leaves out partitions rests at least if nothing is found, and at most while the
# children of ended partitions are looked for, or the feed is compared with the service's listing.
_LEAST_REST_SECONDS: Final = 0.1
_LOOK_REST_SECONDS: Final = 1.0
_SEARCH_REST_SECONDS: Final = 5.0


class Poll(Generic[T]):
    """Reads for one call; each call makes its own instance, which changes the consumer and its lineage."""

    def __init__(
        self,
        context: ReadContext,
        consumer: Consumer,
        limit: int,
        most_bytes: int,
        view: Callable[[Batch, int, int], T],
        deadline: Deadline,
        *,
        wait: float,
        on_expired: OnExpired,
        single: bool,
        now: Clock,
        leaves_out: bool = False,
    ) -> None:
        lineage, feed = consumer.state, consumer.feed
        assert isinstance(lineage, Lineage)
        self._context, self._consumer, self._view = context, consumer, view
        self._feed, self._lineage = feed, lineage
        plan, active, self._has_ends = lineage.plan, lineage.active(), bool(lineage.ends())
        self._leaves_out, self._has_left_out = leaves_out, False
        if leaves_out:
            rests = consumer.resting(active, time.monotonic())
            self._has_left_out = bool(rests)
            active = [entry for entry in active if entry.partition_id not in rests]
        self._turns = turns = Turns(lineage)
        self._result: PollResult[T] = PollResult(turns, limit, most_bytes)
        self._make_answers = partial(
            Answers, context, consumer, self._result, deadline, on_expired=on_expired, single=single
        )
        self._scanning: Scanning | None = None
        if plan is not None:
            from multiclouddb_spi.scan.scanning import Scanning

            self._scanning = Scanning(context, consumer, self._result, deadline, now, single=single)
            active = self._scanning.active  # the plan may have let more partitions start
        # Only a page that is larger than usual waits to be filled: with others, the caller handles one page
        # while the next answer is on its way.
        self._is_large = limit > context.page_records
        self._full = set[str]()  # the partitions whose last answer in this call was full
        self._first, self._rest = list[str](), list[str]()
        for entry in active:
            (self._first if entry.failed_last else self._rest).append(entry.partition_id)
        for name in self._first:
            turns.of(name).failed_last = True
        if not (self._first or self._has_ends):  # nothing comes before them
            turns.ask(self._rest)
            self._rest = []
        self._head = turns.of(active[0].partition_id) if active else None
        self._waiting, self._longest_wait = Waiting(deadline, wait), feed.longest_wait
        self._waits_at_once = feed.waits_at_service and len(active) == 1 and plan is None
        self._fetches = Fetches(context, consumer, turns, len(active), limit, most_bytes, deadline)

    @computed_once
    def _answers(self) -> Answers:
        """Made on first use, because most calls do not need it."""
        return self._make_answers()

    def run(self) -> PollResult[T]:
        """Read one page."""
        result, turns = self._result, self._turns
        started = self._answers.discover() if self._has_ends else []
        if self._first:
            turns.ask(started)
            self._read_alone()
            started = []
        started += self._rest
        if self._scanning is not None:
            started += self._scanning.refill()
        if started:
            turns.ask(started)
        if self._lineage.audited is not None and not result.stopped():
            self._answers.audit_when_due(self._context.audit_seconds, self._launch)
        self._read()
        if not result.count:
            # Before an empty page is returned, read the children of partitions that ended in this call.
            while not (result.in_hand() or self._is_full()) and self._answers.has_ended():
                turns.ask(self._answers.discover())
                self._read()
            self._wait()
        late = self._fetches.park()
        if self._leaves_out:
            result.soonest = self._soonest()
        result.moved = result.moved or self._has_left_out  # the failure of others does not hide the feed
        if not (result.count or result.stopped()):
            result.idle = self._lineage.is_quiet(turns.quiet())
        for name, trouble in late.items():  # a throttled call's error explains more than a late answer
            turn = turns.of(name)
            turns.fail(turn, trouble or turn.error or ProviderFault(late_fault()))
        self._lineage.rotate([*turns.served, *late])
        stuck = result.failure or result.poison
        if stuck is not None:
            self._lineage.failed_last(stuck[0])
        return result

    # -- Rounds

    def _is_full(self) -> bool:
        """Return whether the page must not receive more records."""
        result = self._result
        full = result.count >= result.limit or result.ended
        return full or bool(result.failure or result.poison or result.retired or result.over)

    def _read_alone(self) -> None:
        """First read the partitions whose errors ended the last call, to find a lasting error early."""
        self._turns.ask(self._first)
        while not (self._is_full() or all(name in self._turns.served for name in self._first)):
            self._launch()
            turn = self._fetches.land(self._waiting.for_head()) if self._turns.asked else None
            if turn is None:
                return
            self._answer(turn)

    def _read(self) -> None:
        """Read the partitions that are due, including newly started ones, until the call must end."""
        turns, scanning = self._turns, self._scanning
        while not self._is_full():
            self._launch()
            if time.monotonic() < self._waiting.until and self._may_begin_again():
                return
            turn = None
            if turns.asked:
                if self._head is not None and (self._result.count or turns.held):
                    patience = self._waiting.for_head()
                elif turns.held and scanning is not None and scanning.is_sharing():
                    patience = scanning.patience(self._waiting.for_head())
                elif self._result.count:
                    patience = self._waiting.for_more(fills=self._is_filling())
                else:
                    patience = self._waiting.for_answer(more_to_ask=bool(turns.due))
                turn = self._fetches.land(patience)
            if turn is not None:
                self._answer(turn)
            elif not (self._keep_polling() if turns.asked or turns.held else self._sleep_until_paced()):
                return

    def _wait(self) -> None:
        """After every partition has answered, wait for new records as long as the caller wants to."""
        waiting = self._waiting
        while not (self._is_full() or self._result.in_hand()) and time.monotonic() < waiting.until:
            pause = waiting.before_round()
            if self._leaves_out:
                pause = max(pause, min(self._soonest(), waiting.until) - time.monotonic())
            self._context.pause(pause)
            waiting.begin_round()
            self._turns.ask(self._answers.discover())
            asked, now = self._answers.worth_asking(), time.monotonic()
            if not asked and self._lineage.active():
                break
            rests = self._consumer.resting(asked, now) if self._leaves_out else ()
            self._turns.ask(each.partition_id for each in asked if each.partition_id not in rests)
            self._read()

    # -- Ask

    def _launch(self) -> None:
        """Start reads of as many partitions as threads and bytes allow."""
        turns, fetches = self._turns, self._fetches
        # In the first round, no fetch blocks, because the page also waits for other partitions. One that is
        # alone keeps nobody waiting, so its service gets one request that waits, and not another before it.
        wait = 0.0
        blocks = self._waiting.repeats or self._waits_at_once
        if blocks and not self._result.count and len(self._lineage) <= self._context.width:
            wait = self._waiting.of_fetch(self._longest_wait())
        scanning = self._scanning
        while fetches.may_ask():
            name, due = next(iter(turns.due.items()))
            turn = due or turns.of(name)
            if self._head is not None and self._head.partition_id in fetches.overtaken:
                self._has_had_turn(self._head, answered=False)
            entry = self._lineage.reading(turn.partition_id)
            if entry is None:
                turns.move(turn, Phase.ANSWERED)
                continue
            part = fetches.part_at(name, entry.said[0])
            now, starts = time.monotonic(), part.reader is None or part.reader.empty()
            if starts and self._consumer.not_before(name, part) > now:
                if part.trouble is not None:  # the service is throttling it: the call does not wait for it
                    turns.fail(turn, part.trouble)
                    turns.move(turn, Phase.ANSWERED)
                elif self._leaves_out:
                    self._has_left_out = True
                    turns.move(turn, Phase.ANSWERED)
                else:
                    turns.move(turn, Phase.PACED)
                self._has_had_turn(turn, answered=False)
                continue
            reader = fetches.reader_of(name, part)
            slow = reader.future is not None and now - reader.asked_at > HEAD_SECONDS
            if reader.waiting or slow:
                self._has_had_turn(turn, answered=False)
            fetches.launch(
                turn, reader, wait, scanning.most_records(turn) if scanning is not None and starts else None
            )

    # -- Wait for answers

    def _is_filling(self) -> bool:
        """Return whether an answer that is on its way probably has records for the rest of a large page."""
        result, turns = self._result, self._turns
        if not self._is_large or result.most_bytes - result.nbytes < result.nbytes / result.count:
            return False
        return any(name in turns.asked and not turns.of(name).noticed for name in self._full)

    def _may_begin_again(self) -> bool:
        """Return whether to read all partitions again; waiting or slow partitions do not prevent this."""
        turns, now = self._turns, time.monotonic()
        if turns.due or turns.held or self._result.in_hand():
            return False
        readers = [turn.reader for turn in turns.asked.values()]
        if not all(reader and (reader.waiting or now - reader.asked_at > HEAD_SECONDS) for reader in readers):
            return False
        return 0 < len(readers) < len(self._lineage.active())  # last, because it visits the whole lineage

    def _keep_polling(self) -> bool:
        """Handle the case that no answer arrived in time; return True if there is still something to do."""
        now = time.monotonic()
        more = bool(self._turns.held) or (not self._result.count and now < self._waiting.end)
        over = now >= self._waiting.head_until or not self._turns.asked
        if over and self._head is not None:
            self._has_had_turn(self._head)
        elif (
            (scanning := self._scanning) is not None
            and (over or (self._head is None and scanning.is_stuck()))
            and scanning.share_no_more()
        ):
            self._fetches.ask_held()
        return more

    def _sleep_until_paced(self) -> bool:
        """If there is nothing else to do, sleep until the next partition may be read."""
        if self._result.in_hand() or not self._turns.paced:
            return False
        soonest = self._fetches.paced_until()
        if soonest >= (self._waiting.until if self._waiting.repeats else self._waiting.last_ask):
            return False
        self._context.pause(soonest - time.monotonic())
        self._fetches.ask_paced()
        return True

    def _has_had_turn(self, turn: Turn, *, answered: bool = True) -> None:
        """Stop waiting for the first partition; other partitions and the scan may use its place."""
        if answered:
            self._turns.served.pop(turn.partition_id, None)
            self._turns.served[turn.partition_id] = None
        shared = self._scanning is not None and self._scanning.has_had_turn(turn)
        if shared or turn is self._head:
            self._head = None if turn is self._head else self._head
            if self._turns.held:
                self._fetches.ask_held()

    # -- Take an answer

    def _answer(self, turn: Turn) -> None:
        reader = turn.reader
        assert reader is not None
        del self._turns.asked[turn.partition_id]
        turn.phase, turn.reader, turn.awaited = Phase.ANSWERED, None, False
        entry, part = self._lineage.reading(turn.partition_id), self._consumer.partitions[turn.partition_id]
        if entry is None or entry.said[0] != reader.cursor:
            # A loss has moved or removed the partition: what was fetched of it is dropped.
            self._consumer.drop_reader(part)
            self._has_had_turn(turn, answered=False)
            return
        try:
            batch = reader.batch
            if batch is None:
                batch, result = reader.land(), self._result
                answered()
                result.moved = True
                result.requests += batch.requests
                result.retries += reader.retries
                if batch.charge is not None:
                    result.charge = (result.charge or 0.0) + batch.charge
                if batch.headroom is not None:
                    turn.headroom = batch.headroom
                if self._scanning is not None:
                    self._scanning.landed(turn, batch)
        except RecordFault as fault:
            self._consumer.drop_reader(part)
            self._has_had_turn(turn)
            self._result.poison = (turn.partition_id, fault)
        except Exception as error:  # noqa: BLE001 - classified by the provider
            self._consumer.drop_reader(part)
            if (seconds := self._context.fetcher.fault(error).retry_after) is not None:
                part.not_before, part.trouble = time.monotonic() + seconds, error
            elif reader.asked_at < self._waiting.began:
                self._turns.ask([turn.partition_id])  # an earlier call's fetch: a new one may succeed
                return
            self._has_had_turn(turn)
            self._turns.ask(self._answers.failed(turn, error))
        else:
            if turn.error is not None:
                self._turns.recover(turn)
            self._take(turn, part, reader, batch)

    def _take(self, turn: Turn, part: ConsumedPartition, reader: PartitionReader, batch: Batch) -> None:
        scanning, count = self._scanning, len(batch.records)
        places, is_cut = self._places(turn, reader, batch, count) if count else (0, False)
        if reader.taken < count and not places and not turn.noticed:
            self._hold(turn, is_cut=is_cut)
            return
        self._has_had_turn(turn)
        if turn.noticed:
            return
        stop = min(count, reader.taken + places)
        if (
            stop == count > 0
            and reader.has_more(batch)
            and not self._consumer.not_before(turn.partition_id, part)
        ):
            self._fetches.prefetch(reader)
        if scanning is not None:
            scanning.takes(turn, stop - reader.taken)
        is_mapped = self._put_on_page(turn, reader, batch, stop)
        part.cursor = reader.cursor
        if not is_mapped:
            self._consumer.drop_reader(part)
        elif reader.taken == count:
            self._used_up(turn, part, reader, batch)
        else:
            self._hold(turn, is_cut=is_cut)

    def _places(self, turn: Turn, reader: PartitionReader, batch: Batch, count: int) -> tuple[int, bool]:
        """Return how many more records may be returned, and whether the page has no bytes for more."""
        # The place of the first partition on the page is kept for it.
        kept = self._head is not None and turn is not self._head and not turn.failed_last
        places = self._result.limit - self._result.count - kept
        if self._scanning is not None:
            places = self._scanning.places(turn, places)
        # A page has at least one record; while the first partition has its turn, that one is its own.
        left, each = self._result.most_bytes - self._result.nbytes, batch.nbytes / count
        fits = int(max(left, 0.0) // each) if each else places
        if turn is self._head or not (self._result.count or self._head):
            fits = max(1, fits)
        return min(places, fits), min(places, count - reader.taken) > fits

    def _hold(self, turn: Turn, *, is_cut: bool) -> None:
        """Leave the rest of an answer for the first partition's turn, or for a later page."""
        turn.phase, self._turns.held[turn.partition_id] = Phase.HELD, turn
        if is_cut and self._head is None:
            self._result.ended = True

    def _put_on_page(self, turn: Turn, reader: PartitionReader, batch: Batch, stop: int) -> bool:
        """Put the records up to `stop` on the page; False if the provider cannot map its own records."""
        first, result = reader.taken, self._result
        value: list[T] = []
        while stop > first and not value:
            try:
                with collector_paused():
                    value = [self._view(batch, first, stop)]
            except RecordFault as fault:  # the records before the poison record must be returned first
                result.poison, stop = (turn.partition_id, fault), max(first, min(fault.index, stop - 1))
            except Exception as error:  # noqa: BLE001 - a defect of the provider is reported like any failure
                self._answers.blame(turn, error)
                return False
        if stop > first or not len(batch):
            reader.cursor, reader.taken = batch.cursor_after(stop), stop
            self._lineage.took(turn.partition_id, reader.cursor)
        if stop > first and not result.count:
            self._waiting.has_records()
        result.values += value
        result.count += stop - first
        result.nbytes += batch.nbytes * (stop - first) / len(batch) if stop > first else 0
        return True

    def _used_up(self, turn: Turn, part: ConsumedPartition, reader: PartitionReader, batch: Batch) -> None:
        """After the last record of an ended partition is returned, end the partition."""
        fresh = reader.asked_at >= self._waiting.began
        reader.used_up()
        started = self._answers.finish(turn, batch, reader.asked_at)
        if started is not None:
            self._turns.ask([*started, *(self._scanning.refill() if self._scanning is not None else ())])
            self._consumer.drop_reader(part)
            del self._consumer.partitions[turn.partition_id]
            return
        part.not_before = reader.asked_at + batch.poll_after if batch.poll_after else 0.0
        if self._consumer.open_readers > self._context.consumers.most_readers:
            # The partitions that were read first are needed first in the next round, so their readers stay.
            self._consumer.drop_reader(part)
            if not part.not_before:
                del self._consumer.partitions[turn.partition_id]
        if batch.notices:
            return
        if fresh and not len(batch) and batch.caught_up is not False:
            turn.silent = True
        elif not (len(batch) and batch.caught_up):
            self._turns.ask([turn.partition_id])
            if is_full_answer(len(batch), batch.nbytes):
                self._full.add(turn.partition_id)
            else:
                self._full.discard(turn.partition_id)
            if self._scanning is not None:
                self._scanning.asks_again(turn)

    # -- Leave out

    def _soonest(self) -> float:
        """Return when the first partition is worth asking again; 0 if the feed has something to do."""
        lineage, active, quiet = self._lineage, self._lineage.active(), self._turns.quiet()
        times, now, soonest = self._consumer.resting(active, 0.0), time.monotonic(), 0.0
        if len(times) == len(active):
            soonest = min(times.values(), default=math.inf)
        is_quiet = len(times) + len(quiet) >= len(active) and lineage.is_quiet(times.keys() | quiet)
        if not is_quiet and lineage.ends():
            soonest = 0.0
        elif self._has_left_out and (is_quiet or not self._result.count):
            # The page is not idle, so a loop must not spin on partitions that never rest or that wait.
            soonest = max(soonest, now + _LEAST_REST_SECONDS)
        if lineage.ends() or lineage.audited is not None:  # a call may have to search
            soonest = min(soonest, now + (_LOOK_REST_SECONDS if lineage.ends() else _SEARCH_REST_SECONDS))
        return soonest


class Waiting:
    """The waiting times of one call, on the monotonic clock.

    Attributes:
        began: The time at which the call began.
        last_ask: After this time, no fetch that waits for new records may begin. A fetch that waits must end
            before the deadline, because a read without new records is not a failure.
        until: How long the call waits for a first record.
        head_until: How long the call waits for the first partition in the queue.
        end: When a call without records ends: after its wait, or at its deadline.
        repeats: True after the first round, when all partitions are read again.
    """

    def __init__(self, deadline: Deadline, wait: float) -> None:
        self.began = now = time.monotonic()
        self.end = self._last = deadline.at
        self.last_ask = deadline.at - min(_RETURN_SECONDS, (deadline.at - now) / 4)
        self.until = min(self.last_ask, now + wait)
        self.head_until = now + min(HEAD_SECONDS, (deadline.at - now) / 2)
        self.repeats = False
        self._round_began, self._pause = now, _FIRST_PAUSE_SECONDS
        self._lingering: float | None = None
        self._filled_by = now  # until then, a page that is larger than usual waits for more

    def left(self) -> float:
        """Return how long the call may still wait for a first record."""
        return max(0.0, self.until - time.monotonic())

    def of_fetch(self, longest: float) -> float:
        """Return how long a read may block for new records."""
        return min(longest, self.left())

    def for_head(self) -> float:
        """Return how long the call still waits for the first partition in the queue."""
        return self.head_until - time.monotonic()

    def for_answer(self, *, more_to_ask: bool) -> float:
        """Return how long to wait for the next answer if there are no records to return."""
        now = time.monotonic()
        return min(self.end - now, HEAD_SECONDS if more_to_ask or now < self.until else math.inf)

    def for_more(self, *, fills: bool) -> float:
        """If there are records to return, return how long to wait for more answers.

        This wait is short, unless the next answer probably has records for the rest of the page (`fills`): a
        sink writes each page in one commit, so a backlog in pages of one answer each costs many times the
        commits.
        """
        now = time.monotonic()
        if self._lingering is None:
            self._lingering = now + _LINGER_SECONDS
        return (min(self.last_ask, self._filled_by) if fills else self._lingering) - now

    def has_records(self) -> None:
        """Record that the first records are on the page."""
        self._filled_by = time.monotonic() + _FILL_SECONDS

    def before_round(self) -> float:
        """Return how long to pause before all partitions are read again; the pauses get longer."""
        now = time.monotonic()
        pause = min(self._pause - (now - self._round_began), self.until - now)
        self._pause = max(_LEAST_PAUSE_SECONDS, min(_MOST_PAUSE_SECONDS, 1.5 * self._pause))
        return max(0.0, pause)

    def begin_round(self) -> None:
        """Begin a round in which all partitions are read again."""
        self.repeats, self.end = True, min(self._last, self.until + HEAD_SECONDS)
        self._round_began = time.monotonic()
