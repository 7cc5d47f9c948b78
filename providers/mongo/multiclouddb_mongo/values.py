"""BSON's values as Python values, and as our JSON; pure.

What Python has is what a document holds: text, numbers, truth values, None, lists, dicts, `bytes` (binary of
subtype 0), aware `datetime` in UTC, `UUID` (binary of subtype 4) and `Decimal`. The rest keeps the class
that PyMongo has for it, and has a name in our JSON:

    ObjectId         {"$mongo.objectid": "65f0…"}             24 hex digits
    Timestamp        {"$mongo.timestamp": [1700000000, 1]}    seconds, increment
    Regex            {"$mongo.regex": ["^a", "im"]}           BSON's letters
    Binary           {"$mongo.binary": [3, "aGk="]}           the other subtypes, old UUIDs too; base64
    Code             {"$mongo.code": ["f()", null]}           its scope or null
    DBRef            {"$mongo.dbref": {"$map": {"$ref": …}}}  as it is stored
    DatetimeMS       {"$mongo.datetime": 253402300800000}     a date outside the years 1 to 9999
    MinKey, MaxKey   {"$mongo.minkey": 1}, {"$mongo.maxkey": 1}
    Decimal128       {"$mongo.decimal128": "…"}               16 bytes in hex, where no Decimal is the same:
                                                              a NaN with a payload, a padded significand

Our JSON has one kind of integer: `Int64` is written like `int`, and what is read back is an `int`, which BSON
stores in 32 bits where it fits. It has one NaN of a `float`, whatever its bits. Equal values stay equal.

Types that BSON has given up are what PyMongo makes of them: a symbol is text, undefined is None, a DBPointer
is a `DBRef`. PyMongo puts `$db` of a `DBRef` in third place, and drops regex flags that it does not know.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

import orjson
from bson import (
    Binary,
    Code,
    DatetimeMS,
    DBRef,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
)
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.tz_util import utc

from multiclouddb_api import encode_json, invalid_request
from multiclouddb_api.codec import JsonValue, Tagged, decode_json, register_type

__all__ = ["CODEC", "json_text", "portable", "to_bson"]

CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    document_class=dict,
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    uuid_representation=UuidRepresentation.STANDARD,
)
"""How events are decoded.

