"""Provides the server's own clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime

__all__ = ["Clock"]


class Clock:
    """A clock that runs with real time and can be moved forward.

    Args:
        start: The time of the clock at the start; None for the real time.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._offset = (time.time() if start is None else start.timestamp()) - time.monotonic()

    def seconds(self) -> float:
        """Return the seconds since 1970."""
        return time.monotonic() + self._offset

    def now(self) -> datetime:
        """Return the current time as a datetime."""
        return datetime.fromtimestamp(self.seconds(), UTC)

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back, but {seconds} is negative")
        self._offset += seconds
