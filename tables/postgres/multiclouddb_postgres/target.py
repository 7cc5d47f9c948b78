"""Reads and repairs a table of the sink, for `verify`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pyarrow as pa
from psycopg import sql

from multiclouddb_api.validators import check_type, to_utc
from multiclouddb_postgres.checkpoints import stored_token
from multiclouddb_postgres.long_keys import (
    SKIPPED,
    is_long,
)
from multiclouddb_postgres.server import Connection, check_dsn, repeated, secret_dsn, transaction, where
from multiclouddb_postgres.table import PostgresTable, identifier
from multiclouddb_tables.mark import Expected, FoundTable
from multiclouddb_tables.merging import FILLED, MergeRules
from multiclouddb_tables.rules import DELETED_AT, DOCUMENT

if TYPE_CHECKING:
    from multiclouddb_tables.column_values import ColumnType
    from multiclouddb_tables.columns import Columns
    from multiclouddb_tables.contract import Fix, Own
    from multiclouddb_tables.conversion import Unheld

_T = TypeVar("_T")


class PostgresTarget:
    """A table that `merge_into_postgres` writes.

    Args:
        dsn: A connection string, such as `postgresql://user@host/database`.
        table: The name of the table, as `table` or `schema.table`.
        checkpoint_name: The checkpoint that `merge_into_postgres` stores with the rows; None, the default, to
            find it in the table's marks.
        patience_seconds: For how many seconds a repair waits for a row that another transaction has locked;
            600 by default.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if `dsn` is no connection string. At the first read, `NOT_FOUND`
            if there is no table, and `INVALID_REQUEST` if it does not have the columns of the sink.
    """

    unheld: ClassVar[tuple[Unheld, ...]] = PostgresTable.unheld
    """See `Table`."""

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        checkpoint_name: str | None = None,
        patience_seconds: float = 600.0,
    ) -> None:
        dsn = secret_dsn(dsn)
        check_type("dsn", dsn, str)
        check_dsn(dsn)
        identifier(table)
        check_type("checkpoint_name", checkpoint_name, str, type(None))
        check_type("patience_seconds", patience_seconds, int, float)
        self._patience = patience_seconds
        self._dsn, self._table, self._checkpoint = dsn, table, checkpoint_name
        self._where = where(dsn, table)

    @property
    def name(self) -> str:
        """Server, database and table, without secrets."""
        return self._where

    def _opened(self, connection: Connection, *, holds: bool = False) -> PostgresTable:
        """Look at the table.

        With `holds`, nobody can replace it until the transaction ends. A mark needs no such lock, which takes
        the right to write the table: it is stored by the table's object id.
        """
        if holds:
            # 0 would be no limit.
            limit = max(1, int(1000 * self._patience))
            connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(limit))
        return PostgresTable(
            connection, self._table, create=False, new_columns="refuse", documents="json",
            holds=holds,
        )  # fmt: skip

    def _in(self, call: Callable[[PostgresTable], _T], *, holds: bool = False) -> _T:
        """Call a function of the table in a transaction of its own."""
        return repeated(
            self._dsn, self._where, lambda connection: call(self._opened(connection, holds=holds))
        )

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        """Read the table in one transaction; see `Target.rows`.

        Args:
            keys: The keys to read; None for all rows.
            own: The table's own columns to read instead of `new_item_state`.
        """
        with transaction(self._dsn, self._where, reads=True) as connection:
            connection.execute("SET TRANSACTION READ ONLY")
            # A role may have settings with which a number loses digits, and a time is no ISO text.
            connection.execute("SET LOCAL extra_float_digits = 1")
            connection.execute("SET LOCAL DateStyle = 'ISO'")
            self._opened(connection).hold_for_reading()
            yield from self._opened(connection).rows(keys, own=own)

    def columns(self) -> Mapping[str, ColumnType]:
        """Return the columns that a document may be parsed into; see `Target.columns`."""
        return self._in(PostgresTable.columns)

    def held(self) -> Callable[[Any], Any] | None:
        """Return a function from a document to what `jsonb` gives back of it; None for `json`."""
        from multiclouddb_verify.texts import as_jsonb

        column = self._in(lambda table: table.known().columns.get(DOCUMENT))
        return as_jsonb if column is not None and column.type == "jsonb" else None

    def left_out(self, keys: Sequence[str]) -> Collection[str]:
        """Return which keys are too long for the table, if the sink has left some out (`long_keys="skip"`).

        Args:
            keys: The keys.
        """
        long = [key for key in keys if is_long(key)]
        leaves_out = bool(long) and bool(self._in(lambda table: table.number(SKIPPED)))
        return long if leaves_out else ()

    def position(self) -> str | None:
        """Return the token that the sink stores with the rows (`checkpoint_name=`), or None."""
        if (name := self._checkpoint) is None:
            return self._in(lambda table: table.marks.position())
        return repeated(self._dsn, self._where, lambda connection: stored_token(connection, name))

    def number(self, name: str) -> int | None:
        """Return a number that is stored for the table.

        Args:
            name: See `Table.number`.
        """
        return self._in(lambda table: table.number(name))

    def drop_tombstones(self, before: datetime) -> int:
        """Remove the rows of documents that were deleted before a time, and return their number.

        Args:
            before: The time at which the delete was merged.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the time has no zone.
        """
        before = to_utc("before", before)

        def drop(table: PostgresTable) -> int:
            _ = table.known()
            statement = sql.SQL("DELETE FROM {} WHERE {} < {}")
            named = identifier(self._table), sql.Identifier(DELETED_AT), before
            dropped = table.connection.execute(statement.format(*named)).rowcount
            if table.number(FILLED) and table.is_empty():
                table.store({FILLED: 0}, {})
            return dropped

        return self._in(drop)

    def store(self, numbers: Mapping[str, int]) -> None:
        """Store numbers for the table.

        Args:
            numbers: See `Table.store`.
        """
        self._in(lambda table: table.store(numbers, {}))

    def found(self, since: FoundTable | None = None) -> FoundTable:
        """Return the table's object id and mark; see `Target.found`.

        Args:
            since: What was found before. A table of PostgreSQL does not go back on its own.
        """
        del since
        return self._in(PostgresTable.found)

    def check_declaration(self, columns: Columns, *, refill: bool) -> bool:
        """Compare a declaration with that of the table, before anything is read for it.

        Args:
            columns: The declaration.
            refill: True if the user has agreed that a snapshot fills the columns.

        Returns:
            True if a snapshot has to fill columns of the table.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if it has to, and the user has not agreed.
        """
        return self._in(lambda table: MergeRules(table, "mirror").check_declaration(columns, refill=refill))

    def complete(self, expected: Expected) -> None:
        """Store the mark without its time; see `Target.complete`.

        Args:
            expected: The table, as it was before the comparison.
        """
        self._in(lambda table: table.complete(expected))

    def fix(self, fixes: Sequence[Fix], expected: Expected) -> int:
        """Write rows in one transaction, each only if its key still has the row that was seen.

        Args:
            fixes: At most one for each key.
            expected: The table that was compared. The transaction makes sure that it is this one.

        Raises:
            MulticloudDbError: `CONFLICT` if other transactions prevented this one ten times, or if one has
                locked a row for longer than `patience_seconds`; `INVALID_REQUEST` if a row is refused, if the
                table is not the expected one, or if it has columns of its own and no `transform` was given.
        """
        return self._in(lambda table: table.fix(fixes, expected), holds=True)

    def record(self, facts: dict[str, str], expected: Expected) -> None:
        """Store facts with the table, in `multiclouddb_marks`; no row changes.

        Args:
            facts: Names and texts.
            expected: The table that was compared.
        """

        def write(table: PostgresTable) -> None:
            expected.check(table.found(), self._where)
            table.store({}, facts)

        self._in(write)

    def __repr__(self) -> str:
        return f"PostgresTarget({self._where!r})"
