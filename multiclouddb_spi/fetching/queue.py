"""Keeps the streams of one call in the order in which they are asked, and runs their fetches.

A stream is in one of four places:

    ask       it is asked when its turn comes; `later` if a request is not useful yet (`Stream.due_at`)
    running   its fetch is on its way, or has ended without its answer being looked at
    ready     its answer is in hand, but the caller has no room for more of it at present
    done      it has answered, and there is no reason to ask it again (it is in no other place)

Everything here runs in the caller's thread: other threads only report which fetch has ended.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Final

from multiclouddb_api.pacing import Wakeup
from multiclouddb_spi.batch import Batch
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.fetcher import ReadContext, still_waiting
from multiclouddb_spi.fetching.page_content import PageContent
from multiclouddb_spi.fetching.scan_share import ScanShare
from multiclouddb_spi.fetching.stream import TURN_SECONDS, Stream
from multiclouddb_spi.time_limits import Deadline

_MIN_ASK: Final = 4096
_MAX_ASK: Final = 8 * 1024 * 1024
_LOOK_SECONDS: Final = 0.2
_SEND_SECONDS: Final = 50e-6
# Half of what the smallest full answer of a service has: DynamoDB sends at most 1,000 records and 1 MB.
_FULL_RECORDS: Final = 500
_FULL_BYTES: Final = 512 * 1024


def is_full_answer(records: int, nbytes: int) -> bool:
    """Return whether an answer of so many records and bytes is full, so that more records probably follow."""
    return records >= _FULL_RECORDS or nbytes >= _FULL_BYTES


class Queue:
    """The streams of one call, of at most `width` partitions at once.

    The first fetch of a stream requests at most as many records as `content` may have; later fetches may
    request more. `entry_of` returns the entry of a partition that is read, or None.

    The order of `ask` is that of the token, which `Lineage.rotate` made at the end of the call before. A page
    (`Filling`) puts it there and takes from `ready` at most what `content` has room for. A plan of Spark
    (`Heads`) has no `front`, no `first`, no `scan_share` and never waits at the service: it fills no content,
    but reserves records for each stream when it is asked, and takes each answer whole up to them.

    Attributes:
        content: What is taken together, up to a limit of records and of bytes; a plan only uses its limits.
        moves: Records up to where a partition was taken.
        ask: The partitions that are asked next, in this order; with the entry, where it is known.
        later: The streams that are asked when they are due.
        running: The streams whose answer nobody has looked at.
        ready: The streams with an answer in hand.
        landed: Those of `running` whose fetch has ended.
        passed: Streams that were asked, and for whose answer no other partition has to wait.
        quiet: The partitions that have answered that they have no records, and were not asked again; whoever
            looks at the answers adds them.
        awaited: The partitions of `running` that had no records, and whose fetch waits for new ones.
        overtaken: Partitions that wait for memory while records of others are returned. They keep their place
            in the lineage.
        front: The first partition of the order, while it has its turn: a place is kept for it, and the others
            wait for it, so that a slow partition does not starve.
        first: Partitions that are asked before the front, and need no place from it.
        scan_share: How the page is divided between a scan and the changes beside it.
        had_turn: The partitions that were taken, have failed, or were waited for in vain while they were the
            front, in the order of their turns; they are behind the others in the next call.
        began: The monotonic time at which the call began.
        turn: How many seconds the other partitions wait for the front.
        is_shaken: Something else than a read has changed the lineage, so a stream may be elsewhere or gone.
    """

    def __init__(
        self,
        context: ReadContext,
        consumer: Consumer,
        entry_of: Callable[[str], Entry | None],
        moves: Callable[[str, Cursor], None],
        content: PageContent[Any],
        active: int,
        deadline: Deadline,
    ) -> None:
        self.ask = OrderedDict[str, Entry | None]()
        self.later, self.running, self.ready = dict[str, Stream](), dict[str, Stream](), dict[str, Stream]()
        self.landed, self.passed = deque[Stream](), list[Stream]()
        self.quiet, self.awaited = set[str](), set[str]()
        self.overtaken: frozenset[str] = frozenset()
        self.had_turn = dict[str, None]()
        self.is_shaken = False
        self._context, self._consumer, self._deadline = context, consumer, deadline
        self.front: str | None = None
        self.first: Collection[str] = ()
        self.scan_share: ScanShare | None = None
        self._is_cut = False
        self._entry_of, self.moves, self.content = entry_of, moves, content
        self._budget, self._width = context.budget, context.width
        self.began = time.monotonic()
        self.turn = min(TURN_SECONDS, (deadline.at - self.began) / 2)
        self._limit, self._most = content.limit, max(content.limit, context.page_records)
        share = min(self._budget.limit // (active + 1), content.most_bytes)
        self._ask_bytes = min(_MAX_ASK, max(_MIN_ASK, share))
        self._no_room = self._sorted = self._at_once = False
        self._slow_from = 0.0  # before this time, no partition that is being read counts as slow
        self._wakeup = Wakeup()

    # -- Places

    def put(self, partition_ids: Iterable[str]) -> None:
        """Ask these partitions after all others that are asked, unless they are being read."""
        for name in partition_ids:
            if name not in self.running:
                self.later.pop(name, None)
                self.ready.pop(name, None)
                self.ask.setdefault(name, None)

    def put_ready(self) -> None:
        """Look again at the answers in hand, because the caller may have room for them now."""
        self.put(list(self.ready))
        self._sorted = False

    def put_due(self) -> None:
        """Ask the streams whose time has come."""
        now = time.monotonic()
        self.put([name for name, stream in self.later.items() if stream.next_at() <= now])

    def all_quiet(self) -> set[str]:
        """Return the streams that have no records, with those whose fetch waits for new ones."""
        running = self.running.items()
        return self.quiet | {name for name, each in running if name in self.awaited and each.error is None}

    def next_due(self) -> float:
        """Return when the first of the streams that are asked later is due."""
        return min(stream.next_at() for stream in self.later.values())

    # -- Ask

    def launch(self, wait: float = 0.0, reserve: Callable[[Stream], int] | None = None) -> None:
        """Ask as many partitions as threads and bytes allow.

        Args:
            wait: How many seconds a fetch may wait for new records.
            reserve: Reserves records for a stream, which may request and take as many, and returns their
                number; 0 to ask no more at present.
        """
        ask, streams = self.ask, self._consumer.streams
        while ask:
            if len(self.running) >= self._width and self._is_wide():
                return
            if self._at_once and (self.landed or self._deadline.passed()):
                return  # the answer is there already; the next partition may not be needed
            # A fetch reserves the bytes that it may return before it is sent.
            budget = self._budget
            needed = max(self._ask_bytes, budget.expected)
            if budget.used + needed > budget.limit and not self._may_go_beyond(needed):
                return
            name, entry = next(iter(ask.items()))
            if entry is None or self.is_shaken:
                entry = self._entry_of(name)
            if entry is None:
                del ask[name]
                continue
            stream = streams.get(name)
            if stream is None or stream.cursor is not entry.said[0] or stream.cancelled:
                stream = self._at(name, entry.said[0])
            if stream.future is not None and not stream.future.done() and stream.takes_too_long():
                stream = self._give_up(stream)
            now = time.monotonic()
            due_at = stream.due_at if stream.pace is None else stream.next_at()
            if due_at > now and stream.batch is None and stream.future is None:
                del ask[name]
                self.later[name] = stream
                self.passed.append(stream)
                continue
            most = None if reserve is None else reserve(stream)
            if most == 0:
                return
            if stream.waiting or (stream.future is not None and now - stream.asked_at > TURN_SECONDS):
                self.passed.append(stream)  # it waits for new records, or is slow
            del ask[name]
            stream.most = most
            self.running[name] = stream
            if name in self.quiet:
                self.quiet.discard(name)
                if wait > 0:
                    self.awaited.add(name)
            if stream.batch is None:
                if stream.future is None:
                    self._fetch(stream, wait)
                if stream.future is not None and not stream.future.done():
                    self._slow_from = min(self._slow_from, stream.asked_at + TURN_SECONDS)
                    # Not a method: it may outlive the call, and would keep the page in memory.
                    stream.future.add_done_callback(partial(_arrived, self.landed, self._wakeup, stream))
                    continue
            self.landed.append(stream)

    def _at(self, partition_id: str, cursor: Cursor) -> Stream:
        """Return the stream of a partition at a position, but none that is given up."""
        context = self._context
        stream = self._consumer.at(partition_id, cursor, context.budget, context.observing)
        return self._consumer.drop(stream) if stream.cancelled else stream

    def _is_wide(self) -> bool:
        """Return whether enough partitions are being read; slow ones do not count."""
        now = time.monotonic()
        if now < self._slow_from:
            return True
        began = [stream.asked_at for stream in self.running.values()]
        fresh = [at for at in began if at > now - TURN_SECONDS]
        if len(fresh) == len(began):
            self._slow_from = min(fresh, default=now) + TURN_SECONDS
        return len(fresh) >= self._width

    def _may_go_beyond(self, needed: int) -> bool:
        """Return whether a partition may be asked although the bytes for its answer are not free."""
        if not self._no_room:  # no room was found before, so there is none for the rest of this call
            self._no_room = not self._context.consumers.make_room(needed)
        if self._budget.over(needed) <= 0:
            return True
        ask = self.ask
        if not self._sorted:  # partitions with records go first, because returning records frees bytes
            self._sorted = True
            fetched = [name for name in ask if self._holds(name)]
            for name in reversed(fetched):
                ask.move_to_end(name, last=False)
            self.overtaken = frozenset(ask).difference(fetched) if fetched else frozenset()
        return not self.running or self._holds(next(iter(ask)))

    def _holds(self, partition_id: str) -> bool:
        stream = self._consumer.streams.get(partition_id)
        return stream is not None and not stream.empty()

    def _fetch(self, stream: Stream, wait: float) -> None:
        if not stream.asked_at:
            self._consumer.open_streams += 1
        share, fetcher = self._ask_bytes, self._context.fetcher
        stream.window = min(self._most, max(self._limit, 2 * stream.window))
        records = stream.window if stream.most is None else min(stream.window, stream.most)
        if stream.pace is not None:
            records = min(records, stream.pace.starts(self._most))
        stream.hold(max(share, self._budget.expected))
        stream.asked_at, stream.waiting, stream.at_once = time.monotonic(), wait > 0, False
        stream.due_at, stream.error = 0.0, None
        if not wait and stream.feed.reads_at_once:
            stream.future = fetcher.at_once(stream, records, share)
            stream.at_once = stream.future is not None
        if stream.future is None:
            stream.future = fetcher.submit(fetcher.fetch, stream, records, share, wait, self._deadline)
        self._at_once = stream.at_once

    def prefetch(self, stream: Stream) -> None:
        """Start the next fetch of a stream that has more records, if enough bytes are free."""
        if (
            stream.future is None
            and stream.pace is None
            and not stream.at_once
            and len(self.running) < self._width
            and not self._no_room  # otherwise, other partitions are waiting for these bytes
            and self._budget.over(max(self._ask_bytes, self._budget.expected)) <= 0
        ):
            self._fetch(stream, 0.0)
            if not self.landed:
                # Let the pool's thread send the request now, because the mapping that follows does not
                # release the interpreter lock. If another answer has already arrived, this call is not
                # waiting for the service.
                time.sleep(_SEND_SECONDS)

    # -- Answers

    def next(self, patience: float, free: Callable[[Stream], None] | None = None) -> Stream | None:
        """Return the next stream that has answered; None if none answers within `patience` seconds.

        Its answer is in hand, or it has failed with its `error`. None also means that others are to be asked.

        Args:
            patience: How many seconds to wait.
            free: Frees what `launch` has reserved for a stream that is to be asked anew.
        """
        until = None
        while True:
            landed = bool(self.landed)  # read before `closed`: closing cancels fetches, which then arrive
            if self._context.closed.is_set():
                raise self._context.closed.fault()
            if landed:
                stream = self.landed.popleft()
                name, future = stream.partition_id, stream.future
                if name not in self.running:
                    continue  # it was left because it was slow
                stream.is_new = stream.batch is None
                if stream.is_new:
                    if future is None or not future.done():
                        continue  # it was left, and is read again; or another one has taken its place
                    try:
                        # Not raised: its traceback would refer to this stream, which refers to it.
                        error = future.exception()
                    except CancelledError as cancelled:
                        error = cancelled.with_traceback(None)
                    stream.future = None
                    if error is None:
                        if self._deadline.progress is not None:
                            self._deadline.progress.answered()
                        stream.batch, stream.taken = future.result(), 0
                        stream.position, stream.has_failed = stream.batch.end, False
                        stream.fetches += 1
                        if stream.pace is not None:
                            stream.pace.landed(stream.batch, self._most)
                        # What was reserved for the fetch is by now what its answer holds.
                        stream.held_ask, stream.held_batch = 0, stream.held_ask
                    elif isinstance(error, Exception):
                        stream.error = error
                    else:
                        raise error
                del self.running[name]
                self.awaited.discard(name)
                return stream
            now = time.monotonic()
            until = now + patience if until is None else until
            if now >= until:
                return None
            if not self._wakeup.wait(min(_LOOK_SECONDS, until - now)):
                still_waiting(self._deadline, self._trouble)
                if self._ask_anew(free):
                    return None

    def _ask_anew(self, free: Callable[[Stream], None] | None) -> bool:
        """Give up each fetch of an earlier call that by now takes too long; return whether there is any.

        One of this call has until the call's deadline, which says how long its caller wants to wait. Shortly
        before it, nothing is given up: what is not asked again in time could not be reported as late.
        """
        if self._deadline.remaining() < _LOOK_SECONDS:
            return False
        late = [
            name
            for name, stream in self.running.items()
            if stream.asked_at < self.began and stream.takes_too_long()
        ]
        for name in late:
            stream = self.running.pop(name)
            if free is not None:
                free(stream)
            self._give_up(stream)
            self.awaited.discard(name)
        self.put(late)
        return bool(late)

    def _give_up(self, stream: Stream) -> Stream:
        """Drop a stream whose fetch takes too long; return what takes its place."""
        self._context.fetcher.give_up(stream)
        return self._consumer.drop(stream)

    def drop_failed(self, stream: Stream) -> tuple[Stream, bool]:
        """Drop a stream whose fetch has failed; return what takes its place, and whether to ask that at once.

        If an earlier call has asked, a new fetch may succeed. But a failure that takes longer than the turn
        of the first partition would never come in time, so the second one in a row counts.
        """
        left = self._consumer.drop(stream)
        left.has_failed = time.monotonic() - stream.asked_at > self.turn
        return left, stream.asked_at < self.began and not stream.has_failed

    def turn_left(self) -> float:
        """Return how many seconds the others still wait for the front; 0 or less if its turn is over."""
        return self.began + self.turn - time.monotonic()

    def _trouble(self) -> str | None:
        """Return the reason for the last retry of a running fetch."""
        failures = [stream.error for stream in self.running.values() if stream.error is not None]
        return self._context.fetcher.fault(failures[-1]).message if failures else None

    def leave(self) -> list[Stream]:
        """Leave running fetches to a later round or call; return those that the deadline has overtaken."""
        passed, late = time.monotonic() >= self._deadline.at, list[Stream]()
        for stream in self.running.values():
            if passed and stream.future is not None and not stream.future.done():
                late.append(stream)
                if stream.takes_too_long():
                    self._give_up(stream)
        self.running.clear()
        return late

    # -- Take

    def is_elsewhere(self, stream: Stream) -> bool:
        """Drop what was fetched of a partition that a loss has moved or removed; return whether one has."""
        entry = self._entry_of(stream.partition_id)
        if entry is not None and entry.said[0] == stream.cursor:
            return False
        self._consumer.drop(stream)
        self.turn_is_over(stream.partition_id)
        return True

    def take(self, stream: Stream, batch: Batch, count: int) -> int | None:
        """Give a stream its turn; return up to which of the `count` records of its answer it is taken.

        None if there is no room: the stream waits in `ready` until places are free that are kept for others.
        """
        name, first, front, content = stream.partition_id, stream.taken, self.front, self.content
        stop = count
        if count and stream.most is not None:
            stop = min(count, first + stream.most)
        elif count:
            places = content.limit - content.count
            if front is not None and name != front and name not in self.first:
                places -= 1
            if self.scan_share is not None:
                places = self.scan_share.places(name, places)
            # The page ends before its records have more bytes than it may have, but it has at least one.
            # While the front has its turn, that one is its own, and the others wait for it.
            left, each = content.most_bytes - content.nbytes, batch.nbytes / count
            fits = int(max(left, 0.0) // each) if each else places
            if name == front or not (content.count or front):
                fits = max(1, fits)
            self._is_cut = min(places, count - first) > fits
            stop = min(count, first + min(places, fits))
        if count and stop == first:
            self._rests(stream)
            return None
        self.had_turn.pop(name, None)
        self.had_turn[name] = None
        if name == front or self.scan_share is not None:
            self.turn_is_over(name)
        return stop

    def took(self, stream: Stream, batch: Batch, stop: int, count: int) -> None:
        """Move a stream behind the records that were taken; what is left of its answer waits in `ready`."""
        if stop < count:
            self._rests(stream)
        if self.scan_share is not None:
            self.scan_share.took(stream.partition_id, stop - stream.taken)
        stream.cursor, stream.taken = batch.cursor_after(stop), stop
        self.moves(stream.partition_id, stream.cursor)
        if stop == count:  # last: a stream without its answer that stands before it would leave it out
            stream.used_up()
            stream.due_at = stream.asked_at + batch.poll_after if batch.poll_after else 0.0

    def _rests(self, stream: Stream) -> None:
        """Let the rest of an answer wait, or end the page if it is too large and nothing else may come."""
        self.ready[stream.partition_id] = stream
        if self._is_cut and self.front is None:
            self.content.ended = True

    def has_turn(self, partition_id: str) -> None:
        """Record that a partition has its turn without records; the token keeps the order of the turns."""
        self.had_turn.pop(partition_id, None)
        self.had_turn[partition_id] = None
        self.turn_is_over(partition_id)

    def turn_is_over(self, partition_id: str) -> None:
        """Wait no longer for a partition: others may use the places that were kept for it."""
        is_released = self.scan_share is not None and self.scan_share.has_had_turn(partition_id)
        if partition_id == self.front:
            self.front, is_released = None, True
        if is_released and self.ready:
            self.put_ready()


def _arrived(landed: deque[Stream], wakeup: Wakeup, stream: Stream, _: object) -> None:
    """Record that an answer arrived; any thread may call this function."""
    landed.append(stream)
    wakeup.send()
