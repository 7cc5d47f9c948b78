"""Converts DynamoDB's typed attribute values to Python values and to the library's JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any, Final

import orjson

from multiclouddb_api import encode_json, invalid_request
from multiclouddb_api.codec import JsonValue

_INT64: Final = 2**63
# DynamoDB's numbers have up to 38 digits and powers of ten from -130 to 125. A number far outside this range
# is damaged, and converting it to an int may take almost forever.
_MOST_NUMBER: Final = 400
_MOST_POWER: Final = 400
_MOST_DIGITS, _LEAST_POWER, _GREATEST_POWER = 38, -130, 125
_EXACT: Final = Context(prec=_MOST_NUMBER)  # no number that is accepted has more digits


class HalfText(str):
    """A text with half of a surrogate pair, which has no UTF-8. It is no value, but may name a position."""

    __slots__ = ()


def with_halves_marked(answer: Any) -> Any:
    """Return records or items in which no text without UTF-8 can be decoded.

    JSON can hold such a text, and Python's parser accepts it, but no form of an event can.
    """
    try:
        orjson.dumps(answer, default=lambda _: None)
    except (TypeError, ValueError):
        return _marked(answer)
    return answer


def _marked(value: Any) -> Any:
    if isinstance(value, str):
        return value if _is_text(value) else HalfText(value)
    if isinstance(value, list):
        return [_marked(each) for each in value]
    if isinstance(value, dict):
        # An attribute whose name is no text has no value either.
        return {name: _marked(each) if _is_text(name) else {} for name, each in value.items()}
    return value


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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


# -- Keys. The service compares numbers by value: `5`, `5.0` and `5E0` are one key.


def key_value(value: Mapping[str, Any]) -> Any:
    """Decode the value of a key attribute to its normal form: equal keys have the same value and text."""
    (tag,) = value
    raw = value[tag]
    if tag == "N":
        return _normal(_number(raw))
    return raw if tag == "S" and type(raw) is str else _DECODERS[tag](raw)


def _normal(number: int | Decimal) -> int | Decimal:
    """Return an int for a whole number, and else a Decimal without zeros at its end."""
    return number if type(number) is int else _EXACT.normalize(number)


def json_key(attributes: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the same value as `json_map`, with each number of a key in its normal form."""
    return json_map({name: _normal_text(value) for name, value in attributes.items()})


def _normal_text(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"N": str(key_value(value))} if "N" in value else value


def encode_key(name: str, value: Any) -> dict[str, Any]:
    """Return the value of a key attribute in typed JSON and in its normal form, with binary values as bytes.

    A float stands for the number that its shortest text names.
    """
    match value:
        case str(text):
            return {"S": text}
        case bytes() | bytearray() | memoryview() as raw:
            return {"B": bytes(raw)}
        case int() | Decimal() | float() as number if type(number) is not bool:
            exact = Decimal(repr(number)) if isinstance(number, float) else Decimal(number)
            if not _is_storable(exact):
                raise invalid_request(
                    "keys",
                    f"has a key whose attribute {name!r} is a number that DynamoDB cannot store",
                    "give a number of at most 38 digits, between 1E-130 and 9.9…E+125 in size",
                )
            return {"N": str(key_value({"N": str(exact)}))}
        case _:
            pass
    raise invalid_request(
        "keys",
        f"has a key whose attribute {name!r} is of type {type(value).__name__}",
        "give text, a number (int, Decimal or float) or bytes, as event.key has it",
    )


def spelled_otherwise(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the value of a key attribute with its number in another form, or as it is if it has none."""
    if "N" not in value:
        return value
    sign, digits, power = _EXACT.normalize(Decimal(_number(value["N"]))).as_tuple()
    written = "-" * sign + "".join(map(str, digits))
    # The second form is for an item that is written in the first one.
    forms = (f"{written}{'0' * more}E{int(power) - more}" for more in (1, 2))
    return {"N": next(form for form in forms if form != value["N"])}


def _is_storable(number: Decimal) -> bool:
    if not number.is_finite():
        return False
    if not number:
        return True
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    return len(digits) <= _MOST_DIGITS and _LEAST_POWER <= number.adjusted() <= _GREATEST_POWER


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
