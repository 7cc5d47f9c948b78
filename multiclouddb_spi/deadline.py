"""The time limit of a call."""

from __future__ import annotations

import time

import attrs

__all__ = ["Deadline"]


@attrs.frozen
class Deadline:
    """A moment on the monotonic clock; shared by everything that one call does.

    Attributes:
        at: `time.monotonic()` at which the call has to be over.
    """

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """A deadline this many seconds from now.

        Args:
            seconds: The number of seconds.
        """
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self.at - time.monotonic())

    def passed(self) -> bool:
        """True when no time is left."""
        return time.monotonic() >= self.at

    def sooner(self, seconds: float) -> Deadline:
        """The earlier of this deadline and `seconds` from now.

        Args:
            seconds: The number of seconds from now.
        """
        return Deadline(min(self.at, time.monotonic() + seconds))
