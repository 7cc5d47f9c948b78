"""Validates the fields of objects that users create.

Each validator raises `INVALID_REQUEST`; the message names the field, the problem and what to do instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from multiclouddb_api.errors import MulticloudDbError, check_type, invalid_request, type_name

__all__ = [
    "Slotted",
    "at_least",
    "check_type",
    "each_is",
    "has_methods",
    "is_a",
    "local_path",
    "not_blank",
    "one_of",
    "path_here",
    "suggestion",
    "to_dict",
    "to_utc",
    "type_name",
    "unknown_name",
    "utf8",
]


class Slotted:
    """A base class that has only one slot, for weak references.

    An object can change its class if both classes add the same slots to the same base class.
    Therefore, an object whose attributes can be set (a draft) can become an object of a frozen
    class. Filling a draft is faster than filling a frozen object, because setting an attribute of a
    frozen object needs a function call.
    """

    __slots__ = ("__weakref__",)


Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _field(instance: object, attribute: attrs.Attribute[Any]) -> str:
    return f"{type(instance).__name__}.{attribute.name}"


def is_a(*types: type) -> Validator:
    """Check that the value is an instance of one of the types; a bool does not count as an int."""
    refused = () if bool in types else bool

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, types) or isinstance(value, refused):
            check_type(_field(instance, attribute), value, *types)

    return check


def each_is(*types: type) -> Validator:
    """Check that the value is a tuple whose items are instances of one of the types."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, tuple):
            check_type(_field(instance, attribute), value, tuple)
            return
        for item in value:
            if not isinstance(item, types) or isinstance(item, bool):
                check_type(_field(instance, attribute), item, *types)

    return check


def has_methods(*names: str, advice: str) -> Validator:
    """Check that the value has these methods and is not a class; a default of None is allowed."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is None and attribute.default is None:
            return
        if isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in names):
            problem = f"must have {' and '.join(names)}, which {type_name(value)} lacks"
            raise invalid_request(_field(instance, attribute), problem, advice)

    return check


def at_least(low: float, advice: str) -> Validator:
    """Check that the number is `low` or more."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if not value >= low:
            raise invalid_request(_field(instance, attribute), f"must be {low} or more, got {value}", advice)

    return check


def not_blank(advice: str) -> Validator:
    """Check that the text contains at least one character that is not white space."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: str | None) -> None:
        if value is not None and not value.strip():
            raise invalid_request(_field(instance, attribute), "is empty", advice)

    return check


def one_of(*texts: str) -> Validator:
    """Check that the text is one of the given texts."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value not in texts:
            kind = "" if isinstance(value, str) else f", a {type_name(value)}"
            ways = " or ".join(f'"{text}"' for text in texts)
            raise invalid_request(_field(instance, attribute), f"is {value!r}{kind}", f"write {ways}")

    return check


def utf8(field: str, text: str) -> str:
    """Return the text; refuse it if it contains a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid_request(
            field, f"{text!r} is not valid Unicode", "use text without surrogates"
        ) from error
    return text


def to_dict(field: str, value: object) -> dict[Any, Any]:
    """Return a copy of a mapping."""
    if not isinstance(value, Mapping):
        raise invalid_request(field, f"must be a mapping, not {type_name(value)}", "pass a dict")
    for name in value:
        if not isinstance(name, str):
            raise invalid_request(field, f"has the name {name!r} of type {type_name(name)}", "names are text")
    return dict(value)


def to_utc(field: str, value: object) -> datetime:
    """Return the time in UTC; refuse a naive datetime, because its time zone is unknown."""
    if not isinstance(value, datetime):
        raise invalid_request(field, f"must be a datetime, not {type_name(value)}", "pass an aware datetime")
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


def local_path(field: str, value: object) -> str:
    """Return the text of a path; refuse bytes and anything that is not a path."""
    if isinstance(value, str | os.PathLike):
        text: object = os.fspath(value)
        if isinstance(text, str):
            return text
    raise invalid_request(field, f"must be a path, not {type_name(value)}", "pass a str or a pathlib.Path")


def path_here(field: str, value: object) -> Path:
    """Return a path on this machine; refuse a URL, which may contain a password, and which no file has."""
    text = local_path(field, value)
    if "://" in text:
        raise invalid_request(field, "is a URL", "give a path on this machine")
    return Path(text)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?` if a similar name is known, else the list of known names."""
    from difflib import get_close_matches  # needed only for errors

    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are: {', '.join(names)}" if names else "none is known here"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> MulticloudDbError:
    """Make the error for an option, a key or a table whose name is unknown."""
    return invalid_request(kind, f"{name!r} is not known", suggestion(name, known))
