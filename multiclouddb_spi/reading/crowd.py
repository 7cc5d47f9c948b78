"""Decides which readers of one partition are closed if there are too many readers."""

from __future__ import annotations

from collections import OrderedDict
from random import Random
from typing import Final, Generic, TypeVar

__all__ = ["Crowd"]

# The sequence is always the same, so that two runs of one program keep the same readers.
_dice: Final = Random(0)
T = TypeVar("T")


class Crowd(Generic[T]):
    """The cached readers of one partition; a reader belongs to an active consumer, or its consumer has left.

    A reader is called proven if its consumer has come back to it. A consumer that continues in another
    process never comes back. So the cache first closes a random reader among those that are not proven. If
    the cache closed the oldest reader first, consumers that take turns would always find their reader just
    closed. At most seven eighths of the readers are proven, so there is room for new consumers when old
    consumers have stopped.
    """

    __slots__ = ("_new", "_proven")

    def __init__(self) -> None:
        self._new: dict[T, None] = {}
        self._proven: OrderedDict[T, None] = OrderedDict()

    def add(self, reader: T, most: int, *, proven: bool) -> T | None:
        """Cache one more reader; if there are more than `most`, return the reader to close."""
        (self._proven if proven else self._new)[reader] = None
        if len(self._new) + len(self._proven) <= most:
            return None
        while len(self._proven) > most * 7 // 8:
            self._new[self._proven.popitem(last=False)[0]] = None
        return _dice.choice(list(self._new))

    def remove(self, reader: T) -> bool:
        """Remove a reader that is now in use or closed; return whether it was the last reader."""
        self._new.pop(reader, None)
        self._proven.pop(reader, None)
        return not (self._new or self._proven)
