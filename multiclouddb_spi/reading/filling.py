"""Fills one page: asks the partitions of a lineage until the page is full or all have answered.

`fetching/queue.py` keeps the streams of the call, and `answers.py` applies what follows the end, the loss or
the failure of a partition. Each rule is explained where it is applied. Three of them hold everywhere: the
cursor of a partition moves only past returned records, so a token skips nothing else; no partition starves,
because the token keeps the order in which they had their turn; and after a notice, nothing more is returned
from its partition, nor from those that are read because of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from multiclouddb_api import Gap, OnExpired
from multiclouddb_spi.batch import Batch, collector_paused
from multiclouddb_spi.computed_once import computed_once
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.faults import ProviderFault, RecordFault
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.fetcher import ReadContext, late_fault
from multiclouddb_spi.fetching.page_content import PageContent
from multiclouddb_spi.fetching.queue import Queue, is_full_answer
from multiclouddb_spi.fetching.stream import TURN_SECONDS, Stream
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
# How long a loop that leaves out partitions pauses at least if nothing is found, and at most while the
# children of ended partitions are looked for, or the feed is compared with the service's listing.
_LEAST_LEFT_OUT_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 1.0
_SEARCH_SECONDS: Final = 5.0


class Filling(Generic[T]):
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
        self._lineage, self._deadline = lineage, deadline
        plan, active, self._has_ends = lineage.plan, lineage.active(), bool(lineage.ends())
        # Partitions that are not worth asking yet are left out, and the page is then not idle. Without
        # `leaves_out`, the call waits for them.
        self._leaves_out, self._has_left_out = leaves_out, False
        if leaves_out:
            not_due = consumer.not_due(active, time.monotonic())
            self._has_left_out = bool(not_due)
            active = [entry for entry in active if entry.partition_id not in not_due]
        self._result: PageContent[T] = PageContent(limit, most_bytes)
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
        # What failed last is read before all others, to find a lasting error early.
        self._first = [entry.partition_id for entry in active if entry.failed_last]
        self._queue = queue = Queue(
            context, consumer, lineage.reading, lineage.took, self._result, len(active), deadline
        )
        queue.front, queue.first = active[0].partition_id if active else None, self._first
        if self._scanning is not None:
            queue.scan_share = self._scanning.share
        self._rest = list[str]()
        if self._first or self._has_ends:
            self._rest = [entry.partition_id for entry in active if not entry.failed_last]
        else:
            queue.ask.update([(entry.partition_id, entry) for entry in active])
        self._begins = bool(self._first or self._has_ends or plan is not None or lineage.audited is not None)
        self._waiting, self._longest_wait = Waiting(deadline, wait, queue.began), feed.longest_wait
        self._waits_at_once = feed.waits_at_service and len(active) == 1 and plan is None

    @computed_once
    def _answers(self) -> Answers:
        """Made on first use, because most calls do not need it."""
        return self._make_answers()

    def run(self) -> PageContent[T]:
        """Read one page."""
        result, queue, waiting = self._result, self._queue, self._waiting
        if self._begins:
            self._begin()
        while result.count < result.limit and not (
            result.ended or result.failure or result.poison or result.retired or result.over
        ):
            may_wait = waiting.repeats or self._waits_at_once
            queue.launch(self._wait_of_fetch() if may_wait else 0.0)
            if (queue.passed or queue.overtaken) and self._pass():
                continue
            # Answers are taken in the order in which they come, whoever was asked first.
            if queue.landed:
                stream = queue.next(0.0)
                if stream is None:
                    continue
            elif time.monotonic() < waiting.until and self._may_begin_again():
                if not self._begin_round():
                    break
                continue
            else:
                stream = queue.next(self._patience()) if queue.running else None
            if stream is not None:
                if not (queue.is_shaken and queue.is_elsewhere(stream)):
                    self._take(stream)
            elif queue.running or queue.ready or queue.ask:  # what was given up is asked again
                if not (self._keep_polling() or self._begin_round()):
                    break
            elif not (self._sleep_until_due() or self._begin_round()):
                break
        # The page is idle if nothing is left to read anywhere. What still runs is left to the next call.
        quiet, late = queue.quiet, dict[str, Exception | None]()
        if queue.awaited:
            quiet = queue.all_quiet()
        if queue.running and time.monotonic() >= self._deadline.at:
            late = {each.partition_id: each.error for each in queue.leave() if each.partition_id not in quiet}
        if self._leaves_out:
            result.due_at = self._next_due(quiet)
        result.moved = result.moved or self._has_left_out  # the failure of others does not hide the feed
        if not (result.count or result.stopped()):
            # A loss ends the look for late children before it has asked for those of the other partitions.
            lost = any(isinstance(each, Gap) for each in result.notices)
            result.idle = not lost and self._lineage.is_quiet(quiet)
        for name, trouble in late.items():  # a throttled call's error explains more than a late answer
            result.failed[name] = trouble or result.failed.get(name) or ProviderFault(late_fault())
        self._lineage.rotate([*queue.had_turn, *late])
        stuck = result.failure or result.poison
        if stuck is not None:
            self._lineage.failed_last(stuck[0])
        return result

    # -- Rounds

    def _begin(self) -> None:
        """Do what comes before the partitions are read in their order."""
        result, scanning, lineage = self._result, self._scanning, self._lineage
        children = self._answers.discover() if self._has_ends else []
        if self._first:
            self._read_first()
        self._go_on(children)
        self._queue.put(self._rest)
        if scanning is not None:
            self._go_on(scanning.refill())
        if lineage.audited is not None and not result.stopped():
            found = self._answers.audit_when_due(self._context.audit_seconds, self._launch)
            if found is not None:
                self._go_on(found)

    def _read_first(self) -> None:
        """Read those whose errors ended the last calls, and no others while the front has its turn."""
        self._go_on(self._first)
        while not (self._result.is_full() or all(name in self._queue.had_turn for name in self._first)):
            self._launch()
            stream = self._queue.next(self._queue.turn_left()) if self._queue.running else None
            if stream is None:
                return
            if not (self._queue.is_shaken and self._queue.is_elsewhere(stream)):
                self._take(stream)

    def _begin_round(self) -> bool:
        """After every partition has answered, ask them again; return whether the call goes on."""
        result, waiting = self._result, self._waiting
        if result.in_hand() or result.is_full():
            return False
        if not waiting.repeats and self._answers.has_ended():
            # Before an empty page is returned, read the children of partitions that ended in this call.
            self._go_on(self._answers.discover())
            return True
        if time.monotonic() >= waiting.until:
            return False
        pause = waiting.before_round()
        if self._leaves_out:
            next_due = self._next_due(self._queue.all_quiet())
            pause = max(pause, min(next_due, waiting.until) - time.monotonic())
        self._context.pause(pause, self._deadline)
        waiting.begin_round()
        self._go_on(self._answers.discover())
        asked, now = self._answers.worth_asking(), time.monotonic()
        if not asked and self._lineage.active():
            return False
        not_due = self._consumer.not_due(asked, now) if self._leaves_out else ()
        self._queue.put(each.partition_id for each in asked if each.partition_id not in not_due)
        return True

    def _go_on(self, names: Iterable[str]) -> None:
        """Ask these partitions, after something else than a read may have changed the lineage."""
        self._queue.is_shaken = True
        self._queue.put(names)

    # -- Ask

    def _launch(self) -> None:
        """Start reads of as many partitions as threads and bytes allow."""
        self._queue.launch(self._wait_of_fetch())
        while self._pass():
            self._queue.launch(self._wait_of_fetch())

    def _wait_of_fetch(self) -> float:
        """Return how long a fetch may wait for new records."""
        # In the first round, no fetch blocks, because the page also waits for other partitions. One that is
        # alone keeps nobody waiting, so its service gets one request that waits, and not another before it.
        if not (self._waiting.repeats or self._waits_at_once) or self._result.in_hand():
            return 0.0
        is_small = len(self._lineage) <= self._context.width
        return self._waiting.of_fetch(self._longest_wait()) if is_small else 0.0

    def _pass(self) -> bool:
        """Take the turn from partitions that are not waited for; return whether others are asked again."""
        queue = self._queue
        passed, queue.passed = queue.passed, []
        for stream in passed:
            name = stream.partition_id
            if queue.later.get(name) is stream:
                if stream.error is not None:  # the service is throttling it: the call does not wait for it
                    self._result.failed[name] = stream.error
                    del queue.later[name]
                elif self._leaves_out:
                    self._has_left_out = True
                    del queue.later[name]
            queue.turn_is_over(name)
        if queue.front is not None and queue.front in queue.overtaken:
            queue.turn_is_over(queue.front)
        return bool(passed and queue.ask)

    # -- Wait for answers

    def _patience(self) -> float:
        """Return how long to wait for the next answer."""
        queue, waiting, in_hand = self._queue, self._waiting, self._result.in_hand()
        # If there is something to return, the call ends as soon as no further answer is there. But it first
        # waits for the turn of the first partition, so that a slow one never starves.
        if queue.front is not None and (in_hand or queue.ready):
            return queue.turn_left()
        if queue.ready and queue.scan_share is not None:
            shares = queue.scan_share.patience(queue.running, queue.turn_left())
            if shares is not None:
                return shares
        if in_hand:
            return waiting.for_more(fills=self._is_filling())
        return waiting.for_answer(more_to_ask=bool(queue.ask))

    def _is_filling(self) -> bool:
        """Return whether an answer that is on its way probably has records for the rest of a large page."""
        result, running = self._result, self._queue.running
        if not (self._is_large and result.count):
            return False
        if result.most_bytes - result.nbytes < result.nbytes / result.count:
            return False
        return any(name in running and name not in result.noticed for name in self._full)

    def _may_begin_again(self) -> bool:
        """Return whether to read all partitions again; waiting or slow partitions do not prevent this."""
        queue, now = self._queue, time.monotonic()
        if queue.ask or queue.ready or self._result.in_hand():
            return False
        streams = queue.running.values()
        if not all(stream.waiting or now - stream.asked_at > TURN_SECONDS for stream in streams):
            return False
        return 0 < len(streams) < len(self._lineage.active())  # last, because it visits the whole lineage

    def _keep_polling(self) -> bool:
        """Handle the case that no answer arrived in time; return True if there is still something to do."""
        now, queue = time.monotonic(), self._queue
        front, share, running = queue.front, queue.scan_share, queue.running
        more = bool(queue.ready) or (not self._result.in_hand() and now < self._waiting.end)
        over = queue.turn_left() <= 0 or not (running or queue.ask)
        if over and front is not None:
            queue.has_turn(front)
        elif share is not None and (over or (front is None and share.is_stuck(running))) and share.end():
            queue.put_ready()
        return more

    def _sleep_until_due(self) -> bool:
        """If there is nothing else to do, sleep until the next stream is due."""
        if self._result.in_hand() or not self._queue.later:
            return False
        due_at = self._queue.next_due()
        if due_at >= (self._waiting.until if self._waiting.repeats else self._waiting.last_ask):
            return False
        self._context.pause(due_at - time.monotonic(), self._deadline)
        self._queue.put_due()
        return True

    # -- Take an answer

    def _take(self, stream: Stream) -> None:
        """Return as many records of an answer as the page has room for."""
        name, result, batch, first = stream.partition_id, self._result, stream.batch, stream.taken
        if batch is None:
            self._failed(stream)
            return
        if stream.is_new:
            result.moved = True
            result.requests += batch.requests
            result.retries += stream.retries
            if batch.charge is not None:
                result.charge = (result.charge or 0.0) + batch.charge
            if batch.headroom is not None:
                result.keeps(name, batch.headroom)
        if result.failed:
            result.failed.pop(name, None)
        count, queue = len(batch.records), self._queue
        if name in result.noticed:  # its records come in a later call
            queue.has_turn(name)
            return
        stop = queue.take(stream, batch, count)
        if stop is None:
            return
        if stop == count > 0 and stream.has_more(batch) and not stream.due_at:
            queue.prefetch(stream)
        value: T | None = None
        while stop > first:
            try:
                with collector_paused():
                    value = self._view(batch, first, stop)
                break
            except RecordFault as fault:  # the records before the poison record must be returned first
                result.poison, stop = (name, fault), max(first, min(fault.index, stop - 1))
            except Exception as error:  # noqa: BLE001 - a defect of the provider is reported like any failure
                self._answers.blame(name, error)
                self._consumer.drop(stream)
                return
        if stop > first:
            if self._is_large and not result.count:
                self._waiting.has_records()
            result.values.append(cast(T, value))
            result.count += stop - first
            result.nbytes += batch.nbytes * (stop - first) / count
        elif count:  # a poison record is the first one
            return
        queue.took(stream, batch, stop, count)
        if stop == count:
            self._used_up(stream, batch)

    def _failed(self, stream: Stream) -> None:
        """Handle a fetch that has failed."""
        name, error = stream.partition_id, stream.error
        assert error is not None
        left, is_earlier = self._queue.drop_failed(stream)
        if isinstance(error, RecordFault):
            self._result.poison = (name, error)
        elif (seconds := self._context.fetcher.fault(error).retry_after) is not None:
            left.due_at, left.error = time.monotonic() + seconds, error
        elif is_earlier:
            self._queue.put([name])
            return
        self._queue.has_turn(name)
        if not isinstance(error, RecordFault):
            self._go_on(self._answers.failed(name, error))

    def _used_up(self, stream: Stream, batch: Batch) -> None:
        """After the last record of an answer, ask the partition again, or read what follows its end."""
        name, consumer, count = stream.partition_id, self._consumer, len(batch.records)
        fresh = stream.asked_at >= self._queue.began
        started = self._answers.finish(name, batch, stream.asked_at)
        if started is not None:  # it has left the lineage, and its children are read in this call
            self._go_on([*started, *(self._scanning.refill() if self._scanning is not None else ())])
            consumer.forget(stream)
            return
        if consumer.open_streams > self._context.consumers.most_readers:
            # The partitions that were read first are needed first in the next round, so their readers stay.
            if stream.due_at:
                consumer.drop(stream)
            else:
                consumer.forget(stream)
        if batch.notices:
            return
        # It is quiet on the word of an answer that was asked for in this call. After other answers it is
        # asked again, until it says that nothing follows.
        if fresh and not count and batch.caught_up is not False:
            self._queue.quiet.add(name)
        elif not (count and batch.caught_up):
            self._queue.put([name])
            if is_full_answer(count, batch.nbytes):
                self._full.add(name)
            else:
                self._full.discard(name)
            if self._queue.scan_share is not None:
                self._queue.scan_share.asks_again(name)

    # -- Leave out

    def _next_due(self, quiet: set[str]) -> float:
        """Return when the first partition is worth asking again; 0 if the feed has something to do."""
        lineage, active = self._lineage, self._lineage.active()
        times, now, due_at = self._consumer.not_due(active, 0.0), time.monotonic(), 0.0
        if len(times) == len(active):
            due_at = min(times.values(), default=math.inf)
        is_quiet = len(times) + len(quiet) >= len(active) and lineage.is_quiet(times.keys() | quiet)
        if not is_quiet and lineage.ends():
            due_at = 0.0
        elif self._has_left_out and (is_quiet or not self._result.count):
            # The page is not idle, so a loop must not spin on partitions that are always due or that wait.
            due_at = max(due_at, now + _LEAST_LEFT_OUT_SECONDS)
        if lineage.ends() or lineage.audited is not None:  # a call may have to search
            due_at = min(due_at, now + (_LOOK_SECONDS if lineage.ends() else _SEARCH_SECONDS))
        return due_at


class Waiting:
    """The waiting times of one call, on the monotonic clock.

    Attributes:
        began: The time at which the call began.
        last_ask: After this time, no fetch that waits for new records may begin. A fetch that waits must end
            before the deadline, because a read without new records is not a failure.
        until: How long the call waits for a first record.
        end: When a call without records ends: after its wait, or at its deadline.
        repeats: True after the first round, when all partitions are read again.
    """

    def __init__(self, deadline: Deadline, wait: float, began: float) -> None:
        self.began = now = began
        self.end = self._last = deadline.at
        self.last_ask = deadline.at - min(_RETURN_SECONDS, (deadline.at - now) / 4)
        self.until = min(self.last_ask, now + wait)
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

    def for_answer(self, *, more_to_ask: bool) -> float:
        """Return how long to wait for the next answer if there is nothing to return."""
        now = time.monotonic()
        return min(self.end - now, TURN_SECONDS if more_to_ask or now < self.until else math.inf)

    def for_more(self, *, fills: bool) -> float:
        """If there is something to return, return how long to wait for more answers.

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
        self.repeats, self.end = True, min(self._last, self.until + TURN_SECONDS)
        self._round_began = time.monotonic()
