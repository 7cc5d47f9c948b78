"""Provides the server's own clock, which counts nanoseconds since 1970.

Commit timestamps are whole microseconds.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

__all__ = ["MICROSECOND", "SECOND", "Clock", "from_text", "to_text"]

MICROSECOND: Final = 1000
SECOND: Final = 10**9
_TEXT: Final = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)")


def to_text(moment: int, zone: str = "Z") -> str:
    """Return a time in RFC 3339 without trailing zeros."""
    seconds, rest = divmod(moment, SECOND)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19] + fraction + zone


def from_text(text: str) -> int:
    """Return the time in an RFC 3339 text, with all its digits.

    Raises:
        ValueError: Raised if the text is not in this format.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no RFC 3339 timestamp")
    base, fraction, zone = found.groups()
    offset = "+00:00" if zone in "Zz" else zone
    seconds = int(datetime.fromisoformat(base.upper() + offset).timestamp())
    return seconds * SECOND + int((fraction or "").ljust(9, "0"))


class Clock:
    """A clock that runs slightly ahead of real time and can be moved forward.

    Args:
        lead_seconds: The number of seconds by which the clock is ahead of this machine's clock.
    """

    def __init__(self, lead_seconds: float = 0.005) -> None:
        self._offset = time.time_ns() - time.monotonic_ns() + round(lead_seconds * SECOND)
        self._last = 0
        self.held: int | None = None
        self._stopped: int | None = None

    def stop(self, moment: int | None = None) -> None:
        """Stop the clock now, or at a given time.

        From then on, only `advance` moves it, and each look at the clock takes a microsecond.
        """
        self._stopped = self._last = self.nanoseconds() if moment is None else moment

    def nanoseconds(self) -> int:
        """Return the current time, which is never earlier than an acknowledged commit."""
        if self._stopped is not None:
            self._stopped = max(self._stopped, self._last) + MICROSECOND
            return self._stopped
        return max(time.monotonic_ns() + self._offset, self._last)

    def now(self) -> datetime:
        """Return the current time as a datetime."""
        return datetime.fromtimestamp(self.nanoseconds() / SECOND, UTC)

    def read(self) -> int:
        """Return the timestamp for a strong read. Every later commit gets a later timestamp."""
        self._last = self.nanoseconds() // MICROSECOND * MICROSECOND
        return self._last

    def commit(self) -> int:
        """Return the next commit timestamp.

        Each timestamp is later than all previous ones, unless a test holds timestamps at one value.
        """
        if self.held is not None:
            return self.held
        return self.step()

    def step(self) -> int:
        """Return a time in whole microseconds that is later than every commit."""
        now = -(-self.nanoseconds() // MICROSECOND) * MICROSECOND
        self._last = max(now, self._last + MICROSECOND)
        return self._last

    def crowd(self, seconds: float) -> None:
        """Move the clock forward by the given time, and stop the clock until real time has caught up.

        While the clock is stopped, successive commits are one microsecond apart.
        """
        ahead = self.nanoseconds() + round(seconds * SECOND)
        self._last = ahead // MICROSECOND * MICROSECOND

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back, but {seconds} is negative")
        self._offset += round(seconds * SECOND)
        if self._stopped is not None:
            self._stopped += round(seconds * SECOND)
