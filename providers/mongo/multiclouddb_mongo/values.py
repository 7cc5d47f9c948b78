"""Converts BSON's values to Python's values, and back.

A document contains Python's own types if there is a suitable one: text, numbers, truth values, None, lists,
dicts, `bytes` (binary of subtype 0), `datetime` in UTC, `UUID` (binary of subtype 4) and `Decimal`. Other
values are instances of PyMongo's classes, which have these names in the library's JSON:

    ObjectId         {"$mongo.objectid": "65f0…"}             24 hex digits
    Timestamp        {"$mongo.timestamp": [1700000000, 1]}    seconds, increment
    Regex            {"$mongo.regex": ["^a", "im"]}           BSON's letters
    Binary           {"$mongo.binary": [3, "aGk="]}           the other subtypes, including old UUIDs, and
                                                              subtype 4 if it is no UUID; base64
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

PyMongo converts the deprecated BSON types: a symbol becomes text, undefined becomes None, and a DBPointer
becomes a `DBRef`. PyMongo moves the `$db` field of a `DBRef` to the third place, and drops unknown regex
flags.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from datetime import datetime
from decimal import Context, Decimal
from typing import Any, Final
from uuid import UUID

import bson
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
from bson.binary import UUID_SUBTYPE, UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from bson.tz_util import utc

from multiclouddb_api import MulticloudDbKey, encode_json, invalid_request
from multiclouddb_api.codec import JsonValue, Tagged, decode_json, deep_json, register_type

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
    return decode_json(deep_json(inner))


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


def _encode_regex(value: Regex[Any]) -> JsonValue:
    if not isinstance(value.pattern, str) or value.flags & ~sum(_FLAGS.values()):
        raise ValueError("BSON cannot store a regular expression that is made of bytes or has these flags")
    return [value.pattern, "".join(letter for letter, flag in _FLAGS.items() if value.flags & flag)]


def _decode_regex(inner: Any) -> Regex[str]:
    pattern, letters = _pair(inner, str, str)
    if list(letters) != sorted(set(letters) & _FLAGS.keys()):
        raise ValueError("not BSON's flags")
    return Regex(pattern, sum(_FLAGS[letter] for letter in letters))


def _decode_binary(inner: Any) -> Binary:
    subtype, text = _pair(inner, int, str)
    return Binary(b64decode(text, validate=True), subtype)


def _decode_code(inner: Any) -> Code:
    text, scope = _pair(inner, str, type(None) if inner[1:] == [None] else dict)
    return Code(text, None if scope is None else _scope(_outer(scope)))


def _scope(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError("not a scope")
    return value


def _decode_dbref(inner: Any) -> DBRef:
    fields = _scope(_outer(inner))
    if not {"$ref", "$id"} <= fields.keys():
        raise ValueError("not a reference")
    return dbref(fields)


def dbref(fields: dict[str, Any]) -> DBRef:
    """Make a reference from its stored fields, and remove these fields from the dict."""
    return DBRef(fields.pop("$ref"), fields.pop("$id"), fields.pop("$db", None), fields)


def _decode_datetime_ms(inner: Any) -> DatetimeMS:
    if type(inner) is not int:
        raise ValueError("not milliseconds")
    return DatetimeMS(inner)


def _end(inner: Any, end: MinKey | MaxKey) -> MinKey | MaxKey:
    if type(inner) is not int or inner != 1:
        raise ValueError("not 1")
    return end


TYPES: Final[Mapping[type, tuple[str, Callable[[Any], JsonValue], Callable[[Any], Any]]]] = {
    ObjectId: (
        "mongo.objectid",
        lambda value: value.binary.hex(),
        lambda inner: ObjectId(_matching(_OBJECT_ID, inner)),
    ),
    Timestamp: (
        "mongo.timestamp",
        lambda value: [value.time, value.inc],
        lambda inner: Timestamp(*_pair(inner, int, int)),
    ),
    Regex: ("mongo.regex", _encode_regex, _decode_regex),
    Binary: ("mongo.binary", lambda value: [value.subtype, b64encode(value).decode("ascii")], _decode_binary),
    Code: (
        "mongo.code",
        lambda value: [str.__str__(value), None if value.scope is None else inner_json(dict(value.scope))],
        _decode_code,
    ),
    DBRef: ("mongo.dbref", lambda value: inner_json(dict(value.as_doc())), _decode_dbref),
    DatetimeMS: ("mongo.datetime", lambda value: int(value), _decode_datetime_ms),
    MinKey: ("mongo.minkey", lambda _: 1, lambda inner: _end(inner, MinKey())),
    MaxKey: ("mongo.maxkey", lambda _: 1, lambda inner: _end(inner, MaxKey())),
    Decimal128: (
        "mongo.decimal128",
        lambda value: value.bid.hex(),
        lambda inner: Decimal128.from_bid(bytes.fromhex(_matching(_BID, inner))),
    ),
}
"""The names of BSON's own classes in the library's JSON, with the functions that write and read them."""
for _class, (_tag, _encoder, _decoder) in TYPES.items():
    register_type(_tag, _class, _encoder, _decoder)


CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    document_class=dict,
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    uuid_representation=UuidRepresentation.STANDARD,
)
"""The codec that decodes events.

