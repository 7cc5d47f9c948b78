"""Decides from answers without records up to which moment an open shard was read.

One answer without records proves nothing: the service may send several of them before the next record.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from datetime import datetime, timedelta
from typing import Final

__all__ = ["DELAY_SECONDS", "EMPTY_ANSWERS", "EmptyAnswers", "KeptAnswers"]

EMPTY_ANSWERS: Final = 16
"""How many answers without records in a row show that an open shard was read to its end."""
DELAY_SECONDS: Final = 30.0
"""A shard that was read to its end was read up to this many seconds before its last answer.

The last `EMPTY_ANSWERS` answers were all requested within these seconds. If a feed has so many shards that it
reads each of them less often, or if the answers are slow, the answers may be further apart.
"""
_MOST_KEPT: Final = 4096


class EmptyAnswers:
    """The answers without records that a shard has given in a row.

    Attributes:
        count: The number of answers.
    """

    def __init__(self) -> None:
        self.count = 0
        self._asked: deque[float] = deque(maxlen=EMPTY_ANSWERS)
        self._seconds = 0.0

    def add(self, asked: float) -> None:
        """Add an answer that arrives now, and whose request was sent at the monotonic time `asked`."""
        self.count += 1
        self._asked.append(asked)
        self._seconds = time.monotonic() - asked

    def are_recent(self, pause: float) -> bool:
        """Return True if the last answers are close together in time.

        Args:
            pause: The seconds from one answer of a shard without records to the next.
        """
        longest = max(DELAY_SECONDS, 2 * EMPTY_ANSWERS * max(pause, self._seconds))
        return not self._asked or time.monotonic() - self._asked[0] <= longest

    def read_until(self, now: datetime | None) -> datetime | None:
        """Return the moment up to which the shard was read; None if that is not known.

        Args:
            now: The service's time, or None.
        """
        if now is None or len(self._asked) < EMPTY_ANSWERS:
            return None
        asked = min(self._asked[0], self._asked[-1] - DELAY_SECONDS)
        return now - timedelta(seconds=time.monotonic() - asked)


class KeptAnswers:
    """Keeps the empty answers of closed readers, for the next reader that continues with the same iterator.

    Several threads can use one object.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, EmptyAnswers] = OrderedDict()

    def put(self, iterator: str, answers: EmptyAnswers) -> None:
        """Store the answers that came before an iterator."""
        self._kept[iterator] = answers
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)

    def take(self, iterator: str) -> EmptyAnswers:
        """Remove and return the answers that came before an iterator."""
        return self._kept.pop(iterator, None) or EmptyAnswers()
