"""Checks, normalises and measures items in DynamoDB's typed JSON, as the service does."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import attrs
import orjson

from multiclouddb_dynamo_emulator.errors import ServiceError, invalid

__all__ = ["HASH_SPACE", "Item", "KeySchema", "item_size", "normalised"]

Item: TypeAlias = dict[str, dict[str, Any]]
"""Maps each attribute name to a type tag with its value."""

HASH_SPACE: Final = 1 << 64
_DIGITS: Final = 38
_EXPONENTS: Final = range(-130, 126)


def _number(text: Any) -> str:
    try:
        number = Decimal(text)
    except (InvalidOperation, TypeError, ValueError):
        number = Decimal("NaN")
    if not isinstance(text, str) or not number.is_finite():
        raise invalid(f"The parameter cannot be converted to a numeric value: {text}")
    if not number:
        return "0"
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    if len(digits) > _DIGITS:
        raise invalid("Attempting to store more than 38 significant digits in a Number")
    if number.adjusted() not in _EXPONENTS:
        raise invalid("Number overflow or underflow. Magnitude is outside of the supported range")
    plain = f"{number:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise ServiceError("SerializationException", f"{text!r} must be a text")
    return text


def _binary(text: Any) -> str:
    try:
        base64.b64decode(_text(text), validate=True)
    except binascii.Error:
        raise ServiceError("SerializationException", "Base64 encoded string is not valid") from None
    return _text(text)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ServiceError("SerializationException", f"{value!r} is not a boolean")
    return value


def _null(value: Any) -> bool:
    if value is not True:
        raise invalid("Null attribute value types must have the value of true")
    return True


def _set_of(member: Callable[[Any], str]) -> Callable[[Any], list[str]]:
    def members(values: Any) -> list[str]:
        if not isinstance(values, list) or not values:
            raise invalid("One or more parameter values were invalid: An set may not be empty")
        # The members are sorted, because sets with the same members are equal in any order.
        result = sorted(map(member, values))
        if len(set(result)) < len(result):
            raise invalid("One or more parameter values were invalid: Input collection contains duplicates.")
        return result

    return members


def _list(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise ServiceError("SerializationException", f"{values!r} is not a list")
    return [_value(value) for value in values]


_TYPES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "S": _text,
    "N": _number,
    "B": _binary,
    "BOOL": _boolean,
    "NULL": _null,
    "SS": _set_of(_text),
    "NS": _set_of(_number),
    "BS": _set_of(_binary),
    "L": _list,
    "M": lambda value: normalised(value),
}


def _value(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) != 1 or not _TYPES.keys() >= value.keys():
        raise invalid("Supplied AttributeValue has more than one datatypes set or none that is supported")
    ((tag, content),) = value.items()
    return {tag: _TYPES[tag](content)}


def normalised(item: Any) -> Item:
    """Return an item in the form that the service stores: `1.50` becomes `1.5`, and sets have no order."""
    if not isinstance(item, dict):
        raise ServiceError("SerializationException", f"{item!r} is not an item")
    return {name: _value(value) for name, value in item.items()}


def _value_size(value: Mapping[str, Any]) -> int:
    ((tag, content),) = value.items()
    match tag:
        case "S":
            return len(content.encode())
        case "N":
            digits = content.lstrip("-").replace(".", "").strip("0")
            # Two digits are a byte; one more holds the exponent, and one the minus.
            return 1 + (len(digits) + 1) // 2 + int(content.startswith("-"))
        case "B":
            return len(content) * 3 // 4 - int(content.count("="))
        case "SS" | "NS" | "BS":
            return sum(_value_size({tag[0]: member}) for member in content)
        case "L":
            return 3 + sum(1 + _value_size(member) for member in content)
        case "M":
            return 3 + len(content) + item_size(content)
        case _:
            return 1


def item_size(item: Mapping[str, Mapping[str, Any]]) -> int:
    """Return approximately the number of bytes that the service counts for an item."""
    return sum(len(name.encode()) + _value_size(value) for name, value in item.items())


@attrs.frozen
class KeySchema:
    """The primary key of a table.

    Attributes:
        types: Maps each key attribute to its type tag, with the partition key first.
    """

    types: Mapping[str, str]

    @classmethod
    def parse(
        cls, schema: Sequence[Mapping[str, str]], definitions: Sequence[Mapping[str, str]]
    ) -> KeySchema:
        """Return the key from the arguments of `CreateTable`."""
        tags = {each["AttributeName"]: each["AttributeType"] for each in definitions}
        kinds = [each["KeyType"] for each in schema]
        names = [each["AttributeName"] for each in schema]
        if kinds not in (["HASH"], ["HASH", "RANGE"]) or not set(names) == tags.keys():
            raise invalid("Invalid KeySchema, or AttributeDefinitions that do not match it")
        return cls({name: tags[name] for name in names})

    def described(self) -> list[dict[str, str]]:
        """Return the member `KeySchema` of an answer."""
        return [
            {"AttributeName": name, "KeyType": kind}
            for name, kind in zip(self.types, ("HASH", "RANGE"), strict=False)
        ]

    def definitions(self) -> list[dict[str, str]]:
        """Return the member `AttributeDefinitions` of an answer."""
        return [{"AttributeName": name, "AttributeType": tag} for name, tag in self.types.items()]

    def key_of(self, item: Item) -> Item:
        """Return the key of an item."""
        for name, tag in self.types.items():
            value = item.get(name)
            if value is None:
                raise invalid(
                    f"One or more parameter values were invalid: Missing the key {name} in the item"
                )
            if tag not in value:
                actual = next(iter(value))
                raise invalid(
                    f"One or more parameter values were invalid: Type mismatch for key {name} "
                    f"expected: {tag} actual: {actual}"
                )
            if value[tag] == "":
                raise invalid(
                    "One or more parameter values are not valid. The AttributeValue for a key attribute "
                    f"cannot contain an empty string value. Key: {name}"
                )
        return {name: item[name] for name in self.types}

    def exactly(self, key: Item) -> Item:
        """Check that a key argument contains exactly the key attributes, and return the key."""
        if key.keys() != self.types.keys():
            raise invalid("The provided key element does not match the schema")
        return self.key_of(key)

    def hash_of(self, key: Item) -> int:
        """Return the hash of a key. Keys with the same partition key have the same hash."""
        name = next(iter(self.types))
        return int.from_bytes(blake2b(orjson.dumps(key[name]), digest_size=8).digest())
