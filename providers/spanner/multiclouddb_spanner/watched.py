"""Finds out when a change stream watched its tables, and what the schema was when a change was made.

A stream can be pointed away from a table and back while nobody reads. No query reports this, and changes of
that time are not recorded. But the database keeps its old schemas for a time.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from multiclouddb_spanner.client import CancelScope, holding
from multiclouddb_spanner.errors import is_lost_version
from multiclouddb_spanner.records import Shape

Answer = TypeVar("Answer")

# The schema of one time is used for records that were committed at most this time before or after it.
_NEAR: Final = 60_000_000
_PRESENT_SECONDS: Final = 60.0
# The maximum number of answers to keep for one set of columns: about 11 days of changes.
_MOST: Final = 16_384


class PastSchemas(Generic[Answer]):
    """Remembers what was asked about the schema of past times.

    A record shows neither whether its table had more columns nor the order of its key columns, so the schema
    is read as of its commit time. The answer is reused for records of the same `shape` (or of every shape, if
    always the same one is given) that were committed within a minute of it. If the database no longer keeps
    the schema of a time, the present one answers.
    """

    def __init__(self, ask: Callable[[int | None, CancelScope], Answer]) -> None:
        self._ask = ask
        self._asking = threading.Lock()
        self._answers: WeakKeyDictionary[Shape, tuple[tuple[int, Answer], ...]] = WeakKeyDictionary()
        self._last: tuple[Shape, int, Answer] | None = None
        # Up to this time, the schema is not asked for, because the database no longer keeps it.
        self._lost = 0
        self._present: tuple[float, Answer] | None = None

    def at(self, shape: Shape, at: int, scope: CancelScope) -> Answer:
        """Return the answer for a given time."""
        known = self._known(shape, at)
        if known is not None:
            return known
        with holding(self._asking, scope):
            known = self._known(shape, at)  # another thread may have asked
            return self._asked(shape, at, scope) if known is None else known

    def _known(self, shape: Shape, at: int) -> Answer | None:
        last = self._last
        if last is not None and shape is last[0] and abs(at - last[1]) <= _NEAR:
            return last[2]
        answers = self._answers.get(shape, ())
        place = bisect(answers, at, key=itemgetter(0))
        near = [each for each in answers[max(place - 1, 0) : place + 1] if abs(each[0] - at) <= _NEAR]
        if near:
            moment, answer = min(near, key=lambda each: abs(each[0] - at))
            self._last = shape, moment, answer
            return answer
        present = self._present
        if at > self._lost or present is None or time.monotonic() - present[0] > _PRESENT_SECONDS:
            return None
        return present[1]

    def _asked(self, shape: Shape, at: int, scope: CancelScope) -> Answer:
        if at > self._lost:
            try:
                answer = self._ask(at, scope)
            except Exception as error:
                if not is_lost_version(error):
                    raise
                self._lost = at + _NEAR
            else:
                if self._last is not None and self._last[2] == answer:
                    answer = self._last[2]  # so that equal answers take the memory of one
                answers = self._answers.get(shape, ())[-_MOST + 1 :]
                self._answers[shape] = tuple(sorted((*answers, (at, answer)), key=itemgetter(0)))
                self._last = shape, at, answer
                return answer
        answer = self._ask(None, scope)
        self._present = time.monotonic(), answer
        return answer


# A shorter time is not looked at.
_SHORT: Final = 120_000_000
# The time for which a database keeps old schemas, unless its version_retention_period is longer.
_KEPT: Final = 3_600_000_000
# The maximum number of moments to look at between two known ones.
_MOST_MOMENTS: Final = 12


class WatchedTimes:
    """Remembers at which moments a stream was seen to watch its table, or not to watch it.

    `ask` returns False if the stream and the table existed, but the stream did not watch the table.
    """

    def __init__(self, ask: Callable[[int, CancelScope], bool], now: int) -> None:
        self._ask = ask
        self._asking = threading.Lock()
        self._known = [(now, True)]
        self._from = self._to = now

    def look(self, since: int, now: int, scope: CancelScope) -> None:
        """Look at moments between a position and the present, unless they are known."""
        with holding(self._asking, scope):
            oldest = max(since, now - _KEPT)
            if now - self._to > _SHORT:
                self._sample(self._to, now, scope)
                self._known.append((now, True))
            self._to = max(self._to, now)
            if self._from - oldest > _SHORT:
                self._sample(oldest, self._from, scope)
            self._from = min(self._from, since)
            self._known.sort()

    def reaches(self, since: int) -> bool:
        """Return True if the moments between a position and the present were looked at."""
        return self._from - since <= _SHORT

    def holes(self) -> Iterator[tuple[int, int]]:
        """Yield the known times without records, each as its begin and its end, in order."""
        begin = None
        for at, watched in list(self._known):
            if not watched:
                begin, last = (at if begin is None else begin), at
            elif begin is not None:
                yield begin, last + 1
                begin = None

    def _sample(self, begin: int, end: int, scope: CancelScope) -> None:
        """Look at moments between two times, from the later to the earlier one."""
        # The time at which the stream began to watch the table again is searched for exactly, so
        # that a reader can continue exactly there.
        step = max(_SHORT // 2, (end - begin) // _MOST_MOMENTS)
        later, was_watched = end, True
        for at in [*range(end - step, begin, -step), begin]:
            try:
                watched = self._ask(at, scope)
            except Exception as error:
                if not is_lost_version(error):
                    raise
                return
            if was_watched and not watched:
                again = first_at(at, later, lambda moment: self._ask(moment, scope))
                self._known += [(again - 1, False), (again, True)]
            self._known.append((at, watched))
            later, was_watched = at, watched


def first_at(before: int, after: int, holds: Callable[[int], bool]) -> int:
    """Return the first moment at which something holds that does not hold before, but after."""
    while after - before > 1:
        middle = (before + after) // 2
        if holds(middle):
            after = middle
        else:
            before = middle
    return after
