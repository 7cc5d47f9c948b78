"""Converts BSON's values to Python's values, and back.

A document contains Python's own types if there is a suitable one: text, numbers, truth values, None, lists,
dicts, `bytes` (binary of subtype 0), `datetime` in UTC, `UUID` (binary of subtype 4) and `Decimal`. Other
values are instances of PyMongo's classes; `tags` lists these classes and their form in JSON.

PyMongo converts the deprecated BSON types: a symbol becomes text, undefined becomes None, and a DBPointer
becomes a `DBRef`. PyMongo moves the `$db` field of a `DBRef` to the third place, and drops unknown regex
flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

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

from multiclouddb_api import encode_json, invalid_request
from multiclouddb_api.codec import Tagged, decode_json
from multiclouddb_mongo.tags import dbref

__all__ = ["CODEC", "TEXT_CODEC", "portable", "portable_decimal", "to_bson"]

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

_INT64: Final = 2**63
_EXPONENT_BIAS: Final = 6176
_MOST_COEFFICIENT: Final = 10**34 - 1
_MOST_DEPTH: Final = 200


# -- Decimals


def portable_decimal(value: Decimal128) -> Decimal | Decimal128:
    """Return the number as a `Decimal` with the same digits, sign and exponent.

    A value that a Decimal cannot express is left unchanged.
    """
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
    """Replace every `Decimal128` with a `Decimal`, in place.

    Args:
        document: A document, a key or an image that PyMongo decoded with `CODEC`; it is changed in
            place. PyMongo decodes a document with the fields `$ref` and `$id` as a `DBRef`. This
            function converts a `DBRef` to a document that begins with the fields `$ref` and `$id`.

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
                document[name] = portable_decimal(value)


def _portable_items(values: list[Any]) -> None:
    for index, value in enumerate(values):
        kind = type(value)
        if kind in _REPLACED:
            if kind is dict:
                _portable_fields(value)
            elif kind is list:
                _portable_items(value)
            else:
                values[index] = portable_decimal(value)


# -- BSON


_AS_IS: Final = frozenset(
    {bool, float, type(None), bytes, UUID, Int64, ObjectId, Timestamp, Binary, DatetimeMS}
    | {MinKey, MaxKey, Decimal128}
)


def to_bson(value: Any) -> Any:
    """Return a value in the form that PyMongo can send, for a query that names a key.

    Args:
        value: A value of an event's key or document, or a result of `decode_json`.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if BSON cannot express the value.
    """
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


def _to_dbref(value: DBRef, depth: int) -> DBRef:
    return dbref(_to_bson(dict(value.as_doc()), depth))


def _to_document(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    return {_name(name): _to_bson(item, depth) for name, item in value.items()}


def _to_array(value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
    return [_to_bson(item, depth) for item in value]


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
    (DBRef, _to_dbref),
    (Mapping, _to_document),
    (list | tuple, _to_array),
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