The codec deliberately has no type registry. With a type registry, PyMongo's change stream would decode every
event twice, and the first time in slow Python code. `portable` converts the decimals instead.
"""

TEXT_CODEC: Final = CODEC.with_options(tz_aware=False)
"""The codec for events that become text. It decodes times to UTC without a time zone.

For PyMongo, adding the zone takes longer than decoding the time, and `json_text` writes the same text with
and without a zone.
"""

LENIENT: Final = CODEC.with_options(
    unicode_decode_error_handler="replace", uuid_representation=UuidRepresentation.UNSPECIFIED
)
"""The codec to which no value is wrong, as long as the document's structure is right."""

LENIENT_RAW: Final[CodecOptions[RawBSONDocument]] = LENIENT.with_options(document_class=RawBSONDocument)
"""The codec for the answers to the library's own questions.

It decodes only the fields that are read, and no text can make it fail. An answer may contain values of users,
which the server does not check: a text that is not UTF-8, or a UUID of another length.
"""


def decode(document: bytes | memoryview) -> dict[str, Any]:
    """Decode one document; see `decode_all`."""
    return decode_all(document)[0]


def decode_all(
    documents: bytes | memoryview, codec: CodecOptions[dict[str, Any]] = CODEC
) -> list[dict[str, Any]]:
    """Decode documents that follow one another.

    Whatever PyMongo reads with its default codec can be decoded.

    Raises:
        BSONError: A document cannot be decoded.
    """
    try:
        return bson.decode_all(documents, codec)
    except BSONError:
        # A binary of subtype 4 need not have the length of a UUID. PyMongo then refuses the whole document,
        # unless it leaves all binaries of this subtype as they are.
        stored = codec.with_options(uuid_representation=UuidRepresentation.UNSPECIFIED)
        return [_with_uuids(document) for document in bson.decode_all(documents, stored)]


def _with_uuids(value: Any) -> Any:
    """Replace each binary that is a UUID, in place if it is in a document or a list."""
    kind = type(value)
    if kind is dict or kind is list:
        for place, item in value.items() if kind is dict else enumerate(value):
            value[place] = _with_uuids(item)
        return value
    if kind is Binary:
        return value.as_uuid() if value.subtype == UUID_SUBTYPE and len(value) == _UUID_BYTES else value
    if kind is DBRef:
        return dbref(_with_uuids(dict(value.as_doc())))
    if kind is Code and value.scope is not None:
        return Code(str.__str__(value), _with_uuids(dict(value.scope)))
    return value


_INT64: Final = 2**63
_UUID_BYTES: Final = 16
_EXPONENT_BIAS: Final = 6176
_MOST_COEFFICIENT: Final = 10**34 - 1
_MOST_DEPTH: Final = 200


# -- Decimals


def portable_decimal(value: Decimal128) -> Decimal | Decimal128:
    """Return the number as a `Decimal` with the same digits, sign and exponent."""
    bits = int.from_bytes(value.bid, "little")
    if (bits >> 122) & 0x1F < 0b11000:
        coefficient = bits & ((1 << 113) - 1)
        if coefficient > _MOST_COEFFICIENT:
            return value
        sign = "-" if bits >> 127 else ""
        return Decimal(f"{sign}{coefficient}E{((bits >> 113) & 0x3FFF) - _EXPONENT_BIAS}")
    special = value.to_decimal()
    return special if Decimal128(special).bid == value.bid else value


def portable(document: dict[str, Any]) -> dict[str, Any]:
    """Replace every `Decimal128` with a `Decimal`, in place."""
    _make_portable(document, document.items())
    return document


_REPLACED: Final = frozenset({dict, list, Decimal128})


def _make_portable(container: Any, items: Iterable[tuple[Any, Any]]) -> None:
    for place, value in items:
        kind = type(value)
        if kind in _REPLACED:
            if kind is dict:
                _make_portable(value, value.items())
            elif kind is list:
                _make_portable(value, enumerate(value))
            else:
                container[place] = portable_decimal(value)


# -- Keys


