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


# The grammar of `PathParser` in Azure/azure-cosmos-dotnet-v3. The backslash before a quote stays in the name.
_NAME: Final = re.compile(
    r"""/(?:"((?:[^"]|(?<=\\)")*)(?<!\\)"|'((?:[^']|(?<=\\)')*)(?<!\\)'|([^/"'][^/]*))(?=/|$)""", re.DOTALL
)


def path_names(path: str) -> tuple[str, ...]:
    """Return the property names in a path such as `/a/"b/c"/d`; empty if the text is no path."""
    names, end = [], 0
    while end < len(path.removesuffix("/")):
        found = _NAME.match(path, end)
        if found is None:
            return ()
        names.append(found[3].strip() if found[3] is not None else found[found.lastindex or 0])
        end = found.end()
    return tuple(names) if all(names) else ()


def at_path(document: Json, names: tuple[str, ...]) -> Json:
    """Return the value at a path in a document, or `UNDEFINED`."""
    value = document
    for name in names:
        if not isinstance(value, dict) or name not in value:
            return UNDEFINED
        value = value[name]
    return value
