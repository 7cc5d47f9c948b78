"""Validators for the fields of values that users build.

Each raises `INVALID_REQUEST` with the field's name, the value's problem and the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from multiclouddb_api.errors import MulticloudDbError, invalid_request

__all__ = [
    "at_least",
    "is_a",
    "not_blank",
    "one_of",
    "suggestion",
    "to_dict",
    "to_utc",
    "unknown_name",
    "utf8",
]

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _names(types: tuple[type, ...]) -> str:
    return " or ".join("None" if kind is type(None) else kind.__name__ for kind in types)


def is_a(*types: type) -> Validator:
    """The value is an instance of one of the types; a bool does not count as an int."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if isinstance(value, types) and not (isinstance(value, bool) and bool not in types):
            return
        raise invalid_request(
            f"{type(instance).__name__}.{attribute.name}",
            f"must be {_names(types)}, not {type(value).__name__}",
            f"pass a {_names(types)}",
        )

    return check


def at_least(low: float, advice: str) -> Validator:
    """The number is `low` or more."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if not value >= low:
            raise invalid_request(
                f"{type(instance).__name__}.{attribute.name}", f"must be {low} or more, got {value}", advice
            )

    return check


def not_blank(advice: str) -> Validator:
    """The text has at least one character that is not white space."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: str | None) -> None:
        if value is not None and not value.strip():
            raise invalid_request(f"{type(instance).__name__}.{attribute.name}", "is empty", advice)

    return check


def one_of(*texts: str) -> Validator:
    """The text is one of these."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value not in texts:
            raise invalid_request(
                f"{type(instance).__name__}.{attribute.name}",
                f"is {value!r}",
                "write " + " or ".join(f'"{text}"' for text in texts),
            )

    return check


def utf8(field: str, text: str) -> str:
    """Returns the text; refuses one with a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid_request(
            field, f"{text!r} is not valid Unicode", "use text without surrogates"
        ) from error
    return text


def to_dict(field: str, value: object) -> dict[Any, Any]:
    """A copy of a mapping."""
    if not isinstance(value, Mapping):
        raise invalid_request(field, f"must be a mapping, not {type(value).__name__}", "pass a dict")
    return dict(value)


def to_utc(field: str, value: object) -> datetime:
    """The time in UTC; refuses a naive datetime, because its time zone would be a guess."""
    if not isinstance(value, datetime):
        raise invalid_request(
            field, f"must be a datetime, not {type(value).__name__}", "pass an aware datetime"
        )
    if value.utcoffset() is None:
        raise invalid_request(
            field, f"is a naive datetime ({value.isoformat()})", "add a time zone: datetime(…, tzinfo=UTC)"
        )
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise invalid_request(
            field, f"is outside the years of UTC ({value.isoformat()})", "use a later or earlier time"
        ) from error


def suggestion(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` when a similar name is known, else the list of known names."""
    from difflib import get_close_matches  # only errors need it

    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are: {', '.join(names)}" if names else "none is known here"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> MulticloudDbError:
    """The error for an unknown name of an option, a key or a table."""
    return invalid_request(kind, f"{name!r} is not known", suggestion(name, known))
