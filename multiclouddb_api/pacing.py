"""Decides when an iterator reads again after idle pages, failures and outages; `stop` ends any wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from multiclouddb_api.errors import ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_api.observer import Observer, tell
from multiclouddb_api.page import ChangeFeedPage
from multiclouddb_api.request import ResourceAddress

if TYPE_CHECKING:
    from logging import Logger


class Wakeup:
    """Wakes the one thread that waits for it. If no thread is waiting, the next wait ends at once.

    The signal can be sent from any thread, from a signal handler in the waiting thread, or from a finalizer.
    In a signal handler or a finalizer, the lock of a `threading.Event` or a `queue.Queue` could deadlock. A
    `queue.SimpleQueue` has no lock that could deadlock. But in Python 3.11 to 3.13, its `get` never returns
    if the timeout passes before the wait begins, which happens with a short timeout on a busy machine.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def send(self) -> None:
        """End the running wait, or the next wait if none is running."""
        if self._silent.locked():
            with suppress(RuntimeError):  # another thread has just sent the signal
                self._silent.release()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the signal; return True if the signal was sent."""
        return self._silent.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))


_FAILING_SECONDS: Final = 0.5
_SILENT_SECONDS: Final = 1.6
_AGAIN_SECONDS: Final = 30.0
_LOGGER: Final = "multiclouddb.iterator"
_SILENCE: Final = "the service has not answered yet"


class Outage:
    """Tracks the outages of one feed; only one thread uses this object.

    When a whole read has failed, the failure is reported at once. While a read is running, the engine reports
    that it is still waiting: this is the `Progress` of the read. During a read, a failed attempt is reported
    after half a second, and a missing answer after 1.6 seconds.

    Args:
        address: The collection that is read.
        observer: The observer of the application, or None.
        now: A function that returns the time, in seconds, of a clock that never goes back.
        stopped: A function that returns True if the running read must end, because its page is not wanted.

    Attributes:
        has_stopped: True if the last read was told to end.
    """

    def __init__(
        self,
        address: ResourceAddress,
        observer: Observer | None,
        now: Callable[[], float],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._address, self._observer, self._now, self._stopped = address, observer, now, stopped
        self._wait, self.has_stopped = 0.0, False
        self._asked_at = self._silent_from = now()
        self._began: float | None = None
        self._reported: float | None = None
        self._reason: str | None = None

    def begin(self, wait_seconds: float) -> None:
        """Record that a read begins, which may wait `wait_seconds` for new records."""
        self._wait, self.has_stopped = wait_seconds, False
        self._asked_at = self._silent_from = self._now()

    def must_stop(self) -> bool:
        """Return whether the running read must end."""
        self.has_stopped = self._stopped()
        return self.has_stopped

    def answered(self) -> None:
        """Record that the service has answered; after this, the read may be waiting for new records."""
        self._asked_at = self._now()
        self._silent_from = self._asked_at + self._wait

    def waits(self, reason: Callable[[], str | None]) -> None:
        """Record that the read has not received an answer yet."""
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
            tell(_LOGGER, self._observer.outage_ended, self._address, seconds)

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
            tell(_LOGGER, self._observer.outage, self._address, seconds, reason)


def _log() -> Logger:
    """Return the logger; `logging` is imported only in an outage, because the import takes milliseconds."""
    import logging

    return logging.getLogger(_LOGGER)


_RETRY_SECONDS: Final = 0.5
_MAX_RETRY_SECONDS: Final = 30.0
_MOST_DOUBLED: Final = 60
_LEAST_PART: Final = 50


class Timer:
    """The clock of one iterator, and a wait that ends when the iterator is stopped."""

    def __init__(self) -> None:
        self.stopped = False
        self._wakeup = Wakeup()

    def now(self) -> float:
        """Return the time, in seconds, of a clock that never goes back."""
        return time.monotonic()

    def stop(self) -> None:
        """End the current wait and all later waits."""
        self.stopped = True
        self._wakeup.send()

    def wait(self, seconds: float) -> bool:
        """Sleep until the time has passed or `stop` is called; return False if `stop` was called."""
        if seconds > 0 and not self.stopped:
            self._wakeup.wait(seconds)
        return not self.stopped


class Backoff:
    """Computes random waits that grow; the upper limit of a wait is at most twice the previous limit."""

    def __init__(self, first: float, most: float, least: float = 0.0) -> None:
        self._first, self._most, self._least = first, most, least
        self._doubled = 0

    def next(self) -> float:
        """Return the time to wait now; the next wait may be longer."""
        longest = max(self._least, min(self._most, self._first * 2**self._doubled))
        self._doubled = min(self._doubled + 1, _MOST_DOUBLED)
        least = max(self._least, longest / _LEAST_PART) if self._least else 0.0
        from random import uniform

        return uniform(least, longest)

    def reset(self) -> None:
        """Make the next wait as short as the first wait."""
        self._doubled = 0


class PollSchedule:
    """Decides when a feed is read again, and when its failures have lasted too long.

    Args:
        timer: The iterator's clock.
        idle_seconds: The first wait after an idle page.
        max_idle_seconds: The longest wait after an idle page.
        max_outage_seconds: How long failures are tolerated before they are raised.
        max_start_seconds: How long they are tolerated before the first page; None for the same time.

    Attributes:
        due: The time of the next read, on the timer's clock.
        idle: True if the last read found nothing.
        stuck: The error of a partition that failed on the last page and has failed for too long, or
            None.
    """

    def __init__(
        self,
        timer: Timer,
        idle_seconds: float,
        max_idle_seconds: float,
        max_outage_seconds: float,
        max_start_seconds: float | None = None,
    ) -> None:
        self.due = timer.now()
        self.idle = False
        self.stuck: MulticloudDbError | None = None
        self._timer = timer
        self._max_outage = max_outage_seconds
        self._limit = max_outage_seconds if max_start_seconds is None else max_start_seconds
        self._idle_waits = Backoff(idle_seconds, max_idle_seconds, least=idle_seconds)
        self._retry_waits = Backoff(_RETRY_SECONDS, _MAX_RETRY_SECONDS)
        self._failing_since: float | None = None
        self._partition_failing_since: dict[str, float] = {}

    def failed(self, retry_after: float | None = None) -> bool:
        """Record that a read failed with a retryable error; return False if reads have failed for too long.

        Args:
            retry_after: The number of seconds that the service asked to wait, or None. The next read does not
                come earlier, except for the last read, when the time limit is reached.
        """
        now = self._timer.now()
        if self._failing_since is None:
            self._failing_since = now
        left = self._failing_since + self._limit - now
        if left <= 0:
            return False
        # The last attempt is made when the time limit is reached, not after one more backoff.
        pause = self._retry_waits.next()
        self.due = now + min(retry_after + pause / 4 if retry_after else pause, left)
        return True

    def succeeded(self, page: ChangeFeedPage, waited: float) -> None:
        """Record that a read returned a page."""
        now = self._timer.now()
        errors = page.diagnostics.partition_errors
        self._failing_since, self._limit = None, self._max_outage
        self._partition_failing_since = {
            name: self._partition_failing_since.get(name, now) for name in errors
        }
        self.stuck = self._long_failing(now, errors)
        self.idle = page.idle
        self.due = now
        if not errors:
            self._retry_waits.reset()
        if page.events:
            self._idle_waits.reset()
        if page.idle:
            self.due += max(0.0, self._idle_waits.next() - waited)
        elif errors and not page.events:
            self.due += self._retry_waits.next()
        else:
            self.due += page.poll_after_seconds

    def _long_failing(self, now: float, errors: Mapping[str, str]) -> MulticloudDbError | None:
        for name, since in self._partition_failing_since.items():
            if now - since > self._max_outage:
                return MulticloudDbError(
                    f"partition {name} has failed on every page for {now - since:.0f} seconds: "
                    f"{errors[name]}; the other partitions were read, and nothing is lost within the "
                    f"retention; fix the cause and iterate again, or raise max_outage_seconds",
                    ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, operation="iterate_changes", retryable=True),
                )
        return None
