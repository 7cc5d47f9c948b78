"""Defines one canonical JSON text for every value that a document or a key can contain.

JSON's own types are written unchanged. A value of another type is written as an object with one key that
starts with `$`, so that a round trip is exact:

    Decimal          {"$decimal": "1.50"}
    bytes            {"$bytes": "aGk="}                        base64
    aware datetime   {"$date": "2026-01-31T12:00:00.5Z"}       UTC; naive ones are refused
    set, frozenset   {"$set": [...]}                           sorted by their own JSON text
    UUID             {"$uuid": "…"}
    int over 64 bit  {"$int": "…"}                             JSON readers would round it
    NaN, Infinity    {"$float": "NaN"}
    vendor's types   {"$mongo.objectid": "…"}                  see `register_type`
    an object with a key that starts with "$"
                     {"$map": {...}}                           its keys mean themselves

A `$` name that no loaded provider has registered is decoded as `Tagged`, and written back unchanged.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

import attrs
import orjson
from attrs import frozen

from multiclouddb_api.errors import MulticloudDbError, invalid_request, type_name
from multiclouddb_api.redaction import rfc3339
from multiclouddb_api.validators import is_a

JsonValue: TypeAlias = bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None
"""The values that `json.loads` can return; cursors and tokens are stored in this form."""

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_MAX_DEPTH: Final = 200
_PIECE: Final = 100  # levels


@frozen
class Tagged:
    """A value of a vendor-specific type that no loaded provider has registered."""

    tag: str = attrs.field(validator=is_a(str))
    """The type's name without the `$`, for example `"mongo.objectid"`."""
    value: JsonValue = attrs.field(validator=is_a(bool, int, float, str, list, dict, type(None)))
    """The value in its JSON form."""


_Encoder: TypeAlias = Callable[[Any], JsonValue]
_Decoder: TypeAlias = Callable[[Any], Any]
_encoders: dict[type, tuple[str, _Encoder]] = {}
_decoders: dict[str, _Decoder] = {}


def register_type(tag: str, cls: type, encode: _Encoder, decode: _Decoder) -> None:
    """Register a vendor's type with the codec; a provider's `mapping` module calls this once.

    Args:
        tag: `"<provider id>.<type>"`, written as `{"$<tag>": …}`.
        cls: The exact Python class to encode; its subclasses are not included.
        encode: A function that converts a value to a JSON value, without side effects.
        decode: A function that converts a JSON value back to an equal value, and raises `ValueError` for any
            other input.
    """
    _encoders[cls] = (tag, encode)
    _decoders[tag] = decode


# -- Texts of exact numbers

# Up to so many digits, and with an exponent of at most two digits, a float has the value of its text: a float
# keeps fifteen digits (DBL_DIG of C), and a point is counted here as a digit.
_EXACT_DIGITS: Final = 16
_LONG: Final = b"0" * (_EXACT_DIGITS + 1)
_LONG_EXPONENTS: Final = (b"0e000", b"0e+000", b"0e-000")
_AS_ZEROS: Final = bytes.maketrans(b"123456789.E", b"0000000000e")
# Python refuses to write an int of more digits as text (`sys.set_int_max_str_digits`).
_MOST_INT_DIGITS: Final = 4300


def has_long_number(text: bytes | str) -> bool:
    """Return whether a JSON text may contain a number that JSON parsers round.

    Args:
        text: The JSON text.

    Returns:
        False if every number in it is exact as an int of 64 bits or as a float. True also for some texts that
        have such digits only inside of strings.
    """
    data = (text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text).translate(_AS_ZEROS)
    return _LONG in data or (b"0e" in data and any(each in data for each in _LONG_EXPONENTS))


def parse_json(text: bytes | str) -> Any:
    """Parse a JSON text that a database wrote, without rounding its numbers.

    The types of numbers are:

    - int, of any size, for a number without a fraction and an exponent. Only an int of more than 4,300
      digits is a Decimal, because Python cannot write it as text;
    - float, for a number with a fraction or an exponent if the float's shortest text is the same number;
    - Decimal, for every other number.

    `decode_json` reads what `encode_json` has written, where these types are named.

    Args:
        text: The JSON text. `{"$...": ...}` has no special meaning in it.

    Raises:
        ValueError: The text is not JSON.
        ArithmeticError: A number has an exponent that `decimal` does not support.
        RecursionError: The text is nested too deeply.
    """
    if not has_long_number(text):
        return orjson.loads(text)
    found = json.loads(text, parse_int=_int, parse_float=_float_or_decimal, parse_constant=_refuse)
    if (b"\\u" if isinstance(text, bytes) else "\\u") in text:  # type: ignore[operator]
        _check_unicode(found)
    return found


