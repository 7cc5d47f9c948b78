"""Requests smaller answers from a partition after a connection has broken within an answer."""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from multiclouddb_spi.arrival import Arrival
from multiclouddb_spi.contract import Feed

__all__ = ["AnswerSize", "AnswerSizes"]

# An error message is shorter than this.
_LEAST_BYTES: Final = 8192
_SMALLER: Final = 2  # a quarter
_LARGER: Final = 1  # twice as much
_MOST: Final = 24
_ARRIVED: Final = 4


class AnswerSize:
    """The size of the answers to request from one partition: a part of what the caller wants."""

    def __init__(self) -> None:
        self._shift = self._arrived = 0

    @property
    def is_full(self) -> bool:
        """True if the caller gets as much as it wants."""
        return not self._shift

    def of(self, wanted: int) -> int:
        """Return how much to request."""
        return max(1, wanted >> self._shift)

    def broke(self) -> None:
        """Record that the connection has broken within an answer; the next one is a quarter as large."""
        self._shift, self._arrived = min(_MOST, self._shift + _SMALLER), 0

    def arrived(self) -> None:
        """Record that an answer has arrived; after four of them, the next one is twice as large."""
        self._arrived += 1
        if self._arrived >= _ARRIVED:
            self._shift, self._arrived = max(0, self._shift - _LARGER), 0


_FULL: Final = AnswerSize()


class AnswerSizes:
    """The sizes of all partitions of one client; several threads share the object."""

    def __init__(self) -> None:
        self._feeds: WeakKeyDictionary[Feed, dict[str, AnswerSize]] = WeakKeyDictionary()

    def of(self, feed: Feed, partition_id: str) -> AnswerSize:
        """Return the size for a partition; do not change it."""
        return self._feeds.get(feed, {}).get(partition_id, _FULL)

    def failed(self, feed: Feed, partition_id: str, arrival: Arrival) -> None:
        """Record that a read has failed with an error that may pass."""
        if arrival.received >= _LEAST_BYTES and not arrival.cancelled:
            self._feeds.setdefault(feed, {}).setdefault(partition_id, AnswerSize()).broke()

    def arrived(self, feed: Feed, partition_id: str) -> None:
        """Record that an answer with records has arrived."""
        sizes = self._feeds.get(feed)
        size = None if sizes is None else sizes.get(partition_id)
        if sizes is not None and size is not None:
            size.arrived()
            if size.is_full:
                sizes.pop(partition_id, None)
