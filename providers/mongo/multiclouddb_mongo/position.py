"""Defines positions in a change stream, and their form in a token. The functions are pure.

    ["e", data]    after the change with this resume token
    ["h", data]    after everything up to a given time: a high-water mark, which is not the token of a change
    ["i", data]    after an invalidate: the next changes belong to another resource with the same name
    ["r", data]    a resume token that the application has given, for `resumeAfter`
    ["t", s, n]    at the cluster time `Timestamp(s, n)`, including its changes

As long as a position is before the start, its list has one more element at the end: the cluster
time of the start, in ticks. A drop or a rename before the start concerns an earlier resource with
the same name.

`data` is the text of a resume token `{"_data": …}`, followed by a point and the token's `_typeBits` in
hexadecimal, if the server has added them. The server adds `_typeBits` for keys of some types. Any other token
is written as `"b:"` and the base64 of its BSON. The server hardly checks which resource a token belongs to.
Therefore, each position contains its kind. The resource is part of the library's own token, so the library
checks the resource itself.
"""

from __future__ import annotations

import base64
import binascii
import re
import reprlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

import attrs
import bson
from bson.timestamp import Timestamp

from multiclouddb_api.codec import JsonValue
from multiclouddb_spi import Cursor, InvalidCursor, Position

Kind: TypeAlias = Literal["e", "h", "i", "r"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST: Final = 2**32 - 1
_MOST_CHARACTERS: Final = 2**25  # a token is twice as long as the document's key, which may take 16 MB
_TICKS: Final = slice(2, 18)  # after the byte 0x82, which means that a timestamp follows
_RAW: Final = "b:"
_BITS: Final = "."
_DATA: Final = re.compile(r"[0-9A-Za-z]+", re.ASCII)
_TEXT: Final = re.compile(r"[0-9A-Za-z]+(\.([0-9a-f]{2})*)?", re.ASCII)


@attrs.frozen
class After:
    """The position after the event that a resume token names; `data` is the token's text."""

    kind: Kind
    data: str = attrs.field(repr=False)

    def token(self) -> Mapping[str, Any]:
        """Return the resume token in the form that the server accepts."""
        if self.data.startswith(_RAW):
            return bson.decode(base64.b64decode(self.data[len(_RAW) :]))
        data, separator, bits = self.data.partition(_BITS)
        return {"_data": data, "_typeBits": bytes.fromhex(bits)} if separator else {"_data": data}


@attrs.frozen
class At:
    """The position at a cluster time: seconds since 1970, and the operation's number within its second."""

    seconds: int
    ordinal: int = 0

    @classmethod
    def of(cls, ticks: int) -> At:
        """Return the cluster time from ticks; the inverse of `ticks_at`."""
        return cls(ticks >> 32, ticks & _MOST)

    def timestamp(self) -> Timestamp:
        """Return the cluster time in the form that the server accepts."""
        return Timestamp(self.seconds, self.ordinal)


Place: TypeAlias = After | At


def token_text(token: Mapping[str, Any]) -> str:
    """Return the text of a resume token."""
    data, bits = token.get("_data"), token.get("_typeBits")
    if isinstance(data, str) and _DATA.fullmatch(data):
        if len(token) == 1:
            return data
        if len(token) == 2 and isinstance(bits, bytes):
            return f"{data}{_BITS}{bits.hex()}"
    return _RAW + base64.b64encode(bson.encode(token)).decode()


def change_text(token: Mapping[str, Any]) -> str:
    """Return the name of a change: its resume token's text without the type bits."""
    # The order of the names is the order of the changes.
    data = token.get("_data")
    return data if isinstance(data, str) else token_text(token)


def cursor_of(place: Place, start: int | None = None) -> Cursor:
    """Return the position in the form that a token stores."""
    cursor: list[JsonValue]
    match place:
        case After(kind, data):
            cursor = [kind, data]
        case At(seconds, ordinal):
            cursor = ["t", seconds, ordinal]
    return cursor if start is None or (ticks_at(place) or 0) >= start else [*cursor, start]


def place_of(cursor: Cursor) -> Place:
    """Return the position in a cursor."""
    return _parsed(cursor)[0]


def start_of(cursor: Cursor) -> int | None:
    """Return the cluster time of the start, in ticks, if the cursor is before the start; otherwise None."""
    return _parsed(cursor)[1]


def _parsed(cursor: Cursor) -> tuple[Place, int | None]:
    match cursor:
        case [("e" | "h" | "i" | "r") as kind, str() as data, *rest] if _is_data(data):
            return After(kind, data), _start(rest)
        case ["t", int() as seconds, int() as ordinal, *rest] if _is_time(seconds) and _is_time(ordinal):
            return At(seconds, ordinal), _start(rest)
        case _:
            raise _no_position(cursor)


def _start(rest: list[JsonValue]) -> int | None:
    match rest:
        case []:
            return None
        case [int() as start] if type(start) is int and 0 <= start < 2**64:
            return start
        case _:
            raise _no_position(rest)


def _no_position(cursor: Cursor) -> InvalidCursor:
    return InvalidCursor(f"{reprlib.repr(cursor)[:60]} is not a position in a change stream")


def _is_data(data: str) -> bool:
    if not data.isascii() or len(data) > _MOST_CHARACTERS:
        return False
    if not data.startswith(_RAW):
        return _TEXT.fullmatch(data) is not None
    try:
        bson.decode(base64.b64decode(data[len(_RAW) :], validate=True))
    except (binascii.Error, bson.errors.BSONError, ValueError):
        return False
    return True


def _is_time(value: int) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def seconds_at(place: Place) -> int | None:
    """Return the cluster time of a position, in seconds since 1970."""
    ticks = ticks_at(place)
    return None if ticks is None else ticks >> 32


def compare(a: Place, b: Place) -> int | None:
    """Compare two positions; return -1, 0 or 1."""
    # The order of two tokens' texts is the order of their events. Return None if only the server knows the
    # order.
    if isinstance(a, After) and isinstance(b, After):
        if a.data.startswith("82") and b.data.startswith("82"):
            left, right = a.data.partition(_BITS)[0], b.data.partition(_BITS)[0]
            return (left > right) - (left < right)
        return 0 if a.data == b.data else None
    before, later = ticks_at(a), ticks_at(b)
    if before is None or later is None or (before == later and type(a) is not type(b)):
        return None
    return (before > later) - (before < later)


def is_reached(place: Place, until: Place, *, at_end: bool) -> bool:
    """Return True if a position lies at or after a bound."""
    order = compare(place, until)
    if order is not None and order >= 0:
        return True
    if not (at_end and isinstance(until, After) and until.kind == "h"):
        return False
    at, bound = ticks_at(place), ticks_at(until)
    return at is not None and bound is not None and at + 1 >= bound


def ticks_at(place: Place) -> int | None:
    """Return a position's cluster time (seconds and ordinal) as one number."""
    if isinstance(place, At):
        return (place.seconds << 32) | place.ordinal
    try:
        return int(place.data[_TICKS], 16) if place.data.startswith("82") else None
    except ValueError:
        return None


def describe(place: Place) -> Position:
    """Return a position as readable text: its time and kind, without any part of a document's key."""
    when = time_text(place)
    match place:
        case At(_, ordinal):
            text = f"operation {ordinal} at {when}"
        case After("i", _):
            text = f"after an invalidate at {when}"
        case After("h", _):
            text = f"high-water mark at {when}"
        case After():
            text = f"after a change at {when}"
    return Position(text, _moment(place))


def time_text(place: Place) -> str:
    """Return the cluster time of a position as readable text; for a change, the time of the change."""
    moment = _moment(place)
    return "an unknown cluster time" if moment is None else f"cluster time {moment:%Y-%m-%dT%H:%M:%SZ}"


def _moment(place: Place) -> datetime | None:
    seconds = seconds_at(place)
    return None if seconds is None else _EPOCH + timedelta(seconds=seconds)
