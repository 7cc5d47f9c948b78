"""Converts Spanner's values to Python values and to the library's JSON. The functions are pure.

In a change record, a value is JSON in the service's own format: INT64 and NUMERIC values are texts, BYTES
values are base64, and JSON values are texts that must be parsed again, without rounding their numbers. In
Python these values are `int`, `Decimal`, `bytes` and so on. TIMESTAMP, DATE and INTERVAL stay texts, because
a timestamp has nine decimal digits and a datetime has only six.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

import orjson

from multiclouddb_api import encode_json, invalid_request
from multiclouddb_api.codec import JsonValue, has_long_number, parse_json

Converter: TypeAlias = Callable[[Any], Any]

_MOST_INTEGER: Final = 20
_MOST_DIGITS: Final = 150_000  # a numeric of PostgreSQL may have 147,455 digits


def converter(kind: Mapping[str, Any]) -> Converter | None:
    """Return a function that converts a column's value to a Python value; None for a value as it is."""
    return _of(kind, _PYTHON)


def json_converter(kind: Mapping[str, Any]) -> Converter | None:
    """Return a function that converts a column's value for the JSON that `encode_json` writes."""
    return _of(kind, _JSON)


def _of(kind: Mapping[str, Any], converters: Mapping[str, Converter | None]) -> Converter | None:
    code = str(kind.get("code"))
    if code == "ARRAY":
        element = _of(kind["array_element_type"], converters)
        return None if element is None else _each(element)
    if code not in converters:
        raise ValueError(f"a column has the type {code[:40]!r}, which this version does not know")
    return converters[code]


def _each(element: Converter) -> Converter:
    def convert(values: Any) -> Any:
        if type(values) is not list:
            raise TypeError("not an array")
        null = ("NULL",) if element in _NEVER_TEXT else ()
        return [None if value is None or value in null else element(value) for value in values]

    return convert


def _integer(raw: Any) -> int:
    if type(raw) is not str or len(raw) > _MOST_INTEGER:
        raise TypeError("not an integer's text")
    return int(raw)


def integers(texts: Sequence[str]) -> list[int]:
    """Convert an INT64 column that contains no nulls."""
    if max(map(len, texts), default=0) > _MOST_INTEGER:
        raise TypeError("not an integer's text")
    return list(map(int, texts))


def _float(raw: Any) -> float:
    # The service sends NaN and the infinities as texts.
    if type(raw) is bool or not isinstance(raw, int | float | str):
        raise TypeError("not a number")
    return float(raw)


def _decimal(raw: Any) -> Decimal:
    if type(raw) is not str or len(raw) > _MOST_DIGITS:
        raise TypeError("not a number's text")
    return Decimal(raw)


def _bytes(raw: Any) -> bytes:
    return base64.b64decode(raw, validate=True)


def _parsed(raw: Any) -> Any:
    if type(raw) is not str:
        raise TypeError("not JSON's text")
    return parse_json(raw)


_PYTHON: Final[Mapping[str, Converter | None]] = {
    "BOOL": None,
    "BYTES": _bytes,
    "DATE": None,
    "ENUM": _integer,
    "FLOAT32": _float,
    "FLOAT64": _float,
    "INT64": _integer,
    "INTERVAL": None,
    "JSON": _parsed,
    "NUMERIC": _decimal,
    "PROTO": _bytes,
    "STRING": None,
    "TIMESTAMP": None,
    "UUID": UUID,
}


def key_part(name: str, value: Any) -> JsonValue:
    """Return the value of a key column in the service's own format."""
    match value:
        case None | bool() | str():
            return value
        case int() | Decimal() | UUID():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case float():
            special = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
            return special.get(str(value), value)
        case _:
            pass
    raise invalid_request(
        "keys",
        f"has a key whose column {name!r} is of type {type(value).__name__}",
        "give the value as event.key has it",
    )


# -- Values as JSON


def _json_float(raw: Any) -> JsonValue:
    number = _float(raw)
    # A value minus itself is 0 only if the value is finite.
    if number - number == 0:
        return number
    value: JsonValue = orjson.loads(encode_json(number))
    return value


def _json_decimal(raw: Any) -> JsonValue:
    return {"$decimal": str(_decimal(raw))}


def _json_parsed(raw: Any) -> JsonValue:
    value: JsonValue = _parsed(raw)
    is_plain = '"$' not in raw and not has_long_number(raw)
    return value if is_plain else orjson.loads(encode_json(value))


def _json_uuid(raw: Any) -> JsonValue:
    return {"$uuid": str(UUID(raw))}


_JSON: Final[Mapping[str, Converter | None]] = {
    **_PYTHON,
    "BYTES": lambda raw: {"$bytes": base64.b64encode(_bytes(raw)).decode("ascii")},
    "FLOAT32": _json_float,
    "FLOAT64": _json_float,
    "JSON": _json_parsed,
    "NUMERIC": _json_decimal,
    "PROTO": lambda raw: {"$bytes": base64.b64encode(_bytes(raw)).decode("ascii")},
    "UUID": _json_uuid,
}
_NEVER_TEXT: Final = frozenset(
    {_integer, _float, _decimal, _json_decimal, _json_float, _parsed, _json_parsed, UUID, _json_uuid}
)
