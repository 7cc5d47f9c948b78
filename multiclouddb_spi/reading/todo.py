"""Which partition a call asks next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from multiclouddb_spi.checkpoint.lineage import Lineage
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.reading.flight import Flight

__all__ = ["Todo"]


class Todo:
    """The partitions that one call is to ask, in the order of their turns.

    Args:
        lineage: Says where each stands.

    Attributes:
        overtaken: Those that wait for bytes, while others are handed out. They keep their place in the
            lineage, and so they are the first to be asked when there are bytes.
    """

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._names: OrderedDict[str, None] = OrderedDict()
        self._known: set[str] = set()
        self._sorted = False
        self.overtaken: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._names)

    def ask(self, partition_ids: Iterable[str]) -> None:
        """To be asked behind all others that are; none twice."""
        for name in partition_ids:
            self._names.setdefault(name)
            self._known.add(name)

    def ask_again(self, partition_ids: Iterable[str]) -> None:
        """The same for partitions of which something is fetched."""
        self.ask(partition_ids)
        self._sorted = False

    def at(self, partition_id: str) -> Cursor | None:
        """Where the call stands in a partition; None where it does not read it."""
        known = partition_id in self._known and partition_id in self._lineage
        return self._lineage.cursor(partition_id) if known else None

    def next(self, flight: Flight) -> str | None:
        """The partition to ask now; None when there is none, or when the flight is full."""
        while self._names and not flight.full() and self._affordable(flight):
            name, _ = self._names.popitem(last=False)
            if name in self._lineage and name not in flight:
                return name
        return None

    def _affordable(self, flight: Flight) -> bool:
        """Whether the next partition may be asked.

        Without bytes for a further answer, partitions of which something is fetched go first, so that it is
        handed out and gives its bytes back. Where there is none, one is asked alone whatever it holds.
        """
        if flight.has_room():
            return True
        if not self._sorted:
            self._sorted = True
            ready = [name for name in self._names if flight.holds(name)]
            for name in reversed(ready):
                self._names.move_to_end(name, last=False)
            self.overtaken = frozenset(self._names).difference(ready) if ready else frozenset()
        return not flight or flight.holds(next(iter(self._names)))
