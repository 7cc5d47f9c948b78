"""Finds out whether a change stream watched all columns of its table when a record was written."""

from __future__ import annotations

import threading
import time
from bisect import bisect
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from multiclouddb_spanner.cancel_scope import CancelScope, late
from multiclouddb_spanner.errors import is_lost_version
from multiclouddb_spanner.records import Shape
from multiclouddb_spi import Deadline

__all__ = ["WatchedColumns"]

# The schema of one time is used for records that were committed at most this time before or after it.
_NEAR: Final = 60_000_000
_PRESENT_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.1
# The maximum number of answers to keep for one set of columns: about 11 days of changes.
_MOST: Final = 16_384


class WatchedColumns:
    """Remembers at which times a stream watched all columns of its table.

    The stream and the table can be altered at any time. A record does not show whether the table
    had more columns than the record. Therefore the schema is read as of the commit timestamp of a
    record. The answer is reused for records that have the same columns and were committed at most a
    minute earlier or later.
    """

    def __init__(self, ask: Callable[[int | None, Deadline, CancelScope], bool]) -> None:
        self._ask = ask
        self._asking = threading.Lock()
        self._answers: WeakKeyDictionary[Shape, tuple[tuple[int, bool], ...]] = WeakKeyDictionary()
        self._last: tuple[Shape | None, int, bool] = (None, 0, False)
        # Up to this time, the schema is not asked for, because the database no longer keeps it.
        self._lost = 0
        self._present: tuple[float, bool] | None = None

    def were_all(self, shape: Shape, at: int, deadline: Deadline, scope: CancelScope) -> bool:
        """Return True if the stream watched all columns at a given time."""
        known = self._known(shape, at)
        if known is not None:
            return known
        while not self._asking.acquire(timeout=_LOOK_SECONDS):
            scope.check()
            if deadline.passed():
                raise late()
        try:
            known = self._known(shape, at)  # another thread may have asked
            return self._asked(shape, at, deadline, scope) if known is None else known
        finally:
            self._asking.release()

    def _known(self, shape: Shape, at: int) -> bool | None:
        last, moment, whole = self._last
        if shape is last and abs(at - moment) <= _NEAR:
            return whole
        answers = self._answers.get(shape, ())
        place = bisect(answers, (at, False))
        near = [each for each in answers[max(place - 1, 0) : place + 1] if abs(each[0] - at) <= _NEAR]
        if near:
            moment, whole = min(near, key=lambda each: abs(each[0] - at))
            self._last = shape, moment, whole
            return whole
        present = self._present
        if at > self._lost or present is None or time.monotonic() - present[0] > _PRESENT_SECONDS:
            return None
        return present[1]

    def _asked(self, shape: Shape, at: int, deadline: Deadline, scope: CancelScope) -> bool:
        if at > self._lost:
            try:
                whole = self._ask(at, deadline, scope)
            except Exception as error:
                if not is_lost_version(error):
                    raise
                self._lost = at + _NEAR
            else:
                answers = self._answers.get(shape, ())[-_MOST + 1 :]
                self._answers[shape] = tuple(sorted((*answers, (at, whole))))
                self._last = shape, at, whole
                return whole
        whole = self._ask(None, deadline, scope)
        self._present = time.monotonic(), whole
        return whole
