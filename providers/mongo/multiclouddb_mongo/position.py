"""Defines positions in a change stream, and their form in a token. The functions are pure.

    ["e", data]    after the change with this resume token
    ["h", data]    after everything up to a given time: a high-water mark, which is not the token of a change
    ["i", data]    after an invalidate: the next changes belong to another resource with the same name
    ["o", data]    after a rename of another collection over the watched one: its documents have no changes
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

The segments of a scan have positions of another form, which `UnreadRange` and `Rest` describe.
`Scan.shared` is `[uuid, name, …]`: the UUID of the collection, empty if the collection did not exist, and the
fields of the shard key. The rest of a plan is `[low, width, left, number]`. In the scan of a database, each
collection has its own: they follow in the rest, after the collection's name, and in the end of each segment,
which is JSON then.

An `_id` is written as the byte of its BSON type and its BSON value, in hexadecimal. Therefore the server gets
back exactly the bytes that it sent, for every type.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

import attrs
import bson
from attrs import frozen
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from multiclouddb_api.codec import JsonValue
from multiclouddb_mongo.values import CODEC, LENIENT, LENIENT_RAW
from multiclouddb_spi import Cursor, InvalidCursor, Position, Scan, Segment

Kind: TypeAlias = Literal["e", "h", "i", "o", "r"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST: Final = 2**32 - 1
_MOST_CHARACTERS: Final = 2**25  # a token is twice as long as the document's key, which may take 16 MB
_TICKS: Final = slice(2, 18)  # after the byte 0x82, which means that a timestamp follows
_RAW: Final = "b:"
_BITS: Final = "."
_DATA: Final = re.compile(r"[0-9A-Za-z]+", re.ASCII)
_TEXT: Final = re.compile(r"[0-9A-Za-z]+(\.([0-9a-f]{2})*)?", re.ASCII)


@frozen
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


@frozen
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
        case [("e" | "h" | "i" | "o" | "r") as kind, str() as data, *rest] if _is_data(data):
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
        case After("o", _):
            text = f"after another collection was renamed over this one at {when}"
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


MAX_KEY: Final = "7f"
"""An `_id` that is never found through the `min` option of the server."""

_TIME: Final = re.compile(r"[0-9A-F]{16}", re.ASCII)
_UUID: Final = re.compile(r"([0-9a-f]{32})?", re.ASCII)
_HEX: Final = re.compile(r"([0-9a-f]{2})*", re.ASCII)
_ID_HEAD: Final = b"_id\x00"
_MOST_NUMBER: Final = 2**63
_VALUE: Final = 9  # after the row's length, the type of its `_id`, and the name `_id`
# Wall clocks and cluster time differ by less than this. Watermarks use the same limit.
_CLOCKS_SECONDS: Final = 1
# BSON type → the size of a value. For the other types, the value states its own length, and this is the
# number of additional bytes.
_FIXED: Final = {
    **dict.fromkeys((0x06, 0x0A, 0x7F, 0xFF), 0),
    **dict.fromkeys((0x01, 0x09, 0x11, 0x12), 8),
    0x07: 12,
    0x08: 1,
    0x10: 4,
    0x13: 16,
}
_BESIDE_LENGTH: Final = {0x02: 4, 0x03: 0, 0x04: 0, 0x05: 5, 0x0C: 16, 0x0D: 4, 0x0E: 4, 0x0F: 0}


def id_of(row: bytes) -> str:
    """Return the `_id` of a row in the form of a position. The content of the `_id` is not decoded."""
    if row[5:_VALUE] != _ID_HEAD:
        row = bson.encode({"_id": bson.decode(row, LENIENT)["_id"]}, codec_options=CODEC)
    kind = row[4]
    size = _FIXED.get(kind)
    if size is None and kind in _BESIDE_LENGTH:
        size = int.from_bytes(row[_VALUE : _VALUE + 4], "little") + _BESIDE_LENGTH[kind]
    if size is None:  # the server does not accept a regular expression as an _id
        raise ValueError(f"an _id of the BSON type {kind}")
    return f"{kind:02x}{row[_VALUE : _VALUE + size].hex()}"


def as_field(name: str, wanted: str) -> RawBSONDocument:
    """Return the document with which a command names an `_id`; it has no other field."""
    element = bytes.fromhex(wanted)
    body = b"%c%s\x00%s\x00" % (element[0], name.encode(), element[1:])
    return RawBSONDocument((len(body) + 4).to_bytes(4, "little") + body, LENIENT_RAW)


@frozen
class UnreadRange:
    """A segment of the scan, or the unread rest of one.

    Attributes:
        time: The cluster time of the stream's start, as 16 hexadecimal digits.
        uuid: The UUID of the collection, in hexadecimal; empty if the collection did not exist.
        begin: Empty, or `"["` or `"("` followed by an `_id`.
        end: Empty, or an `_id`.
        names: The fields of the shard key; empty if the collection is not sharded.
        seen: Digests of the rows that were already read and have the same `_id` as `begin`; only
            used if the collection is sharded.
    """

    time: str
    uuid: str
    begin: str = attrs.field(default="", repr=False)
    end: str = attrs.field(default="", repr=False)
    names: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The position in the segment: `begin`, and `seen` after it, separated by spaces."""
        return " ".join((self.begin, *self.seen))

    def filter(self) -> dict[str, Any]:
        """Return the arguments of `find` for this segment."""
        # The comparison works across all BSON types, whereas a plain `$gt` compares only one type.
        bounds: list[Any] = []
        if self.begin:
            operator = "$gte" if self.begin[0] == "[" or self.names else "$gt"
            bounds.append({operator: ["$_id", as_field("$literal", self.begin[1:])]})
        if self.end:
            bounds.append({"$lt": ["$_id", as_field("$literal", self.end)]})
        return {"$expr": {"$and": bounds}} if bounds else {}

    def timestamp(self) -> Timestamp:
        """Return the last cluster time before the stream's start."""
        # The rows must include all changes up to this time.
        ticks = max(1, int(self.time, 16)) - 1
        return Timestamp(ticks >> 32, ticks & 0xFFFFFFFF)


