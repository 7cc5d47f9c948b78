"""One call's reading: from the partitions of a lineage until the page is full or all have answered.

How it goes, in the caller's thread, while fetches run on the pool:

 1. Partitions are asked in the order of the queue, several at once; what an earlier call has
    fetched and not handed out is used first.
 2. Answers are taken as they come. Records are mapped, cut at the page's bound, and the cursor
    moves only past what is handed out.
 3. A partition that ended is retired once its last record is handed out; its children join the
    queue and are read in the same call.
 4. With something in hand the sweep ends as soon as no further answer is there, but not before
    the head of the queue has had its turn, for which a place on the page is kept: so no slow
    partition starves. One that is slower than `HEAD_SECONDS` has had its turn.
 5. With nothing in hand it goes on until every partition has answered that it has nothing, and
    then for as long as the caller wants to wait.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from multiclouddb_api import ErrorCategory, Gap, OnExpired, SkipToOldest
from multiclouddb_spi.contract import Awaiting, Batch, Child, Continue, Drained, Ended, Feed, Outcome, Seed
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.fault import ProviderFault, RecordFault
from multiclouddb_spi.fetcher import closed_fault, late_fault
from multiclouddb_spi.flight import HEAD_SECONDS, Flight, Workshop
from multiclouddb_spi.lineage import Lineage
from multiclouddb_spi.live import Live
from multiclouddb_spi.result import Slice, SweepResult

__all__ = ["Sweep"]

T = TypeVar("T")

_LINGER_SECONDS: Final = 0.002
_MOST_WAIT_SECONDS: Final = 1.0
_FIRST_PAUSE_SECONDS: Final = 0.02
_MOST_PAUSE_SECONDS: Final = 0.5
_MOST_SKIPS: Final = 3


class Sweep(Generic[T]):
    """Reads once; made for one call.

    Args:
        shop: What all calls share.
        feed: The opened feed.
        lineage: Moved on in place.
        limit: Bound on records handed out.
        view: Makes of a batch's records `[i, j)` what the caller wants.
        deadline: When the call has to be over.
        wait: Seconds to wait for a first record.
        on_expired: What to do about a position older than retention.
        single: True to report the end of a partition instead of going on with its children.
    """

    def __init__(
        self,
        shop: Workshop,
        feed: Feed,
        lineage: Lineage,
        limit: int,
        view: Callable[[Batch, int, int], T],
        deadline: Deadline,
        *,
        wait: float,
        on_expired: OnExpired,
        single: bool,
    ) -> None:
        self._shop, self._feed, self._lineage, self._limit, self._view = shop, feed, lineage, limit, view
        self._deadline, self._on_expired, self._single = deadline, on_expired, single
        self._began = time.monotonic()
        self._wait_until = min(deadline.at, self._began + wait)
        active = lineage.active()
        self._suspects = [entry.partition_id for entry in active if entry.suspect]
        self._queue = [entry.partition_id for entry in active]
        self._head: str | None = self._queue[0] if active else None
        self._flight = Flight(shop, feed, len(active), limit, deadline)
        self._result: SweepResult[T] = SweepResult()
        self._todo: OrderedDict[str, None] = OrderedDict()
        self._paced: dict[str, float] = {}
        self._quiet: set[str] = set()
        self._turns: dict[str, None] = {}
        self._aside: list[str] = []
        self._skips: Counter[str] = Counter()
        self._lingering: float | None = None
        self._round_began, self._pause, self._rounds = self._began, _FIRST_PAUSE_SECONDS, 0
        self._head_until = self._began + min(HEAD_SECONDS, (deadline.at - self._began) / 2)

    def run(self) -> SweepResult[T]:
        """Do it.

        Raises:
            Exception: What the provider raised for a call that is about no single partition.
        """
        try:
            self._discover()
            self._read_suspects()
            self._read(name for name in self._queue if name not in self._turns)
            if not self._result.stopped() and not self._result.count:
                self._wait()
        except BaseException:
            self._flight.abandon()
            raise
        self._finish()
        return self._result

    def _read_suspects(self) -> None:
        """Ask these first and alone, so that nothing puts off what stops them; but not for ever."""
        self._ask(self._suspects)
        while not self._full() and not self._turns.keys() >= set(self._suspects):
            self._launch()
            live = self._flight.land(self._head_until - time.monotonic()) if self._flight else None
            if live is None:
                return
            self._answer(live)

    def _read(self, partition_ids: Iterable[str]) -> None:
        """Ask these, and what starts on the way, until there is reason to end."""
        self._ask(partition_ids)
        while not self._full():
            self._launch()
            live = self._flight.land(self._patience()) if self._flight else None
            if live is not None:
                self._answer(live)
            elif not (self._go_on() if self._flight or self._aside else self._sleep_until_paced()):
                return

    def _ask(self, partition_ids: Iterable[str]) -> None:
        """To be asked behind all others that are; none twice."""
        for name in partition_ids:
            self._todo.setdefault(name)

    def _full(self) -> bool:
        return self._result.count >= self._limit or self._result.stopped()

    def _launch(self) -> None:
        wait = self._fetch_wait()
        while self._todo and not self._flight.full():
            name, _ = self._todo.popitem(last=False)
            if name not in self._lineage or name in self._flight:
                continue
            live = self._flight.take(name, self._lineage.cursor(name))
            if live.batch is None and live.future is None and live.not_before > time.monotonic():
                self._paced[name] = live.not_before
                self._flight.keep(live)
                self._served(name)
                continue
            slow = live.future is not None and time.monotonic() - live.asked_at > HEAD_SECONDS
            if live.waiting or slow:
                self._served(name)
            self._quiet.discard(name)
            self._flight.launch(live, wait)

    def _served(self, name: str | None) -> None:
        """The head of the queue is not waited for any more."""
        if name is not None and name == self._head:
            self._head = None
            self._ask(self._aside)
            self._aside.clear()

    def _fetch_wait(self) -> float:
        """How long a read may block: not in the first round, which only looks around."""
        if self._rounds == 0 or self._result.count or len(self._lineage) > self._shop.width:
            return 0.0
        return max(0.0, min(_MOST_WAIT_SECONDS, self._wait_until - time.monotonic()))

    def _patience(self) -> float:
        """How long the next answer is waited for."""
        now = time.monotonic()
        if self._head is not None and (self._result.count or self._aside):
            return self._head_until - now
        if not self._result.count:
            return min(self._end() - now, HEAD_SECONDS if self._todo else math.inf)
        if self._lingering is None:
            self._lingering = now + _LINGER_SECONDS
        return self._lingering - now

    def _go_on(self) -> bool:
        """No answer came in time: True when there is something to do all the same."""
        now = time.monotonic()
        more = bool(self._aside) or (not self._result.count and now < self._end())
        if self._head is not None and (now >= self._head_until or not self._flight):
            self._turn(self._head)
        return more

    def _end(self) -> float:
        """When a call with nothing in hand ends: it has waited, or its time is over."""
        return min(self._deadline.at, self._wait_until + HEAD_SECONDS) if self._rounds else self._deadline.at

    def _sleep_until_paced(self) -> bool:
        """With nothing else to do: wait for the partition that may be asked next."""
        if self._result.count or not self._paced:
            return False
        soonest = min(self._paced.values())
        if soonest >= (self._wait_until if self._rounds else self._deadline.at):
            return False
        self._pause_for(soonest - time.monotonic())
        ready = [name for name, at in self._paced.items() if at <= time.monotonic()]
        for name in ready:
            del self._paced[name]
        self._ask(ready)
        return True

    def _wait(self) -> None:
        """Every partition has answered: wait for news as long as the caller wants to."""
        while not self._result.count and not self._result.stopped():
            now = time.monotonic()
            if now >= self._wait_until:
                break
            rest = self._pause - (now - self._round_began)
            self._pause_for(min(rest, self._wait_until - now))
            self._pause = min(_MOST_PAUSE_SECONDS, 1.5 * self._pause)
            self._rounds += 1
            self._round_began = time.monotonic()
            self._discover()
            self._read([entry.partition_id for entry in self._lineage.active()])

    def _pause_for(self, seconds: float) -> None:
        if self._shop.closed.wait(max(0.0, seconds)):
            raise closed_fault()

    def _answer(self, live: Live) -> None:
        name = live.partition_id
        try:
            batch = live.batch
            if batch is None:
                batch = live.land()
                self._result.account(live, batch)
        except RecordFault as fault:
            live.discard()
            self._turn(name)
            self._result.poison = (name, fault)
        except Exception as error:  # noqa: BLE001 - classified by the provider
            live.discard()
            if live.asked_at < self._began:
                self._ask([name])  # an earlier call's failure: it may work by now
                return
            self._turn(name)
            self._failed(name, error)
        else:
            self._result.errors.pop(name, None)
            if live.taken < len(batch) and not self._places(name):
                self._flight.keep(live)
                self._aside.append(name)
                return
            self._turn(name)
            try:
                self._hand_out(live, batch)
            except BaseException:
                live.discard()
                raise

    def _turn(self, name: str) -> None:
        self._turns.pop(name, None)
        self._turns[name] = None
        self._served(name)

    def _places(self, name: str) -> int:
        """How many records of a partition the page still takes; the head's place is kept for it."""
        kept = self._head is not None and name != self._head and name not in self._suspects
        return self._limit - self._result.count - kept

    def _hand_out(self, live: Live, batch: Batch) -> None:
        first, result, name = live.taken, self._result, live.partition_id
        stop = min(len(batch), first + self._places(name))
        if stop == len(batch) > 0 and self._more_to_come(live, batch):
            self._flight.prefetch(live)
        try:
            value, stop = self._viewed(name, batch, first, stop)
        except Exception as error:  # noqa: BLE001 - a provider that cannot map its own records
            live.discard()
            self._blame(name, error)
            return
        if stop > first or not len(batch):
            live.cursor, live.taken = batch.cursor_after(stop), stop
            self._lineage.advance(name, live.cursor)
        if value is not None:
            result.slices.append(Slice(name, value, stop - first, live.cursor))
            result.count += stop - first
        if stop < len(batch):
            self._flight.keep(live)
            self._aside += [name] if self._head is not None else []
        else:
            self._used_up(live, batch)

    def _viewed(self, name: str, batch: Batch, first: int, stop: int) -> tuple[T | None, int]:
        """What the view makes of the records, up to the first that is poison."""
        try:
            return (self._view(batch, first, stop) if stop > first else None), stop
        except RecordFault as fault:
            self._result.poison = (name, fault)
            stop = fault.index
            return (self._view(batch, first, stop) if stop > first else None), stop

    def _more_to_come(self, live: Live, batch: Batch) -> bool:
        """Worth reading on at once: not for the first page of a caller who may want one only."""
        return (
            isinstance(batch.outcome, Continue)
            and batch.caught_up is not True
            and not batch.poll_after
            and live.fetches > 1
        )

    def _used_up(self, live: Live, batch: Batch) -> None:
        """The batch is handed out whole: only now does it count how it ends."""
        name, fresh = live.partition_id, live.asked_at >= self._began
        self._result.batches[name] = batch
        self._result.notices.extend(batch.notices)
        live.used_up()
        if self._outcome(name, batch.outcome):
            live.discard()
            return
        live.not_before = live.asked_at + batch.poll_after if batch.poll_after else 0.0
        self._flight.keep(live)
        if fresh and not len(batch) and batch.caught_up is not False:
            self._quiet.add(name)
        elif not (len(batch) and batch.caught_up):
            self._ask([name])

    def _outcome(self, name: str, outcome: Outcome) -> bool:
        """Act on how a partition stands; True when there is nothing more to read in it."""
        match outcome:
            case Drained(children):
                self._retire(name, children)
            case Awaiting():
                self._lineage.await_children(name)
            case Ended(notice):
                if notice not in self._result.notices:  # all partitions of a dropped collection say so
                    self._result.notices.append(notice)
                self._ask(self._lineage.retire(name))
                if not len(self._lineage):
                    self._result.ended(notice)
            case _:
                return False
        self._result.moved = True
        return True

    def _retire(self, name: str, children: tuple[Child, ...]) -> None:
        self._shop.watch.partition_retired(
            self._feed.spec.address,
            self._feed.public_id(name),
            tuple(self._feed.public_id(child.partition_id) for child in children),
        )
        if self._single:
            self._result.retired = (name, children)
        else:
            self._ask(self._lineage.retire(name, children))

    def _discover(self) -> None:
        """Ask once for the children of all partitions that ended without naming them."""
        drained = self._lineage.drained()
        if not drained:
            return
        self._result.requests += 1
        try:
            outcomes = self._shop.fetcher.call(
                lambda: self._feed.discover(drained, self._deadline), self._deadline
            )
        except Exception as error:
            if not self._shop.fetcher.fault(error).retryable:
                raise
            self._result.errors.update(dict.fromkeys(drained, error))
            return
        self._result.moved = True
        for name in drained:
            self._result.errors.pop(name, None)
            self._outcome(name, outcomes.get(name, Awaiting()))

    def _failed(self, name: str, error: Exception) -> None:
        expired = self._shop.fetcher.fault(error).category == ErrorCategory.CHECKPOINT_EXPIRED
        if expired and isinstance(self._on_expired, SkipToOldest) and self._skips[name] < _MOST_SKIPS:
            try:
                seeds = self._left(name)
            except Exception as failed:  # noqa: BLE001 - classified by the provider
                self._blame(name, failed)
            else:
                self._skip(name, *seeds)
            return
        if self._skips[name]:  # what is oldest is always gone already: no progress to tell of
            where = self._feed.public_id(name)
            notices = self._result.notices
            notices[:] = [
                item for item in notices if not (isinstance(item, Gap) and item.partition_id == where)
            ]
        self._blame(name, error)

    def _blame(self, name: str, error: Exception) -> None:
        self._result.errors[name] = error
        if not self._shop.fetcher.fault(error).retryable:
            self._result.failure = (name, error)

    def _left(self, name: str) -> tuple[list[Seed], set[str]]:
        """What retention has left of a partition's branch, and what the service lists where it is gone."""
        call, deadline = self._shop.fetcher.call, self._deadline
        seeds = call(lambda: self._feed.oldest([name], deadline), deadline)
        if any(seed.partition_id == name for seed in seeds):
            return seeds, set()
        return seeds, {item.partition_id for item in call(lambda: self._feed.partitions(deadline), deadline)}

    def _skip(self, name: str, seeds: list[Seed], listed: set[str]) -> None:
        """Records behind the position are gone: go on with the oldest that are left."""
        self._skips[name] += 1
        lost = self._lineage.cursor(name)
        gap = Gap(
            self._feed.public_id(name),
            self._feed.describe(lost).text,
            ", ".join(self._feed.describe(seed.cursor).text for seed in seeds[:3]) or "nothing left",
        )
        self._result.notices.append(gap)
        self._result.moved = True
        self._shop.watch.gap(self._feed.spec.address, gap)
        if self._single and [seed.partition_id for seed in seeds] != [name]:
            self._result.retired = (name, tuple(_child(seed) for seed in seeds))
            return
        self._ask(self._lineage.replace(name, seeds, listed))
        if not len(self._lineage):
            self._result.over = "everything was lost to retention"

    def _finish(self) -> None:
        result = self._result
        active = self._lineage.active()
        result.idle = (
            not result.count
            and not result.stopped()
            and len(active) == len(self._lineage)
            and all(entry.partition_id in self._quiet for entry in active)
        )
        late = self._flight.park()
        result.errors.update(dict.fromkeys(late, ProviderFault(late_fault())))
        self._lineage.rotate([*self._turns, *late])
        stuck = result.failure or result.poison
        if stuck is not None and stuck[0] in self._lineage:
            self._lineage.suspect(stuck[0])


def _child(seed: Seed) -> Child:
    return Child(seed.partition_id, seed.parents, seed.cursor)
