"""Defines how values get into a table: their types, what is refused before, and what the server refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError, invalid_request
from multiclouddb_postgres.catalog import INSTANT, TEXT, Column
from multiclouddb_postgres.long_keys import digest_of
from multiclouddb_postgres.server import DATA, Connection, repeated, said_by
from multiclouddb_tables.columns import JSON
from multiclouddb_tables.rules import DOCUMENT, TIME

Documents: TypeAlias = Literal["json", "jsonb"]
"""The type of the column with the documents."""

MOST_NAME_BYTES: Final = 63
"""The longest name that the server keeps whole."""
_CHUNK: Final = 8_192
[_JSON_NAME] = JSON
# A temporary table has no statistics, and this one needs none: it is read once, in full.
BATCH: Final = "multiclouddb_batch"
"""The temporary table into which the rows of a batch are copied."""
_SYSTEM: Final = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
_TYPES: Final[Sequence[tuple[Any, str]]] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "smallint"),
    (pa.types.is_uint8, "smallint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_uint16, "integer"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_uint32, "bigint"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_date32, "date"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_large_binary, "bytea"),
)
_TOO_DEEP: Final = "54001"
# Arrow's text of a time has a year of 16 bits, and one before the year 1 has no text that PostgreSQL reads.
LAST_YEAR: Final = 32_767
_FIRST: Final = -719_162
"""The first day of the year 1, counted from 1970."""
_END: Final = 11_248_738
"""The first day that is too late: the first one of the year after `LAST_YEAR`."""


def type_of(field: pa.Field, documents: Documents) -> str:
    """Return the type of the column that the table gets for a column of a batch.

    Args:
        field: The column of the batch.
        documents: The type of the column with the documents.
    """
    if len(field.name.encode()) > MOST_NAME_BYTES or not field.name or "\0" in field.name:
        problem = f"has no name of 1 to {MOST_NAME_BYTES} bytes"
        raise invalid_request(f"column {field.name[:80]!r}", problem, "rename it")
    if field.name in _SYSTEM:
        raise invalid_request(f"column {field.name}", "has the name of a system column", "rename it")
    if field.name == DOCUMENT and (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
        return documents
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if field.metadata is not None and field.metadata.get(_JSON_NAME) == JSON[_JSON_NAME]:
        return "json"
    for is_kind, name in _TYPES:
        if is_kind(kind):
            return name
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return INSTANT if kind.tz else "timestamp without time zone"
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        problem = f"is {field.type}, and PostgreSQL keeps microseconds"
        raise invalid_request(f"column {field.name}", problem, "cast it to microseconds")
    problem = f"is {field.type}, for which the sink has no type of PostgreSQL"
    raise invalid_request(f"column {field.name}", problem, "convert it to JSON text, or leave it out")


def declared(name: str, kind: str, *, required: bool = True) -> sql.Composed:
    """Return a column of a table that is made, as SQL.

    Args:
        name: The name of the column.
        kind: Its type.
        required: True if `key` and `order_key` must have a value.
    """
    # The types are those of this module or of the server's catalogue, so they are safe in SQL. Changes are
    # ordered by code point, as Python and Spark do.
    collation = ' COLLATE "C"' + " NOT NULL" * required if name in TEXT else ""
    if not re.fullmatch(r'[\w ",().\[\]-]+', kind):
        raise invalid_request(f"column {name}", "has a type with an unusual name", "use another type")
    return sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind + collation))


def check_values(rows: pa.Table, known: Mapping[str, Column]) -> None:
    """Refuse, before anything is sent, what PostgreSQL cannot store, or Arrow does not write as it is."""
    for name in rows.column_names:
        column = rows[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if (is_far := _is_far(column)) is not None and pc.any(is_far).as_py():
            key = rows["key"][pc.index(is_far, True).as_py()].as_py()
            raise far(name, key)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            has_nul = pc.match_substring(column, "\0")
            if pc.any(has_nul).as_py():
                raise nul(name, rows["key"][pc.index(has_nul, True).as_py()].as_py())
            # The server would cut spaces at the end without an error.
            limit = re.fullmatch(r"character varying\((\d+)\)", known[name].type if name in known else "")
            is_long = pc.greater(pc.utf8_length(column), int(limit[1])) if limit else None
            if is_long is not None and pc.any(is_long).as_py():
                key = rows["key"][pc.index(is_long, True).as_py()].as_py()
                raise invalid_request(
                    f"column {name}",
                    f"has a text that does not fit into {known[name].type} in the row of the "
                    f"key {digest_of(key)}",
                    f"run ALTER TABLE … ALTER COLUMN {sql.Identifier(name).as_string()} TYPE text",
                    ErrorReason.MISFIT,
                )


def _is_far(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return for each time whether Arrow's CSV may show another one; None for a column of another type."""
    kind = column.type
    if pa.types.is_date32(kind):
        unit = 1
    elif pa.types.is_timestamp(kind):
        unit = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    else:
        return None
    number = column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(pa.int64())
    last = min(_END * unit, 2**63 - 1)
    return pc.or_(
        pc.less(number, max(_FIRST * unit, -(2**63))),
        pc.greater_equal(number, last) if last == _END * unit else pc.greater(number, last),
    )


