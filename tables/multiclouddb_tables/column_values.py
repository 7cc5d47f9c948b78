"""Computes what a column of a table holds of a value, and in which form `verify` compares values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from multiclouddb_api import MulticloudDbError
from multiclouddb_api.codec import canonical_json
from multiclouddb_tables.rules import DELETED_AT, DOCUMENT, STALE_SINCE

__all__ = ["SINKS", "ColumnType", "as_compared", "as_stored", "own_state"]

ColumnType: TypeAlias = pa.DataType | Callable[[Any], Any] | None
"""The type of a column, as Arrow's type; for one that Arrow does not have, a function from a value to what
the column holds of it; None if its values cannot be compared."""

SINKS: Final = ("key", "order_key", "timestamp", DOCUMENT, DELETED_AT, STALE_SINCE)
"""The columns that a sink writes itself; beside columns of the table's own, the document is not compared."""
_PRECISION: Final = Context(prec=200)


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


def as_compared(value: Any, kind: ColumnType) -> Any:
    """Return a stored value in the form that `as_stored` gives to it, but never another value.

    A value that the type of its column would not hold, and that is stored all the same, stays as it is. So a
    row that is wrong is never taken for the right one, whatever `as_stored` makes of a document.

    Args:
        value: The value, as the table returns it.
        kind: The type of the column.
    """
    held = as_stored(value, kind)
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if isinstance(value, list | tuple | Mapping) or not (is_number or isinstance(kind, pa.DataType)):
        return held  # what the parts of a value are, and what a type without Arrow's makes of a text
    if isinstance(held, float) and is_number and isinstance(kind, pa.DataType) and pa.types.is_float32(kind):
        # PostgreSQL's driver returns the shortest decimal number, of which the column holds another float.
        return held if np.float32(held) == np.float32(value) else value
    return held if held == value else value


def own_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table's own columns in the form in which they are compared.

    Args:
        values: The values of a row, or of the document that it must have.

    Returns:
        The values without nulls. Dates, and times without a zone, have no form in documents, and are text.
    """
    return {name: _comparable(value) for name, value in values.items() if value is not None}


def _comparable(value: Any) -> Any:
    match value:
        case datetime() if value.utcoffset() is not None:
            return value
        case date() | time():
            return value.isoformat()
        case list() | tuple():
            return [_comparable(each) for each in value]
        case dict():
            return {name: _comparable(each) for name, each in value.items()}
        case _:
            return value
