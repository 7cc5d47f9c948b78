"""Represents a database with its tables and change streams, and the effects of transactions on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from multiclouddb_spanner_emulator import ddl
from multiclouddb_spanner_emulator.capture import Change, captured
from multiclouddb_spanner_emulator.clock import Clock
from multiclouddb_spanner_emulator.errors import ServiceError, unimplemented
from multiclouddb_spanner_emulator.habits import Habits
from multiclouddb_spanner_emulator.schema import Key, Row, Table
from multiclouddb_spanner_emulator.stream import ChangeStream
from multiclouddb_spanner_emulator.types import Json, to_json

__all__ = ["Database", "Write"]

_MOST_STREAMS = 3


@attrs.frozen
class Write:
    """One mutation.

    Attributes:
        kind: One of `insert`, `update`, `insert_or_update`, `replace` or `delete`.
        table: The table.
        columns: The names of columns; empty for a delete.
        rows: Rows with a value for each column. For a delete, the keys of the rows, or None to delete every
            row.
    """

    kind: str
    table: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Json]] | None


class Database:
    """A database. The caller must hold the server's lock.

    Attributes:
        name: The full name of the database.
        postgres: True for the PostgreSQL dialect.
        tables: Maps each name to its table.
        streams: Maps each name to its change stream.
        history: Every transaction, with its commit timestamp and its effects. Each effect is stored
            under its table and its key.
    """

    def __init__(self, name: str, *, postgres: bool, clock: Clock, habits: Habits) -> None:
        self.name = name
        self.postgres = postgres
        self.tables: dict[str, Table] = {}
        self.streams: dict[str, ChangeStream] = {}
        self.history: list[tuple[int, dict[str, dict[Key, Change]]]] = []
        self._clock = clock
        self._habits = habits
        self._transactions = 0

    # -- DDL

    def execute(self, statement: str) -> None:
        """Execute a DDL statement."""
        match ddl.parse(statement, postgres=self.postgres):
            case ddl.CreateTable(table):
                self._new(table.name)
                self.tables[table.name] = table
            case ddl.AddColumn(name, column):
                table = self.table(name)
                if any(each.name.lower() == column.name.lower() for each in table.columns):
                    raise ServiceError(
                        "FAILED_PRECONDITION", f"Duplicate column name {table.name}.{column.name}."
                    )
                number = max(each.ordinal for each in table.columns) + 1
                table.columns.append(attrs.evolve(column, ordinal=number))
                for row in table.rows.values():
                    row[column.name] = None
            case ddl.DropColumn(name, column_name):
                table = self.table(name)
                table.columns.remove(table.column(column_name))
                for row in table.rows.values():
                    row.pop(column_name, None)
            case ddl.CreateStream(name, watch, options):
                self._new(name)
                created = self._clock.nanoseconds()
                made = ChangeStream(name, watch, options, created, self._habits)
                self._check_watch(made)
                self.streams[name] = made
            case ddl.AlterStream(name, altered, settings):
                stream = self._stream(name)
                moment = self._clock.step()
                if altered is not None:
                    stream.set_watch(altered, moment)
                stream.set_options(settings or {}, moment)
            case ddl.Drop(kind, name):
                self._drop(kind, name)

    def statements(self) -> list[str]:
        """Return the DDL statements that create the present schema; GetDatabaseDdl answers with them."""
        return [
            *(ddl.table_statement(each, postgres=self.postgres) for each in self.tables.values()),
            *(
                ddl.stream_statement(each.name, each.watch, each.options, postgres=self.postgres)
                for each in self.streams.values()
            ),
        ]

    def _drop(self, kind: str, name: str) -> None:
        if kind == "TABLE":
            del self.tables[self.table(name).name]
        else:
            del self.streams[self._stream(name).name]

    def _new(self, name: str) -> None:
        if name in self.tables or name in self.streams:
            raise ServiceError("FAILED_PRECONDITION", f"Duplicate name in schema: {name}.")

    def _check_watch(self, made: ChangeStream) -> None:
        for name in made.watch.tables:
            self.table(name)
        for table in self.tables.values():
            watching = [
                each for each in (*self.streams.values(), made) if each.watch.columns(table) is not None
            ]
            if len(watching) > _MOST_STREAMS and made in watching:
                raise ServiceError(
                    "FAILED_PRECONDITION",
                    f"Failed to create or alter Change Stream {made.name} : because it is not allowed to "
                    "have more than 3 Change Streams tracking the same table or non-key column or ALL: "
                    f"{table.name}.",
                )

    def table(self, name: str) -> Table:
        """Return the table with this name."""
        for each in self.tables.values():
            if each.name.lower() == name.lower():
                return each
        raise ServiceError("NOT_FOUND", f"Table not found: {name}")

    def _stream(self, name: str) -> ChangeStream:
        if name not in self.streams:
            raise ServiceError("NOT_FOUND", f"Change Stream not found: {name}")
        return self.streams[name]

    # -- Transactions

    def commit(self, writes: Iterable[Write], tag: str = "", *, is_system: bool = False) -> int:
        """Apply a transaction and report it to the change streams. Return the commit timestamp."""
        commit = self._clock.commit()
        changes: dict[str, dict[Key, Change]] = {}
        try:
            for write in writes:
                self._apply(write, changes, commit)
        except ServiceError:
            self._undo(changes)
            raise
        self.history.append((commit, changes))
        self._transactions += 1
        transaction = f"{commit}-{self._transactions}"
        for stream in self.streams.values():
            captured(
                stream, self.tables, changes, self._habits, commit, transaction, tag, is_system=is_system
            )
        return commit

    def _undo(self, changes: dict[str, dict[Key, Change]]) -> None:
        for name, of_table in changes.items():
            for key, change in of_table.items():
                self._put(self.tables[name], key, change.before)

    def _put(self, table: Table, key: Key, row: Row | None) -> None:
        if row is None:
            table.rows.pop(key, None)
        else:
            table.rows[key] = row

    def _apply(self, write: Write, changes: dict[str, dict[Key, Change]], commit: int) -> None:
        table = self.table(write.table)
        of_table = changes.setdefault(table.name, {})
        if write.kind == "delete":
            keys = list(table.rows) if write.rows is None else [self._key(table, each) for each in write.rows]
            for key in keys:
                if key in table.rows:
                    change = of_table.setdefault(key, Change(table.rows[key]))
                    change.after, change.replaced = None, True
                    del table.rows[key]
            return
        columns = [table.column(name) for name in write.columns]
        for values in write.rows or ():
            row = {
                column.name: to_json(value, column.type, commit)
                for column, value in zip(columns, values, strict=True)
            }
            self._write_row(table, of_table, write.kind, row)

    def _write_row(self, table: Table, of_table: dict[Key, Change], kind: str, row: Row) -> None:
        try:
            key = tuple(row[name] for name in table.key)
        except KeyError as error:
            raise ServiceError(
                "FAILED_PRECONDITION", f"{table.name} needs a value for the key column {error}"
            ) from None
        before = table.rows.get(key)
        if kind == "insert" and before is not None:
            raise ServiceError("ALREADY_EXISTS", f"Table {table.name}: Row {_named(key)} already exists.")
        if kind == "update" and before is None:
            raise ServiceError("NOT_FOUND", f"Table {table.name}: Row {_named(key)} not found.")
        change = of_table.setdefault(key, Change(before))
        whole = before is None or kind == "replace"
        base: dict[str, Any] = (
            {each.name: None for each in table.columns} if whole or before is None else before
        )
        after = {**base, **row}
        for column in table.columns:
            if after[column.name] is None and not column.nullable:
                self._put(table, key, before)
                raise ServiceError(
                    "FAILED_PRECONDITION",
                    f"{column.name} must not be NULL in table {table.name}.",
                )
        change.replaced = change.replaced or whole
        change.touched |= set(row) - set(table.key)
        change.after = after
        table.rows[key] = after

    def _key(self, table: Table, values: Sequence[Json]) -> Key:
        if len(values) != len(table.key):
            raise unimplemented("a key with fewer parts than the table's")
        return tuple(
            to_json(value, table.column(name).type, 0) for name, value in zip(table.key, values, strict=True)
        )


def _named(key: Key) -> str:
    parts = (f'String("{part}")' if isinstance(part, str) else str(part) for part in key)
    return "{" + ", ".join(parts) + "}"
