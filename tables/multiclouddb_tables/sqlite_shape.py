"""Reads what the schema of SQLite says about a table, and refuses tables in which SQLite damages rows.

The marks of a sink are rows of `multiclouddb_marks` in the same file. They have to go with the table, but
SQLite drops nothing with a table except its indexes and triggers, and gives the number of a dropped table to
the next one. So a unique index on `key` bears the id of the table in its name, and the marks are those of
this id. The index is also what forbids a second row of a key.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import attrs

from multiclouddb_api import MulticloudDbError, invalid_request
from multiclouddb_api.validators import check_type
from multiclouddb_tables import layout
from multiclouddb_tables.rules import DOCUMENT
from multiclouddb_tables.sql import in_backticks
from multiclouddb_tables.sqlite_types import TEXT, kind_of

__all__ = ["MARKS", "NOT_NULL", "Shape", "check_name"]

MARKS: Final = "multiclouddb_marks"
"""The table with the marks of all tables of a database."""
NOT_NULL: Final = ("key", "order_key")
"""The columns with a value in each row."""
_INDEX: Final = "multiclouddb_"
"""Begins the name of the index; the table's id follows."""


def check_name(table: str) -> None:
    """Refuse a name that no table of a user can have."""
    check_type("table", table, str)
    is_text = table.encode(errors="replace").decode() == table and "\0" not in table
    if not table or not is_text or table.lower() == MARKS or table.lower().startswith("sqlite_"):
        raise invalid_request("table", f"is {table!r}, which cannot be a table of yours", "rename it")


