"""Defines the columns of a table that `transform` fills, and the values that they can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from multiclouddb_api import MulticloudDbError, invalid_request
from multiclouddb_api.codec import canonical_json
from multiclouddb_api.validators import suggestion, type_name
from multiclouddb_spi.sink_rules import DELETED_AT, DOCUMENT, STALE_SINCE

__all__ = ["SINKS", "ColumnType", "OwnColumns", "as_stored"]

ColumnType: TypeAlias = pa.DataType | Callable[[Any], Any] | None
"""The type of a column: that of Arrow; for a type that Arrow does not have, a function that returns what the
column holds of a value; None if its values cannot be compared."""

SINKS: Final = ("key", "order_key", "timestamp", DOCUMENT, DELETED_AT, STALE_SINCE)
"""The columns that a sink writes itself; beside columns of the table's own, the document is not compared."""
_PRECISION: Final = Context(prec=200)


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


def as_stored(value: Any, kind: ColumnType) -> Any:
    """Return a value as a column of a type holds it; a value that does not fit is returned as it is.

    Two values of which this returns the same are equal in the table, because its type cannot tell them apart.
    """
    if value is None or kind is None:
        return value
    try:
        return _as_stored(value, kind) if isinstance(kind, pa.DataType) else kind(value)
    except (
        MulticloudDbError, pa.ArrowException, ArithmeticError, RecursionError, TypeError, ValueError,
    ):  # fmt: skip
        return value


def _as_stored(value: Any, kind: pa.DataType) -> Any:
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if pa.types.is_floating(kind) and is_number:
        found = float(value)
        if pa.types.is_float32(kind):
            with np.errstate(over="ignore"):
                found = float(np.float32(found))
        return value if math.isinf(found) and not math.isinf(value) else found
    if pa.types.is_decimal(kind) and is_number:
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        rounded = exact.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _PRECISION)
        rounded = rounded.copy_abs() if rounded.is_zero() else rounded  # a decimal has no negative zero
        return value if len(rounded.as_tuple().digits) > kind.precision else rounded
    if pa.types.is_integer(kind) and is_number:
        return int(value) if value == int(value) else value
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return bytes(value) if isinstance(value, bytearray | memoryview) else value
    if pa.types.is_timestamp(kind) and isinstance(value, datetime) and kind.tz and value.tzinfo:
        return value.astimezone(UTC)
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        return {field.name: as_stored(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        held = [(as_stored(name, kind.key_type), as_stored(each, kind.item_type)) for name, each in pairs]
        return sorted(held, key=lambda pair: canonical_json([pair[0]]))
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and isinstance(value, list | tuple):
        return [as_stored(each, kind.value_type) for each in value]
    return value
