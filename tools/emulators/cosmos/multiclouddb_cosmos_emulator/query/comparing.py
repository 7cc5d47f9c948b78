"""Compares values."""

from __future__ import annotations

from functools import cmp_to_key
from typing import Any, Final

import orjson

from multiclouddb_cosmos_emulator.values import UNDEFINED

__all__ = ["canonical", "compare", "equal", "rank", "sort_key"]

_RANKS: Final = {type(None): 1, bool: 2, int: 3, float: 3, str: 4, list: 5, dict: 6}
_SCALARS: Final = 4


def rank(value: Any) -> int:
    """Return the rank of a value's type in the sort order; 0 for `UNDEFINED`."""
    return _RANKS.get(type(value), 0)


def equal(left: Any, right: Any) -> Any:
    """Return True or False, or `UNDEFINED` for values of different types."""
    if rank(left) == 0 or rank(left) != rank(right):
        return UNDEFINED
    return canonical(left) == canonical(right)


def compare(left: Any, right: Any) -> int | None:
    """Compare two values: return a negative number, 0 or a positive number, or None if they have no order."""
    if rank(left) == 0 or rank(left) != rank(right) or rank(left) > _SCALARS:
        return None
    if left is None:
        return 0
    return int(left > right) - int(left < right)


def canonical(value: Any) -> bytes:
    """Return a text that is the same for equal values."""
    return orjson.dumps(_plain(value), option=orjson.OPT_SORT_KEYS)


def _plain(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return None if value is UNDEFINED else value


def _ordered(left: Any, right: Any) -> int:
    difference = rank(left) - rank(right)
    if difference:
        return difference
    found = compare(left, right)
    if found is not None:
        return found
    first, second = canonical(left), canonical(right)
    return int(first > second) - int(first < second)


sort_key: Final = cmp_to_key(_ordered)
"""The ranks of the types: undefined, null, booleans, numbers, texts, arrays, objects."""
