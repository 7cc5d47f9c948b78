"""Finds the properties for which a filter allows only one value.

If the partition key is one of these properties, the emulator reads only one partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multiclouddb_cosmos_emulator.query.tree import Binary, Literal, Member, Name, Node, Parameter

__all__ = ["equalities"]


def equalities(node: Node | None, alias: str, parameter: Callable[[str], Any]) -> dict[tuple[str, ...], Any]:
    """Map a path to a value if the filter allows only this value at the path.

    Args:
        node: The filter.
        alias: The alias of the document in the filter.
        parameter: A function that returns the value of a parameter.
    """
    match node:
        case Binary("AND", left, right):
            return equalities(left, alias, parameter) | equalities(right, alias, parameter)
        case Binary("=", left, Literal(value)):
            path = _path(left, alias)
        case Binary("=", left, Parameter(name)):
            path, value = _path(left, alias), parameter(name)
        case _:
            return {}
    return {} if path is None or isinstance(value, dict | list) else {path: value}


def _path(node: Node, alias: str) -> tuple[str, ...] | None:
    """Return the names after the alias, or None if the node is not a property of the document."""
    match node:
        case Name(name):
            return () if name == alias else None
        case Member(base, Literal(str(name))):
            path = _path(base, alias)
            return None if path is None else (*path, name)
        case _:
            return None
