"""Positions in a shard, and their form in a token; pure.

    [seq, t]              behind the record `seq`, whose time was `t`
    ["s", t]              at the start of a shard, a child that nobody has read: nothing in it is older
    ["h", t]              at the oldest record: `Beginning` at time `t`
    ["n", t]              at the end as of time `t`: `Now`
    ["n", t, it]          the same, and the iterator `it` stands there while it lives
    ["n", t, null, seq]   the same, with everything up to `seq` looked at without an iterator

`t` is in whole seconds since 1970 (None where the service did not tell), sequence numbers are text of digits.
A start has no sequence number: the one that a shard is listed with need not be of a record in it, and reading
at it is refused then as if it were trimmed.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import attrs

from multiclouddb_spi import Cursor, InvalidCursor, Position

__all__ = [
    "EARLY_SECONDS",
    "MOST_SECONDS",
    "After",
    "Horizon",
    "Latest",
    "Place",
    "Start",
    "compare",
    "cursor_of",
    "describe",
    "join",
    "place_of",
    "seconds_at",
]

EARLY_SECONDS: Final = 120
"""How much older than `Now` a record must be to be left out when its iterator has expired: DynamoDB rounds
the time of a record down (to the second, DynamoDB Local to the minute), and two machines' clocks differ."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MOST_SECONDS: Final = 253_402_300_799
"""The end of the year 9999."""
_MOST_DIGITS: Final = 40  # botocore's bound
_MOST_ITERATOR: Final = 2048  # the service model's bound


@attrs.frozen
class After:
    """Behind a record.

    Attributes:
        seq: The record's sequence number.
        time: Its time, or None.
    """

    seq: str
    time: int | None


@attrs.frozen
class Start:
    """At the first record of a shard that has a parent which was read.

    Attributes:
        time: Nothing in the shard is older, or None.
    """

    time: int | None


@attrs.frozen
class Horizon:
    """At the oldest record that a shard held at some time.

    Attributes:
        since: That time.
    """

    since: int


@attrs.frozen
class Latest:
    """Behind everything that a shard held at some time, with no record to say so.

    Attributes:
        since: That time.
        iterator: An iterator that stands there, or None.
        seq: What was looked at already without it, or None.
    """

    since: int
    iterator: str | None = attrs.field(default=None, repr=False)
    seq: str | None = None


Place: TypeAlias = After | Start | Horizon | Latest


def cursor_of(place: Place) -> Cursor:
    """The form in a token."""
    match place:
        case After(seq, time):
            return [seq, time]
        case Start(time):
            return ["s", time]
        case Horizon(since):
            return ["h", since]
        case Latest(since, None, None):
            return ["n", since]
        case Latest(since, iterator, None):
            return ["n", since, iterator]
        case Latest(since, iterator, seq):
            return ["n", since, iterator, seq]


def place_of(cursor: Cursor) -> Place:
    """The inverse of `cursor_of`.

    Raises:
        InvalidCursor: It is none.
    """
    match cursor:
        case ["s", (int() | None) as time] if _is_time(time):
            return Start(time)
        case ["h", int() as since] if _is_time(since):
            return Horizon(since)
        case ["n", int() as since] if _is_time(since):
            return Latest(since)
        case ["n", int() as since, str() as iterator] if _is_time(since) and _is_iterator(iterator):
            return Latest(since, iterator)
        case ["n", int() as since, None, str() as seq] if _is_time(since) and _is_seq(seq):
            return Latest(since, None, seq)
        case [str() as seq, (int() | None) as time] if _is_seq(seq) and _is_time(time):
            return After(seq, time)
        case _:
            raise InvalidCursor(f"{reprlib.repr(cursor)[:60]} is no sequence number and time")


def _is_seq(seq: str) -> bool:
    return seq.isascii() and seq.isdecimal() and len(seq) <= _MOST_DIGITS


def _is_time(time: int | None) -> bool:
    return time is None or (type(time) is int and 0 <= time <= MOST_SECONDS)


def _is_iterator(iterator: str) -> bool:
    return 0 < len(iterator) <= _MOST_ITERATOR and iterator.isascii() and iterator.isprintable()


def compare(a: Place, b: Place) -> int | None:
    """-1, 0 or 1 for two positions in one shard; None where only the service knows.

    Sequence numbers are compared as integers: their length varies.
    """
    match a, b:
        case After(left, _), After(right, _):
            return (int(left) > int(right)) - (int(left) < int(right))
        case After(), _:
            return 1
        case _, After():
            return -1
        case Latest(left_since, _, _), Latest(right_since, _, _):
            # No record lies between: the first one that is read ends both.
            return 0 if left_since == right_since else None
        case ((Start() | Horizon()), (Start() | Horizon())):
            return 0
        case _:
            return None


def join(places: Iterable[Place]) -> Place:
    """Where a child starts, from its seed and its parent: whoever knows more about its age is right."""
    return max(places, key=lambda place: (isinstance(place, Start), seconds_at(place) or 0))


def seconds_at(place: Place) -> int | None:
    """No record behind this position is older, in seconds since 1970; None when it does not tell."""
    match place:
        case After(_, time) | Start(time):
            return time
        case Latest(since, _, _):
            return max(0, since - EARLY_SECONDS)
        case Horizon():
            return None


def describe(place: Place) -> Position:
    """A position for a person."""
    match place:
        case After(seq, _):
            text = f"sequence {seq}"
        case Start():
            text = "the start of the shard"
        case Horizon(since):
            text = f"oldest record of the shard as of {_moment(since):%Y-%m-%dT%H:%M:%SZ}"
        case Latest(since, _, _):
            text = f"end of the shard as of {_moment(since):%Y-%m-%dT%H:%M:%SZ}"
    seconds = seconds_at(place)
    return Position(text, None if seconds is None else _moment(seconds))


def _moment(time: int) -> datetime:
    return _EPOCH + timedelta(seconds=time)
