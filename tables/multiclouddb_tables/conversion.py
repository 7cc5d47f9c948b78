"""Makes the values of declared columns from documents, for every sink and for `verify`.

A document is read as the JSON that `multiclouddb_api.codec` writes, in which each value has its exact type.
A value that its column cannot hold exactly is a *misfit*; only `float` and `double` take the nearest number.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache, partial
from typing import Any, Final, Literal, TypeAlias

import attrs
import orjson
import pyarrow as pa

from multiclouddb_api import ErrorReason, MulticloudDbError, encode_json, invalid_request
from multiclouddb_api.codec import deep_json
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables.batch import Cut
from multiclouddb_tables.columns import RESCUED, Column, Columns, arrow_type, check_batch
from multiclouddb_tables.rules import DOCUMENT

__all__ = [
    "Misfit",
    "MisfitError",
    "Unheld",
    "convert",
    "counted_rescues",
    "cut",
    "cut_with_misfits",
    "cutter",
    "digits_of",
    "exact_converter",
    "kind_of_json",
    "members",
    "refused",
    "tagged",
    "value_at",
    "values",
]

Unheld: TypeAlias = Literal["NaN", "NUL"]
"""A value that some kind of table does not have: the float NaN, or a text with the character NUL."""
Converter: TypeAlias = Callable[[Any], Any]
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ]((?:[01]\d|2[0-3]):\d\d(?::\d\d)?)(?:\.(\d+))?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_MICROS: Final = 6


class MisfitError(Exception):
    """A value does not fit the type of its column."""


_NO_FIT: Final = (MisfitError, ValueError, TypeError, ArithmeticError)


def tagged(value: object) -> tuple[str, Any] | None:
    """Return the name and the content of a value without a JSON type.

    Args:
        value: A value of a parsed document.
    """
    if type(value) is dict and len(value) == 1:
        ((name, inner),) = value.items()
        if name.startswith("$") and name != "$map":
            return name[1:], inner
    return None


def _plain(value: object, *tags: str) -> Any:
    """Return the content of a value with one of these tags; other values as they are."""
    if type(value) is dict and len(value) == 1:
        for tag in tags:
            if tag in value:
                return value[tag]
    return value


def members(value: object) -> Mapping[str, Any] | None:
    """Return the fields of an object whose keys mean themselves; None for any other value.

    Args:
        value: A value of a parsed document.
    """
    if type(value) is not dict or tagged(value) is not None:
        return None
    found: Mapping[str, Any] = value.get("$map", value) if len(value) == 1 else value
    return found


def kind_of_json(value: object) -> str:
    """Return what a value is in JSON, but not the value, which may be secret.

    Args:
        value: A value of a parsed document.
    """
    found = tagged(value)
    if found is not None:
        return _kind_of_number(*found) or f'an object {{"${found[0]}": …}}'
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "an array"}
    return names.get(type(value), "an object")


def digits_of(number: Decimal) -> tuple[int, int]:
    """Return how many digits a finite number has before the point and after it, without zeros at its ends.

    Args:
        number: The number; `normalize` would round it, and fail if its exponent is large.
    """
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    kept = len(digits)
    while kept > 1 and not digits[kept - 1]:
        kept -= 1
    exponent += len(digits) - kept
    if not digits[0]:  # zero
        return 0, 0
    return max(0, kept + exponent), max(0, -exponent)


def _kind_of_number(tag: str, text: Any) -> str | None:
    """Return the shape of a number without a JSON type, which is why it does not fit; None for others."""
    if tag not in ("decimal", "int", "float") or type(text) is not str:
        return None
    try:
        number = Decimal(text)
    except ArithmeticError:
        return None
    if not number.is_finite():
        return "NaN" if number.is_nan() else "an infinite number"
    before, after = digits_of(number)
    what = "an integer" if tag == "int" else "a decimal"
    return f"{what} with {before} digits" + (f" before the point and {after} after it" if after else "")


def _json(value: Any) -> str:
    # One text for equal values, whatever order a service gives the names in.
    return deep_json(value, option=orjson.OPT_SORT_KEYS).decode()


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    found = tagged(value)
    return found[1] if found is not None and type(found[1]) is str else _json(value)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise MisfitError
    return value


def _number(value: Any) -> Decimal | int | float:
    if type(value) is int or type(value) is float:
        return value
    text = _plain(value, "$decimal", "$int")
    if type(text) is not str or text is value:
        raise MisfitError
    return Decimal(text)


def _whole(bits: int) -> Converter:
    most = 1 << (bits - 1)

    def converted(value: Any) -> int:
        number = _number(value)
        # The range comes first: the integer of 1E+999999999 has a billion digits.
        if not -most <= number < most or (whole := int(number)) != number:
            raise MisfitError
        return whole

    return converted


def _double(value: Any) -> float:
    special = _plain(value, "$float")
    if special is not value:
        return float(special)
    number = float(_number(value))
    if not math.isfinite(number):
        raise MisfitError
    return number


def _float(value: Any) -> float:
    # A number that is too large for four bytes is an OverflowError, an ArithmeticError.
    return float(struct.unpack("<f", struct.pack("<f", _double(value)))[0])


def _decimal(precision: int, scale: int) -> Converter:
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    unit, zero = Decimal(1).scaleb(-scale), Decimal(0).scaleb(-scale)

    def converted(value: Any) -> Decimal:
        number = _number(value)
        number = Decimal(repr(number)) if type(number) is float else Decimal(number)
        if not number.is_finite():
            raise MisfitError
        return number.quantize(unit, context=exact) or zero  # a decimal has no negative zero

    return converted


def _moment(value: Any, *, zoned: bool) -> datetime:
    found = _MOMENT.fullmatch(value) if type(value) is str else None
    if found is None or (found[4] is not None) is not zoned:
        raise MisfitError
    if found[3] is not None and found[3][_MICROS:].strip("0"):
        raise MisfitError  # datetime cuts the digits off
    return datetime.fromisoformat(value)


def _timestamp(value: Any) -> datetime:
    moment = _moment(_plain(value, "$date"), zoned=True)
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)


def _local(value: Any) -> datetime:
    return _moment(value, zoned=False)


def _date(value: Any) -> date:
    if type(value) is str:
        if _DAY.fullmatch(value) is None:
            raise MisfitError
        return date.fromisoformat(value)
    moment = _timestamp(value)
    if moment.time() != datetime.min.time():
        raise MisfitError
    return moment.date()


def _binary(value: Any) -> bytes:
    text = _plain(value, "$bytes")
    if type(text) is not str:
        raise MisfitError
    return base64.b64decode(text, validate=True)


def exact_converter(kind: pa.DataType) -> Converter:
    """Return the function from a value of a parsed document to that of a column, except for JSON.

    It raises `MisfitError`, `ValueError`, `TypeError` or `ArithmeticError` for a misfit.

    Args:
        kind: The type of the column.
    """
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_integer(kind):
        return _whole(kind.bit_width)
    if pa.types.is_timestamp(kind):
        return _local if kind.tz is None else _timestamp
    return _OTHERS[kind]


_OTHERS: Final[Mapping[pa.DataType, Converter]] = {
    pa.bool_(): _boolean,
    pa.float32(): _float,
    pa.float64(): _double,
    pa.string(): _text,
    pa.binary(): _binary,
    pa.date32(): _date,
}
_AS_IT_IS: Final[Mapping[str, frozenset[type]]] = {
    "boolean": frozenset((bool, type(None))),
    "double": frozenset((float, type(None))),
    "int64": frozenset((int, type(None))),
    "string": frozenset((str, type(None))),
}
"""The types of values that a column takes as they are, which costs a tenth of asking each of them."""


@attrs.frozen
class Misfit:
    """A value that does not fit the type of its column."""

    row: int
    """The number of its row."""
    column: Column
    """The column."""
    value: Any
    """The value, as it is in the parsed document."""


def convert(value: Any, column: Column, unheld: Collection[Unheld] = ()) -> Any:
    """Return what a column holds of a value that is not null.

    Args:
        value: The value of a parsed document.
        column: The column.
        unheld: What the table does not have.

    Raises:
        MisfitError: The value does not fit.
    """
    return _held(value, _converter_of(column.type), unheld)


@lru_cache(256)
def _converter_of(kind: str) -> Converter:
    """Return the function for a type of a declaration; a column asks for it once, and not for each value."""
    found = arrow_type(kind)
    assert found is not None
    return _json if kind == "json" else exact_converter(found)


def _held(value: Any, converter: Converter, unheld: Collection[Unheld]) -> Any:
    try:
        found = converter(value)
    except _NO_FIT as error:
        raise MisfitError from error
    if not unheld:
        return found
    if "NUL" in unheld and isinstance(found, str) and "\0" in found:
        raise MisfitError
    if "NaN" in unheld and isinstance(found, float) and math.isnan(found):
        raise MisfitError
    return found


def _found(column: Column, documents: Sequence[Any], keys: Sequence[Any]) -> list[Any]:
    """Return the value at the place of a column in each document, or in each key."""
    if column.key is not None:
        name = column.key
        for key in keys:
            if key is not None and name not in key:
                raise invalid_request(
                    f"column {column.name}",
                    f"is the component {name} of the key, which has {', '.join(key)}",
                    "correct the name",
                )
        return [None if key is None else key[name] for key in keys]
    first, *rest = column.path
    values = [None if document is None else document.get(first) for document in documents]
    for name in rest:
        parts = map(members, values)
        values = [None if part is None else part.get(name) for part in parts]
    return values


def value_at(column: Column, document: Mapping[str, Any] | None, key: Mapping[str, Any] | None) -> Any:
    """Return the value at the place of a column in one parsed document, or in its key; None if there is none.

    Args:
        column: The column.
        document: The document.
        key: The key.
    """
    [found] = _found(column, [document], [key])
    return found


def _converted(
    column: Column, found: list[Any], unheld: Collection[Unheld]
) -> tuple[list[Any], list[Misfit]]:
    usual = _AS_IT_IS.get(column.type)
    if usual is not None and usual.issuperset(map(type, found)):
        if column.type == "int64":
            fits = all(each is None or -(2**63) <= each < 2**63 for each in found)
        else:
            fits = (
                column.type != "string"
                or "NUL" not in unheld
                or not any("\0" in each for each in found if each)
            )
        if fits:
            return found, []
    misfits, converter = list[Misfit](), _converter_of(column.type)
    for row, value in enumerate(found):
        if value is not None:
            try:
                found[row] = _held(value, converter, unheld)
            except MisfitError:
                misfits.append(Misfit(row, column, value))
                found[row] = None
    return found, misfits


def _rescued(misfits: Sequence[Misfit]) -> str | None:
    if not misfits:
        return None
    told = {
        each.column.name: {"path": [*each.column.path] or [each.column.key], "value": each.value}
        for each in misfits
    }
    return _json(told)


_RESCUED_ROWS: Final = ContextVar[list[int] | None]("rescued_rows", default=None)


@contextmanager
def counted_rescues() -> Iterator[list[int]]:
    """Count the rows with values in `_rescued` that this thread makes; the list has the numbers to add."""
    found = list[int]()
    token = _RESCUED_ROWS.set(found)
    try:
        yield found
    finally:
        _RESCUED_ROWS.reset(token)


def cutter(columns: Columns | None, unheld: Collection[Unheld]) -> Cut | None:
    """Return the function that makes the declared columns; None without a declaration.

    Args:
        columns: The declaration.
        unheld: What the table does not have.
    """
    return None if columns is None else partial(cut, columns=columns, unheld=unheld)


def cut(rows: pa.Table, columns: Columns, unheld: Collection[Unheld] = ()) -> pa.Table:
    """Make the declared columns of the last changes of some keys.

    Args:
        rows: The changes, with the columns of the event that a table stores, and `type`.
        columns: The declaration.
        unheld: What the table does not have.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a value does not fit, and misfits are refused.
    """
    made, misfits = cut_with_misfits(rows, columns, unheld)
    if misfits and columns.misfits == "refuse":
        first = min(misfits, key=lambda each: (columns.columns.index(each.column), each.row))
        count = sum(each.column == first.column for each in misfits)
        unfit = {each.column for each in misfits}
        others = [each for each in columns.columns if each != first.column and each in unfit]
        kind, key = kind_of_json(first.value), rows["key"][first.row].as_py()
        raise refused(first.column, count, kind, key, [each.name for each in others])
    return made


def cut_with_misfits(
    rows: pa.Table, columns: Columns, unheld: Collection[Unheld] = ()
) -> tuple[pa.Table, Sequence[Misfit]]:
    """Make the declared columns, with null for each value that does not fit; return these values too.

    Args:
        rows: As in `cut`.
        columns: As in `cut`.
        unheld: As in `cut`.
    """
    check_batch(rows.column_names)
    texts = rows[DOCUMENT].to_pylist()
    deleted = [each == "DELETE" for each in rows["type"].to_pylist()]
    documents = [
        None if text is None or gone else members(orjson.loads(text))
        for text, gone in zip(texts, deleted, strict=True)
    ]
    keys = [members(orjson.loads(text)) for text in rows["key"].to_pylist()] if columns.key_names else []
    found, by_row = list[Misfit](), dict[int, list[Misfit]]()
    made = list[tuple[pa.Field, pa.Array]]()
    for column in columns.columns:
        values, misfits = _converted(column, _found(column, documents, keys), unheld)
        found += misfits
        for each in misfits:
            if not deleted[each.row]:
                by_row.setdefault(each.row, []).append(each)
        made.append((column.field, pa.array(values, column.field.type)))
    if columns.misfits == "rescue":
        rescued = [_rescued(by_row.get(row, ())) for row in range(rows.num_rows)]
        if (counts := _RESCUED_ROWS.get()) is not None:
            counts.append(len(by_row))
        made.append((columns.fields()[-1], pa.array(rescued, pa.string())))
    if not columns.document:
        rows = rows.drop_columns(DOCUMENT)
    for field, array in made:
        rows = rows.append_column(field, array)
    return rows, found


def refused(column: Column, count: int, kind: str, key: str, others: Sequence[str] = ()) -> MulticloudDbError:
    """Make the error for values that do not fit.

    Args:
        column: The column.
        count: How many values do not fit into it.
        kind: What one of them is, as `kind_of_json` returns it.
        key: The key of this one, as JSON text.
        others: The other columns with such values.
    """
    place = f"of the key {key_digest(key)}"
    more = f"; so have {', '.join(others)}" if others else ""
    return invalid_request(
        f"column {column.name}",
        f"is {column.type}, but {count:,} of the documents {'has' if count == 1 else 'have'} a value at "
        f"{column.place} that does not fit, for example {kind} in that {place}{more}; nothing was merged",
        "give the column another type, such as string or json, which fit all values; or set "
        'misfits = "rescue", so that the column is null, and _rescued has the value; multiclouddb columns … '
        "--check columns.toml names every column that does not fit",
        ErrorReason.MISFIT,
    )


def values(
    document: Mapping[str, Any] | None, key: str, columns: Columns, unheld: Collection[Unheld] = ()
) -> dict[str, Any]:
    """Return what the declared columns have of one document, for `verify` and its repairs.

    Args:
        document: The document; None for a tombstone.
        key: The key, as JSON text.
        columns: The declaration.
        unheld: What the table does not have.

    Returns:
        A value for each declared column and for `_rescued`. With `misfits="refuse"`, a `Misfit` stands for a
        value that does not fit: the table must not have null for it, nor a value that was made to fit.
    """
    parsed = None if document is None else members(orjson.loads(encode_json(document)))
    keys = [members(orjson.loads(key))] if columns.key_names else []
    found, misfits = dict[str, Any](), list[Misfit]()
    for column in columns.columns:
        [value], wrong = _converted(column, _found(column, [parsed], keys), unheld)
        found[column.name] = wrong[0] if wrong and columns.misfits == "refuse" else value
        misfits += wrong
    if columns.misfits == "rescue":
        found[RESCUED] = None if document is None else _rescued(misfits)
    return found
