"""Defines the names of BSON's own classes in the library's JSON.

    ObjectId         {"$mongo.objectid": "65f0…"}             24 hex digits
    Timestamp        {"$mongo.timestamp": [1700000000, 1]}    seconds, increment
    Regex            {"$mongo.regex": ["^a", "im"]}           BSON's letters
    Binary           {"$mongo.binary": [3, "aGk="]}           the other subtypes, including old UUIDs; base64
    Code             {"$mongo.code": ["f()", null]}           its scope or null
    DBRef            {"$mongo.dbref": {"$map": {"$ref": …}}}  as it is stored
    DatetimeMS       {"$mongo.datetime": 253402300800000}     a date outside the years 1 to 9999
    MinKey, MaxKey   {"$mongo.minkey": 1}, {"$mongo.maxkey": 1}
    Decimal128       {"$mongo.decimal128": "…"}               16 bytes in hex, if no Decimal is equal:
                                                              a NaN with a payload, a padded significand

The library's JSON has one kind of integer. `Int64` is written like `int`, and is read back as an
`int`. BSON stores an `int` in 32 bits if the number fits. All NaN values of a `float` have the same
JSON. Values that are equal before the conversion are still equal after it.

Importing this module registers these types with `encode_json` and `decode_json`.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from bson import Binary, Code, DatetimeMS, DBRef, Decimal128, MaxKey, MinKey, ObjectId, Regex, Timestamp

from multiclouddb_api import encode_json
from multiclouddb_api.codec import JsonValue, decode_json, register_type

__all__ = ["TYPES", "dbref", "inner_json"]

_OBJECT_ID: Final = re.compile(r"[0-9a-f]{24}")
_BID: Final = re.compile(r"[0-9a-f]{32}")
_FLAGS: Final = {
    "i": re.IGNORECASE,
    "l": re.LOCALE,
    "m": re.MULTILINE,
    "s": re.DOTALL,
    "u": re.UNICODE,
    "x": re.VERBOSE,
}


def inner_json(value: Any) -> JsonValue:
    """Return a value's JSON as Python values that orjson can write into other JSON."""
    found: JsonValue = orjson.loads(encode_json(value))
    return found


def _outer(inner: Any) -> Any:
    return decode_json(orjson.dumps(inner))


def _pair(inner: Any, first: type, second: type) -> Any:
    if (
        type(inner) is not list
        or len(inner) != 2
        or not (type(inner[0]) is first and type(inner[1]) is second)
    ):
        raise ValueError("not the pair that was written")
    return inner


def _matching(pattern: re.Pattern[str], inner: Any) -> str:
    if type(inner) is not str or pattern.fullmatch(inner) is None:
        raise ValueError("not a text of hexadecimal digits")
    return inner


def _encode_object_id(value: ObjectId) -> JsonValue:
    return value.binary.hex()


def _decode_object_id(inner: Any) -> ObjectId:
    return ObjectId(_matching(_OBJECT_ID, inner))


def _encode_timestamp(value: Timestamp) -> JsonValue:
    return [value.time, value.inc]


def _decode_timestamp(inner: Any) -> Timestamp:
    return Timestamp(*_pair(inner, int, int))


def _encode_regex(value: Regex[Any]) -> JsonValue:
    if not isinstance(value.pattern, str) or value.flags & ~sum(_FLAGS.values()):
        raise ValueError("BSON cannot store a regular expression that is made of bytes or has these flags")
    return [value.pattern, "".join(letter for letter, flag in _FLAGS.items() if value.flags & flag)]


def _decode_regex(inner: Any) -> Regex[str]:
    pattern, letters = _pair(inner, str, str)
    if list(letters) != sorted(set(letters) & _FLAGS.keys()):
        raise ValueError("not BSON's flags")
    return Regex(pattern, sum(_FLAGS[letter] for letter in letters))


def _encode_binary(value: Binary) -> JsonValue:
    return [value.subtype, b64encode(value).decode("ascii")]


def _decode_binary(inner: Any) -> Binary:
    subtype, text = _pair(inner, int, str)
    return Binary(b64decode(text, validate=True), subtype)


def _encode_code(value: Code) -> JsonValue:
    return [str.__str__(value), None if value.scope is None else inner_json(dict(value.scope))]


def _decode_code(inner: Any) -> Code:
    text, scope = _pair(inner, str, type(None) if inner[1:] == [None] else dict)
    return Code(text, None if scope is None else _scope(_outer(scope)))


def _scope(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError("not a scope")
    return value


def _encode_dbref(value: DBRef) -> JsonValue:
    return inner_json(dict(value.as_doc()))


def _decode_dbref(inner: Any) -> DBRef:
    fields = _scope(_outer(inner))
    if not {"$ref", "$id"} <= fields.keys():
        raise ValueError("not a reference")
    return dbref(fields)


def dbref(fields: dict[str, Any]) -> DBRef:
    """Make a reference from its stored fields, and remove these fields from the dict."""
    return DBRef(fields.pop("$ref"), fields.pop("$id"), fields.pop("$db", None), fields)


def _encode_datetime_ms(value: DatetimeMS) -> JsonValue:
    return int(value)


def _decode_datetime_ms(inner: Any) -> DatetimeMS:
    if type(inner) is not int:
        raise ValueError("not milliseconds")
    return DatetimeMS(inner)


def _encode_end(_: Any) -> JsonValue:
    return 1


def _decode_min_key(inner: Any) -> MinKey:
    _check_end(inner)
    return MinKey()


def _decode_max_key(inner: Any) -> MaxKey:
    _check_end(inner)
    return MaxKey()


def _check_end(inner: Any) -> None:
    if type(inner) is not int or inner != 1:
        raise ValueError("not 1")


def _encode_decimal128(value: Decimal128) -> JsonValue:
    return value.bid.hex()


def _decode_decimal128(inner: Any) -> Decimal128:
    return Decimal128.from_bid(bytes.fromhex(_matching(_BID, inner)))


TYPES: Final[Mapping[type, tuple[str, Callable[[Any], JsonValue], Callable[[Any], Any]]]] = {
    ObjectId: ("mongo.objectid", _encode_object_id, _decode_object_id),
    Timestamp: ("mongo.timestamp", _encode_timestamp, _decode_timestamp),
    Regex: ("mongo.regex", _encode_regex, _decode_regex),
    Binary: ("mongo.binary", _encode_binary, _decode_binary),
    Code: ("mongo.code", _encode_code, _decode_code),
    DBRef: ("mongo.dbref", _encode_dbref, _decode_dbref),
    DatetimeMS: ("mongo.datetime", _encode_datetime_ms, _decode_datetime_ms),
    MinKey: ("mongo.minkey", _encode_end, _decode_min_key),
    MaxKey: ("mongo.maxkey", _encode_end, _decode_max_key),
    Decimal128: ("mongo.decimal128", _encode_decimal128, _decode_decimal128),
}
"""The names of BSON's own classes in the library's JSON, with the functions that write and read them."""
for _class, (_tag, _encoder, _decoder) in TYPES.items():
    register_type(_tag, _class, _encoder, _decoder)
