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
    """The cached readers of one partition: one for each active consumer, and readers whose consumers left.

    If a consumer comes back to its reader, that reader is proven to be in use. A consumer that continues in
    another process never comes back. So the cache first closes a random one of the readers to which no
    consumer has come back. If the cache closed the oldest reader first, consumers that take turns would each
    find their reader closed just before they come back. At most seven eighths of the readers are proven ones,
    so that there is room for new consumers when old ones have stopped.
    """

    __slots__ = ("_new", "_proven")

    def __init__(self) -> None:
        self._new: dict[T, None] = {}
        self._proven: OrderedDict[T, None] = OrderedDict()

    def add(self, reader: T, most: int, *, proven: bool) -> T | None:
        """Cache one more reader; return the reader to close if there are more than `most`, else None."""
        (self._proven if proven else self._new)[reader] = None
        if len(self._new) + len(self._proven) <= most:
            return None
        while len(self._proven) > most * 7 // 8:
            self._new[self._proven.popitem(last=False)[0]] = None
        return _dice.choice(list(self._new))

    def remove(self, reader: T) -> bool:
        """Remove a reader that is now in use or closed; return whether it was the last one."""
        self._new.pop(reader, None)
        self._proven.pop(reader, None)
        return not (self._new or self._proven)
