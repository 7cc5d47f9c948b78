"""Defines positions in a range, and their form in a token. The functions are pure.

    [lsn]                     everything up to this logical sequence number was read
    [lsn, seconds]            the same, with a lower limit on the times of later changes
    [lsn, seconds, inner]     within one LSN: everything in it up to `inner` was read
    [lsn, seconds, inner, past]    the same in the feed of latest versions

Several changes can have the same LSN, and the service does not order these changes. The library orders the
changes within one LSN by `inner`, a text that depends only on the change. Therefore an `inner` that was
stored before a split is still valid after the split.

In the feed of latest versions, the times of the changes ascend with their LSNs only after the range was read
to its end once, because a merge mixes the changes of two partitions. Until then, `past` is the second from
which changes are wanted (0 for all), and the times of later changes have no other lower limit. After that,
`past` is -1.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

import attrs
from attrs import frozen

from multiclouddb_spi import Cursor, InvalidCursor

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

    def is_whole(self) -> bool:
        """Return True if every key lies in exactly one range."""
        lows = [*(each.low for each in self.ranges), MOST]
        return lows == [LEAST, *(each.high for each in self.ranges)]

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


_MOST_LSN: Final = 2**62 - 1
_MOST_SECONDS: Final = 253_402_300_799
_MOST_INNER: Final = 64
LIVE: Final = -1


@frozen
class Place:
    """A position."""

    lsn: int  # the logical sequence number (LSN) of the position
    seconds: int | None = None
    inner: str | None = None  # the last change with this LSN that was read
    past: int | None = None  # only in the feed of latest versions

    @property
    def order(self) -> tuple[int, str]:
        """Return a sort key for the positions in one range."""
        return (self.lsn, "") if self.inner is None else (self.lsn - 1, self.inner)

    @property
    def since(self) -> int | None:
        """Return a lower limit on the times of later changes, in seconds since 1970."""
        return self.past if self.seconds is None and self.past and self.past > 0 else self.seconds

    @property
    def etag(self) -> int:
        """Return the LSN after which the next read must begin."""
        return self.lsn if self.inner is None else max(0, self.lsn - 1)


def cursor_of(place: Place) -> Cursor:
    """Return the position in the form that a token stores."""
    if place.past is not None:
        return [place.lsn, place.seconds, place.inner, place.past]
    if place.inner is not None:
        return [place.lsn, place.seconds, place.inner]
    return [place.lsn] if place.seconds is None else [place.lsn, place.seconds]


def place_of(cursor: Cursor) -> Place:
    """Convert a stored position to a `Place`; the inverse of `cursor_of`."""
    match cursor:
        case [int() as lsn, *rest] if is_number(lsn) and len(rest) <= 3:
            seconds, inner, past = [*rest, None, None, None][:3]
            is_latest = len(rest) == 3
            if is_latest and past != LIVE and not is_number(past, _MOST_SECONDS):
                raise InvalidCursor("it is not a position of Cosmos DB")
            if (seconds is None or is_number(seconds, _MOST_SECONDS)) and (
                _is_inner(inner) if inner is not None else is_latest or len(rest) < 2
            ):
                return Place(lsn, seconds, inner, past)  # type: ignore[arg-type]
    raise InvalidCursor("it is not a position of Cosmos DB")


def is_number(value: object, most: int = _MOST_LSN) -> bool:
    """Return True if a part of a cursor is a whole number from 0 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _is_inner(inner: object) -> bool:
    return isinstance(inner, str) and inner.isascii() and 0 < len(inner) <= _MOST_INNER


def compare(a: Place, b: Place) -> int:
    """Return -1, 0 or 1 if `a` lies before, at or after `b`."""
    return (a.order > b.order) - (a.order < b.order)
