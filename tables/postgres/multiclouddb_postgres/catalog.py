"""Reads what the server's catalog has about a table, and refuses a table that the sink cannot write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import attrs
from psycopg import sql

from multiclouddb_api import MulticloudDbError, invalid_request
from multiclouddb_postgres.long_keys import LONG_KEY
from multiclouddb_postgres.server import Connection
from multiclouddb_tables.rules import DELETED_AT

TEXT: Final = ("key", "order_key")
"""The columns whose texts are compared by code point."""
INSTANT: Final = "timestamp with time zone"
"""The type of a time."""
_BINARY_ORDER: Final = ("C", "POSIX")
_COLUMNS: Final = """
SELECT c.oid, (SELECT n.nspname FROM pg_namespace n WHERE n.oid = c.relnamespace), CASE
        WHEN c.relkind NOT IN ('r', 'p') THEN 'is no table, but a view or a foreign table'
        WHEN c.relpersistence = 't' THEN 'is a temporary table, which is gone with its session'
        WHEN c.relpersistence = 'u' OR EXISTS (
            SELECT FROM pg_class p WHERE p.relpersistence <> 'p'
            AND p.oid IN (SELECT relid FROM pg_partition_tree(c.oid))
        ) THEN 'is unlogged, so that a crash of the server empties it: make it SET LOGGED'
        WHEN current_setting('server_encoding') <> 'UTF8'
            AND pg_encoding_max_length(pg_char_to_encoding(current_setting('server_encoding'))) > 1
        THEN 'is in a database with the encoding ' || current_setting('server_encoding')
            || ', in which one character becomes another, and two keys become one: use a database with UTF8'
        WHEN row_security_active(c.oid) THEN 'has row-level security, which may hide rows from the user'
        WHEN EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = c.oid) THEN 'has rules, which may drop rows'
        WHEN c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid)
        THEN 'has tables that inherit from it, whose keys its index does not contain'
        WHEN EXISTS (
            SELECT FROM pg_trigger g WHERE g.tgtype & 20 <> 0 AND g.tgenabled <> 'D' AND g.tginitdeferred
            AND NOT g.tgisinternal
            AND (g.tgrelid = c.oid OR g.tgrelid IN (SELECT relid FROM pg_partition_tree(c.oid)))
        ) THEN 'has a deferred trigger, which may change rows after the sink has compared them'
        ELSE (
            SELECT 'has the foreign key ' || min(f.conname) || ' with ON DELETE CASCADE, which removes rows '
                'that the source still has: make it ON DELETE NO ACTION' FROM pg_constraint f
            WHERE f.contype = 'f' AND f.confdeltype = 'c'
            AND (f.conrelid = c.oid OR f.conrelid IN (SELECT relid FROM pg_partition_tree(c.oid)))
        )
    END, a.attname, format_type(a.atttypid, a.atttypmod), CASE t.typtype WHEN 'e' THEN 'enum'
        WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod) ELSE format_type(a.atttypid, a.atttypmod)
    END, l.collname, a.attnotnull,
    a.attgenerated <> '' OR a.attidentity = 'a', EXISTS (
        SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
        AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum
        AND i.indcollation[0] = a.attcollation
        AND EXISTS (SELECT FROM pg_opclass o WHERE o.oid = i.indclass[0] AND o.opcdefault)
    ), (
        SELECT min(f.conname) FROM pg_constraint f WHERE f.conrelid = c.oid AND f.contype = 'f'
        AND a.attnum = ANY (f.conkey) AND (f.confdeltype IN ('n', 'd') OR f.confupdtype IN ('c', 'n', 'd'))
    ), current_setting('transaction_isolation') <> 'read committed' OR EXISTS (
        SELECT FROM pg_trigger g WHERE g.tgtype & 3 = 3 AND g.tgtype & 20 <> 0 AND g.tgenabled <> 'D'
        AND (g.tgrelid = c.oid OR g.tgrelid IN (SELECT relid FROM pg_partition_tree(c.oid)))
    ), current_setting('transaction_isolation') <> 'read committed' OR EXISTS (
        SELECT FROM pg_trigger g WHERE NOT g.tgisinternal AND g.tgtype & 20 <> 0 AND g.tgenabled <> 'D'
        AND (g.tgrelid = c.oid OR g.tgrelid IN (SELECT relid FROM pg_partition_tree(c.oid)))
    ), current_setting('quote_all_identifiers')
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE c.oid = to_regclass(%s) ORDER BY a.attnum
"""
_LOCKABLE: Final = "SELECT 1 FROM pg_class WHERE oid = to_regclass(%s) AND relkind IN ('r', 'p')"


@attrs.frozen
class Column:
    """A column of the table."""

    name: str
    type: str
    held: str  # the type below a domain, and `enum` for one of those
    collation: str | None
    not_null: bool
    is_generated: bool  # the server refuses a value for it
    is_unique: bool  # by an index that takes two values for one exactly if they are equal
    changed_by: str | None  # a foreign key that changes values when a row of another table changes

    def fits(self, wanted: str) -> bool:
        """Return True if values of another type can be stored in the column."""
        is_text = re.fullmatch(r"character varying(\(\d+\))?", self.type) is not None
        return self.type == wanted or (wanted == "text" and is_text)


@attrs.frozen
class TableFacts:
    """What the server's catalog has about the table."""

    oid: int
    schema: str
    problem: str | None
    columns: Mapping[str, Column]
    may_drop_rows: bool  # a trigger can prevent rows, or may have been made after the version that is read
    may_rewrite_rows: bool  # the same of a trigger that can change or delete them

    def check(self, place: str) -> None:
        """Refuse a table that a sink cannot write, or that is none of the sink.

        Args:
            place: The name of the table in messages.
        """
        problem, columns = self.problem, self.columns
        if problem is not None:
            raise wrong(place, problem, "give a plain table, and a user who sees all of its rows")
        for name in (*TEXT, DELETED_AT):
            if name not in columns:
                raise wrong(place, f"has no column {name}", "give a table that merge_into_postgres has made")
        for name, kind in (*((name, "text") for name in (*TEXT, LONG_KEY)), (DELETED_AT, INSTANT)):
            column = columns.get(name)
            if column is None:
                continue  # the one of long keys
            if not column.fits(kind):
                raise wrong(
                    place, f"has a column {name} of type {column.type}", f"give a table with {kind} there"
                )
            if name in TEXT and column.collation not in _BINARY_ORDER:
                raise wrong(
                    place,
                    f'orders {name} by the collation {column.collation}, not by "C", so that an older change '
                    "could win",
                    f'run ALTER TABLE … ALTER COLUMN {name} TYPE text COLLATE "C"',
                )
        if not columns["key"].is_unique:
            raise wrong(place, "has no primary key or unique index on key alone", "add PRIMARY KEY (key)")


