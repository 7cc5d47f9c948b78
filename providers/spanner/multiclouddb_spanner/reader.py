"""Reads one partition."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

import attrs

from multiclouddb_spanner.client import CancelScope
from multiclouddb_spanner.errors import interval_of, is_broken, is_outside_partition
from multiclouddb_spanner.mapping import (
    RowChange,
    RowChanges,
    SpannerMapper,
    SpannerView,
    has_new,
    has_old,
    place_after,
)
from multiclouddb_spanner.position import Place, cursor_of, micros_of, moment_of, ordered
from multiclouddb_spanner.records import UNTIMED, Children, DataRecord, Heartbeat, Item, Passed
from multiclouddb_spanner.source import ReaderContext, Window
from multiclouddb_spi import Batch, Child, Continue, Deadline, Drained, Outcome, Reached, Reader, unsupported
from multiclouddb_spi.cursor import Cut
from multiclouddb_spi.time_limits import SILENT_SECONDS, answer_deadline

_SECOND: Final = 1_000_000
_WAIT: Final = 5 * _SECOND
# The length of the past period that one query reads. If the service evaluates data that nobody reads, its
# work is wasted.
_SPAN: Final = 3600 * _SECOND
_LEAST_SPAN: Final = _SECOND
_MOST_SPAN: Final = 24 * 3600 * _SECOND
_FEW: Final = 256
_SPARE_SECONDS: Final = 0.25
# For how long at most a fetch reads a past period without telling how far it has come. Without it, a process
# that is started for each call would never come further than the first window, if that takes longer than a
# call.
_TELL_SECONDS: Final = 2.0
# An idle partition pauses for ten times the duration of its query. Otherwise each small page of one partition
# would query all other partitions again.
_LEAST_PAUSE: Final = 0.05
_MOST_PAUSE: Final = 1.0
_REST: Final = 10


class SpannerReader(Reader):
    """Reads a partition forward in windows of time. Each window is a query that ends by itself."""

    def __init__(
        self,
        source: ReaderContext,
        view: SpannerView,
        token: str,
        place: Place,
        until: Place | None,
        *,
        require_new: bool = False,
        require_old: bool = False,
    ) -> None:
        self._source, self._view, self._token = source, view, token
        self._mapper = SpannerMapper(view)
        self._place, self._since = place, place.since
        self._bound, self._until = until, None if until is None else until.edge
        self._require_new, self._require_old = require_new, require_old
        self._scope = CancelScope()
        self._window: Window | None = None
        self._kept = False
        # The state of the window: its start, the items that were received but not yet taken, and the number
        # of changes that were taken from the first of these items.
        self._from = place
        self._items: deque[Item] = deque()
        self._used = 0
        self._count = 0
        self._children: dict[str, Child] = {}
        # The times of the window's last heartbeat, of its last record, and of its last one of another table.
        self._heard = self._seen = self._passed = 0
        self._span = _SPAN
        self._outcome: Outcome = Continue()
        self._requests, self._tell_at = 0, 0.0

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Return the next changes up to the service's current time, or up to `wait` seconds later."""
        self._scope.check()
        begin, began = self._place, time.monotonic()
        self._requests, self._tell_at = 0, began + min(_TELL_SECONDS, deadline.remaining() / 2)
        deadline = answer_deadline(deadline)
        if self._until is not None and begin.edge.compare(self._until) == 0:
            self._outcome = Reached()
        if not isinstance(self._outcome, Continue):
            self._end_window()
            return self._batch(begin, [], 0, caught_up=None)
        window = self._window
        if window is not None:  # it ends if it may last longer than this fetch, or if it expires soon
            window.current = False  # its end was the present of an earlier fetch
            left = (window.end - (self._source.client.ahead() or 0)) / _SECOND
            late = window.expires > deadline.at or window.expires - time.monotonic() < _SPARE_SECONDS
            if late or (window.waits and left > wait):
                self._end_window()
        taken: list[RowChange] = []
        try:
            nbytes, caught_up = self._read(taken, max_records, max_bytes, wait, deadline)
        except Exception as error:
            if self._window is not None and is_broken(error):
                self._source.spans.broke(self._token, self._window.end - self._from.cut.at)
            self._end_window()
            if taken:  # the error may have come in the middle of a message
                self._place = place_after(begin, taken, len(taken))
            if self._place != begin:
                # The next fetch raises the error if it persists.
                return self._batch(begin, taken, 0, caught_up=False)
            if (earlier := self._before_end(error)) is not None:
                self._place = earlier
                return self._batch(begin, [], 0, caught_up=False)
            ours = self._source.translated(error, begin.cut.at, self._scope.at(deadline), self._token)
            if ours is None:
                raise
            raise ours from error
        if self._window is not None and not self._keeps():
            self._span = max(_LEAST_SPAN, self._span // 2)
            self._end_window()
        pause = 0.0
        if wait <= 0:
            pause = min(_MOST_PAUSE, max(_LEAST_PAUSE, _REST * (time.monotonic() - began)))
        return self._batch(begin, taken, nbytes, caught_up=caught_up, pause=pause)

    def cancel(self) -> None:
        self._scope.cancel()

    def close(self) -> None:
        self._end_window()

    # -- Windows

    def _keeps(self) -> bool:
        """Return whether the window may stay open after the fetch, for which a slot has to be free."""
        self._kept = self._kept or self._source.slots.acquire(blocking=False)
        return self._kept

    def _end_window(self) -> None:
        """End the window. The changes that were not taken are requested again later."""
        window, self._window = self._window, None
        if window is not None:
            window.cancel()
        if self._kept:
            self._kept = False
            self._source.slots.release()
        self._items.clear()
        self._children.clear()
        self._used = 0

    def _open_window(self, wait: float, deadline: Deadline) -> Window:
        client, start = self._source.client, self._place.cut.at
        hole = self._source.check_watched(start, self._scope.at(deadline))
        last = start + (self._source.spans.of(self._token) or self._span)
        if self._until is not None:
            last = min(last, _last_of(self._until))
        if hole is not None:  # the next window begins there, and says that changes are missing
            last = min(last, hole - 1)
        waits, current = 0.0, False
        if last <= client.passed():
            end = last
        elif wait > 0:
            ahead = client.ahead()
            if ahead is None:
                self._requests += 1
                ahead = client.now(self._scope.at(deadline))
            end, current = min(last, ahead + min(int(wait * _SECOND), _WAIT)), last > ahead
            waits = max(0.0, (end - ahead) / _SECOND)
            deadline = deadline.sooner(waits + SILENT_SECONDS)
        else:
            self._requests += 1
            now = client.now(self._scope.at(deadline))
            current = last >= now
            end = min(last, now)
        self._requests += 1
        self._from, self._count = self._place, 0
        self._heard = self._seen = self._passed = 0
        self._window = self._source.window(
            self._token, start, max(start, end), self._scope.at(deadline), waits=waits, current=current
        )
        return self._window

    # -- Reading

    def _read(
        self, taken: list[RowChange], max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> tuple[int, bool | None]:
        """Take the changes; return their size, and whether no change is left (None: unknown)."""
        nbytes, begin = 0, self._place
        while True:
            window = self._window or self._open_window(wait, deadline)
            nbytes += self._take(taken, begin, max_records, max_bytes - nbytes, deadline)
            if self._items:
                return nbytes, False
            if taken and (window.waits or len(taken) >= max_records or nbytes >= max_bytes):
                return nbytes, None
            has_more = not window.waits and self._heard < window.end
            if has_more and self._place != begin and time.monotonic() >= self._tell_at and self._keeps():
                return nbytes, False
            items = window.next()
            if items is None:
                return nbytes, self._finish(window, taken, begin, deadline)
            self._items.extend(items)

    def _take(
        self, taken: list[RowChange], begin: Place, max_records: int, max_bytes: int, deadline: Deadline
    ) -> int:
        """Take as many of the received changes as the limits allow, and return their total size."""
        nbytes = 0
        while self._items:
            item = self._items[0]
            match item:
                case DataRecord():
                    if item.at == UNTIMED:
                        # The service sends records in the order of their commits.
                        at = max(self._seen, self._heard, self._from.cut.at, self._since)
                        item = self._items[0] = attrs.evolve(item, at=at)
                    self._seen = max(self._seen, item.at)
                    start, stop = self._wanted(item)
                    start = max(start, self._used)
                    if start < stop:
                        room = max_records - len(taken)
                        if room <= 0 or (taken and nbytes >= max_bytes):
                            break
                        item = self._items[0] = self._checked(item, deadline)
                        if self._lacks(item, taken):
                            break
                        end = min(stop, start + room)
                        taken.extend(RowChange(item, nth) for nth in range(start, end))
                        nbytes += item.nbytes * (end - start) // len(item.mods)
                        self._used = end
                        if end < stop:
                            break
                case Heartbeat(at):
                    self._heard = max(self._heard, at)
                    self._reach(at)
                case Passed(at):
                    self._passed = max(self._passed, at)
                    self._reach(at)
                case Children(at, parents):
                    cursor = cursor_of(Place.at(at, self._since))
                    self._children |= {
                        name: Child(name, all_parents or (self._token,), cursor)
                        for name, all_parents in parents.items()
                    }
            self._items.popleft()
            self._used = 0
            self._count += 1
        if taken:
            self._place = place_after(begin, taken, len(taken))
        return nbytes

    def _reach(self, at: int) -> None:
        """Move the position to a time before which all changes were sent."""
        if not self._children and self._place.cut.at < at:
            self._place = Place.at(at, self._since)

    def _wanted(self, record: DataRecord) -> tuple[int, int]:
        start, stop = 0, len(record.mods)
        if record.at < self._since:
            return stop, stop
        cut = self._from.cut
        if record.at <= cut.at:
            start = _part(cut, record)
        if self._until is not None and record.at >= self._until.at:
            stop = _part(self._until, record)
        return start, stop

    def _lacks(self, record: DataRecord, taken: list[RowChange]) -> bool:
        """Return True if a record lacks a required row."""
        if record.shape.problem is not None:
            return False  # the mapper says what is wrong with it
        new = has_new(record) or not self._require_new
        old = has_old(record) or not self._require_old
        whole = self._view.whole and record.shape.whole
        if new and old and (whole or not (self._require_new or self._require_old)):
            return False
        if taken:
            return True
        field = "new_item_state_mode" if not new or self._require_new else "old_item_state_mode"
        info, at = self._source.info, f"the change at {record.commit}"
        problem = f"{at} was captured with value_capture_type {record.capture}, without the whole row"
        statement = info.how_to_alter()
        if not whole:
            columns = f"all columns of {record.table!r}"
            problem = f"change stream {info.stream!r} did not watch {columns} when {at} was committed"
            statement = info.how_to_watch()
        raise unsupported(
            f"{field}=REQUIRE: {problem}",
            f"run {statement} for later changes, and read with INCLUDE_IF_AVAILABLE from the same token",
        )

    def _checked(self, record: DataRecord, deadline: Deadline) -> DataRecord:
        """If rows are wanted, store in the record whether the stream watched all columns."""
        record = self._source.fitted(record, self._scope.at(deadline))
        view, shape = self._view, record.shape
        wanted = view.whole and (view.with_new or view.with_old) and (has_new(record) or has_old(record))
        if shape.problem is not None or not (wanted and shape.whole):
            return record
        if self._source.watched_whole(record, self._scope.at(deadline)):
            return record
        return attrs.evolve(record, shape=attrs.evolve(shape, whole=False))

    def _finish(
        self, window: Window, taken: list[RowChange], begin: Place, deadline: Deadline
    ) -> bool | None:
        """Handle the end of a window. Return True if no change is left."""
        children = tuple(self._children.values())
        few, took = self._count < _FEW, time.monotonic() - window.began
        self._source.spans.arrived(self._token, small=self._count <= 1)
        self._end_window()
        if children:
            self._source.ended.pop(self._token, None)
        elif self._is_early(window, deadline):
            if self._place != begin:
                return False
            raise self._source.unnamed(self._token)
        if self._bound is not None and (children or window.end >= _last_of(self._bound.edge)):
            self._place, self._outcome = self._bound, Reached()
            return None
        if children:
            # The position does not move. If it is read again, the service names the same children again.
            self._outcome = Drained(children)
            return None
        if self._place.cut.at <= window.end:
            # Without a heartbeat at the end, only the next query shows that the partition had not ended.
            sure = 0 if self._heard >= window.end else max(self._seen, self._passed, self._from.cut.at)
            self._place = Place.at(window.end + 1, self._since, sure)
        self._span = min(_MOST_SPAN, 2 * self._span) if few else self._span
        if not taken and took < window.waits / 2:
            self._source.client.forget_clock()  # the time had passed, so this machine may have slept
            return False
        if window.current and not taken and self._place.sure:
            self._check_alive(deadline)
        return window.current

    def _is_early(self, window: Window, deadline: Deadline) -> bool:
        """Return True if an answer without children has ended before the end of its window."""
        client, ended = self._source.client, self._source.ended.get(self._token)
        if ended is not None:
            return ended <= window.end
        if self._heard >= window.end or window.end <= client.passed():
            return False
        self._requests += 1
        return window.end > client.now(self._scope.at(deadline))

    def _check_alive(self, deadline: Deadline) -> None:
        """Ask for the end of a window, which the service refuses if the partition had ended before it."""
        # Without this check, a feed could look idle whose partition has ended without naming its children.
        at = self._place.cut.at
        self._requests += 1
        self._source.has(self._token, at, at, lambda item: False, self._scope.at(deadline))
        self._place = Place.at(at, self._since)

    def _before_end(self, error: Exception) -> Place | None:
        """Return from where to read again if the partition had ended before this position, else None."""
        if not is_outside_partition(error):
            return None
        place, life = self._place, interval_of(error)
        if life is not None:
            begin, end = micros_of(life[0], up=True), micros_of(life[1])
            if end >= place.cut.at:
                return None
            # The longest window that may have ended before this position.
            back = place.sure or max(begin, place.cut.at - 1 - _MOST_SPAN)
        elif place.sure:
            end, back = place.cut.at - 1, place.sure
        else:
            return None
        self._source.ended[self._token] = end
        return Place.at(min(back, end), self._since)

    def _batch(
        self, begin: Place, taken: list[RowChange], nbytes: int, *, caught_up: bool | None, pause: float = 0.0
    ) -> Batch:
        at, now = self._place.first, self._source.client.passed()
        left = (at - now) / _SECOND + self._source.kept(now)
        return Batch(
            RowChanges(begin, taken),
            self._mapper,
            cursor_of(begin),
            cursor_of(self._place),
            self._outcome,
            nbytes,
            caught_up=caught_up,
            poll_after=pause if caught_up and not taken else 0.0,
            watermark=moment_of(at),
            headroom=max(0.0, left) if now else None,
            requests=self._requests,
        )


def _last_of(until: Cut) -> int:
    """Return the latest commit time that a change before the bound `until` can have."""
    return until.at if until.delivered else until.at - 1


def _part(cut: Cut, record: DataRecord) -> int:
    """Return the number of changes of a record that lie before a position."""
    if record.at != cut.at:
        return len(record.mods) if record.at < cut.at else 0
    mark = cut.delivered.get(record.transaction)
    sequence = (ordered(record.sequence),)
    if mark is None or sequence > mark[:1]:
        return 0
    return len(record.mods) if sequence < mark[:1] else min(len(record.mods), int(mark[1]))
