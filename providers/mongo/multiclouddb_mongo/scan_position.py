"""Defines positions in the scan of a collection, and their form in a token. The functions are pure.

    ["s", time, uuid, begin, end]               a segment: the keys from `begin` to `end`
    ["s", time, uuid, begin, end, names, seen]  the same in a sharded collection
    ["p", plan, time, uuid, low, width, left, number, names]  the part that is not divided into segments yet

`time` is the cluster time at which the stream begins, as 16 hexadecimal digits. Rows are read as they were at
this time or later. `uuid` is the UUID of the collection, or empty if the collection did not exist. An `_id`
is written as the byte of its BSON type and its BSON value, in hexadecimal. Therefore the server gets back
exactly the bytes that it sent, for every type. `begin` is `"["` and an `_id` that belongs to the segment, or
`"("` and the `_id` of the last row that was read, or empty for the first key. `end` does not belong to the
segment; it is empty for the last segment.

In a sharded collection, `names` contains the fields of the shard key. Documents on two shards may
have the same `_id`. Therefore, in a sharded collection the unread part of a segment includes all
rows that have the same `_id` as `begin`. `seen` contains digests of those rows with this `_id` that
were already read.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs
import bson
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from multiclouddb_api.codec import JsonValue
from multiclouddb_mongo.position import At, time_text
from multiclouddb_mongo.values import CODEC
from multiclouddb_spi import Cursor, InvalidCursor, Position

MAX_KEY: Final = "7f"
"""An `_id` that is never found through the `min` option of the server."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME: Final = re.compile(r"[0-9A-F]{16}", re.ASCII)
_UUID: Final = re.compile(r"([0-9a-f]{32})?", re.ASCII)
_HEX: Final = re.compile(r"([0-9a-f]{2})*", re.ASCII)
_PLAN_ID: Final = re.compile(r"[0-9a-f]{12}", re.ASCII)
_ID_HEAD: Final = b"_id\x00"
_MOST: Final = 2**63
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
_LENIENT: Final = CODEC.with_options(unicode_decode_error_handler="replace")
_LENIENT_RAW: Final = _LENIENT.with_options(document_class=RawBSONDocument)


def id_of(row: bytes) -> str:
    """Return the `_id` of a row in the form of a position. The content of the `_id` is not decoded."""
    if row[5:_VALUE] != _ID_HEAD:
        row = bson.encode({"_id": bson.decode(row, _LENIENT)["_id"]}, codec_options=CODEC)
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
    return RawBSONDocument((len(body) + 4).to_bytes(4, "little") + body, _LENIENT_RAW)


@attrs.frozen
class Range:
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

    def cursor(self) -> Cursor:
        """Return the position in the form that a token stores."""
        short: list[JsonValue] = ["s", self.time, self.uuid, self.begin, self.end]
        return [*short, list(self.names), list(self.seen)] if self.names else short

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

    @property
    def floor(self) -> str:
        """See `floor_of`."""
        return floor_of(self.time)

    @property
    def moment(self) -> datetime:
        """Return the time when the snapshot began. No change in the stream is earlier than this time."""
        return moment_of(self.time)

    def timestamp(self) -> Timestamp:
        """Return the last cluster time before the stream's start."""
        # The rows must include all changes up to this time.
        ticks = max(1, int(self.time, 16)) - 1
        return Timestamp(ticks >> 32, ticks & 0xFFFFFFFF)


@attrs.frozen
class Rest:
    """The part of a plan that is not divided into segments yet.

    Attributes:
        plan_id: The snapshot's id. For `time`, `uuid` and `names` see `Range`.
        low: The first `_id`, or empty.
        width: The number of rows in a segment, found by counting; 0 if the keys are sampled instead.
        left: The maximum number of segments; 0 means as many as needed.
        number: The number of the next segment.
    """

    plan_id: str
    time: str
    uuid: str
    width: int
    left: int = 0
    low: str = attrs.field(default="", repr=False)
    number: int = 0
    names: tuple[str, ...] = ()

    def cursor(self) -> Cursor:
        """Return the rest of the plan in the form that a token stores."""
        numbers: list[JsonValue] = [self.width, self.left, self.number]
        return ["p", self.plan_id, self.time, self.uuid, self.low, *numbers, list(self.names)]

    def until(self, end: str) -> Range:
        """Return the segment from `low` up to an `_id`, which is not included."""
        return Range(self.time, self.uuid, f"[{self.low}" if self.low else "", end, self.names)

    def after(self, end: str) -> Rest:
        """Return the rest of the plan after the segment that ends at an `_id`."""
        return attrs.evolve(self, low=end, left=max(0, self.left - 1), number=self.number + 1)


def floor_of(time: str) -> str:
    """Return the floor of a snapshot, which sorts before all resume tokens from this cluster time on."""
    return f"82{time}"


def moment_of(time: str) -> datetime:
    """Return the time when a snapshot began, from its cluster time."""
    return _EPOCH + timedelta(seconds=max(0, int(time[:8], 16) - _CLOCKS_SECONDS))


def is_scan_cursor(cursor: Cursor) -> bool:
    """Return True for a position of a scan; False for a position of the stream and for any other value."""
    return isinstance(cursor, list) and bool(cursor) and cursor[0] in ("s", "p")


def range_of(cursor: Cursor) -> Range:
    """Return the segment in a cursor."""
    match cursor:
        case ["s", str() as time, str() as uuid, str() as begin, str() as end, *more] if (
            _is_of(time, uuid)
            and (not begin or (begin[0] in "[(" and _is_id(begin[1:])))
            and (not end or _is_id(end))
            and len(more) in (0, 2)
            and all(map(_are_texts, more))
        ):
            names, seen = more or ([], [])
            return Range(time, uuid, begin, end, _texts(names), _texts(seen))
        case _:
            raise InvalidCursor("it is not a segment of a scan")


def rest_of(cursor: Cursor) -> Rest:
    """Return the plan in a cursor."""
    match cursor:
        case ["p", str() as plan_id, str() as time, str() as uuid, str() as low, *numbers, names] if (
            _PLAN_ID.fullmatch(plan_id)
            and _is_of(time, uuid)
            and (not low or _is_id(low))
            and len(numbers) == 3
            and all(type(number) is int and 0 <= number < _MOST for number in numbers)
            and _are_texts(names)
        ):
            rest: Any = numbers
            width, left, number = rest
            return Rest(plan_id, time, uuid, width, left, low, number, _texts(names))
        case _:
            raise InvalidCursor("it is not a plan of a scan")


def describe_scan(cursor: Cursor) -> Position:
    """Return a position of a scan as readable text, without any part of a document's key."""
    if isinstance(cursor, list) and cursor[:1] == ["p"]:
        rest = rest_of(cursor)
        return Position(f"a scan as of {_time_text(rest.time)}, before segment {rest.number}", None)
    part = range_of(cursor)
    where = "after a row" if part.begin[:1] == "(" else "before the first row"
    return Position(f"{where} of a segment of a scan as of {_time_text(part.time)}", None)


def _time_text(time: str) -> str:
    return time_text(At.of(int(time, 16)))


def _is_of(time: str, uuid: str) -> bool:
    return _TIME.fullmatch(time) is not None and _UUID.fullmatch(uuid) is not None


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(map(str, values))


def _is_id(text: str) -> bool:
    if len(text) < 2 or _HEX.fullmatch(text) is None:
        return False
    try:
        document = as_field("_id", text).raw
        return bson.decode(document, _LENIENT).keys() == {"_id"} and id_of(bytes(document)) == text
    except (BSONError, ValueError):
        return False
