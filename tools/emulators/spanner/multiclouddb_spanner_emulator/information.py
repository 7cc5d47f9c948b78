"""Answers queries on INFORMATION_SCHEMA, which describes a database.

SQLite runs each query on tables that are filled for this query. Because SQLite runs the query,
joins, parameters and ordering work.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any, Final

from multiclouddb_spanner_emulator.database import Database
from multiclouddb_spanner_emulator.errors import invalid, unimplemented
from multiclouddb_spanner_emulator.schema import Column, Table

__all__ = ["Answer", "ask"]

Answer = tuple[list[tuple[str, str]], list[list[Any]]]
"""An answer: the name and type code of each column, and the rows."""

_STREAM: Final = "CHANGE_STREAM_CATALOG CHANGE_STREAM_SCHEMA CHANGE_STREAM_NAME"
_TABLE: Final = "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME"
_TABLES: Final[Mapping[str, str]] = {
    "CHANGE_STREAMS": f"{_STREAM} ALL:BOOLEAN",
    "CHANGE_STREAM_TABLES": f"{_STREAM} {_TABLE} ALL_COLUMNS:BOOLEAN",
    "CHANGE_STREAM_COLUMNS": f"{_STREAM} {_TABLE} COLUMN_NAME",
    "CHANGE_STREAM_OPTIONS": f"{_STREAM} OPTION_NAME OPTION_TYPE OPTION_VALUE",
    "DATABASE_OPTIONS": "CATALOG_NAME SCHEMA_NAME OPTION_NAME OPTION_TYPE OPTION_VALUE",
    "TABLES": f"{_TABLE} PARENT_TABLE_NAME ON_DELETE_ACTION TABLE_TYPE SPANNER_STATE INTERLEAVE_TYPE "
    "ROW_DELETION_POLICY_EXPRESSION",
    "COLUMNS": f"{_TABLE} COLUMN_NAME ORDINAL_POSITION:INTEGER COLUMN_DEFAULT DATA_TYPE IS_NULLABLE "
    "SPANNER_TYPE IS_GENERATED",
    "INDEX_COLUMNS": f"{_TABLE} INDEX_NAME INDEX_TYPE COLUMN_NAME ORDINAL_POSITION:INTEGER COLUMN_ORDERING "
    "IS_NULLABLE SPANNER_TYPE",
    "KEY_COLUMN_USAGE": "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME "
    f"{_TABLE} COLUMN_NAME ORDINAL_POSITION:INTEGER",
}
_MENTIONED: Final = re.compile(r"\binformation_schema\s*\.\s*[`\"]?(\w+)", re.IGNORECASE)
_CODES: Final = {bool: "BOOL", int: "INT64", float: "FLOAT64"}

sqlite3.register_converter("BOOLEAN", lambda value: value == b"1")


def _rows(database: Database, name: str, moment: int) -> Iterator[list[Any]]:
    schema = "public" if database.postgres else ""
    text = "character varying" if database.postgres else "STRING"
    match name:
        case "CHANGE_STREAMS":
            for stream in database.streams.values():
                yield ["", schema, stream.name, stream.watch_at(moment).everything]
        case "CHANGE_STREAM_TABLES":
            for stream in database.streams.values():
                for table, columns in stream.watch_at(moment).tables.items():
                    yield ["", schema, stream.name, "", schema, table, columns is None]
        case "CHANGE_STREAM_COLUMNS":
            for stream in database.streams.values():
                for table, columns in stream.watch_at(moment).tables.items():
                    for column in columns or ():
                        yield ["", schema, stream.name, "", schema, table, column]
        case "CHANGE_STREAM_OPTIONS":
            for stream in database.streams.values():
                for option, value in stream.options_at(moment).items():
                    yield ["", schema, stream.name, option, text, value]
        case "DATABASE_OPTIONS":
            dialect = "POSTGRESQL" if database.postgres else "GOOGLE_STANDARD_SQL"
            yield ["", schema, "database_dialect", text, dialect]
        case _:
            for found in database.tables.values():
                yield from _of_table(found, name, schema)


def _of_table(table: Table, name: str, schema: str) -> Iterator[list[Any]]:
    place = ["", schema, table.name]
    if name == "TABLES":
        yield [*place, None, None, "BASE TABLE", "COMMITTED", "IN PARENT", None]
    for column in table.columns if name == "COLUMNS" else ():
        bare = "ARRAY" if column.type.code == "ARRAY" else column.text.partition("(")[0]
        data_type = column.type.code if schema == "" else bare
        nullable = "YES" if column.nullable else "NO"
        yield [*place, column.name, column.ordinal, None, data_type, nullable, column.text, "NEVER"]
    for number, key in enumerate(table.key if name == "INDEX_COLUMNS" else (), 1):
        yield [*place, "PRIMARY_KEY", "PRIMARY_KEY", *_indexed(table, table.column(key), number)]
    for number, key in enumerate(table.key if name == "KEY_COLUMN_USAGE" else (), 1):
        yield ["", schema, f"PK_{table.name}", *place, key, number]


def _indexed(table: Table, column: Column, number: int) -> list[Any]:
    order = "DESC" if column.name in table.descending else "ASC"
    return [column.name, number, order, "YES" if column.nullable else "NO", column.text]


def _fill(connection: sqlite3.Connection, database: Database, name: str, moment: int) -> None:
    columns = [piece.split(":") for piece in _TABLES[name].split()]
    # The PostgreSQL dialect uses text instead of booleans here.
    types = [
        "TEXT" if database.postgres and each[1:] == ["BOOLEAN"] else (each[1:] or ["TEXT"])[0]
        for each in columns
    ]
    names = [each[0].lower() if database.postgres else each[0] for each in columns]
    spelled = ", ".join(f'"{column}" {of}' for column, of in zip(names, types, strict=True))
    connection.execute(f"CREATE TABLE information_schema.{name} ({spelled})")
    for row in _rows(database, name, moment):
        if database.postgres:
            row = [("YES" if value else "NO") if isinstance(value, bool) else value for value in row]
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO information_schema.{name} VALUES ({marks})", row)


def ask(database: Database, sql: str, params: Mapping[str, Any], moment: int) -> Answer:
    """Return the answer to a query on INFORMATION_SCHEMA.

    Args:
        database: The database.
        sql: The query.
        params: The parameters of the query, by name; `p1` is `$1` in the PostgreSQL dialect.
        moment: The time for which the database is described. If this time is in the past, only the
            watched tables and columns and the options of the streams are those of this time; all other
            values are current.

    Raises:
        ServiceError: Raised if SQLite does not understand the query, or the table does not exist.
    """
    connection = sqlite3.connect(":memory:", detect_types=sqlite3.PARSE_DECLTYPES)
    try:
        connection.execute("ATTACH ':memory:' AS information_schema")
        for name in {found.upper() for found in _MENTIONED.findall(sql)}:
            if name not in _TABLES:
                raise invalid(
                    f"Table not found: INFORMATION_SCHEMA.{name}, or the scripted server does not have it"
                )
            _fill(connection, database, name, moment)
        bound = {re.sub(r"^p(?=\d+$)", "", key) if database.postgres else key: params[key] for key in params}
        # ALL is a reserved word of SQLite, even after a dot.
        spelled = re.sub(r"\.ALL\b", '."ALL"', sql, flags=re.IGNORECASE)
        cursor = connection.execute(spelled, bound)
        names = [each[0] for each in cursor.description]
        if not database.postgres:
            # 1. GoogleSQL names a column as the query spells it; SQLite as the table does.
            listed = re.split(r"\bFROM\b", sql, maxsplit=1, flags=re.IGNORECASE)[0]
            written = {each.upper(): each for each in re.findall(r"\w+", listed)}
            names = [written.get(name.upper(), name) for name in names]
        return _answer(names, [list(row) for row in cursor])
    except sqlite3.Error as error:
        raise unimplemented(f"this query: {error}: {sql}") from None
    finally:
        connection.close()


def _answer(names: list[str], rows: list[list[Any]]) -> Answer:
    codes = []
    for place in range(len(names)):
        values = [row[place] for row in rows if row[place] is not None]
        codes.append(_CODES.get(type(values[0]), "STRING") if values else "STRING")
    return list(zip(names, codes, strict=True)), rows
