"""Lets one job at a time write a table, and finds the one name of a table."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from threading import Lock
from typing import Final

import psycopg
from attrs import define
from psycopg import sql

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError
from multiclouddb_postgres.server import Connection, connected, errors, transaction, where
from multiclouddb_postgres.table import identifier

_CLASS: Final = "multiclouddb mirror"
_SCHEMA: Final = """
SELECT coalesce(
    (SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
     WHERE pg_class.oid = to_regclass(%s)), current_schema(), '')
"""
_NO_LIMITS: Final = """
SELECT set_config('idle_in_transaction_session_timeout', '0', true),
    CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
    THEN set_config('transaction_timeout', '0', true) END
"""
_LOCK: Final = """
SELECT name FROM unnest({}::text[]) AS name WHERE pg_try_advisory_xact_lock(hashtext({}), hashtext(name))
"""
_OTHER: Final = """
SELECT pid, host(client_addr), application_name FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND objsubid = 2
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid::bigint = hashtext(%s)::bigint & 4294967295
    AND objid::bigint = hashtext(%s)::bigint & 4294967295
"""


def full_name(dsn: str, table: str) -> str:
    """Return the name of a table with its schema, which is the same however the table is named.

    Args:
        dsn: A connection string.
        table: The name of the table, as `table` or `schema.table`.
    """
    with transaction(dsn, where(dsn, table), reads=True) as connection:
        return _full(connection, table)


def _full(connection: Connection, table: str) -> str:
    if "." in table:
        return table
    text = identifier(table).as_string(connection)
    [(schema,)] = connection.execute(_SCHEMA, (text,)).fetchall()
    return f"{schema}.{table}"


@define
class _Held:
    connection: Connection
    names: set[str]
    stack: ExitStack


class TableLocks:
    """Locks on tables, which the server removes when the job ends, however it ends.

    The tables of one connection string share a connection, because it is taken for as long as the job runs,
    and a server has a hundred of them. The locks are those of a transaction and not of a session, because a
    pooler keeps the session of a client that has gone. The transaction keeps no snapshot and no lock of a
    table, also none of the catalog, so it neither holds back VACUUM nor lets CREATE INDEX CONCURRENTLY or
    REINDEX wait: what reads tables is undone with a savepoint, and no statement has parameters, because the
    portal of one that has stays open with its snapshot. If its connection is lost, the position in the
    transaction of the rows still lets only one job write a table. Any thread may use this object.
    """

    def __init__(self) -> None:
        self._guard = Lock()
        self._held = dict[str, _Held]()

    def take(self, dsn: str, table: str) -> str:
        """Take the lock of a table.

        Args:
            dsn: A connection string.
            table: The name of the table, as `table` or `schema.table`.

        Returns:
            The name of the table with its schema, for `release`.

        Raises:
            MulticloudDbError: `CONFLICT` if another job has it, with the address of that one.
        """
        with self._guard, errors(where(dsn, table)):
            held = self._held.get(dsn)
            if held is None or not _answers(held.connection):
                held = self._open(dsn, set() if held is None else held.names)
            with held.connection.transaction(force_rollback=True):
                name = _full(held.connection, table)
            if name in held.names:
                raise _conflict(dsn, table, " of this process")
            if not _locked(held.connection, {name}):
                with held.connection.transaction(force_rollback=True):
                    other = held.connection.execute(_OTHER, (_CLASS, name)).fetchone()
                if not held.names:
                    self._close(dsn)
                raise _conflict(dsn, table, _who(other))
            held.names.add(name)
            return name

    def release(self, dsn: str, name: str) -> None:
        """Give a lock back, if this object has it; also if the connection was lost.

        Args:
            dsn: The connection string.
            name: What `take` has returned.
        """
        with self._guard, suppress(MulticloudDbError, psycopg.Error):
            held = self._held.get(dsn)
            if held is None or name not in held.names:
                return
            others = held.names - {name}
            self._close(dsn)
            if others:  # only the end of the transaction gives a lock back
                self._open(dsn, others)

    def _open(self, dsn: str, names: set[str]) -> _Held:
        """Open the connection of some locks; one that another job has taken meanwhile is not waited for."""
        with ExitStack() as stack:
            connection = stack.enter_context(connected(dsn))
            stack.enter_context(connection.transaction())
            connection.execute(_NO_LIMITS)
            got = _locked(connection, names)
            held = self._held[dsn] = _Held(connection, got, stack.pop_all())
        return held

    def _close(self, dsn: str) -> None:
        with suppress(psycopg.Error):  # the server has removed the locks with the connection
            self._held.pop(dsn).stack.close()


def _locked(connection: Connection, names: set[str]) -> set[str]:
    """Return the names whose locks were free, and belong to this transaction now."""
    statement = sql.SQL(_LOCK).format(list(names), _CLASS)
    return {name for (name,) in connection.execute(statement).fetchall()}


def _answers(connection: Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True


def _who(other: tuple[int, str | None, str | None] | None) -> str:
    if other is None:
        return ""
    pid, address, application = other
    # A user without pg_read_all_stats sees neither address nor name of another user.
    at = "" if application is None else f" from {address or 'the machine of the server'}"
    name = f" ({application})" if application else ""
    return f"{at}{name}, process {pid} of the server,"


def _conflict(dsn: str, table: str, who: str) -> MulticloudDbError:
    return MulticloudDbError(
        f"table: another mirror{who} writes {where(dsn, table)}; let one process write the table, and start "
        "this one again when the other has ended",
        ErrorDetail(ErrorCategory.CONFLICT, reason=ErrorReason.OTHER_WRITER),
    )
