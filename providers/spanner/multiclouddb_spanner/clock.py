"""Reads the service's clock with as few calls as possible."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import attrs

from multiclouddb_spanner.cancel_scope import CancelScope, late
from multiclouddb_spi import Deadline

__all__ = ["Clock"]

_LOOK_SECONDS: Final = 0.1
_KEPT_SECONDS: Final = 600.0
# The factor by which the service's clock may run faster than this machine's clock, and the number of
# microseconds by which commits may be ahead of the service's clock.
_DRIFT: Final = 1.0001
_AHEAD: Final = 5_000


@attrs.define(eq=False)
class _Turn:
    done: threading.Event = attrs.field(factory=threading.Event)
    found: int = 0
    error: BaseException | None = None


class Clock:
    """The service's clock.

    The time that the clock returns is equal to or later than the time of every commit that was
    acknowledged before the request. If several threads request the time while a call is running,
    these threads share the next call.
    """

    def __init__(self, asked: Callable[[Deadline, CancelScope], int]) -> None:
        self._asked = asked
        self._lock, self._busy = threading.Lock(), threading.Lock()
        self._waiting: _Turn | None = None
        self._answer: tuple[int, float] | None = None

    def now(self, deadline: Deadline, scope: CancelScope) -> int:
        """Ask the service for its time, in microseconds since 1970."""
        with self._lock:
            turn, leads = self._waiting, self._waiting is None
            if turn is None:
                turn = self._waiting = _Turn()
        if leads:
            self._lead(turn, deadline, scope)
        else:
            while not turn.done.wait(_LOOK_SECONDS):
                scope.check()
                if deadline.passed():
                    raise late()
        if turn.error is not None:
            raise turn.error
        return turn.found

    def _lead(self, turn: _Turn, deadline: Deadline, scope: CancelScope) -> None:
        acquired = False
        try:
            while not (acquired := self._busy.acquire(timeout=_LOOK_SECONDS)):
                scope.check()
                if deadline.passed():
                    raise late()
            with self._lock:
                self._waiting = None
            turn.found = self._ask(deadline, scope)
        except BaseException as error:
            turn.error = error
            raise
        finally:
            with self._lock:
                self._waiting = None if self._waiting is turn else self._waiting
            if acquired:
                self._busy.release()
            turn.done.set()

    def _ask(self, deadline: Deadline, scope: CancelScope) -> int:
        sent = time.monotonic()
        found = self._asked(deadline, scope)
        self._answer = (found, sent)
        return found

    def passed(self) -> int:
        """Return the last known time of the service's clock; 0 if no time is known."""
        answer = self._answer
        return 0 if answer is None else answer[0]

    def ahead(self) -> int | None:
        """Return a time slightly ahead of the service's clock, without a call."""
        answer = self._answer
        if answer is None or time.monotonic() - answer[1] > _KEPT_SECONDS:
            return None
        return answer[0] + int((time.monotonic() - answer[1]) * 1_000_000 * _DRIFT) + _AHEAD

    def forget(self) -> None:
        """Forget the last answer, because it is no longer correct."""
        self._answer = None