def look(connection: Connection, table: sql.Identifier, *, holds: bool) -> TableFacts | None:
    """Return what the catalog has about a table; None if there is no such table.

    Args:
        connection: The connection.
        table: The name of the table.
        holds: True if nobody may alter the table before the end of the transaction.
    """
    text = table.as_string(connection)
    if holds and connection.execute(_LOCKABLE, (text,)).fetchone():
        connection.execute(sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(table))
    rows = connection.execute(_COLUMNS, (text,)).fetchall()
    if not rows:
        return None
    named: Callable[[str], str] = _unquoted if rows[0][-1] == "on" else str
    columns = {
        name: Column(name, named(kind), named(held), *more)
        for _, _, _, name, kind, held, *more, _, _, _ in rows
    }
    oid, schema, problem = rows[0][:3]
    return TableFacts(oid, schema, problem, columns, *rows[0][-3:-1])


def _unquoted(kind: str) -> str:
    """Return the name of a type without the quotes that it has only by `quote_all_identifiers`."""
    # "char" is another type than char, so it always has quotes.
    return re.sub(r'"(?!char")([a-z_][a-z0-9_]*)"', r"\1", kind)


def wrong(place: str, problem: str, way_out: str) -> MulticloudDbError:
    """Make the error for a table that the sink cannot write.

    Args:
        place: The name of the table in messages.
        problem: What is wrong with it.
        way_out: What its owner can do.
    """
    return invalid_request("table", f"{place} {problem}", way_out)