def far(name: str, key: str) -> MulticloudDbError:
    """Make the error for a time that would be stored as another one."""
    return invalid_request(
        f"column {name}",
        f"has a time outside the years 1 to {LAST_YEAR} in the row of the key {digest_of(key)}, which would "
        "be stored as another time",
        "replace it, or store the column as a number or a text",
        ErrorReason.MISFIT,
    )


def nul(name: str, key: str) -> MulticloudDbError:
    """Make the error for a text with the character NUL."""
    return invalid_request(
        f"column {name}",
        f"has the character NUL in the row of the key {digest_of(key)}, which a text of PostgreSQL "
        "cannot contain",
        "remove it, or store the column as JSON text",
        ErrorReason.MISFIT,
    )


def copied(connection: Connection, rows: pa.Table) -> None:
    """Copy rows into the temporary table."""
    # Without an encoding, the server takes the bytes for text in that of the connection.
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')").format(
        sql.Identifier("pg_temp", BATCH), sql.SQL(", ").join(map(sql.Identifier, rows.column_names))
    )
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for piece in _csv(rows):
            copy.write(piece)


def _csv(rows: pa.Table) -> Iterator[bytes]:
    """Write rows as CSV: a text is always in quotes, and a null never is."""
    for index, field in enumerate(rows.schema):
        rows = rows.set_column(index, field.name, _writable(rows.column(index)))
    # Arrow writes a table without columns of text with no line for a row of nulls; ours have a key.
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    for batch in rows.to_batches(max_chunksize=_CHUNK):
        sink = pa.BufferOutputStream()
        csv.write_csv(batch, sink, options)
        yield sink.getvalue().to_pybytes()


def _writable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = [None if each is None else "\\x" + each.hex() for each in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    if pa.types.is_timestamp(kind) and kind.tz:
        return column.cast(TIME)
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us"))
    if pa.types.is_decimal(kind):
        return column.cast(pa.string())
    return column


class Refused(Exception):  # noqa: N818 - no error of the caller
    """The server refuses a value of some rows; which one is found out on another connection."""

    def __init__(self, rows: pa.Table, staged: Sequence[sql.Composable], error: psycopg.Error) -> None:
        super().__init__()
        self.rows, self.staged, self.text = rows, staged, said_by(error)
        self.code = error.sqlstate


def named(connection: Connection, refused: Refused) -> MulticloudDbError:
    """Make the error for a value that the server refuses; it names the key, and never shows the value."""
    rows = refused.rows
    while rows.num_rows > 1:
        half = rows.slice(0, rows.num_rows // 2)
        rows = half if _is_refused(connection, half, refused.staged) else rows.slice(half.num_rows)
    key = rows["key"][0].as_py()
    columns = [
        name
        for name in rows.column_names
        if name != "type" and _is_refused(connection, rows.select([name]), refused.staged)
    ]
    way_out = "change the value, or leave the column out"
    if any(each.as_string(connection).endswith(" jsonb") for each in refused.staged):
        way_out += '; or, for a document, use a table with documents="json"'
    elif refused.code == _TOO_DEEP:
        way_out += "; or raise the server's max_stack_depth"
    return MulticloudDbError(
        f"column {', '.join(columns) or 'key'}: the server refuses the value of the key {digest_of(key)} "
        f"({refused.text}); {way_out}",
        ErrorDetail(
            ErrorCategory.INVALID_REQUEST, native_class="psycopg.DataError", native_code=refused.code,
            native_text=refused.text, reason=ErrorReason.MISFIT,
        ),
    )  # fmt: skip


def _is_refused(connection: Connection, rows: pa.Table, staged: Sequence[sql.Composable]) -> bool:
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(
                sql.SQL("CREATE TEMPORARY TABLE {} ({})").format(
                    sql.Identifier("pg_temp", BATCH), sql.SQL(", ").join(staged)
                )
            )
            copied(connection, rows)
    except psycopg.DataError:
        return True
    except psycopg.OperationalError as error:
        if (error.sqlstate or "")[:2] not in DATA:
            raise
        return True
    return False


def naming(dsn: str | Connection, place: str, merge: Callable[[], bool]) -> bool:
    """Run a merge; if the server refuses a value, raise an error that names its key."""
    try:
        return merge()
    except Refused as caught:
        refused = caught

    def name(connection: Connection) -> MulticloudDbError:
        return named(connection, refused)

    raise repeated(dsn, place, name)
