"""Decides which answers one call waits for, and how long."""

from __future__ import annotations

import math
import time
from typing import Final

from multiclouddb_spi.deadline import Deadline

__all__ = ["HEAD_SECONDS", "Waiting"]

HEAD_SECONDS: Final = 2.0
"""The number of seconds for which the other partitions wait for a slow partition."""
_LINGER_SECONDS: Final = 0.002
_RETURN_SECONDS: Final = 1.0
# The first pause is short, because from the second round on, most services wait for new records themselves.
_FIRST_PAUSE_SECONDS: Final = 0.002
_LEAST_PAUSE_SECONDS: Final = 0.02
_MOST_PAUSE_SECONDS: Final = 0.5


class Waiting:
    """The waiting times of one call, on the monotonic clock.

    Args:
        deadline: The time limit of the call.
        wait: The number of seconds to wait for a first record.

    Attributes:
        began: The time at which the call began.
        last_ask: After this time, no fetch that waits for new records may begin. A fetch that waits must end
            before the deadline, because a read without new records is not a failure.
        until: How long the call waits for a first record.
        head_until: How long the call waits for the first partition in the queue.
        rounds: The number of times that all partitions were read again.
    """

    def __init__(self, deadline: Deadline, wait: float) -> None:
        self.began = now = time.monotonic()
        self._deadline = deadline
        self.last_ask = deadline.at - min(_RETURN_SECONDS, (deadline.at - now) / 4)
        self.until = min(self.last_ask, now + wait)
        self.head_until = now + min(HEAD_SECONDS, (deadline.at - now) / 2)
        self.rounds = 0
        self._round_began, self._pause = now, _FIRST_PAUSE_SECONDS
        self._lingering: float | None = None

    def of_fetch(self, longest: float) -> float:
        """Return how long a read may block for new records; the first round does not call this method.

        Args:
            longest: The number of seconds that one fetch may wait.
        """
        return max(0.0, min(longest, self.until - time.monotonic()))

    def for_head(self) -> float:
        """Return how long the call still waits for the first partition in the queue."""
        return self.head_until - time.monotonic()

    def for_answer(self, *, more_to_ask: bool) -> float:
        """Return how long to wait for the next answer if there are no records to return."""
        now = time.monotonic()
        return min(self.end() - now, HEAD_SECONDS if more_to_ask or now < self.until else math.inf)

    def for_more(self) -> float:
        """If there are records to return, return how long to wait for more answers; this wait is short."""
        if self._lingering is None:
            self._lingering = time.monotonic() + _LINGER_SECONDS
        return self._lingering - time.monotonic()

    def end(self) -> float:
        """Return when a call without records ends: after its wait, or at its deadline."""
        return min(self._deadline.at, self.until + HEAD_SECONDS) if self.rounds else self._deadline.at

    def before_round(self) -> float:
        """Return how long to pause before all partitions are read again; the pauses get longer."""
        now = time.monotonic()
        pause = min(self._pause - (now - self._round_began), self.until - now)
        self._pause = max(_LEAST_PAUSE_SECONDS, min(_MOST_PAUSE_SECONDS, 1.5 * self._pause))
        return max(0.0, pause)

    def begin_round(self) -> None:
        """Begin a round in which all partitions are read again."""
        self.rounds += 1
        self._round_began = time.monotonic()