It has no type registry on purpose: with one, PyMongo's change stream decodes every event twice, the first
time in Python. `portable` makes the decimals instead.
"""

_INT64: Final = 2**63
_EXPONENT_BIAS: Final = 6176
_MOST_COEFFICIENT: Final = 10**34 - 1
_MOST_DEPTH: Final = 200
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


# -- Decimals


def _decimal(value: Decimal128) -> Decimal | Decimal128:
    """The same number, every digit, sign and exponent of it; what no Decimal says stays as it is."""
    bits = int.from_bytes(value.bid, "little")
    combination = (bits >> 122) & 0x1F
    if combination < 0b11000:
        coefficient = bits & ((1 << 113) - 1)
        if coefficient > _MOST_COEFFICIENT:
            return value
        sign = "-" if bits >> 127 else ""
        return Decimal(f"{sign}{coefficient}E{((bits >> 113) & 0x3FFF) - _EXPONENT_BIAS}")
    special = value.to_decimal()
    return special if Decimal128(special).bid == value.bid else value


def portable(document: dict[str, Any] | DBRef) -> dict[str, Any]:
    """Put a `Decimal` in the place of every `Decimal128`, in place.

    Args:
        document: A document, a key or an image that PyMongo decoded with `CODEC`; changed. PyMongo takes one
            with the fields `$ref` and `$id` for a reference; it is a document here, these fields first.

    Returns:
        The same document.
    """
    if type(document) is DBRef:
        document = dict(document.as_doc())
    assert type(document) is dict
    _portable_fields(document)
    return document


_REPLACED: Final = frozenset({dict, list, Decimal128})


def _portable_fields(document: dict[str, Any]) -> None:
    for name, value in document.items():
        kind = type(value)
        if kind in _REPLACED:
            if kind is dict:
                _portable_fields(value)
            elif kind is list:
                _portable_items(value)
            else:
                document[name] = _decimal(value)


def _portable_items(values: list[Any]) -> None:
    for index, value in enumerate(values):
        kind = type(value)
        if kind in _REPLACED:
            if kind is dict:
                _portable_fields(value)
            elif kind is list:
                _portable_items(value)
            else:
                values[index] = _decimal(value)


# -- Names in our JSON


def _inner(value: Any) -> JsonValue:
    """A value inside one of our own."""
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
        raise ValueError("not its hex digits")
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
        raise ValueError("a regular expression of bytes, or with flags that BSON has not")
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
    return [str.__str__(value), None if value.scope is None else _inner(dict(value.scope))]


def _decode_code(inner: Any) -> Code:
    text, scope = _pair(inner, str, type(None) if inner[1:] == [None] else dict)
    return Code(text, None if scope is None else _scope(_outer(scope)))


def _scope(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError("not a scope")
    return value


def _encode_dbref(value: DBRef) -> JsonValue:
    return _inner(dict(value.as_doc()))


def _decode_dbref(inner: Any) -> DBRef:
    fields = _scope(_outer(inner))
    if not {"$ref", "$id"} <= fields.keys():
        raise ValueError("not a reference")
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


_TYPES: Final[Mapping[type, tuple[str, Callable[[Any], JsonValue], Callable[[Any], Any]]]] = {
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
for _class, (_tag, _encoder, _decoder) in _TYPES.items():
    register_type(_tag, _class, _encoder, _decoder)


# -- JSON


def json_text(document: dict[str, Any] | DBRef) -> bytes:
    """What `encode_json(portable(document))` gives, made faster; the document is not changed.

    Args:
        document: As for `portable`.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` when a part of it has no JSON form.
    """
    if type(document) is DBRef:
        document = dict(document.as_doc())
    assert type(document) is dict
    try:
        return orjson.dumps(_object(document, 0), option=orjson.OPT_UTC_Z)
    except (LookupError, TypeError, ValueError):
        # Nested too deeply, or not what PyMongo decodes: encode_json knows more types, and what to say.
        return encode_json(portable(deepcopy(document)))


def _object(document: dict[str, Any], depth: int) -> Any:
    if depth >= _MOST_DEPTH - 1:
        raise ValueError("nested too deeply")
    found = document.copy()
    for name, value in document.items():
        kind = type(value)
        if kind not in _PLAIN:
            found[name] = _JSON[kind](value, depth + 1)
    # One search for all names: hardly a document has a $ in any.
    if "$" in "".join(found) and any(name.startswith("$") for name in found):
        return {"$map": found}
    return found


def _array(values: list[Any], depth: int) -> Any:
    if depth >= _MOST_DEPTH - 1:
        raise ValueError("nested too deeply")
    found = values.copy()
    for index, value in enumerate(values):
        kind = type(value)
        if kind not in _PLAIN:
            found[index] = _JSON[kind](value, depth + 1)
    return found


def _json_float(value: float, _: int) -> Any:
    # Only of a finite number is the difference a number.
    return value if value - value == 0 else _inner(value)


def _json_datetime(value: datetime, _: int) -> Any:
    # orjson writes the moment as rfc3339 does, when it is in UTC.
    return {"$date": value} if value.tzinfo is utc else _inner(value)


def _json_object_id(value: ObjectId, _: int) -> Any:
    return {"$mongo.objectid": value.binary.hex()}


def _json_decimal(value: Decimal | Decimal128, _: int) -> Any:
    number = _decimal(value) if type(value) is Decimal128 else value
    return {"$decimal": str(number)} if type(number) is Decimal else _inner(number)


def _json_uuid(value: UUID, _: int) -> Any:
    return {"$uuid": str(value)}


def _json_bytes(value: bytes, _: int) -> Any:
    return {"$bytes": b64encode(value).decode("ascii")}


def _json_rare(value: Any, _: int) -> Any:
    return _inner(value)


# An Int64 too: orjson writes it like its base.
_PLAIN: Final = frozenset({str, int, bool, type(None), Int64})
_JSON: Final[Mapping[type, Callable[[Any, int], Any]]] = {
    **dict.fromkeys(_TYPES, _json_rare),
    dict: _object,
    list: _array,
    float: _json_float,
    datetime: _json_datetime,
    ObjectId: _json_object_id,
    Decimal: _json_decimal,
    Decimal128: _json_decimal,
    UUID: _json_uuid,
    bytes: _json_bytes,
}


# -- BSON


_Converter: TypeAlias = Callable[[Any], Any]
_AS_IS: Final = frozenset(
    {bool, float, type(None), bytes, UUID, Int64, ObjectId, Timestamp, Binary, DatetimeMS}
    | {MinKey, MaxKey, Decimal128}
)


def to_bson(value: Any) -> Any:
    """A value as PyMongo can send it, for a query that names a key.

    Args:
        value: What an event's key or document holds, or what `decode_json` made of its JSON.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` when BSON has no such value.
    """
    return _to_bson(value, 0)


def _to_bson(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _AS_IS:
        return value
    if kind is int:
        if not -_INT64 <= value < _INT64:
            raise _refused(
                f"an integer of {value.bit_length()} bits", "BSON has 64 bits: use a Decimal or text"
            )
        return value
    if depth >= _MOST_DEPTH:
        raise _refused(f"more than {_MOST_DEPTH} levels", "flatten it")
    if isinstance(value, Decimal):
        return _to_decimal128(value)
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise _refused("a naive datetime", "add a time zone: tzinfo=UTC")
        return _to_date(value)
    if isinstance(value, Code):
        text = _text(str.__str__(value))
        return Code(text, None if value.scope is None else _to_bson(dict(value.scope), depth + 1))
    if isinstance(value, DBRef):
        fields = _to_bson(dict(value.as_doc()), depth + 1)
        return DBRef(fields.pop("$ref"), fields.pop("$id"), fields.pop("$db", None), fields)
    if isinstance(value, Mapping):
        return {_name(name): _to_bson(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_bson(item, depth + 1) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, Regex):
        _name(value.pattern)
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return _to_bson(int(value), depth)
    if isinstance(value, set | frozenset):
        raise _refused("a set", "BSON has none: use a list, in the order that is stored")
    if isinstance(value, Tagged):
        known = decode_json(encode_json(value))
        if not isinstance(known, Tagged):
            return _to_bson(known, depth)
        raise _refused(f"a value of the unknown type {value.tag!r}", "use BSON's types")
    raise _refused(f"a {kind.__module__}.{kind.__qualname__}", "use BSON's types")


def _refused(what: str, way_out: str) -> Exception:
    return invalid_request("value", f"holds {what}, which has no BSON form", way_out)


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return text
    raise _refused("text with a lone surrogate", "use valid Unicode text")


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise _refused(f"a name of type {type(name).__name__}", "names are text: use str(name)")
    if "\0" in name:
        raise _refused("a name or a pattern with a NUL character", "leave it out")
    return _text(str.__str__(name))


def _to_decimal128(value: Decimal) -> Decimal128:
    try:
        return Decimal128(value)
    except (ArithmeticError, ValueError):
        pass
    raise _refused(
        "a Decimal of more than 34 digits or out of range", "round it to what BSON's Decimal128 has"
    )


def _to_date(value: datetime) -> datetime:
    if value.microsecond % 1000:
        raise _refused("a datetime finer than a millisecond", "round it: BSON's dates are in milliseconds")
    return value
