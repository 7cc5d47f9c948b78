"""Reads and repairs a table of the sink, for `verify`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from psycopg import sql

from multiclouddb_api import invalid_request
from multiclouddb_api.validators import check_type
from multiclouddb_postgres.checkpoints import CHECKPOINTS, loaded
from multiclouddb_postgres.long_keys import (
    LONG_KEY,
    SKIPPED,
    is_long,
    is_row_of,
    key_column,
    key_too_long,
    stored,
)
from multiclouddb_postgres.server import Connection, check_dsn, repeated, secret_dsn, transaction, where
from multiclouddb_postgres.sink import POSITION
from multiclouddb_postgres.table import PostgresStorage, identifier
from multiclouddb_tables.layout import (
    NO_ORDER,
    check_fixes,
    check_table,
    fixed_row,
    own_names,
    read_rows,
    state_of,
)
from multiclouddb_tables.mark import Expected, FoundTable
from multiclouddb_tables.rules import DOCUMENT

if TYPE_CHECKING:
    from multiclouddb_tables.column_values import ColumnType
    from multiclouddb_tables.contract import Fix, Own

_ROWS: Final = 8192


class PostgresTarget:
    """A table that `merge_into_postgres` writes.

    Args:
        dsn: A connection string, such as `postgresql://user@host/database`.
        table: The name of the table, as `table` or `schema.table`.
        checkpoint_name: The checkpoint that `merge_into_postgres` stores with the rows; None to find it out.
        patience_seconds: For how long a repair waits for a row that another transaction has locked.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if `dsn` is no connection string. Raised by the first read:
            `NOT_FOUND` if there is no table; `INVALID_REQUEST` if it has not the columns of the sink.
    """

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

    def _opened(
        self, connection: Connection, *, own: bool, expected: Expected | None = None, holds: bool = False
    ) -> PostgresStorage:
        """Look at the table, and refuse another one than the expected one.

        With `holds`, nobody can replace it until the transaction ends. A mark needs no such lock, which takes
        the right to write the table: it is stored by the table's object id.
        """
        if holds:
            # 0 would be no limit.
            limit = max(1, int(1000 * self._patience))
            connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(limit))
        storage = PostgresStorage(
            connection, self._table, create=False, new_columns="refuse", documents="json",
            holds=holds,
        )  # fmt: skip
        if expected is not None:
            expected.check(storage.found(), self._where)
        check_table(self._where, [*storage.known().columns], own=own)
        return storage

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        """Read the table in one transaction; see `Target.rows`.

        Args:
            keys: The keys to read; None for all rows.
            own: The table's own columns to read instead of `new_item_state`.
        """
        from multiclouddb_postgres.column_types import column_type

        with transaction(self._dsn, self._where, reads=True) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # A role may have settings with which a number loses digits, and a time is no ISO text.
            connection.execute("SET LOCAL extra_float_digits = 1")
            connection.execute("SET LOCAL DateStyle = 'ISO'")
            storage = self._opened(connection, own=bool(own))
            names = _own(storage) if isinstance(own, bool) else sorted(own)
            if keys is not None and not keys:
                return
            known = storage.known().columns
            columns = [
                sql.SQL("{}::text" if known[name].held in ("json", "jsonb") else "{}").format(
                    sql.Identifier(name)
                )
                for name in (names if own else [DOCUMENT])
            ]
            hashes = storage.hashes
            only: sql.Composable = sql.SQL("")
            if keys is not None:
                only = sql.SQL(" WHERE ") + is_row_of(keys, hashes=hashes)
            query = sql.SQL(
                "SELECT {key}, coalesce(order_key, {none}), _deleted_at IS NOT NULL, {columns} "
                "FROM {table}{only}"
            ).format(
                key=key_column() if hashes else sql.SQL("key"),
                none=sql.Literal(NO_ORDER),
                columns=sql.SQL(", ").join(columns) if columns else sql.SQL("NULL"),
                table=identifier(self._table),
                only=only,
            )
            with connection.cursor("multiclouddb_rows") as cursor:
                cursor.execute(query)
                while found := cursor.fetchmany(_ROWS):
                    yield _batch(
                        found, {name: column_type(known[name].held) for name in names} if own else None
                    )

    def columns(self) -> Mapping[str, ColumnType]:
        """Return the columns that a document may be parsed into; see `Target.columns`."""
        from multiclouddb_postgres.column_types import column_type

        def read(connection: Connection) -> Mapping[str, ColumnType]:
            storage = self._opened(connection, own=True)
            known = storage.known().columns
            return {name: column_type(known[name].held) for name in _own(storage) if name != DOCUMENT}

        return repeated(self._dsn, self._where, read)

    def held(self) -> Callable[[Any], Any] | None:
        """Return what makes of a document the one that `jsonb` gives back; None for `json`."""
        from multiclouddb_verify.texts import as_jsonb

        def read(connection: Connection) -> bool:
            column = self._opened(connection, own=True).known().columns.get(DOCUMENT)
            return column is not None and column.type == "jsonb"

        return as_jsonb if repeated(self._dsn, self._where, read) else None

    def left_out(self, keys: Sequence[str]) -> Collection[str]:
        """Return which keys are too long for the table, if the sink has left some out (`long_keys="skip"`).

        Args:
            keys: The keys.
        """
        long = [key for key in keys if is_long(key)]

        def read(connection: Connection) -> bool:
            return bool(self._opened(connection, own=True).mark(SKIPPED))

        leaves_out = bool(long) and repeated(self._dsn, self._where, read)
        return long if leaves_out else ()

    def position(self) -> str | None:
        """Return the token that the sink stores with the rows (`checkpoint_name=`), or None."""

        def read(connection: Connection) -> str | None:
            name = self._checkpoint
            if name is None:
                names = self._opened(connection, own=True).names(POSITION)
                if len(names) > 1:
                    raise invalid_request(
                        "checkpoint_name",
                        f"is not given, and {self._where} was written with several: {', '.join(names[:5])}",
                        "give the name of the one whose position the table has reached",
                    )
                if not names:
                    return None
                [name] = names
            found = loaded(connection, CHECKPOINTS, name)
            return None if found is None else found.token

        return repeated(self._dsn, self._where, read)

    def found(self, since: FoundTable | None = None) -> FoundTable:
        """Return the table's object id and mark; see `Target.found`.

        Args:
            since: What was found before. A table of PostgreSQL does not go back on its own.
        """
        del since
        return repeated(self._dsn, self._where, lambda connection: self._opened(connection, own=True).found())

    def complete(self, expected: Expected) -> None:
        """Store the mark without its time; see `Target.complete`.

        Args:
            expected: The table, as it was before the comparison.
        """

        def write(connection: Connection) -> None:
            storage = self._opened(connection, own=True, expected=expected)
            if (mark := expected.completed(storage.feed_mark())) is not None:
                storage.set_feed_mark(mark)

        repeated(self._dsn, self._where, write)

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
        own = any(fix.columns is not None for fix in fixes)

        def write(connection: Connection) -> int:
            storage = self._opened(connection, own=own, expected=expected, holds=True)
            known = storage.known().columns
            check_fixes(self._where, _own(storage), fixes)
            hashes = storage.hashes
            written, removals = 0, [fix for fix in fixes if fix.removes]
            beside = {each.beside[0]: each.beside[1] for each in removals if each.beside is not None}
            locked = dict[str, str | None]()
            # Like all writers, this one locks rows in the order of their keys.
            writes = [(fix.key, fix) for fix in fixes if not fix.removes]
            locks = dict.fromkeys((*(fix.key for fix in removals), *beside))
            kept: Callable[[str], str] = stored if hashes else str
            for key, fix in sorted([*writes, *locks.items()], key=lambda each: kept(each[0]).encode()):
                if fix is None:
                    found = connection.execute(
                        sql.SQL("SELECT coalesce(order_key, {}) FROM {} WHERE {} FOR UPDATE").format(
                            NO_ORDER, identifier(self._table), is_row_of([key], hashes=hashes)
                        )
                    ).fetchone()
                    locked[key] = None if found is None else found[0]
                    continue
                row = fixed_row(fix) | {"key": kept(fix.key)}
                row[LONG_KEY] = fix.key if is_long(fix.key) else None
                names = [name for name in known if name in row]
                values = [sql.Literal(row[name]) for name in names]
                if fix.seen:
                    statement = sql.SQL("UPDATE {} SET {} WHERE {} AND coalesce(order_key, {}) = {}").format(
                        identifier(self._table),
                        sql.SQL(", ").join(
                            sql.SQL("{} = {}").format(sql.Identifier(name), value)
                            for name, value in zip(names, values, strict=True)
                        ),
                        is_row_of([fix.key], hashes=hashes),
                        NO_ORDER,
                        fix.seen[0],
                    )
                elif fix.text is not None:
                    if is_long(fix.key) and not hashes:
                        raise key_too_long(fix.key)
                    statement = sql.SQL(
                        "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT (key) DO NOTHING"
                    ).format(
                        identifier(self._table),
                        sql.SQL(", ").join(map(sql.Identifier, names)),
                        sql.SQL(", ").join(values),
                    )
                else:
                    continue
                written += connection.execute(statement).rowcount
            for fix in removals:
                is_there = fix.beside is None or locked[fix.beside[0]] == fix.beside[1]
                if is_there and locked[fix.key] in fix.seen:
                    statement = sql.SQL("DELETE FROM {} WHERE {}").format(
                        identifier(self._table), is_row_of([fix.key], hashes=hashes)
                    )
                    written += connection.execute(statement).rowcount
            return written

        return repeated(self._dsn, self._where, write)

    def record(self, facts: dict[str, str], expected: Expected) -> None:
        """Store facts with the table, in `multiclouddb_marks`; no row changes.

        Args:
            facts: Names and texts.
            expected: The table that was compared.
        """

        def write(connection: Connection) -> None:
            self._opened(connection, own=True, expected=expected).store({}, facts)

        repeated(self._dsn, self._where, write)

    def __repr__(self) -> str:
        return f"PostgresTarget({self._where!r})"


def _own(storage: PostgresStorage) -> list[str]:
    """Return the columns that a document was parsed into, or the document itself."""
    names = [each.name for each in storage.known().columns.values() if not each.is_generated]
    return [name for name in own_names(names) if name != LONG_KEY]


def _batch(found: list[tuple[Any, ...]], own: Mapping[str, ColumnType] | None) -> pa.RecordBatch:
    """Return the columns that `Target.rows` promises."""
    keys, orders, deleted, *rest = zip(*found, strict=True)
    states: Any = rest[0]
    if own is not None:
        # psycopg returns a number of type real with fewer digits than the column has.
        states = [state_of(dict(zip(own, row[3:], strict=False)), own) for row in found]
    return read_rows(keys, orders, states, deleted)