class IndistinctKeyError(ValueError):
    """Raised for a key that PyMongo decodes to the same value as another document's key."""


def normal_key(components: Mapping[str, Any], document: bytes | memoryview) -> dict[str, Any]:
    """Return the key of a stored document in its normal form; equal keys of one collection have one form.

    Args:
        components: The key as PyMongo decodes it.
        document: The document or the change from which the key was decoded.

    Raises:
        IndistinctKeyError: Another document may have the same key.
    """
    for name, value in components.items():
        if type(value) in _NESTED:
            # PyMongo decodes undefined as None, and of two fields of one name it keeps the last. What it
            # encodes again is then not what is stored.
            own = name.rpartition(".")[2]
            if bson.encode({own: value}, codec_options=CODEC)[4:-1] not in bytes(document):
                raise IndistinctKeyError
    return {name: normal(value) for name, value in components.items()}


def normal(value: Any) -> Any:
    """Return a decoded value in the form that it has in a key.

    The server takes two numbers for the same `_id` if their values are equal, whatever their types are, also
    inside a document or a list. An integer of 64 bits becomes an `int`. Another number becomes a `float` if a
    double represents it exactly, and so do each infinity and NaN. Any other number becomes a `Decimal`
    without zeros at its end, whose exponent is not written out. Values of other types are equal only if they
    are the same.
    """
    convert = _NORMAL.get(type(value))
    return value if convert is None else convert(value)


def _normal_float(value: float) -> int | float:
    return int(value) if value.is_integer() and -_INT64 <= value < _INT64 else value


def _normal_decimal(value: Decimal | Decimal128) -> int | float | Decimal:
    number = portable_decimal(value) if type(value) is Decimal128 else value
    if type(number) is Decimal128:
        # If its significand has too many digits, it is read as 0. Old versions of PyMongo refuse it.
        if (int.from_bytes(number.bid, "little") >> 122) & 0x1F < 0b11110:
            return 0
        number = number.to_decimal()
    assert isinstance(number, Decimal)
    if not number.is_finite():
        return float("nan") if number.is_nan() else float(number)
    if not number:
        return 0
    if number.adjusted() < _INT64_DIGITS and number == number.to_integral_value():
        whole = int(number)
        if -_INT64 <= whole < _INT64:
            return whole
    double = float(number)
    if math.isfinite(double) and Decimal(double) == number:
        return double
    return number.normalize(_EXACT)


def _normal_code(value: Code) -> Code:
    return value if value.scope is None else Code(str.__str__(value), normal(dict(value.scope)))


_NORMAL: Final[Mapping[type, Callable[[Any], Any]]] = {
    float: _normal_float,
    Decimal: _normal_decimal,
    Decimal128: _normal_decimal,
    dict: lambda value: {name: normal(item) for name, item in value.items()},
    list: lambda value: [normal(item) for item in value],
    DBRef: lambda value: dbref(normal(dict(value.as_doc()))),
    Code: _normal_code,
}
NORMAL_AS_DECODED: Final = frozenset(
    {str, bool, type(None), int, Int64, bytes, UUID, datetime, ObjectId}
    | {Timestamp, Binary, DatetimeMS, MinKey, MaxKey}
)
"""The types of values that are in their normal form as PyMongo decodes them."""
_NESTED: Final = frozenset({dict, list, DBRef, Code})
_INT64_DIGITS: Final = 19
_EXACT: Final = Context(prec=34, Emin=-6176, Emax=6144)


# -- BSON


_AS_IS: Final = frozenset(
    {bool, float, type(None), bytes, UUID, Int64, ObjectId, Timestamp, Binary, DatetimeMS}
    | {MinKey, MaxKey, Decimal128}
)


def asked_key(key: MulticloudDbKey) -> dict[str, Any]:
    """Return the components of a key that the caller gives in their normal form.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a component has no BSON form.
    """
    return {name: normal(_as_stored(value)) for name, value in key.components.items()}


def _as_stored(value: Any) -> Any:
    return decode(bson.encode({"v": to_bson(value)}, codec_options=CODEC))["v"]


def to_bson(value: Any) -> Any:
    """Return a value in the form that PyMongo can send, for a query that names a key."""
    return _to_bson(value, 0)


def _to_bson(value: Any, depth: int) -> Any:
    if type(value) in _AS_IS:
        return value
    if depth >= _MOST_DEPTH:
        raise _refused(f"more than {_MOST_DEPTH} levels", "flatten it")
    for classes, convert in _CONVERTERS:
        if isinstance(value, classes):
            return convert(value, depth + 1)
    kind = type(value)
    raise _refused(f"a {kind.__module__}.{kind.__qualname__}", "use BSON's types")


