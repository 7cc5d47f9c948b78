"""Defines the time limit of a call."""

from __future__ import annotations

import time

import attrs

__all__ = ["Deadline"]


@attrs.frozen
class Deadline:
    """The time by which a call must end, on the monotonic clock; all parts of the call share the deadline.

    Attributes:
        at: The value of `time.monotonic()` by which the call must end.
    """

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return a deadline this many seconds from now.

        Args:
            seconds: The number of seconds.
        """
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Return the number of seconds that are left, which is never negative."""
        return max(0.0, self.at - time.monotonic())

    def passed(self) -> bool:
        """Return True if no time is left."""
        return time.monotonic() >= self.at

    def sooner(self, seconds: float) -> Deadline:
        """Return this deadline, or a deadline `seconds` from now if that is earlier.

        Args:
            seconds: The number of seconds from now.
        """
        return Deadline(min(self.at, time.monotonic() + seconds))