def _int(text: str) -> int | Decimal:
    return int(text) if len(text) <= _MOST_INT_DIGITS else Decimal(text)


def _float_or_decimal(text: str) -> float | Decimal:
    number, exact = float(text), Decimal(text)
    return number if math.isfinite(number) and Decimal(repr(number)) == exact else exact


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _check_unicode(value: Any) -> None:
    """Refuse half a surrogate pair, as orjson does."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, list):
        for each in value:
            _check_unicode(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            name.encode()
            _check_unicode(each)


# -- The canonical text


def _encode_int(value: int) -> JsonValue:
    return value if _INT64_MIN <= value <= _INT64_MAX else {"$int": str(value)}


def _encode_float(value: float) -> JsonValue:
    if math.isfinite(value):
        return value
    return {"$float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}


def _encode(value: Any, depth: int) -> JsonValue:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value  # type: ignore[no-any-return]
    if kind is int:
        return _encode_int(value)
    if kind is float:
        return _encode_float(value)
    if depth >= _MAX_DEPTH:
        raise invalid_request("value", f"is nested deeper than {_MAX_DEPTH} levels", "flatten it")
    if kind is dict or (isinstance(value, Mapping) and kind not in _encoders):
        encoded, is_tagged = dict[str, JsonValue](), False
        for given, item in value.items():
            name = given if type(given) is str else _key(given)
            is_tagged = is_tagged or name[:1] == "$"
            encoded[name] = item if type(item) is str else _encode(item, depth + 1)
        return {"$map": encoded} if is_tagged else encoded
    if kind is list or kind is tuple:
        return [_encode(item, depth + 1) for item in value]
    registered = _encoders.get(kind)
    if registered is not None:
        tag, encode = registered
        return {f"${tag}": encode(value)}
    return _encode_rare(value, depth)


def _encode_rare(value: Any, depth: int) -> JsonValue:
    """Encode a value of a less frequent type, or of a subclass of a frequent type."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise invalid_request(
                "value", f"holds the naive datetime {value.isoformat()}", "add a time zone: tzinfo=UTC"
            )
        return {"$date": rfc3339(value)}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(bytes(value)).decode("ascii")}
    if isinstance(value, UUID):
        return {"$uuid": str(value)}
    if isinstance(value, set | frozenset):
        items = [_encode(item, depth + 1) for item in value]
        return {"$set": sorted(items, key=lambda item: deep_json(item, option=orjson.OPT_SORT_KEYS))}
    if isinstance(value, Tagged):
        return {f"${value.tag}": value.value}
    if isinstance(value, int):
        return _encode_int(int(value))
    if isinstance(value, float):
        return _encode_float(float(value))
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list | tuple):
        return _encode(list(value), depth)
    raise invalid_request(
        "value",
        f"holds a {type(value).__module__}.{type(value).__qualname__}, which has no JSON form here",
        "use JSON values, Decimal, bytes, aware datetimes, sets or UUID",
    )


def _key(name: object) -> str:
    if not isinstance(name, str):
        raise invalid_request(
            "value", f"has an object key of type {type(name).__name__}", "object keys are text: use str(key)"
        )
    return str.__str__(name)


def deep_json(value: Any, default: Callable[[Any], Any] | None = None, option: int = 0) -> bytes:
    """Like `orjson.dumps`, which supports only 254 levels; a `$map` adds one to each level of a value."""
    try:
        return orjson.dumps(value, default, option)
    except TypeError as error:
        if "Recursion limit" not in str(error):
            raise
    return orjson.dumps(_in_pieces(value, 1, default, option), default, option)


def _in_pieces(value: Any, level: int, default: Callable[[Any], Any] | None, option: int) -> Any:
    """Replace the lower levels of a value by their text."""
    if isinstance(value, dict):
        value = {name: _in_pieces(item, level + 1, default, option) for name, item in value.items()}
    elif isinstance(value, list | tuple):
        value = [_in_pieces(item, level + 1, default, option) for item in value]
    else:
        return value
    return value if level % _PIECE else orjson.Fragment(orjson.dumps(value, default, option))