@frozen
class Rest:
    """The part of a plan that is not divided into segments yet.

    Attributes:
        scan: What the segments have in common. For `uuid` and `names` see `UnreadRange`.
        low: The first `_id`, or empty.
        width: The number of rows in a segment, found by counting; 0 if the keys are sampled instead.
        left: The maximum number of segments; 0 means as many as needed.
        number: The number of the next segment.
        collection: The collection, if the scan is one of a database; else empty.
    """

    scan: Scan
    uuid: str
    width: int
    left: int = 0
    low: str = attrs.field(default="", repr=False)
    number: int = 0
    names: tuple[str, ...] = ()
    collection: str = ""

    def cursor(self) -> Cursor:
        """Return the rest of the plan in the form that a token stores."""
        rest: list[Cursor] = [self.low, self.width, self.left, self.number]
        return [*rest, self.collection, self.uuid, *self.names] if self.collection else rest

    def until(self, end: str) -> Segment:
        """Return the segment from `low` up to an `_id`, which is not included."""
        name, last = f"{self.number:x}", end
        if self.collection:  # the segments of a database's scan do not share the UUID and the shard key
            name, last = f"{name}-{self.uuid}", json.dumps([end, self.uuid, *self.names])
        begin = f"[{self.low}" if self.low else ""
        return self.scan.segment(name, begin, last, self.width or None, collection=self.collection)

    def after(self, end: str) -> Rest:
        """Return the rest of the plan after the segment that ends at an `_id`."""
        return attrs.evolve(self, low=end, left=max(0, self.left - 1), number=self.number + 1)


def floor_of(time: str) -> str:
    """Return the floor of a snapshot, which sorts before all resume tokens from this cluster time on."""
    return f"82{time}"


def moment_of(time: str, began: datetime) -> datetime:
    """Return the time when a snapshot began. No change in the stream is earlier.

    Args:
        time: The cluster time at which its stream begins; it may be ahead of the servers' clocks.
        began: A time by a server's clock before that.
    """
    seconds = min(int(time[:8], 16), int(began.timestamp()))
    return _EPOCH + timedelta(seconds=max(0, seconds - _CLOCKS_SECONDS))


def scan_at(time: str, began: datetime, uuid: str, names: tuple[str, ...]) -> Scan:
    """Return what the segments of a scan have in common, whose stream starts at a cluster time."""
    return Scan(floor_of(time), moment_of(time, began), [uuid, *names])


def range_of(segment: Segment) -> UnreadRange:
    """Return the range of a segment."""
    time, uuid, names = _common(segment.scan)
    end = segment.last
    if segment.collection:
        end, uuid, names = _own(segment.last)
    begin, *seen = segment.after.split(" ")
    has_begin = begin[:1] in ("[", "(") and _is_id(begin[1:])
    if not (has_begin or segment.after == "") or not (end == "" or _is_id(end)):
        raise InvalidCursor("it is not a segment of a scan")
    return UnreadRange(time, uuid, begin, end, names, tuple(seen))


def _own(last: str) -> tuple[str, str, tuple[str, ...]]:
    """Return the end of a segment of a database's scan, the UUID of its collection, and the shard key."""
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    match found:
        case [str() as end, str() as uuid, *names] if uuid and _UUID.fullmatch(uuid) and _are_texts(names):
            return end, uuid, tuple(map(str, names))
    raise InvalidCursor("it is not a segment of a database's scan")


def is_uuid(text: str) -> bool:
    """Return True for a UUID in hexadecimal form, and for an empty text."""
    return _UUID.fullmatch(text) is not None


def _are_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def rest_of(scan: Scan, rest: Cursor) -> Rest:
    """Return the rest of a plan."""
    _, uuid, names = _common(scan)
    match rest:
        case [str() as low, int() as width, int() as left, int() as number, *own] if (
            not low or _is_id(low)
        ) and all(type(each) is int and 0 <= each < _MOST_NUMBER for each in (width, left, number)):
            pass
        case _:
            raise InvalidCursor("it is not a plan of a scan")
    match own:
        case []:
            return Rest(scan, uuid, width, left, low, number, names)
        case [str() as name, str() as uuid, *fields] if (
            name and uuid and _UUID.fullmatch(uuid) and _are_texts(fields)
        ):
            return Rest(scan, uuid, width, left, low, number, tuple(map(str, fields)), name)
        case _:
            raise InvalidCursor("it is not a plan of a database's scan")


def _common(scan: Scan) -> tuple[str, str, tuple[str, ...]]:
    """Return the cluster time, the UUID of the collection, and the fields of the shard key."""
    time = scan.floor.removeprefix("82")
    match scan.shared:
        case [str() as uuid, *names] if _TIME.fullmatch(time) and _UUID.fullmatch(uuid):
            if all(isinstance(name, str) for name in names):
                return time, uuid, tuple(map(str, names))
    raise InvalidCursor("it is not a scan of a collection")


def _is_id(text: str) -> bool:
    if len(text) < 2 or _HEX.fullmatch(text) is None:
        return False
    # The value itself is not decoded, because PyMongo cannot read every `_id` that the server stores. The
    # server checks the inside of a document or a list.
    try:
        return id_of(bytes(as_field("_id", text).raw)) == text
    except ValueError:
        return False
