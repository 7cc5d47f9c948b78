"""Finds times at which a change stream did not watch its table; changes of these times are not recorded.

A stream can be pointed away from a table and back while nobody reads. No query reports this. But the database
keeps its old schemas for a time, so some moments between a position and the present are looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

from multiclouddb_spanner.cancel_scope import CancelScope, late
from multiclouddb_spanner.errors import is_lost_version
from multiclouddb_spi import Deadline

__all__ = ["WatchedTimes"]

# A shorter time is not looked at.
_NEAR: Final = 120_000_000
# The time for which a database keeps old schemas, unless its version_retention_period is longer.
_KEPT: Final = 3_600_000_000
# The maximum number of moments to look at between two known ones.
_MOST: Final = 12
_LOOK_SECONDS: Final = 0.1


class WatchedTimes:
    """Remembers at which moments a stream was seen to watch its table, or not to watch it."""

    def __init__(self, ask: Callable[[int, Deadline, CancelScope], bool], now: int) -> None:
        self._ask = ask
        self._asking = threading.Lock()
        self._known = [(now, True)]
        self._from = self._to = now

    def look(self, since: int, now: int, deadline: Deadline, scope: CancelScope) -> None:
        """Look at moments between a position and the present, unless they are known."""
        while not self._asking.acquire(timeout=_LOOK_SECONDS):
            scope.check()
            if deadline.passed():
                raise late()
        try:
            oldest = max(since, now - _KEPT)
            if now - self._to > _NEAR:
                self._sample(self._to, now, deadline, scope)
                self._known.append((now, True))
            self._to = max(self._to, now)
            if self._from - oldest > _NEAR:
                self._sample(oldest, self._from, deadline, scope)
            self._from = min(self._from, since)
            self._known.sort()
        finally:
            self._asking.release()

    def reaches(self, since: int) -> bool:
        """Return True if the moments between a position and the present were looked at."""
        return self._from - since <= _NEAR

    def holes(self) -> Iterator[tuple[int, int]]:
        """Yield the known times without records, each as its begin and its end, in order."""
        begin = None
        for at, watched in list(self._known):
            if not watched:
                begin, last = (at if begin is None else begin), at
            elif begin is not None:
                yield begin, last + 1
                begin = None

    def _sample(self, begin: int, end: int, deadline: Deadline, scope: CancelScope) -> None:
        """Look at moments between two times, from the later to the earlier one."""
        step = max(_NEAR // 2, (end - begin) // _MOST)
        later, was_watched = end, True
        for at in [*range(end - step, begin, -step), begin]:
            try:
                watched = self._ask(at, deadline, scope)
            except Exception as error:
                if not is_lost_version(error):
                    raise
                return
            if was_watched and not watched:
                again = self._first_watched(at, later, deadline, scope)
                self._known += [(again - 1, False), (again, True)]
            self._known.append((at, watched))
            later, was_watched = at, watched

    def _first_watched(self, before: int, after: int, deadline: Deadline, scope: CancelScope) -> int:
        while after - before > 1:
            middle = (before + after) // 2
            if self._ask(middle, deadline, scope):
                after = middle
            else:
                before = middle
        return after
