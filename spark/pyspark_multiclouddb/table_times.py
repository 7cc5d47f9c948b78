"""Reads the times of a table of Spark, also those in arrays, maps and structures.

Spark returns a time in the local zone, which does not have every time near the year 1 or 9999, and over
Spark Connect it does not say which one it means if the zone has an hour twice. So a time is read as its
microseconds since 1970.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

from pyspark_multiclouddb.source_columns import has_times

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = ["with_micros", "with_times"]

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def with_micros(value: Column, kind: DataType) -> Column:
    """Return a value with the microseconds since 1970 in place of each time."""
    if not has_times(kind):
        return value
    match kind:
        case StructType():
            parts = [with_micros(value.getField(of.name), of.dataType).alias(of.name) for of in kind]
            return F.when(value.isNotNull(), F.struct(*parts))
        case ArrayType():
            return F.transform(value, lambda each: with_micros(each, kind.elementType))
        case MapType():
            names = with_micros(F.map_keys(value), ArrayType(kind.keyType))
            return F.map_from_arrays(names, with_micros(F.map_values(value), ArrayType(kind.valueType)))
        case _:
            return F.unix_micros(value)


def with_times(value: Any, kind: DataType) -> Any:
    """Return a value that `with_micros` has read, with its times."""
    match kind:
        case _ if value is None:
            return None
        case TimestampType():
            return _time_of(value)
        case StructType():
            return {field.name: with_times(value[field.name], field.dataType) for field in kind}
        case ArrayType():
            return [with_times(each, kind.elementType) for each in value]
        case MapType():
            of, pairs = kind.valueType, value.items()
            return {with_times(name, kind.keyType): with_times(each, of) for name, each in pairs}
        case _:
            return value


def _time_of(micros: int | None) -> Any:
    """Return a time from its microseconds since 1970; the number if it is outside the years of Python."""
    try:
        return None if micros is None else _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return micros
