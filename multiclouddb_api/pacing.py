"""Decides when an iterator reads again after idle pages, failures and outages; `stop` ends any wait."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Final

from multiclouddb_api.errors import ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_api.page import ChangeFeedPage
from multiclouddb_api.wakeup import Wakeup

__all__ = ["Backoff", "PollSchedule", "Timer"]

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
        """End the current wait and all later waits.

        Any thread or signal handler may call this method.
        """
        self.stopped = True
        self._wakeup.send()

    def wait(self, seconds: float) -> bool:
        """Sleep until the time has passed or `stop` is called; return False if `stop` was called."""
        if seconds > 0 and not self.stopped:
            self._wakeup.wait(seconds)
        return not self.stopped


class Backoff:
    """Computes random waits that grow; the upper limit of a wait is at most twice the previous limit.

    Args:
        first: The upper limit of the first wait, in seconds.
        most: The upper limit of every wait.
        least: The lower limit of every wait. If `least` is not 0, a wait is also at least a
            fiftieth of its upper limit.
    """

    def __init__(self, first: float, most: float, least: float = 0.0) -> None:
        self._first, self._most, self._least = first, most, least
        self._doubled = 0

    def next(self) -> float:
        """Return the time to wait now; the next wait may be longer."""
        longest = max(self._least, min(self._most, self._first * 2**self._doubled))
        self._doubled = min(self._doubled + 1, _MOST_DOUBLED)
        least = max(self._least, longest / _LEAST_PART) if self._least else 0.0
        return random.uniform(least, longest)

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

    Attributes:
        due: The time of the next read, on the timer's clock.
        idle: True if the last read found nothing.
        stuck: The error of a partition that failed on the last page and has failed for too long, or
            None.
    """

    def __init__(
        self, timer: Timer, idle_seconds: float, max_idle_seconds: float, max_outage_seconds: float
    ) -> None:
        self.due = timer.now()
        self.idle = False
        self.stuck: MulticloudDbError | None = None
        self._timer = timer
        self._max_outage = max_outage_seconds
        self._idle_waits = Backoff(idle_seconds, max_idle_seconds, least=idle_seconds)
        self._retry_waits = Backoff(_RETRY_SECONDS, _MAX_RETRY_SECONDS)
        self._failing_since: float | None = None
        self._partition_failing_since: dict[str, float] = {}

    def failed(self, retry_after: float | None = None) -> bool:
        """Record that a read failed with a retryable error; return False if reads have failed for too long.

        Args:
            retry_after: The number of seconds that the service asked to wait, or None. The next read is not
                earlier, except for the last one, when the time limit is reached.
        """
        now = self._timer.now()
        self.idle = False
        if self._failing_since is None:
            self._failing_since = now
        left = self._failing_since + self._max_outage - now
        if left <= 0:
            return False
        # The last attempt is made when the time limit is reached, not after one more backoff.
        pause = self._retry_waits.next()
        self.due = now + min(retry_after + pause / 4 if retry_after else pause, left)
        return True

    def succeeded(self, page: ChangeFeedPage, waited: float) -> None:
        """Record that a read returned a page.

        The read may have waited up to `waited` seconds for new records (long poll).
        """
        now = self._timer.now()
        errors = page.diagnostics.partition_errors
        self._failing_since = None
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
