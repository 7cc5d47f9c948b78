"""Defines `UNDEFINED`, the value of a property that does not exist.

JSON has no value for a missing property.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final, TypeAlias

__all__ = ["UNDEFINED", "Json", "Undefined", "at_path", "path_names"]


class Undefined(Enum):
    """The type of `UNDEFINED`."""

    UNDEFINED = "undefined"

    def __repr__(self) -> str:
        return "UNDEFINED"


UNDEFINED: Final = Undefined.UNDEFINED
"""The value of a property that a document does not contain."""

Json: TypeAlias = Any


_NAME: Final = re.compile(r"""/(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^/]*))""")


def path_names(path: str) -> tuple[str, ...]:
    """Return the property names in a path such as `/a/"b/c"/d`; quoted names may contain slashes."""
    return tuple(next((name for name in names if name), "") for names in _NAME.findall(path))


def at_path(document: Json, names: tuple[str, ...]) -> Json:
    """Return the value at a path in a document, or `UNDEFINED`."""
    value = document
    for name in names:
        if not isinstance(value, dict) or name not in value:
            return UNDEFINED
        value = value[name]
    return value
