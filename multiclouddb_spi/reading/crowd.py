"""Decides which readers of one partition are closed when there are too many."""

from __future__ import annotations

from collections import OrderedDict
from random import Random
from typing import Final, Generic, TypeVar

__all__ = ["Crowd"]

# Always the same sequence: two runs of one program keep the same readers.
_dice: Final = Random(0)
T = TypeVar("T")


class Crowd(Generic[T]):
    """The cached readers of one partition: one for each consumer, and the ones that consumers no longer use.

    A consumer that comes back has proven that its reader is in use. A consumer that continues in another
    process never comes back. So readers that nobody has come back to are closed first, one of them at random.
    With "the oldest first", consumers that take turns would each find their reader closed just before they
    come back. At most seven eighths are proven readers, so that new consumers have a place when old ones have
    stopped.
    """

    __slots__ = ("_new", "_proven")

    def __init__(self) -> None:
        self._new: dict[T, None] = {}
        self._proven: OrderedDict[T, None] = OrderedDict()

    def add(self, reader: T, most: int, *, proven: bool) -> T | None:
        """Cache one more; the one to close when there are more than `most`, else None."""
        (self._proven if proven else self._new)[reader] = None
        if len(self._new) + len(self._proven) <= most:
            return None
        while len(self._proven) > most * 7 // 8:
            self._new[self._proven.popitem(last=False)[0]] = None
        return _dice.choice(list(self._new))

    def remove(self, reader: T) -> bool:
        """Remove a reader that is now in use or closed; returns whether it was the last one."""
        self._new.pop(reader, None)
        self._proven.pop(reader, None)
        return not (self._new or self._proven)
