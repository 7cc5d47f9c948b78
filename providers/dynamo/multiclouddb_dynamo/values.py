"""Converts DynamoDB's typed attribute values to Python values and to the library's JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import orjson

from multiclouddb_api import encode_json, invalid_request
from multiclouddb_api.codec import JsonValue

_INT64: Final = 2**63
# DynamoDB's numbers have up to 38 digits and powers of ten from -130 to 125. A number far outside this range
# is damaged, and converting it to an int may take almost forever.
_MOST_NUMBER: Final = 400
_MOST_POWER: Final = 400


def decode(value: Mapping[str, Any]) -> Any:
    """Decode one attribute value to str, int, Decimal, bytes, bool, None, list, dict or frozenset."""
    (tag,) = value
    return _DECODERS[tag](value[tag])


def decode_map(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Decode a document or a key to a mapping from name to value."""
    found = {}
    for name, value in attributes.items():
        (tag,) = value
        raw = value[tag]
        # Most values are text, which needs no call.
        found[name] = raw if tag == "S" and type(raw) is str else _DECODERS[tag](raw)
    return found


def _text(raw: Any) -> str:
    if type(raw) is not str:
        raise TypeError("not text")
    return raw


def _number(raw: Any) -> int | Decimal:
    if type(raw) is not str or len(raw) > _MOST_NUMBER:
        raise TypeError("not a number's text")
    try:
        return int(raw)
    except ValueError:
        number = Decimal(raw)
    if not number.is_finite() or abs(number.adjusted()) > _MOST_POWER:
        raise ValueError("not a number")
    return int(number) if number == number.to_integral_value() else number


def _bytes(raw: Any) -> bytes:
    return raw if type(raw) is bytes else base64.b64decode(raw, validate=True)


def _bool(raw: Any) -> bool:
    if type(raw) is not bool:
        raise TypeError("not true or false")
    return raw


def _elements(raw: Any) -> list[Any]:
    if type(raw) is not list:
        raise TypeError("not a list")
    return raw


def _set_of(one: Callable[[Any], Any]) -> Callable[[Any], frozenset[Any]]:
    return lambda raw: frozenset(one(value) for value in _elements(raw))


_DECODERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "S": _text,
    "N": _number,
    "B": _bytes,
    "BOOL": _bool,
    "NULL": lambda _: None,
    "L": lambda raw: [decode(value) for value in _elements(raw)],
    "M": decode_map,
    "SS": _set_of(_text),
    "NS": _set_of(_number),
    "BS": _set_of(_bytes),
}


def encode_key(name: str, value: Any) -> dict[str, Any]:
    """Return the value of a key attribute in typed JSON, with binary values as bytes."""
    match value:
        case str():
            return {"S": value}
        case bytes():
            return {"B": value}
        case int() | Decimal() if type(value) is not bool:
            return {"N": str(value)}
        case _:
            pass
    raise invalid_request(
        "keys",
        f"has a key whose attribute {name!r} is of type {type(value).__name__}",
        "give text, a number (int or Decimal) or bytes, as event.key has it",
    )


# -- Attribute values to JSON, without Python values in between


def json_map(attributes: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the same value as `orjson.loads(encode_json(decode_map(attributes)))`, but faster."""
    found = {}
    marked = False
    for name, value in attributes.items():
        (tag,) = value
        raw = value[tag]
        found[name] = raw if tag == "S" and type(raw) is str else _JSON[tag](raw)
        marked = marked or name[:1] == "$"
    return {"$map": found} if marked else found


def _json(value: Mapping[str, Any]) -> JsonValue:
    (tag,) = value
    return _JSON[tag](value[tag])


def _json_number(raw: Any) -> JsonValue:
    number = _number(raw)
    if type(number) is int:
        return number if -_INT64 <= number < _INT64 else {"$int": str(number)}
    return {"$decimal": str(number)}


def _json_set(tag: str) -> Callable[[Any], JsonValue]:
    return lambda raw: orjson.loads(encode_json(_DECODERS[tag](raw)))


_JSON: Final[Mapping[str, Callable[[Any], JsonValue]]] = {
    "S": _text,
    "N": _json_number,
    "B": lambda raw: {"$bytes": base64.b64encode(_bytes(raw)).decode("ascii")},
    "BOOL": _bool,
    "NULL": lambda _: None,
    "L": lambda raw: [_json(value) for value in _elements(raw)],
    "M": json_map,
    "SS": _json_set("SS"),
    "NS": _json_set("NS"),
    "BS": _json_set("BS"),
}
