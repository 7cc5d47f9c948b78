"""Represents tables, and the columns that a change stream watches."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from multiclouddb_spanner_emulator.errors import ServiceError
from multiclouddb_spanner_emulator.types import ColumnType, Json, sort_key

__all__ = ["Column", "Table", "Watch"]

Key = tuple[Json, ...]
Row = dict[str, Json]


@attrs.frozen
class Column:
    """A column.

    Attributes:
        name: Its name.
        type: Its type.
        text: The type of the column, in the form of the DDL.
        nullable: False if the column is declared NOT NULL.
        ordinal: The place of the column in the table, counted from 1. A column keeps its place when
            other columns are dropped.
    """

    name: str
    type: ColumnType
    text: str
    nullable: bool
    ordinal: int


@functools.total_ordering
@attrs.frozen(eq=False)
class _Descending:
    value: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and self.value == other.value

    def __lt__(self, other: _Descending) -> bool:
        return other.value < self.value

    def __hash__(self) -> int:
        return hash(self.value)


@attrs.define(eq=False)
class Table:
    """A table with its rows.

    Attributes:
        name: Its name.
        columns: The columns of the table, in order.
        key: The names of the key columns.
        descending: The key columns with descending order.
        rows: Maps each key to its row, including the key columns.
    """

    name: str
    columns: list[Column]
    key: tuple[str, ...]
    descending: frozenset[str] = frozenset()
    rows: dict[Key, Row] = attrs.field(factory=dict)

    def column(self, name: str) -> Column:
        """Return the column with this name. Case is ignored."""
        for column in self.columns:
            if column.name.lower() == name.lower():
                return column
        raise ServiceError("NOT_FOUND", f"Column not found in table {self.name}: {name}")

    def order(self, key: Key) -> tuple[Any, ...]:
        """Return a sort key that gives the order in which the service returns the table's rows.

        The method also works for a prefix of a key.
        """
        parts: list[Any] = []
        for name, value in zip(self.key, key, strict=False):
            part = sort_key(value, self.column(name).type)
            parts.append(_Descending(part) if name in self.descending else part)
        return tuple(parts)

    def values(self) -> list[Column]:
        """Return the columns that are not part of the primary key."""
        return [column for column in self.columns if column.name not in self.key]


@attrs.frozen
class Watch:
    """Describes what a change stream watches.

    Attributes:
        everything: True for a stream that is defined `FOR ALL`.
        tables: Maps each table to its watched columns, or to None for all columns.
    """

    everything: bool = False
    tables: Mapping[str, Sequence[str] | None] = attrs.field(factory=dict)

    def columns(self, table: Table) -> list[Column] | None:
        """Return the watched columns of a table, without the key columns.

        Return None if the table is not watched.
        """
        if self.everything:
            return table.values()
        if table.name not in self.tables:
            return None
        chosen = self.tables[table.name]
        return [each for each in table.values() if chosen is None or each.name in chosen]
