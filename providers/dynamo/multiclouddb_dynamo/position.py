"""Defines positions in a shard, and their form in a token. The functions are pure.

    [seq, t]               after the record `seq`, whose time was `t`
    [seq, t, count, id]    after `count` records with the number `seq`, the last of which has this id;
                           others with this number follow
    ["s", t]               at the start of an unread child shard, which has no older record
    ["h", t]               at the oldest record: `Beginning` at time `t`
    ["t", t]               at the first record whose time is `t` or later: `AtTime`
    [.., t, it, looks]     each form above, with the iterator `it` from a later answer without records
    ["n", t]               at the end as of time `t`: `Now`
    ["n", t, it]           the same; until the iterator `it` expires, it points to this end
    ["n", t, it, looks]    the same; the reads with the iterator have found no records so far
    ["n", t, null, seq]    the same; everything up to `seq` was scanned without an iterator
    ["w", t, it, looks]    like `["n", t]`; `it` shows how far a scan from the oldest record has come
    ["w", t, it, looks, seq]    like `["n", t, null, seq]`, with the same meaning of `it`

`t` is in whole seconds since 1970 (None if the service gave no time). Sequence numbers are texts of
digits. `looks` is the number of consecutive readers that have found no record. The value of `looks`
determines how far the next reader scans. A start has no sequence number. The service lists a
starting number for each shard, but this number may not belong to any record in the shard. If no
record has the starting number, the service refuses to read from this number, as if the record had
been trimmed.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import attrs
from attrs import frozen

from multiclouddb_dynamo.capabilities import MOST_DIGITS
from multiclouddb_spi import Cursor, InvalidCursor, Position

EARLY_SECONDS: Final = 120
"""If the iterator of a `Now` start has expired, records are omitted that are this many seconds older than it.

DynamoDB rounds the time of a record down (DynamoDB Local to the minute), and the clocks of machines differ.
"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MOST_SECONDS: Final = 253_402_300_799  # the end of the year 9999
RETENTION_SECONDS: Final = 24 * 3600
MOST_LOOKS: Final = 10
_MOST_ITERATOR: Final = 2048  # the maximum length in the service model


@frozen
class Trail:
    """The progress of a search that has not found any record yet."""

    iterator: str = attrs.field(repr=False)
    looks: int


@frozen
class After:
    """The position after a record.

    DynamoDB gives each record of a shard a number of its own. Other servers may give one number to several
    records (ScyllaDB Alternator: the time of a batch), and a page may end between two of them.

    Attributes:
        seq: The number of the record.
        time: Its time, in seconds since 1970.
        trail: The progress of a search for the next record.
        count: How many records with this number lie before the position; 0 if all of them do.
        event_id: The service's id of the last of them; "" if it has none.
    """

    seq: str
    time: int | None
    trail: Trail | None = None
    count: int = 0
    event_id: str = ""

    @property
    def rank(self) -> tuple[int, float]:
        """Return a value that is greater for a later position."""
        return int(self.seq), self.count or math.inf


@frozen
class Start:
    """The position at the first record of a shard whose parent was read."""

    time: int | None
    trail: Trail | None = None


@frozen
class Horizon:
    """The position at the oldest record that a shard contained at a given time."""

    since: int | None
    trail: Trail | None = None


@frozen
class Since:
    """The position at the first record that is as old as a given time, in seconds since 1970, or younger."""

    time: int
    trail: Trail | None = None


@frozen
class Latest:
    """The position after all records that a shard contained at a given time.

    `Latest` is used only if the position cannot be stored as the position after a record.
    """

    since: int | None
    iterator: str | None = attrs.field(default=None, repr=False)
    seq: str | None = None
    looks: int = 0
    trail: Trail | None = None


Place: TypeAlias = After | Start | Horizon | Since | Latest


def cursor_of(place: Place) -> Cursor:
    """Return the position in the form that a token stores."""
    match place:
        case After(seq, time, _, count, event_id) if count:
            return [seq, time, count, event_id]
        case After(seq, time, trail):
            return [seq, time, *_trail_cursor(trail)]
        case Start(time, trail):
            return ["s", time, *_trail_cursor(trail)]
        case Horizon(since, trail):
            return ["h", since, *_trail_cursor(trail)]
        case Since(time, trail):
            return ["t", time, *_trail_cursor(trail)]
        case Latest(since, _, seq, _, Trail() as trail):
            return ["w", since, *_trail_cursor(trail), *([] if seq is None else [seq])]
        case Latest(since, None, None):
            return ["n", since]
        case Latest(since, None, seq):
            return ["n", since, None, seq]
        case Latest(since, iterator, _, looks):
            return ["n", since, iterator, looks] if looks else ["n", since, iterator]


def _trail_cursor(trail: Trail | None) -> list[Cursor]:
    return [] if trail is None else [trail.iterator, trail.looks]


def place_of(cursor: Cursor) -> Place:
    """Return the position from its stored form; the inverse of `cursor_of`."""
    place: Place | None = None
    match cursor:
        case ["n" | "w" as kind, (int() | None) as time, *rest] if _is_time(time):
            place = _latest_of(time, kind, rest)
        case [str() as seq, (int() | None) as time, int() as count, str() as event_id] if _is_time(time):
            if is_seq(seq) and type(count) is int and count > 0:
                place = After(seq, time, None, count, event_id)
        case [str() as text, (int() | None) as time, *rest] if _is_time(time):
            trail = _trail_of(rest)
            if trail is not None or not rest:
                if text in ("s", "h"):
                    place = Start(time, trail) if text == "s" else Horizon(time, trail)
                elif text == "t":
                    place = None if time is None else Since(time, trail)
                elif is_seq(text):
                    place = After(text, time, trail)
    if place is None:
        raise InvalidCursor(f"{reprlib.repr(cursor)[:60]} is not a sequence number and time")
    return place