@attrs.frozen
class Shape:
    """What the schema says about a table."""

    where: str
    """The name of the table in messages."""
    name: str
    """Its name, as it is spelled in the schema."""
    kinds: Mapping[str, str]
    """The type of each column, as `kind_of` returns it; without those of `generated`."""
    generated: Collection[str]
    """The columns into which SQLite writes values of its own."""
    changed_by: Mapping[str, str]
    """The columns, in lower case, that a foreign key changes in other programs, and the table it names."""
    identity: str | None = None
    """The id in the name of the index; None before the first merge."""

    @classmethod
    def find(cls, database: sqlite3.Connection, table: str, where: str) -> Shape | None:
        """Return what the schema says about a table; None if there is none of the name.

        Args:
            database: The database.
            table: The name; SQLite ignores upper and lower case in it.
            where: The name in messages.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if it is a table in which SQLite damages rows.
        """
        listed = database.execute(
            "SELECT name, type, wr FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE",
            (table,),
        ).fetchone()
        if listed is None:
            return None
        name, kind, has_no_rowid = listed
        if kind != "table":
            raise _refused(where, f"is a {kind} table" if kind != "view" else "is a view", "name a table")
        check_database(database, where)
        trigger = database.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE", (name,)
        ).fetchone()
        if trigger is not None:
            problem = f"has the trigger {trigger[0]}, which may change rows or leave them out"
            raise _refused(where, problem, "drop it")
        kinds, generated = dict[str, str](), list[str]()
        columns = database.execute(
            'SELECT name, type, "notnull", hidden, pk FROM pragma_table_xinfo(?)', (name,)
        ).fetchall()
        is_single = sum(pk > 0 for *_, pk in columns) == 1
        for column, declared, not_null, hidden, pk in columns:
            # SQLite puts a number of its own in place of a null into an INTEGER PRIMARY KEY.
            is_number = pk and is_single and declared.upper() == "INTEGER" and not has_no_rowid
            if hidden or is_number:
                generated.append(column)
                continue
            kinds[column] = kind_of(declared)
            if column not in NOT_NULL and column.lower() in NOT_NULL:
                raise _refused(where, f"has the column {column} in place of {column.lower()}", "rename it")
            if column not in NOT_NULL and not_null:
                problem = f"has the column {column}, which is NOT NULL, but a tombstone has no value in it"
                raise _refused(where, problem, "make the table again without NOT NULL")
            if column in NOT_NULL and not not_null:
                raise _refused(
                    where, f"has the column {column}, which may be null", "make the table again with NOT NULL"
                )
            if column in (*NOT_NULL, DOCUMENT) and kinds[column] != TEXT:
                # A column of numbers would make 1 of the text 0001.
                problem = f"has the column {column} of the type {declared or 'BLOB'}"
                raise _refused(where, problem, "make the table again with TEXT")
        for column in generated:
            if column in (*layout.HIDDEN, DOCUMENT):
                raise _refused(where, f"computes the column {column}", "make a usual column of it")
        changed_by = dict[str, str]()
        for column, other, on_update, on_delete in database.execute(
            'SELECT "from", "table", on_update, on_delete FROM pragma_foreign_key_list(?)', (name,)
        ):
            if on_delete == "CASCADE":
                problem = (
                    f"has a foreign key to {other} with ON DELETE CASCADE, which removes rows of the source"
                )
                raise _refused(where, problem, "make the table again without ON DELETE CASCADE")
            if {on_update, on_delete} & {"CASCADE", "SET NULL", "SET DEFAULT"}:
                changed_by[column.lower()] = other
        indexes = database.execute(
            'SELECT name FROM pragma_index_list(?) AS i WHERE "unique" AND NOT partial AND '
            "(SELECT group_concat(coalesce(name, '')) FROM pragma_index_info(i.name)) = 'key'",
            (name,),
        )
        ids = [index.removeprefix(_INDEX) for (index,) in indexes if index.startswith(_INDEX)]
        return cls(where, name, kinds, generated, changed_by, min(ids, default=None))

    @property
    def sql(self) -> str:
        """The name in a statement."""
        return in_backticks(self.name)

    def insert(self) -> str:
        """Return the statement that inserts a row, with a value for each column."""
        # A constraint of the user may say ON CONFLICT REPLACE, which removes other rows; this overrides it.
        names = ", ".join(map(in_backticks, self.kinds))
        return f"INSERT OR ABORT INTO {self.sql} ({names}) VALUES ({', '.join('?' * len(self.kinds))})"

    def update(self, settings: Iterable[str], condition: str = "key = ?") -> str:
        """Return the statement that updates the row of a key, or those of another condition."""
        return f"UPDATE OR ABORT {self.sql} SET {', '.join(settings)} WHERE {condition} COLLATE BINARY"

    def adopted(self, database: sqlite3.Connection) -> Shape:
        """Give the table its id, unless it has one.

        Args:
            database: The database, in a transaction that writes.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the table has several rows of a key, or if its collation
                makes one key of two.
        """
        database.execute(
            f"CREATE TABLE IF NOT EXISTS {MARKS} (identity TEXT NOT NULL, name TEXT NOT NULL, value ANY, "
            "PRIMARY KEY (identity, name)) STRICT, WITHOUT ROWID"
        )
        if self.identity is not None:
            return self
        layout.check_columns(self.where, [*self.kinds], NOT_NULL)
        identity = uuid.uuid4().hex
        index = _INDEX + identity
        try:
            database.execute(f"CREATE UNIQUE INDEX {index} ON {self.sql} (key)")
        except sqlite3.IntegrityError as error:
            way_out = "leave one row of each key"
            raise _refused(self.where, "has several rows of one key", way_out) from error
        [collation] = database.execute(
            "SELECT coll FROM pragma_index_xinfo(?) WHERE key", (index,)
        ).fetchone()
        if collation != "BINARY":
            problem = f"has the collation {collation} for key, in which two keys may be the same"
            raise _refused(self.where, problem, "make the table again without a collation")
        # Marks of tables that were dropped may go.
        database.execute(
            f"DELETE FROM {MARKS} WHERE ? || identity NOT IN "
            "(SELECT name FROM sqlite_schema WHERE type = 'index')",
            (_INDEX,),
        )
        return attrs.evolve(self, identity=identity)

    def stored(self, database: sqlite3.Connection, name: str) -> object:
        """Return what is stored with the table under a name, or None.

        Args:
            database: The database.
            name: The name.
        """
        if (
            self.identity is None
            or not database.execute(
                "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (MARKS,)
            ).fetchone()
        ):
            return None
        found = database.execute(
            f"SELECT value FROM {MARKS} WHERE identity = ? AND name = ?", (self.identity, name)
        ).fetchone()
        return None if found is None else found[0]


def check_database(database: sqlite3.Connection, where: str) -> None:
    """Refuse a database in which texts have another order, or readers lock the sink out."""
    [encoding] = database.execute("PRAGMA encoding").fetchone()
    if encoding != "UTF-8":
        raise _refused(
            where,
            f"is in a database with the encoding {encoding}, in which texts have another order",
            "use a database that was made with PRAGMA encoding = 'UTF-8'",
        )
    [journal] = database.execute("PRAGMA journal_mode").fetchone()
    if journal != "wal":
        raise _refused(
            where,
            f"is in a database in journal mode {journal}, in which a reader locks the sink out",
            "run PRAGMA journal_mode = WAL once; it stays, and needs a disk of this machine",
        )


def _refused(where: str, problem: str, way_out: str) -> MulticloudDbError:
    return invalid_request("table", f"{where} {problem}", way_out)
