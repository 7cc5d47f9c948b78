"""Defines the marks of a table: numbers and texts that the sink keeps beside its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from psycopg import sql

from multiclouddb_api import invalid_request
from multiclouddb_postgres.catalog import wrong
from multiclouddb_postgres.checkpoints import current_schema, is_kept_in, stored_token
from multiclouddb_postgres.long_keys import SKIPPED
from multiclouddb_postgres.server import has_ours
from multiclouddb_tables.mark import FoundTable, TableMark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from multiclouddb_postgres.catalog import TableFacts
    from multiclouddb_postgres.server import Connection

MARKS: Final = "multiclouddb_marks"
"""The table with the batch numbers and the stages of snapshots, in the schema of the sink's table."""
_FEED: Final = "multiclouddb-feed"
"""The name of the mark with the feed whose changes the table contains."""
POSITION: Final = "multiclouddb-checkpoint:"
"""The beginning of the name of the mark with the schema of the checkpoint that is stored with the rows."""


class _Marked(Protocol):
    """What the marks need of their table."""

    connection: Connection

    @property
    def name(self) -> str: ...

    @property
    def exists(self) -> bool: ...

    def known(self) -> TableFacts: ...


class Marks:
    """The marks of one table, in a table that all tables of its schema share.

    Each method is one transaction, or a part of the caller's.
    """

    def __init__(self, table: _Marked) -> None:
        self._of, self._connection, self._where = table, table.connection, table.name
        self._last: TableMark | None = None

    @property
    def _table(self) -> sql.Identifier:
        """The table with the marks: by each name of the table, and with each `search_path`, the same one."""
        return sql.Identifier(self._of.known().schema, MARKS)

    def _exist(self) -> bool:
        return self._of.exists and has_ours(self._connection, self._table.as_string(self._connection))

    def forget_dropped(self) -> None:
        """Remove the marks of tables that are gone, and those of an older table with the number of this one.

        pg_dump writes the number of a table that was dropped, and in another server a new table may get it.
        """
        if not self._exist():
            return
        marks = self._table
        may_delete = "SELECT has_table_privilege(to_regclass({}), 'DELETE')"
        [(may,)] = self._connection.execute(
            sql.SQL(may_delete).format(marks.as_string(self._connection))
        ).fetchall()
        if may:
            self._connection.execute(
                sql.SQL(
                    "DELETE FROM {} AS m WHERE m.target = {} OR NOT EXISTS "
                    "(SELECT FROM pg_class AS c WHERE c.oid = m.target)"
                ).format(marks, self._of.known().oid)
            )

    def number(self, name: str) -> int | None:
        """Return a number that was stored for the table."""
        found: int | None = self._stored("value", name)
        return found

    def feed(self) -> TableMark | None:
        """Return the mark of the table; one that was dropped and made again has none."""
        self._last = self.read_feed()
        return self._last

    def read_feed(self) -> TableMark | None:
        """Return the mark of the table; unlike `feed`, with no effect on what `set_feed` compares with."""
        text = self.note(_FEED)
        return None if text is None else TableMark.from_json(text, self._where)

    def set_feed(self, mark: TableMark) -> None:
        """Store the mark of the table, unless another sink has stored that of its own feed meanwhile."""
        with self._connection.transaction():
            # A transaction that waits here sees what the one before it has committed.
            self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (self._of.known().oid,))
            found = FoundTable(self.read_feed())
            found.check_still(FoundTable(self._last), self._where, mark.source)
            self.store({}, {_FEED: mark.to_json()})
            self._last = mark

    def names(self, prefix: str) -> list[str]:
        """Return the names of the marks that begin with a text, without it."""
        if not self._exist():
            return []
        query = sql.SQL("SELECT name FROM {} WHERE target = {} AND starts_with(name, {}) ORDER BY at DESC")
        rows = self._connection.execute(query.format(self._table, self._of.known().oid, prefix)).fetchall()
        return [name.removeprefix(prefix) for (name,) in rows]

    def store(self, numbers: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Store numbers and texts for the table."""
        rows: list[tuple[str, int | None, str | None]] = [
            (name, value, None) for name, value in numbers.items()
        ]
        rows += [(name, None, text) for name, text in notes.items()]
        if not rows:
            return
        with self._connection.transaction():
            self._make()
            upsert = sql.SQL(
                "INSERT INTO {} (target, name, value, note) VALUES ({}, {}, {}, {}) "
                "ON CONFLICT (target, name) DO UPDATE SET value = excluded.value, note = excluded.note, "
                "at = now()"
            )
            for row in sorted(rows):
                self._write(upsert.format(self._table, self._of.known().oid, *row))

    def _write(self, statement: sql.Composed) -> None:
        if not self._connection.execute(statement).rowcount:
            raise wrong(
                MARKS,
                "has a BEFORE trigger that keeps a mark from being written, without which a batch of another "
                "feed could be merged",
                "drop it, or let it return NEW",
            )

    def _make(self) -> None:
        if not self._exist():
            self._connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (MARKS,))
            self._connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (target regclass, name text, value bigint, note text, "
                    "at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (target, name))"
                ).format(self._table)
            )

    def count_skipped(self, count: int) -> None:
        """Add to the number of changes that were left out, because their keys are too long."""
        with self._connection.transaction():
            self._make()
            # Several workers count at the same time, so the server adds.
            self._write(
                sql.SQL(
                    "INSERT INTO {} AS m (target, name, value) VALUES ({}, {}, {}) "
                    "ON CONFLICT (target, name) DO UPDATE SET value = m.value + excluded.value, at = now()"
                ).format(self._table, self._of.known().oid, SKIPPED, count)
            )

    def position(self) -> str | None:
        """Return the token that the sink stores with the rows under one name, or None."""
        names = self.names(POSITION)
        if len(names) > 1:
            raise invalid_request(
                "checkpoint_name",
                f"is not given, and {self._where} was written with several: {', '.join(names[:5])}",
                "give the name of the one whose position the table has reached",
            )
        return stored_token(self._connection, names[0], self.note(POSITION + names[0])) if names else None

    def remember_position(self, name: str) -> None:
        """Store where the checkpoint is that was just stored with the rows.

        With another `search_path`, a worker finds no checkpoint, and begins where it began at first: what
        comes between would be missing, or be read again.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the checkpoint of this name is in another schema.
        """
        before, schema = self.note(POSITION + name), current_schema(self._connection)
        if schema is None or before == schema:
            return
        if before is not None and is_kept_in(self._connection, before, name):
            raise invalid_request(
                "dsn",
                f"has a search_path that leads to the checkpoints of the schema {schema}, and the checkpoint "
                f"{name!r} of {self._where} is in the schema {before}",
                f"connect with the search_path of before, for example with options=-csearch_path={before}",
            )
        self.store({}, {POSITION + name: schema})

    def note(self, name: str) -> str | None:
        """Return a text that was stored for the table."""
        found: str | None = self._stored("note", name)
        return found

    def _stored(self, column: str, name: str) -> Any:
        if not self._exist():
            return None
        query = sql.SQL("SELECT {} FROM {} WHERE target = {} AND name = {}").format(
            sql.Identifier(column), self._table, self._of.known().oid, name
        )
        row = self._connection.execute(query).fetchone()
        return None if row is None else row[0]
