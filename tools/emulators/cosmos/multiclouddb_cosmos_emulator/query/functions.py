"""Implements the built-in functions of queries."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from multiclouddb_cosmos_emulator.query.comparing import canonical, equal, rank
from multiclouddb_cosmos_emulator.values import UNDEFINED

__all__ = ["FUNCTIONS", "NOT_OFFERED"]

NOT_OFFERED: Final = ("ST_", "VECTORDISTANCE", "FULLTEXT", "RRF", "DATETIME", "OBJECTTOARRAY", "DOCUMENTID")
"""Prefixes of functions that the service offers and this server does not."""

_NUMBER, _TEXT, _ARRAY, _OBJECT, _BOOL = 3, 4, 5, 6, 2


def _typed(wanted: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that first checks the types of its arguments.

    If an argument does not have the wanted type, the new function returns undefined.
    """

    def call(*values: Any) -> Any:
        if any(rank(value) != wanted for value in values):
            return UNDEFINED
        return function(*values)

    return call


def _contains(text: Any, part: Any, ignore_case: Any = False) -> Any:
    return _searched(text, part, ignore_case, lambda whole, sought: sought in whole)


def _starts_with(text: Any, part: Any, ignore_case: Any = False) -> Any:
    return _searched(text, part, ignore_case, str.startswith)


def _ends_with(text: Any, part: Any, ignore_case: Any = False) -> Any:
    return _searched(text, part, ignore_case, str.endswith)


def _string_equals(text: Any, other: Any, ignore_case: Any = False) -> Any:
    return _searched(text, other, ignore_case, str.__eq__)


def _searched(text: Any, part: Any, ignore_case: Any, search: Callable[[str, str], Any]) -> Any:
    if not isinstance(text, str) or not isinstance(part, str):
        return UNDEFINED
    return search(text.lower(), part.lower()) if ignore_case is True else search(text, part)


def _substring(text: Any, start: Any, length: Any) -> Any:
    if not isinstance(text, str) or rank(start) != _NUMBER or rank(length) != _NUMBER:
        return UNDEFINED
    first = max(0, int(start))
    return text[first : first + max(0, int(length))]


def _array_contains(array: Any, value: Any, partial: Any = False) -> Any:
    if not isinstance(array, list):
        return UNDEFINED
    if partial is True and isinstance(value, dict):
        return any(
            isinstance(item, dict)
            and all(equal(item.get(name, UNDEFINED), value[name]) is True for name in value)
            for item in array
        )
    return any(equal(item, value) is True for item in array)


def _array_slice(array: Any, start: Any, length: Any = None) -> Any:
    if not isinstance(array, list) or rank(start) != _NUMBER:
        return UNDEFINED
    first = int(start) if start >= 0 else max(0, len(array) + int(start))
    return array[first:] if length is None else array[first : first + max(0, int(length))]


def _distinct(array: list[Any]) -> list[Any]:
    return list({canonical(item): item for item in array}.values())


def _to_string(value: Any) -> Any:
    if value is UNDEFINED or isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


def _to_number(value: Any) -> Any:
    try:
        number = orjson.loads(value) if isinstance(value, str) else UNDEFINED
    except orjson.JSONDecodeError:
        return UNDEFINED
    return number if rank(number) == _NUMBER else UNDEFINED


def _regex_match(text: Any, pattern: Any, modifiers: Any = "") -> Any:
    if not isinstance(text, str) or not isinstance(pattern, str):
        return UNDEFINED
    flags = {"m": re.MULTILINE, "s": re.DOTALL, "i": re.IGNORECASE, "x": re.VERBOSE}
    flag = re.RegexFlag(0)
    for sign in str(modifiers):
        flag |= flags.get(sign, re.RegexFlag(0))
    try:
        return re.search(pattern, text, flag) is not None
    except re.error:
        return UNDEFINED


def _rounded(value: float) -> Any:
    return math.floor(abs(value) + 0.5) * (1 if value >= 0 else -1)


def _root(value: float) -> Any:
    return math.sqrt(value) if value >= 0 else UNDEFINED


def _is(*ranks: int) -> Callable[[Any], bool]:
    return lambda value: rank(value) in ranks


def _iif(condition: Any, yes: Any, no: Any) -> Any:
    return yes if condition is True else no


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], int, int]]] = {
    "IS_DEFINED": (lambda value: value is not UNDEFINED, 1, 1),
    "IS_NULL": (_is(1), 1, 1),
    "IS_BOOL": (_is(_BOOL), 1, 1),
    "IS_NUMBER": (_is(_NUMBER), 1, 1),
    "IS_STRING": (_is(_TEXT), 1, 1),
    "IS_ARRAY": (_is(_ARRAY), 1, 1),
    "IS_OBJECT": (_is(_OBJECT), 1, 1),
    "IS_PRIMITIVE": (_is(1, _BOOL, _NUMBER, _TEXT), 1, 1),
    "IS_INTEGER": (lambda value: rank(value) == _NUMBER and float(value).is_integer(), 1, 1),
    "CONTAINS": (_contains, 2, 3),
    "STARTSWITH": (_starts_with, 2, 3),
    "ENDSWITH": (_ends_with, 2, 3),
    "STRINGEQUALS": (_string_equals, 2, 3),
    "REGEXMATCH": (_regex_match, 2, 3),
    "LOWER": (_typed(_TEXT, str.lower), 1, 1),
    "UPPER": (_typed(_TEXT, str.upper), 1, 1),
    "TRIM": (_typed(_TEXT, str.strip), 1, 1),
    "LTRIM": (_typed(_TEXT, str.lstrip), 1, 1),
    "RTRIM": (_typed(_TEXT, str.rstrip), 1, 1),
    "REVERSE": (_typed(_TEXT, lambda text: text[::-1]), 1, 1),
    "LENGTH": (_typed(_TEXT, len), 1, 1),
    "CONCAT": (_typed(_TEXT, lambda *texts: "".join(texts)), 2, 99),
    "INDEX_OF": (_typed(_TEXT, str.find), 2, 2),
    "REPLACE": (_typed(_TEXT, str.replace), 3, 3),
    "SUBSTRING": (_substring, 3, 3),
    "TOSTRING": (_to_string, 1, 1),
    "STRINGTONUMBER": (_to_number, 1, 1),
    "ARRAY_CONTAINS": (_array_contains, 2, 3),
    "ARRAY_LENGTH": (_typed(_ARRAY, len), 1, 1),
    "ARRAY_CONCAT": (_typed(_ARRAY, lambda *arrays: [item for each in arrays for item in each]), 2, 99),
    "ARRAY_SLICE": (_array_slice, 2, 3),
    "SETUNION": (_typed(_ARRAY, lambda left, right: _distinct([*left, *right])), 2, 2),
    "ABS": (_typed(_NUMBER, abs), 1, 1),
    "FLOOR": (_typed(_NUMBER, math.floor), 1, 1),
    "CEILING": (_typed(_NUMBER, math.ceil), 1, 1),
    "ROUND": (_typed(_NUMBER, _rounded), 1, 1),
    "SQRT": (_typed(_NUMBER, _root), 1, 1),
    "SQUARE": (_typed(_NUMBER, lambda value: value * value), 1, 1),
    "POWER": (_typed(_NUMBER, lambda base, exponent: float(base) ** exponent), 2, 2),
    "SIGN": (_typed(_NUMBER, lambda value: (value > 0) - (value < 0)), 1, 1),
    "TRUNC": (_typed(_NUMBER, math.trunc), 1, 1),
    "IIF": (_iif, 3, 3),
}
"""Maps each name to the function and its minimum and maximum numbers of arguments."""
