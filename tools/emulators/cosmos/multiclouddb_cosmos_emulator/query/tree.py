"""Defines the nodes in the tree of a query."""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

__all__ = [
    "AGGREGATES",
    "ArrayOf",
    "Between",
    "Binary",
    "Column",
    "Conditional",
    "Function",
    "In",
    "Join",
    "Like",
    "Literal",
    "Member",
    "Name",
    "Node",
    "ObjectOf",
    "Order",
    "Parameter",
    "Select",
    "Source",
    "Unary",
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
class Unary:
    """`NOT`, `-`, `+` or `~`."""

    operator: str
    operand: Node


@attrs.frozen
class Binary:
    """An operator between two operands."""

    operator: str
    left: Node
    right: Node


@attrs.frozen
class Between:
    """The expression `operand BETWEEN low AND high`."""

    operand: Node
    low: Node
    high: Node


@attrs.frozen
class In:
    """`operand IN (…)`."""

    operand: Node
    choices: tuple[Node, ...]


@attrs.frozen
class Like:
    """The expression `operand LIKE pattern ESCAPE sign`."""

    operand: Node
    pattern: Node
    escape: Node | None


@attrs.frozen
class Conditional:
    """The expression `condition ? yes : no`."""

    condition: Node
    yes: Node
    no: Node


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


Node: TypeAlias = (
    Literal
    | Parameter
    | Name
    | Member
    | Unary
    | Binary
    | Between
    | In
    | Like
    | Conditional
    | Function
    | ArrayOf
    | ObjectOf
)


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
class Source:
    """The clause `FROM alias` or `FROM alias IN path`; a `path` of None means the documents themselves."""

    alias: str
    path: Node | None = None


@attrs.frozen
class Join:
    """The clause `JOIN alias IN path`."""

    alias: str
    path: Node


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
        source: None if there is no `FROM`.
        source_text: The text of `FROM` and `JOIN`, as written.
        joins: The joins, in order.
        where: The filter.
        where_text: The text of the filter, as written.
        group: The terms of `GROUP BY`.
        order: The terms of `ORDER BY`.
        offset: The argument of `OFFSET`.
        limit: The argument of `LIMIT`.
    """

    columns: tuple[Column, ...] | None
    value: bool
    distinct: bool
    top: Node | None
    source: Source | None
    source_text: str
    joins: tuple[Join, ...]
    where: Node | None
    where_text: str
    group: tuple[Node, ...]
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
