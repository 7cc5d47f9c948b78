"""Says how a column of SQLite holds the values of an Arrow type, and how they are read back.

SQLite has integers of 64 bits, floats of 64 bits, texts and bytes, and converts what is written into a
column by the *affinity* that it finds in the name of the column's type. So the type of a column of a sink
names both: what the values are, and an affinity that converts none of them. `DECIMAL_TEXT(9,2)` contains
`TEXT`; a column of the type `DECIMAL(9,2)` would make the float 1.5 of the text 1.50.

| type of the column | Arrow | stored as |
|---|---|---|
| `TEXT` | string | text |
| `INT8` … `INT64` | the same | integer |
| `FLOAT32`, `FLOAT64` | the same | float; neither NaN nor a negative zero exist |
| `BOOLEAN_INT` | bool | 0 or 1 |
| `DECIMAL_TEXT(p,s)` | decimal | text with `s` digits after the point |
| `DATE_TEXT` | date32 | `2026-01-31` |
| `TIMESTAMP_TEXT` | a time in UTC, up to microseconds | `2026-01-31T12:00:00.500000Z` |
| `LOCAL_TIMESTAMP_TEXT` | a time without a zone | the same without `Z` |
| `BLOB` | binary | bytes |

See https://www.sqlite.org/datatype3.html.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from functools import lru_cache, partial
from typing import Any, Final

import pyarrow as pa

from multiclouddb_api import ErrorReason, invalid_request
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables.column_values import ColumnType, as_stored

__all__ = ["TEXT", "TIMESTAMP", "as_read", "as_written", "column_type", "kind_of", "time_text", "type_for"]

TEXT: Final = "TEXT"
TIMESTAMP: Final = "TIMESTAMP_TEXT"
_LOCAL: Final = "LOCAL_TIMESTAMP_TEXT"
_DATE: Final = "DATE_TEXT"
_BOOLEAN: Final = "BOOLEAN_INT"
_BLOB: Final = "BLOB"
_INTEGERS: Final = {
    "INT8": pa.int8(), "INT16": pa.int16(), "INT32": pa.int32(), "INT64": pa.int64(),
}  # fmt: skip
_FLOATS: Final = {"FLOAT32": pa.float32(), "FLOAT64": pa.float64()}
_SAME: Final = {
    TEXT: pa.string(), TIMESTAMP: pa.timestamp("us", tz="UTC"), _LOCAL: pa.timestamp("us"),
    _DATE: pa.date32(), _BOOLEAN: pa.bool_(), _BLOB: pa.binary(), **_INTEGERS,
}  # fmt: skip
"""The Arrow type of each type, of those that hold all its values."""
_USUAL: Final = {
    "INT": "INT64", "INTEGER": "INT64", "BIGINT": "INT64", "REAL": "FLOAT64", "DOUBLE": "FLOAT64",
    "DOUBLE PRECISION": "FLOAT64", "FLOAT": "FLOAT64", "CLOB": TEXT,
}  # fmt: skip
"""Types that a user may have written, which hold the same values."""
_DECIMAL: Final = re.compile(r"DECIMAL_TEXT\((\d+),(\d+)\)")
_CHARACTERS: Final = re.compile(r"(N|VAR|NVAR)?CHAR\(\d+\)")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_PRECISION: Final = Context(prec=200)


def type_for(field: pa.Field) -> str:
    """Return the type of the column that holds every value of a column of a batch.

    Args:
        field: The name and the type of the column of the batch.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if there is no such type.
    """
    kind = field.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return TEXT
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _BLOB
    if pa.types.is_timestamp(kind) and kind.unit != "ns" and kind.tz in (None, "UTC"):
        return _LOCAL if kind.tz is None else TIMESTAMP
    if pa.types.is_decimal(kind) and kind.scale >= 0:
        return f"DECIMAL_TEXT({kind.precision},{kind.scale})"
    for name, each in (*_SAME.items(), *_FLOATS.items()):
        if kind == each:
            return name
    raise invalid_request(
        f"column {field.name}",
        f"is {kind}, for which SQLite has no type that holds every value",
        "cast it: a number to int64, float64 or decimal, a time to microseconds, anything else to text",
    )


def kind_of(declared: str) -> str:
    """Return the type of this module that a column of a table has; another type stays as it is written.

    Args:
        declared: The type in the statement that has made the table.
    """
    name = " ".join(declared.upper().split())
    if _CHARACTERS.fullmatch(name):
        return TEXT  # SQLite does not cut texts
    return _USUAL.get(name, name if "DECIMAL" not in name else name.replace(" ", ""))


def column_type(kind: str) -> ColumnType:
    """Return what `Target.columns` says about a column of a type.

    Args:
        kind: What `kind_of` has returned.
    """
    if (found := _DECIMAL.fullmatch(kind)) is not None:
        precision, scale = int(found[1]), int(found[2])
        if 1 <= precision <= 76 and scale <= precision:  # more than Arrow has
            return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    if kind in _FLOATS:
        return _float32 if kind == "FLOAT32" else _float64
    return _SAME.get(kind)


def _float32(value: Any) -> Any:
    return _without_sign(as_stored(value, pa.float32()))


def _float64(value: Any) -> Any:
    return _without_sign(as_stored(value, pa.float64()))


def _without_sign(value: Any) -> Any:
    # SQLite writes a float without a fraction as an integer, and so a negative zero as 0.
    return 0.0 if isinstance(value, float) and value == 0 else value


def as_written(name: str, kind: str, values: Sequence[Any], keys: Sequence[str]) -> list[Any]:
    """Return what is written into a column for values, so that they come back as they were.

    Args:
        name: The name of the column, for the message.
        kind: What `kind_of` has returned.
        values: The values, as Arrow returns them, or as `as_stored` does.
        keys: The keys of their rows, for the message.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the column cannot hold one of them.
    """
    writer = _writer_of(kind)
    held = [None if value is None else writer(value) for value in values]
    for value, written, key in zip(values, held, keys, strict=True):
        if written is None and value is not None:
            problem = "has a value that is not a number, which SQLite would store as null"
            if not (isinstance(value, float) and math.isnan(value)):
                problem = f"has a value of the type {type(value).__name__} that a column {kind} cannot hold"
            problem += f", in the row of the key {key_digest(key)}"
            way_out = "convert it, or write it as a text"
            raise invalid_request(f"column {name}", problem, way_out, ErrorReason.MISFIT)
    return held


@lru_cache(256)
def _writer_of(kind: str) -> Callable[[Any], Any]:
    """Return the function from a value to what is written; to None if the column cannot hold the value."""
    if kind in _INTEGERS:
        return _integer
    if kind in _FLOATS:
        return _float
    if (found := _DECIMAL.fullmatch(kind)) is not None:
        return partial(_decimal, int(found[1]), Decimal(1).scaleb(-int(found[2])))
    return _WRITERS.get(kind, _nothing)


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return None  # half of a surrogate pair is no character, and has no form in UTF-8
    return value


def _integer(value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and -(2**63) <= value < 2**63 else None


def _float(value: Any) -> float | None:
    return value if isinstance(value, float) and not math.isnan(value) else None


def _boolean(value: Any) -> int | None:
    return int(value) if isinstance(value, bool) else None


def _bytes(value: Any) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _date(value: Any) -> str | None:
    return value.isoformat() if isinstance(value, date) and not isinstance(value, datetime) else None


def _time(value: Any) -> str | None:
    return time_text(value) if isinstance(value, datetime) and value.tzinfo is not None else None


def _local(value: Any) -> str | None:
    return time_text(value) if isinstance(value, datetime) and value.tzinfo is None else None


def _decimal(precision: int, unit: Decimal, value: Any) -> str | None:
    if not isinstance(value, Decimal) or not value.is_finite():
        return None
    try:
        fitting = value.quantize(unit, context=_PRECISION)
    except ArithmeticError:
        return None
    fits = fitting == value and len(fitting.as_tuple().digits) <= precision
    return format(fitting, "f") if fits else None


def _nothing(value: Any) -> None:
    del value


_WRITERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    TEXT: _text, _BOOLEAN: _boolean, _BLOB: _bytes, _DATE: _date, TIMESTAMP: _time, _LOCAL: _local,
}  # fmt: skip


def time_text(value: datetime) -> str:
    """Return a time as it is stored; texts have the order of the times.

    Args:
        value: The time; without a zone, it gets no `Z`.
    """
    is_local = value.tzinfo is None
    text = value.replace(tzinfo=None) if is_local else value.astimezone(UTC).replace(tzinfo=None)
    return text.isoformat(timespec="microseconds") + ("" if is_local else "Z")


def as_read(kind: str, value: Any) -> Any:
    """Return a stored value as one of its type; what the sink would not have written stays as it is.

    Args:
        kind: What `kind_of` has returned.
        value: The value, as SQLite returns it.
    """
    reads: Callable[[Any], Any] | None = None
    if kind == _BOOLEAN and isinstance(value, int):
        return bool(value) if value in (0, 1) else value
    if isinstance(value, str):
        if kind == TIMESTAMP and value.endswith("Z"):
            reads = _time_read
        elif kind == _LOCAL:
            reads = datetime.fromisoformat
        elif kind == _DATE:
            reads = date.fromisoformat
        elif _DECIMAL.fullmatch(kind) and _NUMBER.fullmatch(value):
            return Decimal(value)
    if reads is None:
        return value
    try:
        found = reads(value)
    except ValueError:
        return value
    return found if _writer_of(kind)(found) == value else value


def _time_read(text: str) -> datetime:
    return datetime.fromisoformat(text[:-1]).replace(tzinfo=UTC)
