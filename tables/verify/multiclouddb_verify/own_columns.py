"""Finds out which of a table's own columns a document is compared with, and what they must hold of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from multiclouddb_api import invalid_request
from multiclouddb_api.validators import suggestion, type_name
from multiclouddb_tables.column_values import SINKS, ColumnType, as_stored

__all__ = ["OwnColumns"]


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
