"""Provides the server's own clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import formatdate

__all__ = ["Clock"]


class Clock:
    """A clock that runs with real time and can be moved forward.

    Args:
        start: The time of the clock at the start; None for the real time.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._offset = (time.time() if start is None else start.timestamp()) - time.monotonic()
        self._stopped: float | None = None

    def seconds(self) -> float:
        """Return the seconds since 1970."""
        return time.monotonic() + self._offset if self._stopped is None else self._stopped

    def stop(self, seconds: float | None = None) -> None:
        """Stop the clock now, or at a given time; from then on, only `advance` moves it."""
        self._stopped = self.seconds() if seconds is None else seconds

    def now(self) -> datetime:
        """Return the clock's time as a datetime."""
        return datetime.fromtimestamp(self.seconds(), UTC)

    def http_date(self) -> str:
        """Return the clock's time in the format of a `Date` header."""
        return formatdate(self.seconds(), usegmt=True)

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back, but {seconds} is negative")
        self._offset += seconds
        if self._stopped is not None:
            self._stopped += seconds
