"""Detects that reads fail or get no answer, and reports the outage quickly and then regularly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from multiclouddb_api.address import ResourceAddress
from multiclouddb_api.observer import Observer

if TYPE_CHECKING:
    from logging import Logger

__all__ = ["Outage", "Stopped", "answered", "check_stopped", "still_waiting"]

_FAILING_SECONDS: Final = 0.5
_SILENT_SECONDS: Final = 1.6
_AGAIN_SECONDS: Final = 30.0
_SILENCE: Final = "the service has not answered yet"


class Stopped(BaseException):
    """Ends a running read whose iterator was stopped. No code treats it as a failure of the read."""


class Outage:
    """Tracks the outages of one feed; only one thread uses this object.

    When a whole read has failed, the failure is reported at once. While a read is running, the engine reports
    that it is still waiting (`still_waiting`). During a read, a failed attempt is reported after half a
    second, and a missing answer after 1.6 seconds.

    Args:
        address: The collection that is read.
        observer: The observer of the application, or None.
        now: A function that returns the time, in seconds, of a clock that never goes back.
        stopped: A function that returns True if the running read must end, because its page is not wanted.
    """

    def __init__(
        self,
        address: ResourceAddress,
        observer: Observer | None,
        now: Callable[[], float],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._address, self._observer, self._now, self._stopped = address, observer, now, stopped
        self._wait = 0.0
        self._asked_at = self._silent_from = now()
        self._began: float | None = None
        self._reported: float | None = None
        self._reason: str | None = None

    @contextmanager
    def watching(self, wait_seconds: float) -> Iterator[None]:
        """Return a context manager for one read, which may wait `wait_seconds` for new records."""
        self._wait = wait_seconds
        self._asked_at = self._silent_from = self._now()
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def check_stopped(self) -> None:
        """Raise `Stopped` if the running read must end."""
        if self._stopped():
            raise Stopped

    def answered(self) -> None:
        """Record that the service has answered; after this, the read may be waiting for new records."""
        self._asked_at = self._now()
        self._silent_from = self._asked_at + self._wait

    def waits(self, reason: Callable[[], str | None]) -> None:
        """Record that the read has not received an answer yet.

        `reason` returns the failure of the last attempt, or None.

        Raises:
            Stopped: Raised if the read must end.
        """
        self.check_stopped()
        now = self._now()
        if now - self._asked_at < _FAILING_SECONDS:
            return
        failure = reason()
        if not self._is_due(now, failure):
            return
        is_silent = now - self._silent_from >= _SILENT_SECONDS
        # A service that is only slow must not fill the log.
        if failure is None and self._began is None and not (is_silent and self._is_long_ago(now)):
            return
        self._report(now, failure or self._reason or _SILENCE)

    def failed(self, reason: str) -> None:
        """Record that a read has failed and will be repeated."""
        now = self._now()
        if self._is_due(now, reason):
            self._report(now, reason)

    def pauses(self) -> None:
        """Record that the iterator is still in a pause between two reads."""
        if self.until_next() <= 0:
            self._report(self._now(), self._reason or _SILENCE)

    def ended(self) -> None:
        """Record that a read has returned a page, which ends an outage if there was one."""
        if self._began is None:
            return
        seconds = self._now() - self._began
        self._began = self._reason = None
        _log().info("%s: reads work again after %.1f s", self._address, seconds)
        if self._observer is not None:
            self._tell(self._observer.outage_ended, self._address, seconds)

    def until_next(self) -> float:
        """Return the seconds until the next report; infinite if there is no outage."""
        if self._began is None or self._reported is None:
            return float("inf")
        return max(0.0, self._reported + _AGAIN_SECONDS - self._now())

    def _is_due(self, now: float, failure: str | None) -> bool:
        is_news = failure is not None and self._reason == _SILENCE
        return self._began is None or is_news or self._is_long_ago(now)

    def _is_long_ago(self, now: float) -> bool:
        return self._reported is None or now - self._reported >= _AGAIN_SECONDS

    def _report(self, now: float, reason: str) -> None:
        self._began = self._asked_at if self._began is None else self._began
        self._reported, self._reason = now, reason
        seconds = now - self._began
        _log().warning("%s: cannot be read for %.1f s; trying again: %s", self._address, seconds, reason)
        if self._observer is not None:
            self._tell(self._observer.outage, self._address, seconds, reason)

    def _tell(self, method: Callable[..., None], *args: Any) -> None:
        try:
            method(*args)
        except Exception:  # noqa: BLE001 - the application's code must not end a read
            _log().exception("the observer's %s failed", method.__name__)


def _log() -> Logger:
    """Return the logger; `logging` is imported only in an outage, because the import takes milliseconds."""
    import logging

    return logging.getLogger("multiclouddb.iterator")


_current: ContextVar[Outage | None] = ContextVar("multiclouddb_outage", default=None)


def still_waiting(reason: Callable[[], str | None]) -> None:
    """The engine calls this function in the thread of a read while the service has not answered yet.

    Args:
        reason: A function that returns the failure of the last attempt, on one line and without a secret;
            None if no attempt has failed.

    Raises:
        Stopped: Raised if the read must end, because its iterator was stopped.
    """
    outage = _current.get()
    if outage is not None:
        outage.waits(reason)


def check_stopped() -> None:
    """The engine calls this function while a read pauses.

    Raises:
        Stopped: Raised if the read must end, because its iterator was stopped.
    """
    outage = _current.get()
    if outage is not None:
        outage.check_stopped()


def answered() -> None:
    """Record that the service has answered. The engine calls this function in the thread of the read."""
    outage = _current.get()
    if outage is not None:
        outage.answered()