def _dumps(value: Any, option: int) -> bytes:
    try:
        return deep_json(_encode(value, 0), option=option)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        # A lone surrogate, an int with thousands of digits, or a time outside the years that UTC supports.
        raise invalid_request(
            "value", f"cannot be written as JSON ({error})", "use valid Unicode text"
        ) from error


def encode_json(value: Any) -> bytes:
    """Return the value as JSON text in UTF-8, from which `decode_json` makes an equal value.

    Object keys keep their order.

    Args:
        value: Values of JSON's types, and Decimal, bytes, aware datetimes, UUID, sets and the vendors' types,
            nested up to 200 levels deep.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a part of the value has no JSON form.
    """
    return _dumps(value, 0)


def canonical_json(value: Any) -> bytes:
    """Like `encode_json`, but with sorted object keys, so that equal values have equal texts."""
    return _dumps(value, orjson.OPT_SORT_KEYS)


def decode_json(text: bytes | str) -> Any:
    """Return the value that `encode_json` or `canonical_json` has written.

    Args:
        text: The JSON, as text or as UTF-8 bytes.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the text is not JSON or a tagged value is damaged.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        is_text = isinstance(text, bytes | str | bytearray | memoryview)
        problem = f"is not JSON ({error})" if is_text else f"must be bytes or str, not {type_name(text)}"
        raise invalid_request("text", problem, "pass what encode_json returned") from error
    marked = '"$' in text if isinstance(text, str) else b'"$' in text
    try:
        return _decode(value) if marked else value
    except RecursionError as error:
        raise invalid_request("text", "is nested too deeply", "pass what encode_json returned") from error


def plain_value(value: Any) -> Any:
    """Convert a value of a document to JSON's own types: a decimal to a number, bytes to base64 text."""
    text = encode_json(value)
    found = orjson.loads(text)
    return _untagged(found) if b'"$' in text else found


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, inner),) = value.items()
        if name == "$map":
            return {each: _untagged(item) for each, item in inner.items()}
        if name == "$decimal":
            return _number(inner)
        if name.startswith("$"):
            return _untagged(inner)
    return {name: _untagged(item) for name, item in value.items()}


def _number(text: str) -> Any:
    """Return a number if JSON can represent it exactly, else its text."""
    number = Decimal(text)
    if not number.is_finite():
        return text
    if number.copy_abs() < 2**53 and number == number.to_integral_value():  # abs() overflows
        return int(number)
    return float(number) if Decimal(repr(float(number))) == number else text


def _decode(value: Any) -> Any:
    if type(value) is list:
        return [_decode(item) for item in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        ((name, inner),) = value.items()
        if name.startswith("$"):
            return _decode_tagged(name[1:], inner)
    return {name: _decode(item) for name, item in value.items()}


def _decode_tagged(tag: str, inner: Any) -> Any:
    decode = _decoders.get(tag)
    if decode is None:
        return Tagged(tag, inner)
    try:
        return decode(inner)
    except MulticloudDbError:
        raise
    except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
        raise invalid_request(
            "text", f"has a damaged ${tag} value ({error})", "pass what encode_json returned"
        ) from error


def _decode_datetime(inner: str) -> datetime:
    moment = datetime.fromisoformat(inner)
    if moment.utcoffset() is None:
        raise ValueError("no time zone")
    return moment.astimezone(UTC)


def _decode_set(inner: Any) -> frozenset[Any]:
    if type(inner) is not list:
        raise TypeError("not an array")
    return frozenset(_hashable(_decode(item)) for item in inner)


def _hashable(value: Any) -> Any:
    """Return a hashable form of a value, in which arrays inside a set are tuples."""
    return tuple(_hashable(item) for item in value) if type(value) is list else value


def _from_text(decode: Callable[[str], Any]) -> _Decoder:
    def checked(inner: Any) -> Any:
        if type(inner) is not str:
            raise TypeError("not text")
        return decode(inner)

    return checked


_decoders.update(
    {
        "decimal": _from_text(Decimal),
        "bytes": _from_text(lambda inner: base64.b64decode(inner, validate=True)),
        "date": _from_text(_decode_datetime),
        "set": _decode_set,
        "uuid": _from_text(UUID),
        "int": _from_text(int),
        "float": _from_text(float),
        "map": lambda inner: {name: _decode(item) for name, item in inner.items()},
    }
)
