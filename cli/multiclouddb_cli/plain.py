"""Prints events as JSON for people and `jq`: keys are objects, and values have no type tags."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import orjson

from multiclouddb_api import ChangeEvent, encode_json, event_to_json

__all__ = ["plain_event", "plain_json", "plain_value"]


def plain_value(value: Any) -> Any:
    """Convert a value of a document to a value that consists only of JSON's types.

    Times, bytes (as base64), vendor types, and numbers that JSON cannot represent become text.
    """
    text = encode_json(value)
    found = orjson.loads(text)
    return _untagged(found) if b'"$' in text else found


def plain_json(value: Any) -> bytes:
    """Return the JSON text of `plain_value`."""
    return orjson.dumps(plain_value(value))


def plain_event(event: ChangeEvent) -> dict[str, Any]:
    """Return the fields of an event; the key becomes an object, and the address becomes text."""
    text = event_to_json(event)
    fields: dict[str, Any] = orjson.loads(text)
    key = dict(fields["key"]["components"])
    fields = {"type": fields.pop("type"), **fields, "key": key, "address": str(event.address)}
    if b'"$' not in text:
        return fields
    return {name: _untagged(value) for name, value in fields.items()}


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
    if number == number.to_integral_value() and abs(number) < 2**53:
        return int(number)
    return float(number) if Decimal(repr(float(number))) == number else text
