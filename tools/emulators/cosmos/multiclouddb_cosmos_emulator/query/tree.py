"""Defines the nodes in the tree of a query."""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

__all__ = [
    "AGGREGATES",
    "ArrayOf",
    "Binary",
    "Column",
    "Function",
    "In",
    "Literal",
    "Member",
    "Name",
    "Node",
    "ObjectOf",
    "Order",
    "Parameter",
    "Select",
    "aggregates_in",
    "name_of",
]

AGGREGATES = frozenset({"COUNT", "SUM", "AVG", "MIN", "MAX"})


@attrs.frozen
class Literal:
    """A constant value."""

    value: Any


@attrs.frozen
class Parameter:
    """`@name`."""

    name: str


@attrs.frozen
class Name:
    """A document, named by its alias."""

    name: str


@attrs.frozen
class Member:
    """An access to a member: `base.name`, `base["name"]` or `base[0]`."""

    base: Node
    name: Node


@attrs.frozen
class Binary:
    """An operator between two operands."""

    operator: str
    left: Node
    right: Node


@attrs.frozen
class In:
    """`operand IN (…)`."""

    operand: Node
    choices: tuple[Node, ...]


@attrs.frozen
class Function:
    """A call of a built-in function; its name is in upper case."""

    name: str
    arguments: tuple[Node, ...]


@attrs.frozen
class ArrayOf:
    """`[…]`."""

    items: tuple[Node, ...]


@attrs.frozen
class ObjectOf:
    """`{…}`."""

    fields: tuple[tuple[str, Node], ...]


Node: TypeAlias = Literal | Parameter | Name | Member | Binary | In | Function | ArrayOf | ObjectOf


@attrs.frozen
class Column:
    """A selected column.

    Attributes:
        node: The expression.
        name: The name of the property in the result.
        text: The text of the expression, as written.
    """

    node: Node
    name: str
    text: str


@attrs.frozen
class Order:
    """One term of `ORDER BY`."""

    node: Node
    descending: bool
    text: str


@attrs.frozen
class Select:
    """A parsed query.

    Attributes:
        columns: The selected columns; None for `*`.
        value: True for `SELECT VALUE`.
        distinct: True for `SELECT DISTINCT`.
        top: The argument of `TOP`.
        alias: The name of a document.
        where: The filter.
        where_text: The text of the filter, as written.
        order: The terms of `ORDER BY`.
        offset: The argument of `OFFSET`.
        limit: The argument of `LIMIT`.
    """

    columns: tuple[Column, ...] | None
    value: bool
    distinct: bool
    top: Node | None
    alias: str
    where: Node | None
    where_text: str
    order: tuple[Order, ...]
    offset: Node | None
    limit: Node | None

    @property
    def aggregates(self) -> list[str]:
        """Return the aggregate functions in the selected columns."""
        return [name for column in self.columns or () for name in aggregates_in(column.node)]


def aggregates_in(node: Any) -> list[str]:
    """Return the aggregate functions in an expression."""
    if isinstance(node, tuple):
        return [name for part in node for name in aggregates_in(part)]
    if not attrs.has(type(node)):
        return []
    if isinstance(node, Function) and node.name in AGGREGATES:
        return [node.name]
    return [name for field in attrs.fields(type(node)) for name in aggregates_in(getattr(node, field.name))]


def name_of(node: Node) -> str | None:
    """Return the name of an expression that has no alias, or None if the expression has no name."""
    match node:
        case Name(name):
            return name
        case Member(_, Literal(str(name))):
            return name
        case _:
            return None