def _latest_of(since: int | None, kind: str, rest: list[Any]) -> Place | None:
    match kind, rest:
        case "n", []:
            return Latest(since)
        case "n", [str() as iterator] if _is_iterator(iterator):
            return Latest(since, iterator)
        case "n", [None, str() as seq] if is_seq(seq):
            return Latest(since, None, seq)
        case "n", [_, looks] if (trail := _trail_of(rest)) is not None and looks:
            return Latest(since, trail.iterator, looks=trail.looks)
        case "w", [_, _] if (trail := _trail_of(rest)) is not None:
            return Latest(since, trail=trail)
        case "w", [_, _, str() as seq] if is_seq(seq) and (trail := _trail_of(rest[:2])) is not None:
            return Latest(since, None, seq, trail=trail)
        case _:
            return None


def _trail_of(rest: list[Any]) -> Trail | None:
    match rest:
        case [str() as iterator, int() as looks] if _is_iterator(iterator) and looks in range(MOST_LOOKS):
            return None if isinstance(looks, bool) else Trail(iterator, looks)
        case _:
            return None


def looks_at(place: Place) -> int:
    """Return how many consecutive readers have found no record after a position."""
    if place.trail is not None:
        return place.trail.looks
    return place.looks if isinstance(place, Latest) else 0


def without_iterator(place: Place) -> Place:
    """Return the position without its iterator. The position stays valid."""
    if isinstance(place, Latest):
        return attrs.evolve(place, iterator=None, looks=0, trail=None)
    return attrs.evolve(place, trail=None)


def without_trail(cursor: Cursor) -> Cursor:
    """Return the cursor without the parts that are needed only to make fewer calls."""
    match cursor:
        # Without its iterator, a `Now` position would be equal to another of the same second.
        case [str() as kind, time, str(), _] if kind not in ("n", "w"):
            return [kind, time]
        case _:
            return cursor


def is_seq(seq: str) -> bool:
    """Return True for a sequence number."""
    return seq.isascii() and seq.isdecimal() and len(seq) <= MOST_DIGITS


def _is_time(time: int | None) -> bool:
    return time is None or (type(time) is int and 0 <= time <= MOST_SECONDS)


def _is_iterator(iterator: str) -> bool:
    return 0 < len(iterator) <= _MOST_ITERATOR and iterator.isascii() and iterator.isprintable()


def compare(a: Place, b: Place) -> int | None:
    """Compare two positions in one shard: return -1, 0 or 1, or None if only the service knows the order."""
    match a, b:
        case After(), After():
            return (a.rank > b.rank) - (a.rank < b.rank)
        case Since(left), Since(right):
            return (left > right) - (left < right)
        case _, Since(time):
            return _compare_with(a, time)
        case Since(time), _:
            order = _compare_with(b, time)
            return None if order is None else -order
        case After(), _:
            return 1
        case _, After():
            return -1
        case Latest(None), Latest(None):
            return 0 if a == b else None
        case Latest(left_since), Latest(right_since):
            # No record lies between the two positions, because reading a record replaces such a position.
            return 0 if left_since == right_since else None
        case ((Start() | Horizon()), (Start() | Horizon())):
            return 0
        case _:
            return None


def _compare_with(place: Place, time: int) -> int | None:
    """Compare a position with that of the first record since a time; equal ones count as before it."""
    match place:
        case After(_, known):
            return None if known is None else -1 if known < time else 1
        case Latest(since):
            return None if since is None else -1 if since <= time else 1
        case _:
            return -1


def join(places: Iterable[Place]) -> Place:
    """Return the start position of a child."""
    return max(places, key=lambda place: (isinstance(place, Start), seconds_at(place) or 0))


def seconds_at(place: Place) -> int | None:
    """Return a lower limit on the times of the records after a position, in seconds since 1970."""
    match place:
        case After(_, time) | Start(time) | Since(time):
            return time
        case Latest(since):
            return None if since is None else max(0, since - EARLY_SECONDS)
        case Horizon():
            return None


def known_at(place: Place) -> int | None:
    """Return the last known time at a position: no record after it is older, as far as is known."""
    if isinstance(place, Horizon):
        return None if place.since is None else max(0, place.since - RETENTION_SECONDS)
    return seconds_at(place)


def headroom(place: Place, now: datetime) -> float | None:
    """Return the seconds until a position expires; None if the position has no time."""
    seconds = seconds_at(place)
    return None if seconds is None else max(0.0, RETENTION_SECONDS - max(0.0, now.timestamp() - seconds))


def describe(place: Place) -> Position:
    """Return a position as readable text."""
    match place:
        case After(seq):
            text = f"sequence {seq}"
        case Start():
            text = "the start of the shard"
        case Horizon(since):
            text = f"oldest record of the shard as of {_as_of(since)}"
        case Since(time):
            text = f"first record of the shard since {_as_of(time)}"
        case Latest(since):
            text = f"end of the shard as of {_as_of(since)}"
    seconds = seconds_at(place)
    return Position(text, None if seconds is None else moment_of(seconds))


def _as_of(time: int | None) -> str:
    return "an unknown time" if time is None else f"{moment_of(time):%Y-%m-%dT%H:%M:%SZ}"


def moment_of(time: int) -> datetime:
    """Return the time of so many seconds since 1970."""
    return _EPOCH + timedelta(seconds=time)
