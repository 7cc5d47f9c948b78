"""Injects faults on demand: the given number of next calls fail in the requested way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

import attrs

from multiclouddb_spanner_emulator.errors import ServiceError

__all__ = ["Act", "Action", "Delay", "Fail", "Hang", "Trouble", "Troubles"]


@attrs.frozen
class Fail:
    """The call ends with an error."""

    error: ServiceError


@attrs.frozen
class Delay:
    """The call continues only after a delay."""

    seconds: float


@attrs.frozen
class Hang:
    """The call waits until the fault is over."""


@attrs.frozen
class Act:
    """The fault calls a function while the service's call is running."""

    act: Callable[[], object]


Action: TypeAlias = Fail | Delay | Hang | Act


@attrs.define(eq=False)
class Trouble:
    """A requested fault.

    Attributes:
        action: The action.
        method: The calls that the fault affects, for example `ExecuteStreamingSql`, or `ChangeStream` for
            change stream queries; None for all.
        token: The partition whose queries the fault affects; None means all partitions, "" means queries
            without a token.
        after_rows: The number of sent rows after which the fault happens; None to apply the fault before
            anything is sent.
        times: The number of times that the fault happens; None means always.
        every: The interval: 1 means each call; 2 means every second call, beginning with the second.
        happened: The number of times that the fault has happened.
        over: An event that is set when the fault has ended.
    """

    action: Action
    method: str | None = None
    token: str | None = None
    after_rows: int | None = None
    times: int | None = None
    every: int = 1
    happened: int = 0
    over: threading.Event = attrs.field(factory=threading.Event, init=False)
    _asked: int = attrs.field(default=0, init=False)

    def end(self) -> None:
        """End the fault. Hanging calls continue."""
        self.over.set()

    def strikes(self, methods: tuple[str, ...], token: str | None, rows: int | None) -> bool:
        """Return True if the fault happens to this call at this point."""
        if self.over.is_set() or rows != self.after_rows:
            return False
        if self.method is not None and self.method not in methods:
            return False
        if self.token is not None and self.token != token:
            return False
        if self.times is not None and self.happened >= self.times:
            return False
        self._asked += 1
        if self._asked % self.every:
            return False
        self.happened += 1
        return True


class Troubles:
    """The faults of a server. Each method adds one fault. Several threads can use this object.

    `after_rows` counts data change records and child partitions records; it does not count
    heartbeats. If `after_rows` is None, the fault happens before anything is sent. If `after_rows`
    is 0, the fault happens when a first row exists but has not been sent yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Trouble] = []

    def fail(
        self,
        method: str | None,
        status: str,
        times: int | None = 1,
        *,
        message: str = "Scripted.",
        retry_after: float | None = None,
        token: str | None = None,
        after_rows: int | None = None,
        every: int = 1,
    ) -> Trouble:
        """End calls with an error status, before the answer or in the middle of the answer."""
        error = ServiceError(status, message, retry_after)
        return self._add(Trouble(Fail(error), method, token, after_rows, times, every))

    def delay(
        self,
        method: str | None,
        seconds: float,
        times: int | None = None,
        *,
        token: str | None = None,
        after_rows: int | None = None,
    ) -> Trouble:
        """Delay an answer, or the rest of an answer."""
        return self._add(Trouble(Delay(seconds), method, token, after_rows, times))

    def hang(
        self,
        method: str | None,
        times: int | None = None,
        *,
        token: str | None = None,
        after_rows: int | None = None,
    ) -> Trouble:
        """Do not answer until `Trouble.end` is called."""
        return self._add(Trouble(Hang(), method, token, after_rows, times))

    def act(
        self,
        act: Callable[[], object],
        times: int | None = 1,
        *,
        method: str = "ChangeStream",
        token: str | None = None,
        after_rows: int | None = 0,
    ) -> Trouble:
        """Call a function while an answer is being sent."""
        return self._add(Trouble(Act(act), method, token, after_rows, times))

    @property
    def present(self) -> list[Trouble]:
        """Return the active faults."""
        return list(self._all)

    def end(self) -> None:
        """End all faults."""
        with self._lock:
            for trouble in self._all:
                trouble.end()
            self._all.clear()

    def striking(self, methods: tuple[str, ...], token: str | None, rows: int | None) -> list[Trouble]:
        """Return the faults that hit a call at this point, in the order in which they were requested."""
        with self._lock:
            return [trouble for trouble in self._all if trouble.strikes(methods, token, rows)]

    def _add(self, trouble: Trouble) -> Trouble:
        with self._lock:
            self._all.append(trouble)
        return trouble
