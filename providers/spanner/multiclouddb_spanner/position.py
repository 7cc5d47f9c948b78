"""Defines positions in a partition, and their form in a token. The functions are pure.

    [at]                    at a commit timestamp, before its changes
    [at, {name: mark}]      the same, after some of its changes (`multiclouddb_spi.cursor`)
    [at, since]             at the time `at`; changes committed before the later time `since` are not wanted
    [at, sure]              at the time `at`; the service confirmed only what is before the earlier `sure`

`at` and `since` are whole microseconds since 1970, the precision of Spanner's commit timestamps.
The changes at one commit timestamp are identified by their transaction. The mark consists of the
sequence of a record and the number of its modifications that were delivered. If a reader starts at
`Now` or `AtTime`, its first positions contain the time `since`. The reader then reads the partitions
that existed just before this time.

A query can end at the end of its partition without naming the children, and looks then like one that has
reached the end of its window. `sure` is the time from which the partition is read again if the service says
later that the partition had ended before `at`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from attrs import frozen

from multiclouddb_spi import Cursor, InvalidCursor, Position
from multiclouddb_spi.cursor import Cut

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST: Final = 253_402_300_799_999_999  # the end of the year 9999
_MOST_SEQUENCE: Final = 64
_SEQUENCE_DIGITS: Final = 8
_WHOLE: Final = len("2026-01-31T12:00:00")


@frozen
class Place:
    """A position."""

    cut: Cut
    since: int = 0  # changes committed before this time are not wanted; 0 if it is not later than the cut
    sure: int = 0  # the service confirmed only what lies before this time; 0 if it confirmed the cut

    @classmethod
    def at(cls, at: int, since: int = 0, sure: int = 0) -> Place:
        """Return the position at a given time, without the changes committed before `since`."""
        return cls(Cut(at), since) if since > at else cls(Cut(at), 0, sure if sure < at else 0)

    @property
    def first(self) -> int:
        """Return a lower limit for the commit times of the changes after this position."""
        return self.sure or max(self.cut.at, self.since)

    @property
    def edge(self) -> Cut:
        """Return the position before the first wanted change."""
        return Cut(self.since) if self.since > self.cut.at else self.cut


def cursor_of(place: Place) -> Cursor:
    """Return the position in the form that a token stores."""
    other = place.since or place.sure
    return [*place.cut.to_json(), other] if other else place.cut.to_json()


def place_of(cursor: Cursor) -> Place:
    """Convert a stored position to a `Place`; the inverse of `cursor_of`."""
    match cursor:
        case [int() as at, int() as other] if _is_moment(at) and _is_moment(other) and 0 < other != at:
            return Place.at(at, other, other)
        case _:
            cut = Cut.from_json(cursor)
            if not _is_moment(cut.at) or not all(map(_is_mark, cut.delivered.values())):
                raise InvalidCursor(f"{reprlib.repr(cursor)[:60]} is not a position in a change stream")
            return Place(cut)


def _is_moment(value: int) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_mark(mark: tuple[str | int, ...]) -> bool:
    return list(map(type, mark)) == [str, int] and len(str(mark[0])) <= _MOST_SEQUENCE


def compare(a: Place, b: Place) -> int | None:
    """Compare two positions in one partition; return -1, 0, 1, or None if neither includes the other."""
    return a.edge.compare(b.edge)


def reaches(place: Iterable[Place], other: Iterable[Place]) -> bool:
    """Return True if each change before the positions `other` is before the positions `place` too.

    A change that was committed before the first moment after `place` does not come after it. The partitions
    may have been split or merged between the two.
    """
    last = max(each.edge.at + bool(each.edge.delivered) for each in other)
    return first_of(place) >= last


def first_of(place: Iterable[Place]) -> int:
    """Return a lower limit for the commit times of the changes after the positions of all partitions."""
    return min(each.first for each in place)


def describe(place: Place) -> Position:
    """Return a position as readable text."""
    return _described(place.first, is_inside=bool(place.cut.delivered))


@lru_cache(maxsize=1024)
def _described(at: int, *, is_inside: bool) -> Position:
    # Each page requests the time of each partition, and the positions of most partitions have not moved.
    rest = ", after a part of the changes of that commit" if is_inside else ""
    return Position(f"commit timestamp {text_at(at)}{rest}", moment_of(at))


def ordered(sequence: str) -> str:
    """Convert the sequence of a record to a text that sorts like the number."""
    more = len(sequence) - _SEQUENCE_DIGITS
    if more <= 0:
        return sequence if more == 0 else sequence.rjust(_SEQUENCE_DIGITS, "0")
    return f"{chr(ord('a') + min(more, 26) - 1)}{sequence}"


# -- Moments


@lru_cache(maxsize=1024)
def _seconds(text: str) -> int:
    return int((datetime.fromisoformat(text) - _EPOCH.replace(tzinfo=None)).total_seconds())


def micros_of(text: str, *, up: bool = False) -> int:
    """Convert a time that the service wrote in RFC 3339 and UTC to microseconds since 1970."""
    whole, rest = text[:_WHOLE], text[_WHOLE:]
    if len(whole) < _WHOLE:
        raise ValueError(f"{text[:40]!r} is not a timestamp")
    rest = rest.removesuffix("Z").removesuffix("+00:00")
    if not rest:
        return _seconds(whole) * 1_000_000
    digits = rest[1:]
    if rest[0] != "." or not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"{text[:40]!r} is not a timestamp in UTC")
    found = _seconds(whole) * 1_000_000 + int(digits[:6].ljust(6, "0"))
    return found + 1 if up and digits[6:].strip("0") else found


def micros(moment: datetime) -> int:
    """Convert a time to microseconds since 1970; the inverse of `moment_of`."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment_of(micros: int) -> datetime:
    """Return a time as a datetime."""
    return _EPOCH + timedelta(microseconds=micros)


@lru_cache(maxsize=256)
def text_at(micros: int) -> str:
    """Return a time in the format that the service accepts."""
    return f"{moment_of(micros).isoformat(timespec='microseconds').removesuffix('+00:00')}Z"


def fixed_text(text: str) -> str:
    """Return a time that the service wrote, in the format of `text_at`."""
    whole, rest = text[:_WHOLE], text[_WHOLE:]
    return f"{whole}.{rest.removesuffix('Z').removesuffix('+00:00')[1:7].ljust(6, '0')}Z"
