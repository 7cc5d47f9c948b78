"""Finds out which of a table's own columns a document is compared with, and what they must hold of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import attrs

from multiclouddb_api import decode_json, invalid_request
from multiclouddb_api.validators import suggestion, type_name
from multiclouddb_tables import Columns, conversion
from multiclouddb_tables.column_values import SINKS, ColumnType, as_stored, own_state
from multiclouddb_tables.contract import SupportsHeld, SupportsUnheld
from multiclouddb_tables.conversion import Misfit, Unheld, kind_of_json, refused
from multiclouddb_tables.rules import DOCUMENT

__all__ = ["DeclaredColumns", "OwnColumns", "kind_of"]

_MISFIT: Final = "does not fit"

_AT: Final = datetime(2026, 1, 31, 12, 34, 56, 123457, UTC)
_FULL: Final[Mapping[str, Any]] = {
    "int8": 2**7 - 1, "int16": 2**15 - 1, "int32": 2**31 - 1, "int64": 2**63 - 1,
    "float": math.ldexp(2**24 - 1, -24), "double": math.ldexp(2**53 - 1, -53),
    "string": "text ", "timestamp": _AT, "timestamp_ntz": _AT.replace(tzinfo=None),
}  # fmt: skip
"""A value of each type that needs all of its digits."""


@attrs.frozen
class DeclaredColumns:
    """The columns that the mark of the table declares; every one of them is compared, and the document."""

    columns: Columns
    types: Mapping[str, ColumnType]
    """The type of each column in the table."""
    unheld: tuple[Unheld, ...] = ()
    """What the table does not have."""
    held: Callable[[Any], Any] | None = None
    """A function from a document to what the table gives back of it; None if that is the same."""

    @classmethod
    def of(
        cls, columns: Columns, table: str, known: Mapping[str, ColumnType], target: object
    ) -> DeclaredColumns:
        """Return the columns of a declaration.

        Args:
            columns: The declaration in the mark of the table.
            table: The name of the table, for messages.
            known: The types of the table's columns, without those that the sink writes itself.
            target: The table.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the table has lost one of them, or if the type of one was
                changed to one that rounds: each rounded value would be equal to what the column can hold.
        """
        for name in columns.names:
            if name not in known:
                raise invalid_request(
                    "target",
                    f"{table} has no column {name}, which its mark declares: somebody has dropped it",
                    "fill a new table, from a snapshot; then drop this one",
                )
        for column in columns.columns:
            full = _full(column.type)
            if full is not None and as_stored(full, known[column.name]) != full:
                raise invalid_request(
                    "target",
                    f"{table} has another type for the column {column.name} than its mark, in which it is "
                    f"{column.type}: somebody has changed it, and it rounds or cuts values",
                    "give the column its type again, and repair the table",
                )
        held = target.held() if isinstance(target, SupportsHeld) else None
        unheld = target.unheld if isinstance(target, SupportsUnheld) else ()
        return cls(columns, {name: known[name] for name in columns.names}, unheld, held)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns to read; never none, because that would mean the document."""
        return self.columns.compared or ("key",)

    def values(self, key: str, document: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the value of each column, as the table holds it, and what a repair writes for the document.

        Args:
            key: The key, as JSON text.
            document: The document; None for a tombstone.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if a value does not fit, and misfits are refused: no sink
                writes such a row, so a repair must not write one either.
        """
        found = conversion.values(document, key, self.columns, self.unheld)
        if misfits := [each for each in found.values() if isinstance(each, Misfit)]:
            first, *others = misfits
            kind, names = kind_of_json(first.value), [each.column.name for each in others]
            raise refused(first.column, 1, kind, key, names)
        values = {name: as_stored(value, self.types[name]) for name, value in found.items()}
        return values if self.columns.document else {**values, DOCUMENT: None}

    def _compared(self, key: str, document: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what is compared of each column: for a misfit, an object, which its column cannot have."""
        return {
            name: {_MISFIT: kind_of_json(value.value)}
            if isinstance(value, Misfit)
            else as_stored(value, self.types[name])
            for name, value in conversion.values(document, key, self.columns, self.unheld).items()
        }

    def state(self, key: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is compared of a document: its columns, and the document itself.

        Args:
            key: The key, as JSON text.
            document: The document.
        """
        if not self.columns.compared:
            return own_state({"key": key})
        values = self._compared(key, document)
        columns = own_state({name: values[name] for name in self.types})
        if not self.columns.document:
            return columns
        return {"columns": columns, "document": document if self.held is None else self.held(document)}

    def is_empty(self, text: str, key: str) -> bool:
        """Return whether a tombstone has nothing of the document but its key.

        A column that a refill has added has no value in the tombstones that were there before.

        Args:
            text: What the table has, as `Target.rows` returns it.
            key: The key, as JSON text.
        """
        found = decode_json(text)
        if self.columns.document:
            if found["document"] is not None:
                return False
            found = found["columns"]
        values = self._compared(key, None)
        right = own_state({"key": key, **{name: values[name] for name in self.columns.key_names}})
        return all(name in right and right[name] == value for name, value in found.items())


def _full(kind: str) -> Any:
    """Return a value that needs all digits of a type; None if values of the type have none to lose."""
    if not kind.startswith("decimal"):
        return _FULL.get(kind)
    precision, scale = (int(each) for each in kind[len("decimal(") : -1].split(","))
    return Decimal((0, (1,) * precision, -scale))


@attrs.frozen
class OwnColumns:
    """`transform`, with the columns that it fills; it is called as `transform` is.

    The other columns of the table belong to somebody else: they are neither compared nor written.
    """

    transform: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    types: Mapping[str, ColumnType]
    """The type of each column that `transform` fills."""

    @classmethod
    def of(
        cls,
        transform: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        table: str,
        known: Mapping[str, ColumnType],
        documents: Iterable[Mapping[str, Any]],
    ) -> OwnColumns:
        """Find out which columns the function fills, from a few documents; without any, all are.

        Args:
            transform: The function of the user.
            table: The name of the table, for messages.
            known: The types of the table's columns, without those that the sink writes itself.
            documents: Some documents of the source.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the function returns no columns of the table.
        """
        given: list[Any] = [transform(document) for document in documents]
        for each in given:
            _check_given(each)
        names = sorted({str(name) for each in given for name in each})
        for name in names:
            if name in SINKS:
                raise invalid_request(
                    "transform", f"returns the column {name}, which the sink writes itself", "leave it out"
                )
            if name not in known:
                raise invalid_request(
                    "transform",
                    f"returns the column {name}, which {table} does not have",
                    f"correct the name: {suggestion(name, known)}",
                )
            if known[name] is None:
                raise invalid_request(
                    "transform",
                    f"returns the column {name} of {table}, whose type has values that verify cannot compare",
                    "leave the column out, or change its type, for example to text",
                )
        if given and not names:
            raise invalid_request(
                "transform", "returns no columns", f"return values of {table}: {', '.join(known)}"
            )
        return cls(transform, {name: known[name] for name in names or known if known[name] is not None})

    @property
    def names(self) -> tuple[str, ...]:
        """The columns to read."""
        return (*self.types,)

    def values(self, key: str, document: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the value of each column, as a call does.

        Args:
            key: The key, which `transform` does not get.
            document: The document; None for a tombstone.
        """
        del key
        return self(document)

    def state(self, key: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is compared of a document.

        Args:
            key: The key.
            document: The document.
        """
        return own_state(self.values(key, document))

    def __call__(self, document: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the value of each column, as the table holds it; null for no document, or no value."""
        values: Any = {} if document is None else self.transform(document)
        _check_given(values)
        for name in values:
            if name not in self.types:
                raise invalid_request(
                    "transform",
                    f"returns the column {name} for some documents only",
                    "return the same columns for each document, with None where there is no value",
                )
        return {name: as_stored(values.get(name), kind) for name, kind in self.types.items()}


def _check_given(values: object) -> None:
    if not isinstance(values, Mapping):
        raise invalid_request(
            "transform", f"returns a {type_name(values)}", "return a dictionary of columns and values"
        )


def kind_of(value: object) -> str:
    """Return the type of a value that is compared; of one that does not fit, what it is in JSON."""
    if isinstance(value, dict) and value.keys() == {_MISFIT}:
        return f"{value[_MISFIT]} that does not fit"
    return type(value).__name__
