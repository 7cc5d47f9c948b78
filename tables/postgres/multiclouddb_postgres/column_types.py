"""Says what a column of each type holds of a value; it cannot tell apart two values with the same answer.

`verify` asks for the table's own columns, on both sides.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import attrs
import psycopg
import pyarrow as pa
from psycopg.types.bool import BoolLoader
from psycopg.types.datetime import DateLoader, TimeLoader, TimestampLoader, TimestamptzLoader
from psycopg.types.numeric import FloatLoader, IntLoader, NumericLoader
from psycopg.types.string import ByteaLoader, TextLoader
from psycopg.types.uuid import UUIDLoader

from multiclouddb_api import encode_json
from multiclouddb_tables.column_values import ColumnType, as_stored, own_state

__all__ = ["column_type", "read_every_value"]

_DIGITS: Final = Context(prec=150_000)
"""More than the most digits that a `numeric` has."""
_MOST_DIGITS: Final = 38
_ZONES: Final = {" with time zone": "UTC", " without time zone": None}
_ARROW: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(), "smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64(),
    "oid": pa.uint32(), "real": pa.float32(), "double precision": pa.float64(), "text": pa.string(),
    "citext": pa.string(), "name": pa.string(), "enum": pa.string(), "date": pa.date32(),
    "bytea": pa.binary(), "time without time zone": pa.time64("us"),
}  # fmt: skip


class _EveryDate(DateLoader):
    def load(self, data: Any) -> Any:
        return _or_text(super().load, data)


class _EveryTime(TimeLoader):
    def load(self, data: Any) -> Any:
        return _or_text(super().load, data)


class _EveryTimestamp(TimestampLoader):
    def load(self, data: Any) -> Any:
        return _or_text(super().load, data)


class _EveryTimestamptz(TimestamptzLoader):
    def load(self, data: Any) -> Any:
        return _or_text(super().load, data)


def _or_text(load: Callable[[Any], Any], data: Any) -> Any:
    try:
        return load(data)
    except psycopg.DataError:
        return bytes(data).decode()


_LOADERS: Final[Mapping[str, Any]] = {
    "bool": BoolLoader, "bytea": ByteaLoader, "date": _EveryDate, "numeric": NumericLoader,
    "time": _EveryTime, "timestamp": _EveryTimestamp, "timestamptz": _EveryTimestamptz,
    "uuid": UUIDLoader, **dict.fromkeys(("float4", "float8"), FloatLoader),
    **dict.fromkeys(("int2", "int4", "int8", "oid"), IntLoader),
    **dict.fromkeys(("bpchar", "name", "text", "varchar"), TextLoader),
}  # fmt: skip


def read_every_value(cursor: psycopg.Cursor[Any]) -> None:
    """Let a cursor return each value as the server has it.

    psycopg uses the loaders that the program has registered for all its connections, for example one that
    makes floats of decimals, with fewer digits. And it refuses a date or a time that Python does not have,
    such as `infinity`, a year above 9999 or before Christ, and the time 24:00:00; such a one is returned as
    the server's text, because one row with it would keep all others from being compared.

    Args:
        cursor: The cursor, before it executes a statement.
    """
    for name, loader in _LOADERS.items():
        cursor.adapters.register_loader(name, loader)


def column_type(kind: str) -> ColumnType:
    """Return what `as_stored` needs for a type of PostgreSQL; None if its values cannot be compared.

    Args:
        kind: The type, as `format_type` names it; of a domain the type below it, and `enum` for any of those.
    """
    if kind.endswith("[]"):
        item = column_type(kind[:-2])
        # psycopg has already decoded the items of json[], and rounded their numbers.
        return None if item is None or kind.startswith("json") else _Items(item)
    if found := re.fullmatch(r"numeric(?:\((\d+),(-?\d+)\))?", kind):
        if found[1] is not None and int(found[1]) <= _MOST_DIGITS and int(found[2]) >= 0:
            return pa.decimal128(int(found[1]), int(found[2]))
        return _Numeric(None if found[2] is None else int(found[2]))
    if found := re.fullmatch(r"timestamp(?:\((\d)\))?( with(?:out)? time zone)", kind):
        times = pa.timestamp("us", _ZONES[found[2]])
        return times if found[1] is None else _Rounded(times, int(found[1]))
    if re.fullmatch(r"character varying(\(\d+\))?", kind):
        return pa.string()
    if re.fullmatch(r"character(\(\d+\))?", kind):
        return _padded
    return _OTHERS.get(kind, _ARROW.get(kind))


@attrs.frozen
class _Items:
    """The type of arrays, of any number of dimensions."""

    item: ColumnType

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return [
            self(each) if isinstance(each, list | tuple) else as_stored(each, self.item) for each in value
        ]


@attrs.frozen
class _Numeric:
    """A `numeric` without a type of Arrow; numbers are equal if they are so for the server: 1.5 and 1.50."""

    scale: int | None

    def __call__(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            return value
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        if exact.is_nan():
            return Decimal("NaN")
        if exact.is_finite() and self.scale is not None:
            exact = exact.quantize(Decimal(1).scaleb(-self.scale), ROUND_HALF_UP, _DIGITS)
        return exact.normalize(_DIGITS) if exact else Decimal(0)


@attrs.frozen
class _Rounded:
    """A time with fewer digits than microseconds have; the server rounds half away from its year 2000."""

    times: pa.DataType
    digits: int

    def __call__(self, value: Any) -> Any:
        value = as_stored(value, self.times)
        if not isinstance(value, datetime):
            return value
        began = datetime(2000, 1, 1, tzinfo=value.tzinfo)
        micros, step = (value - began) // timedelta(microseconds=1), 10 ** (6 - self.digits)
        rounded = (abs(micros) + step // 2) // step * step
        return began + timedelta(microseconds=rounded if micros >= 0 else -rounded)


def _padded(value: Any) -> Any:
    return value.rstrip(" ") if isinstance(value, str) else value


def _uuid(value: Any) -> uuid.UUID:
    return value if isinstance(value, uuid.UUID) else uuid.UUID(value)


def _json(value: Any) -> str:
    return _text(_read(value, str))


def _jsonb(value: Any) -> str:
    return _text(_read(value, _as_numeric))


def _as_numeric(number: str) -> str:
    """Return a number as `jsonb` writes it: without an exponent, and without a negative zero."""
    exact = Decimal(number)
    return format(exact if exact else abs(exact), "f")


@attrs.frozen
class _Number:
    text: str


def _read(value: Any, number: Callable[[str], str]) -> Any:
    """Return the value of a JSON text, with the text of each number.

    A value that is no text is written as in a document, and a date as `own_state` writes it.
    """
    text = value if isinstance(value, str) else encode_json(own_state({"": value})[""]).decode()

    def read(found: str) -> _Number:
        return _Number(number(found))

    return json.loads(
        text, parse_int=read, parse_float=read, parse_constant=_refuse, object_pairs_hook=_members
    )


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return found


def _text(value: Any) -> str:
    """Return the one text for all texts of a value."""
    match value:
        case dict():
            members = (f"{json.dumps(name)}:{_text(value[name])}" for name in sorted(value))
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(_text, value)) + "]"
        case _Number(text):
            return _number(text)
        case _:
            return json.dumps(value)


def _number(text: str) -> str:
    """Return the one text of a number; a whole number differs from one with a fraction or an exponent."""
    if text.lstrip("-").isdigit():
        return text
    exact = Decimal(text)
    near = float(exact)
    return (
        repr(near) if math.isfinite(near) and Decimal(repr(near)) == exact else str(exact.normalize(_DIGITS))
    )


_OTHERS: Final[Mapping[str, Callable[[Any], Any]]] = {"json": _json, "jsonb": _jsonb, "uuid": _uuid}
