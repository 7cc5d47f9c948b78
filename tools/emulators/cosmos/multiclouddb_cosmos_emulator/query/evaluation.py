"""Compiles query expressions to Python functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Final, TypeAlias, assert_never

from multiclouddb_cosmos_emulator.errors import not_offered
from multiclouddb_cosmos_emulator.query.comparing import compare, equal, rank, sort_key
from multiclouddb_cosmos_emulator.query.tokens import query_error
from multiclouddb_cosmos_emulator.query.tree import (
    AGGREGATES,
    ArrayOf,
    Binary,
    Function,
    In,
    Literal,
    Member,
    Name,
    Node,
    ObjectOf,
    Parameter,
)
from multiclouddb_cosmos_emulator.values import UNDEFINED

__all__ = ["ROWS", "Compiled", "Compiler", "Row"]

Row: TypeAlias = Mapping[str, Any]
Compiled: TypeAlias = Callable[[Row], Any]

ROWS: Final = "#rows"
"""The name under which the row for a group stores all rows of the group."""

_NUMBER, _TEXT = 3, 4


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def call(left: Any, right: Any) -> Any:
        if rank(left) != _NUMBER or rank(right) != _NUMBER:
            return UNDEFINED
        try:
            return function(left, right)
        except (ArithmeticError, ValueError):
            return UNDEFINED

    return call


def _ordering(accepts: Callable[[int], bool]) -> Callable[[Any, Any], Any]:
    def call(left: Any, right: Any) -> Any:
        found = compare(left, right)
        return UNDEFINED if found is None else accepts(found)

    return call


def _different(left: Any, right: Any) -> Any:
    # According to the service's documentation, inequality is not the opposite of equality for objects and
    # arrays.
    found = compare(left, right)
    return UNDEFINED if found is None else found != 0


def _either(left: Any, right: Any) -> Any:
    if left is True or right is True:
        return True
    return False if left is False and right is False else UNDEFINED


def _both(left: Any, right: Any) -> Any:
    if left is False or right is False:
        return False
    return True if left is True and right is True else UNDEFINED


_BINARY: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "OR": _either,
    "AND": _both,
    "=": equal,
    "!=": _different,
    "<": _ordering(lambda found: found < 0),
    "<=": _ordering(lambda found: found <= 0),
    ">": _ordering(lambda found: found > 0),
    ">=": _ordering(lambda found: found >= 0),
    "+": _arithmetic(lambda left, right: left + right),
    "-": _arithmetic(lambda left, right: left - right),
    "*": _arithmetic(lambda left, right: left * right),
    "/": _arithmetic(lambda left, right: left / right),
    "%": _arithmetic(math.fmod),
}

_FUNCTIONS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "IS_DEFINED": lambda value: value is not UNDEFINED,
    "IS_NUMBER": lambda value: rank(value) == _NUMBER,
}
"""The functions of one argument that azure-cosmos and its tests use."""


class Compiler:
    """Compiles the expressions of one query.

    Args:
        parameters: Maps the name of each parameter, including its `@`, to its value.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters

    def compiled(self, node: Node) -> Compiled:
        """Compile an expression to a function that maps a row to a value."""
        match node:
            case Literal(value):
                return lambda row: value
            case Parameter(name):
                given = self.parameter(name)
                return lambda row: given
            case Name(name):
                return lambda row: row.get(name, UNDEFINED)
            case Member(base, member):
                return _member(self.compiled(base), self.compiled(member))
            case Binary(operator, left, right):
                return _applied(_BINARY[operator], self.compiled(left), self.compiled(right))
            case In(operand, choices):
                return _in(self.compiled(operand), [self.compiled(choice) for choice in choices])
            case Function(name, arguments):
                return self._function(name, arguments)
            case ArrayOf(items):
                return _array([self.compiled(item) for item in items])
            case ObjectOf(fields):
                return _object([(name, self.compiled(field)) for name, field in fields])
            case _:
                assert_never(node)

    def parameter(self, name: str) -> Any:
        """Return the value of a parameter."""
        if name not in self._parameters:
            raise query_error("SC2061", f"The query parameter '{name}' has no value.")
        return self._parameters[name]

    def _function(self, name: str, arguments: tuple[Node, ...]) -> Compiled:
        if name not in AGGREGATES and name not in _FUNCTIONS:
            raise not_offered(f"the function {name}")
        if len(arguments) != 1:
            raise query_error("SC2050", f"The {name} function requires 1 argument(s).")
        operand = self.compiled(arguments[0])
        if name in AGGREGATES:
            return _aggregate(name, operand)
        function = _FUNCTIONS[name]
        return lambda row: function(operand(row))


def _member(base: Compiled, name: Compiled) -> Compiled:
    def get(row: Row) -> Any:
        value, wanted = base(row), name(row)
        if isinstance(value, dict) and isinstance(wanted, str):
            return value.get(wanted, UNDEFINED)
        if isinstance(value, list) and isinstance(wanted, int) and 0 <= wanted < len(value):
            return value[wanted]
        return UNDEFINED

    return get


def _applied(function: Callable[[Any, Any], Any], left: Compiled, right: Compiled) -> Compiled:
    return lambda row: function(left(row), right(row))


def _in(operand: Compiled, choices: list[Compiled]) -> Compiled:
    def found(row: Row) -> Any:
        value = operand(row)
        if value is UNDEFINED:
            return UNDEFINED
        return any(equal(value, choice(row)) is True for choice in choices)

    return found


def _array(items: list[Compiled]) -> Compiled:
    return lambda row: [value for item in items if (value := item(row)) is not UNDEFINED]


def _object(fields: list[tuple[str, Compiled]]) -> Compiled:
    return lambda row: {name: value for name, field in fields if (value := field(row)) is not UNDEFINED}


def _aggregate(name: str, operand: Compiled) -> Compiled:
    def gathered(row: Row) -> Any:
        values = [value for each in row.get(ROWS, ()) if (value := operand(each)) is not UNDEFINED]
        if name == "COUNT":
            return len(values)
        if name in ("MIN", "MAX"):
            return _extreme(values, name)
        if any(rank(value) != _NUMBER for value in values) or (name == "AVG" and not values):
            return UNDEFINED
        total = reduce(lambda left, right: left + right, values, 0)
        return total if name == "SUM" else total / len(values)

    return gathered


def _extreme(values: list[Any], name: str) -> Any:
    if not values or any(rank(value) > _TEXT for value in values):
        return UNDEFINED
    return min(values, key=sort_key) if name == "MIN" else max(values, key=sort_key)
