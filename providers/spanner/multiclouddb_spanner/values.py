"""Converts Spanner's values to Python values and to the library's JSON. The functions are pure.

In a change record, a value is JSON in the service's own format: INT64 and NUMERIC values are texts, BYTES
values are base64, and JSON values are texts that must be parsed again, without rounding their numbers. In
Python these values are `int`, `Decimal`, `bytes` and so on. TIMESTAMP, DATE and INTERVAL stay texts, because
a timestamp has nine decimal digits and a datetime has only six.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
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


def _float32(raw: Any) -> float:
    # A read and a change record may write the same value with more or fewer digits.
    number = _float(raw)
    found: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return found


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
    "FLOAT32": _float32,
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


# -- Keys, in one form for each item

KEY_TYPES: Final[Mapping[str, type]] = {
    "BOOL": bool, "BYTES": bytes, "DATE": str, "ENUM": int, "FLOAT32": float, "FLOAT64": float, "INT64": int,
    "NUMERIC": Decimal, "STRING": str, "TIMESTAMP": str, "UUID": UUID,
}  # fmt: skip
"""The types of the values of keys in Python."""

_TIME: Final = re.compile(
    r"(\d{1,4})(-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_DATE: Final = re.compile(r"(\d{1,4})-(\d{1,2})-(\d{1,2})", re.ASCII)
_MOST_FRACTION: Final = 9  # digits of a NUMERIC after the point


def _key_float(value: Any) -> Any:
    return 0.0 if value == 0 else value


def _key_time(value: Any) -> str:
    found = _TIME.fullmatch(value)
    if found is None:
        raise ValueError("not a timestamp")
    year, day, clock, fraction, zone = found.groups()
    text = f"{year:0>4}{day}T{clock}"
    if zone not in ("Z", "z", "+00:00"):
        text = datetime.fromisoformat(f"{text}{zone}").astimezone(UTC).isoformat()[:19]
    rest = (fraction or "").rstrip("0")
    return f"{text}.{rest}Z" if rest else f"{text}Z"


KEY_FORMS: Final[Mapping[str, Converter]] = {
    "FLOAT32": _key_float, "FLOAT64": _key_float, "TIMESTAMP": _key_time,
}  # fmt: skip
"""The types of which the service takes several forms for one value, with a function that makes one of them.

For the service, 0.0 and -0.0 are one key, and so are `...05Z` and `...05.000Z`. The values of all other types
have one form."""


def normal(value: Any, form: Converter | None) -> Any:
    """Return a value of a key column in the form that it has in keys."""
    return value if value is None or form is None else form(value)


def _whole(value: Any) -> int:
    number = Decimal(value)
    if number != number.to_integral_value() or abs(number) >= 2**63 + (number < 0):
        raise ValueError("not an integer")
    return int(number)


def _exact_float(value: Any) -> float:
    number = float(value)
    if isinstance(value, int | Decimal) and value not in (number, Decimal(repr(number))):
        raise ValueError("no float")
    return float(_key_float(number))


def _numeric(value: Any) -> Decimal:
    number = Decimal(repr(value) if isinstance(value, float) else value)
    if not number.is_finite() or number.adjusted() > 2 * _MOST_DIGITS:
        raise ValueError("not a number")
    text = format(number, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    if len(text.partition(".")[2]) > _MOST_FRACTION:
        raise ValueError("too many digits")
    return Decimal(text) if Decimal(text) else Decimal(0)


def _moment(value: Any) -> str:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError("no time zone")
        value = value.astimezone(UTC).isoformat()
    return _key_time(value)


def _day(value: Any) -> str:
    found = _DATE.fullmatch(value)
    if found is None:
        raise ValueError("not a date")
    return date(*map(int, found.groups())).isoformat()


_KEY_VALUES: Final[Mapping[str, tuple[tuple[type, ...], Converter]]] = {
    "BOOL": ((bool,), bool),
    "BYTES": ((bytes, str), lambda value: value if isinstance(value, bytes) else _bytes(value)),
    "DATE": ((str,), _day),
    "FLOAT32": ((int, float, Decimal, str), lambda value: _float32(_key_float(float(value)))),
    "FLOAT64": ((int, float, Decimal, str), _exact_float),
    "INT64": ((int, float, Decimal, str), _whole),
    "NUMERIC": ((int, float, Decimal, str), _numeric),
    "STRING": ((str,), str),
    "TIMESTAMP": ((datetime, str), _moment),
    "UUID": ((UUID, str), lambda value: value if isinstance(value, UUID) else UUID(value)),
}


def key_value(name: str, code: str, value: Any) -> Any:
    """Return a value that a user gave for a key column, in the form that `event.key` has.

    Args:
        name: The column.
        code: The code of its type, or "" if it is not known.
        value: The value, in any form that the service takes for the same item.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if no row can have this value.
    """
    known = _KEY_VALUES.get(code)
    if value is None or known is None:
        return value
    types, form = known
    try:
        if not isinstance(value, types) or (type(value) is bool and code != "BOOL"):
            raise TypeError("another type")
        return form(value)
    except (ValueError, TypeError, ArithmeticError):
        raise invalid_request(
            "keys",
            f"has a key whose column {name!r} is of type {code}, but this {type(value).__name__} is not",
            "give the value as event.key has it",
        ) from None


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


def _json_float32(raw: Any) -> JsonValue:
    return _json_float(_float32(raw))


def _json_decimal(raw: Any) -> JsonValue:
    return {"$decimal": str(_decimal(raw))}


def _json_parsed(raw: Any) -> JsonValue:
    if type(raw) is not str:
        raise TypeError("not JSON's text")
    if '"$' in raw or has_long_number(raw):
        raw = encode_json(parse_json(raw))
    found: JsonValue = orjson.loads(raw)
    return found


def _json_uuid(raw: Any) -> JsonValue:
    return {"$uuid": str(UUID(raw))}


_JSON: Final[Mapping[str, Converter | None]] = {
    **_PYTHON,
    "BYTES": lambda raw: {"$bytes": base64.b64encode(_bytes(raw)).decode("ascii")},
    "FLOAT32": _json_float32,
    "FLOAT64": _json_float,
    "JSON": _json_parsed,
    "NUMERIC": _json_decimal,
    "PROTO": lambda raw: {"$bytes": base64.b64encode(_bytes(raw)).decode("ascii")},
    "UUID": _json_uuid,
}
_NEVER_TEXT: Final = frozenset(
    {
        _integer,
        _float,
        _float32,
        _json_float32,
        _decimal,
        _json_decimal,
        _json_float,
        _parsed,
        _json_parsed,
        UUID,
        _json_uuid,
    }
)
