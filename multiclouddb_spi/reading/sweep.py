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
    then for as long as the caller wants to wait, unless it has a notice to tell of.
 6. After a notice nothing more of its partition is handed out, nor of those that are read because of
    it: that is for a later call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from multiclouddb_api import OnExpired
from multiclouddb_spi.batch import Batch
from multiclouddb_spi.checkpoint.lineage import Lineage
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.fault import ProviderFault, RecordFault
from multiclouddb_spi.reading.fetcher import closed_fault, late_fault
from multiclouddb_spi.reading.flight import HEAD_SECONDS, Flight, Workshop
from multiclouddb_spi.reading.harvest import Harvest
from multiclouddb_spi.reading.live import Live
from multiclouddb_spi.reading.result import SweepResult
from multiclouddb_spi.reading.todo import Todo

__all__ = ["Sweep"]

T = TypeVar("T")

_LINGER_SECONDS: Final = 0.002
_MOST_WAIT_SECONDS: Final = 1.0
_RETURN_SECONDS: Final = 1.0
_FIRST_PAUSE_SECONDS: Final = 0.02
_MOST_PAUSE_SECONDS: Final = 0.5


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
        self._shop, self._lineage, self._limit, self._deadline = shop, lineage, limit, deadline
        self._harvest = Harvest(
            feed, lineage, view, shop.fetcher, shop.watch, deadline,
            on_expired=on_expired, single=single, watch_seconds=shop.watch_seconds,
        )  # fmt: skip
        self._result = self._harvest.result
        self._began = time.monotonic()
        # A fetch that waits for news has to be back before the deadline: that there are none is no failure.
        self._last_ask = deadline.at - min(_RETURN_SECONDS, (deadline.at - self._began) / 4)
        self._wait_until = min(self._last_ask, self._began + wait)
        active = lineage.active()
        self._suspects = [entry.partition_id for entry in active if entry.suspect]
        self._queue = [entry.partition_id for entry in active]
        self._head: str | None = self._queue[0] if active else None
        self._todo = Todo(lineage)
        self._flight = Flight(shop, feed, len(active), limit, deadline, self._todo.at)
        self._paced: dict[str, float] = {}
        self._quiet, self._awaited = set[str](), set[str]()
        self._turns: dict[str, None] = {}
        self._aside: list[str] = []
        self._lingering: float | None = None
        self._round_began, self._pause, self._rounds = self._began, _FIRST_PAUSE_SECONDS, 0
        self._head_until = self._began + min(HEAD_SECONDS, (deadline.at - self._began) / 2)

    def run(self) -> SweepResult[T]:
        """Do it.

        Raises:
            Exception: What the provider raised for a call that is about no single partition.
        """
        try:
            self._todo.ask(self._harvest.discover())
            self._read_suspects()
            self._todo.ask(name for name in self._queue if name not in self._turns)
            self._harvest.audit_when_due(self._shop.audit_seconds, self._launch)
            self._read(())
            self._follow()
            if not self._result.stopped() and not self._result.in_hand():
                self._wait()
        except BaseException:
            self._flight.abandon()
            raise
        self._finish()
        return self._result

    def _read_suspects(self) -> None:
        """Ask these first and alone, so that nothing puts off what stops them; but not for ever."""
        self._todo.ask(self._suspects)
        while not self._full() and not self._turns.keys() >= set(self._suspects):
            self._launch()
            live = self._flight.land(self._head_until - time.monotonic()) if self._flight else None
            if live is None:
                return
            self._answer(live)

    def _read(self, partition_ids: Iterable[str]) -> None:
        """Ask these, and what starts on the way, until there is reason to end."""
        self._todo.ask(partition_ids)
        while not self._full():
            self._launch()
            live = self._flight.land(self._patience()) if self._flight else None
            if live is not None:
                self._answer(live)
            elif not (self._go_on() if self._flight or self._aside else self._sleep_until_paced()):
                return

    def _follow(self) -> None:
        """Before a page stays empty: go on in the children of partitions that have ended in this call."""
        while not self._result.in_hand() and not self._full() and self._harvest.has_ended():
            self._read(self._harvest.discover())

    def _full(self) -> bool:
        return self._result.count >= self._limit or self._result.stopped()

    def _launch(self) -> None:
        wait = self._fetch_wait()
        while (name := self._todo.next(self._flight)) is not None:
            if self._head in self._todo.overtaken:
                self._served(self._head)
            live = self._flight.take(name, self._lineage.cursor(name))
            if live.batch is None and live.future is None and live.not_before > time.monotonic():
                self._paced[name] = live.not_before
                self._flight.keep(live)
                self._served(name)
                continue
            slow = live.future is not None and time.monotonic() - live.asked_at > HEAD_SECONDS
            if live.waiting or slow:
                self._served(name)
            if name in self._quiet and wait > 0:
                self._awaited.add(name)
            self._quiet.discard(name)
            self._flight.launch(live, wait)

    def _served(self, name: str | None) -> None:
        """The head of the queue is not waited for any more."""
        if name is not None and name == self._head:
            self._head = None
            self._todo.ask_again(self._aside)
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
        if self._result.in_hand() or not self._paced:
            return False
        soonest = min(self._paced.values())
        if soonest >= (self._wait_until if self._rounds else self._last_ask):
            return False
        self._pause_for(soonest - time.monotonic())
        ready = [name for name, at in self._paced.items() if at <= time.monotonic()]
        for name in ready:
            del self._paced[name]
        self._todo.ask(ready)
        return True

    def _wait(self) -> None:
        """Every partition has answered: wait for news as long as the caller wants to."""
        while not (self._full() or self._result.in_hand()) and (now := time.monotonic()) < self._wait_until:
            rest = self._pause - (now - self._round_began)
            self._pause_for(min(rest, self._wait_until - now))
            self._pause = min(_MOST_PAUSE_SECONDS, 1.5 * self._pause)
            self._rounds += 1
            self._round_began = time.monotonic()
            self._todo.ask(self._harvest.discover())
            asked = self._harvest.worth_asking()
            if not asked and self._lineage.active():
                break
            self._read(asked)

    def _pause_for(self, seconds: float) -> None:
        if self._shop.closed.wait(max(0.0, seconds)):
            raise closed_fault()

    def _answer(self, live: Live) -> None:
        name = live.partition_id
        self._awaited.discard(name)
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
                self._todo.ask([name])  # an earlier call's failure: it may work by now
                return
            self._turn(name)
            self._todo.ask(self._harvest.failed(name, error))
        else:
            self._result.errors.pop(name, None)
            if name in self._result.noticed:
                self._turn(name)
                self._flight.keep(live)
            elif live.taken < len(batch) and not self._places(name):
                self._flight.keep(live)
                self._aside.append(name)
            else:
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
        name = live.partition_id
        stop = min(len(batch), live.taken + self._places(name))
        if stop == len(batch) > 0 and live.has_more(batch):
            self._flight.prefetch(live)
        if not self._harvest.take(live, batch, stop):
            live.discard()
        elif live.taken == len(batch):
            self._used_up(live, batch)
        else:
            self._flight.keep(live)
            self._aside += [name] if self._head is not None else []

    def _used_up(self, live: Live, batch: Batch) -> None:
        name, fresh = live.partition_id, live.asked_at >= self._began
        live.used_up()
        started = self._harvest.finish(name, batch)
        if started is not None:
            self._todo.ask(started)
            live.discard()
            return
        live.not_before = live.asked_at + batch.poll_after if batch.poll_after else 0.0
        self._flight.keep(live)
        if batch.notices:
            return
        if fresh and not len(batch) and batch.caught_up is not False:
            self._quiet.add(name)
        elif not (len(batch) and batch.caught_up):
            self._todo.ask([name])

    def _finish(self) -> None:
        result = self._result
        waiting = self._awaited - self._flight.troubled()
        late = {name: trouble for name, trouble in self._flight.park().items() if name not in waiting}
        empty = not result.count and not result.stopped()
        result.idle = empty and self._lineage.is_quiet(self._quiet | waiting)
        for name, trouble in late.items():  # that a service throttles says more than that it was late
            result.errors[name] = trouble or result.errors.get(name) or ProviderFault(late_fault())
        self._lineage.rotate([*self._turns, *late])
        stuck = result.failure or result.poison
        if stuck is not None and stuck[0] in self._lineage:
            self._lineage.suspect(stuck[0])