def _to_decimal128(value: Decimal, _: int) -> Decimal128:
    try:
        return Decimal128(value)
    except (ArithmeticError, ValueError):
        pass
    raise _refused(
        "a Decimal of more than 34 digits or out of range",
        "round it to the digits and the range of BSON's Decimal128",
    )


def _to_date(value: datetime, _: int) -> datetime:
    if value.utcoffset() is None:
        raise _refused("a naive datetime", "add a time zone: tzinfo=UTC")
    if value.microsecond % 1000:
        raise _refused("a datetime finer than a millisecond", "round it: BSON's dates are in milliseconds")
    return value


def _to_code(value: Code, depth: int) -> Code:
    scope = None if value.scope is None else _to_bson(dict(value.scope), depth)
    return Code(_text(str.__str__(value)), scope)


def _to_regex(value: Regex[Any], _: int) -> Regex[Any]:
    _name(value.pattern)
    return value


def _to_int(value: int, _: int) -> int:
    if not -_INT64 <= value < _INT64:
        raise _refused(f"an integer of {value.bit_length()} bits", "BSON has 64 bits: use a Decimal or text")
    return int(value)


def _to_known(value: Tagged, depth: int) -> Any:
    known = decode_json(encode_json(value))
    if isinstance(known, Tagged):
        raise _refused(f"a value of the unknown type {value.tag!r}", "use BSON's types")
    return _to_bson(known, depth)


def _no_set(_: Any, __: int) -> Any:
    raise _refused("a set", "BSON has no sets: use a list, and choose its order")


# The first match is used, because `Code` is also text.
_CONVERTERS: Final[tuple[tuple[Any, Callable[[Any, int], Any]], ...]] = (
    (Decimal, _to_decimal128),
    (datetime, _to_date),
    (Code, _to_code),
    (DBRef, lambda value, depth: dbref(_to_bson(dict(value.as_doc()), depth))),
    (Mapping, lambda value, depth: {_name(name): _to_bson(item, depth) for name, item in value.items()}),
    (list | tuple, lambda value, depth: [_to_bson(item, depth) for item in value]),
    (bytes | bytearray | memoryview, lambda value, _: bytes(value)),
    (str, lambda value, _: _text(str.__str__(value))),
    (Regex, _to_regex),
    (float, lambda value, _: float(value)),
    (int, _to_int),
    (set | frozenset, _no_set),
    (Tagged, _to_known),
)


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


def json_text(document: dict[str, Any]) -> bytes:
    """Return the same text as `encode_json(portable(document))`, but faster; the document is not changed."""
    try:
        # A document of plain values needs no copy.
        if _PLAIN.issuperset(map(type, document.values())) and "$" not in "".join(document):
            return orjson.dumps(document)
        return orjson.dumps(_object(document, 0), option=orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC)
    except (LookupError, TypeError, ValueError):
        # The document is nested too deeply, or did not come from PyMongo. `encode_json` supports more types
        # and raises the right error.
        return encode_json(portable(deepcopy(document)))


def _object(document: dict[str, Any], depth: int) -> Any:
    if depth >= _MOST_DEPTH - 1:
        raise ValueError("nested too deeply")
    found = document.copy()
    for name, value in document.items():
        kind = type(value)
        if kind not in _PLAIN:
            found[name] = _JSON[kind](value, depth + 1)
    # One search checks all names, because hardly any document has a name with a $.
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
    # The difference is 0 only if the value is finite.
    return value if value - value == 0 else inner_json(value)


def _json_datetime(value: datetime, _: int) -> Any:
    # orjson writes a time in UTC in the same form as rfc3339.
    return {"$date": value} if value.tzinfo is None or value.tzinfo is utc else inner_json(value)


def _json_decimal(value: Decimal | Decimal128, _: int) -> Any:
    number = portable_decimal(value) if type(value) is Decimal128 else value
    return {"$decimal": str(number)} if type(number) is Decimal else inner_json(number)


# This includes Int64, which orjson writes like an int.
_PLAIN: Final = frozenset({str, int, bool, type(None), Int64})
_JSON: Final[Mapping[type, Callable[[Any, int], Any]]] = {
    **dict.fromkeys(TYPES, lambda value, _: inner_json(value)),
    dict: _object,
    list: _array,
    float: _json_float,
    datetime: _json_datetime,
    ObjectId: lambda value, _: {"$mongo.objectid": value.binary.hex()},
    Decimal: _json_decimal,
    Decimal128: _json_decimal,
    UUID: lambda value, _: {"$uuid": str(value)},
    bytes: lambda value, _: {"$bytes": b64encode(value).decode("ascii")},
}
