"""Asks whether a user may make or write a table, without doing it."""

from __future__ import annotations

from typing import Final

from multiclouddb_postgres.lock import full_name
from multiclouddb_postgres.server import transaction, where

_ASKED: Final = """
SELECT CASE WHEN to_regclass(%(table)s) IS NULL THEN NULL
       ELSE has_table_privilege(to_regclass(%(table)s), 'INSERT')
            AND has_table_privilege(to_regclass(%(table)s), 'UPDATE') END,
       coalesce(has_schema_privilege(to_regnamespace(quote_ident(%(schema)s)), 'CREATE'), false),
       to_regclass(quote_ident(%(schema)s) || '.multiclouddb_marks') IS NOT NULL
"""


def lacking_right(dsn: str, table: str) -> str | None:
    """Return which right the user lacks to write a table; None if none is known to be missing.

    Args:
        dsn: A connection string.
        table: The name of the table, as `table` or `schema.table`.
    """
    from multiclouddb_postgres.table import identifier

    schema = full_name(dsn, table).partition(".")[0]
    with transaction(dsn, where(dsn, table), reads=True) as connection:
        names = {"table": identifier(table).as_string(connection), "schema": schema}
        [(may_write, may_create, has_marks)] = connection.execute(_ASKED, names).fetchall()
    if may_write is False:
        return "INSERT and UPDATE on the table"
    if not may_create and (may_write is None or not has_marks):
        return f"CREATE on the schema {schema}" if schema else "USAGE and CREATE on a schema"
    return None
