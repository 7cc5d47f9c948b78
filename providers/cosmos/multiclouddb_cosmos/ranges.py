"""Ranges of effective partition keys. In this library, each such range is a partition of Cosmos DB.

A physical partition contains the items whose keys hash into its range. The id of a physical partition
changes at each split and merge, but a range keeps its meaning. Therefore a partition is named by its range,
as hexadecimal text: `1FFF…-3FFF…`.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

import attrs

LEAST: Final = ""
MOST: Final = "FF"
# With version 1 of the hash, a key contains the first 100 bytes of a text, and is the longest of all keys.
_FORM: Final = re.compile(r"([0-9A-F]{0,218})-([0-9A-F]{1,218})", re.ASCII)


@attrs.frozen(order=True)
class KeyRange:
    """A range of keys that includes its lower bound but not its upper bound."""

    low: str  # the first effective partition key in the range
    high: str  # the first effective partition key after the range

    @property
    def partition_id(self) -> str:
        """Return the range as text."""
        return f"{self.low}-{self.high}"

    def clipped(self, other: KeyRange) -> KeyRange | None:
        """Return the part that both ranges share, or None if they do not overlap."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return KeyRange(low, high) if low < high else None


def range_of(partition_id: str) -> KeyRange | None:
    """Return the range that an id names, or None if the id does not name a range."""
    found = _FORM.fullmatch(partition_id)
    if found is None or found[1] >= found[2]:
        return None
    return KeyRange(found[1], found[2])


class RangeMap:
    """The ranges of all physical partitions at one point in time."""

    def __init__(self, ranges: Iterable[KeyRange]) -> None:
        self.ranges = tuple(sorted(ranges))
        self._lows = [each.low for each in self.ranges]

    def cut(self, wanted: KeyRange) -> list[KeyRange]:
        """Divide `wanted` at the boundaries of the physical partitions, and return the parts."""
        first = max(0, bisect_right(self._lows, wanted.low) - 1)
        after = bisect_left(self._lows, wanted.high)
        pieces = []
        for each in self.ranges[first:after]:
            piece = each.clipped(wanted)
            if piece is not None:
                pieces.append(piece)
        return pieces

    def holder(self, wanted: KeyRange) -> KeyRange:
        """Return the range of the physical partition in which a range begins."""
        return self.ranges[max(0, bisect_right(self._lows, wanted.low) - 1)]
