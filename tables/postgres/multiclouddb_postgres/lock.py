"""Lets one job at a time write a table, and finds the one name of a table."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Final

import psycopg

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_postgres.server import Connection, connected, errors, transaction, where
from multiclouddb_postgres.table import identifier

_CLASS: Final = "multiclouddb mirror"
_SCHEMA: Final = """
SELECT coalesce(
    (SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
     WHERE pg_class.oid = to_regclass(%s)), current_schema(), '')
"""
_NO_LIMITS: Final = """
SELECT set_config(name, '0', true) FROM pg_settings
WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')
"""
_LOCK: Final = "SELECT pg_try_advisory_xact_lock(hashtext(%s), hashtext(%s))"
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


class TableLock:
    """A lock that the server removes when the job ends, however it ends.

    It is one of a transaction and not of a session, because a pooler keeps the session of a client that has
    gone. The transaction has no snapshot, so it does not hold back VACUUM. If its connection is lost, the
    position in the transaction of the rows still lets only one job write.

    Args:
        dsn: A connection string.
        table: The name of the table, as `table` or `schema.table`.
    """

    def __init__(self, dsn: str, table: str) -> None:
        self._dsn, self._table, self._where = dsn, table, where(dsn, table)
        self._held = ExitStack()

    def take(self) -> None:
        """Take the lock.

        Raises:
            MulticloudDbError: `CONFLICT` if another job has it, with the address of that one.
        """
        with errors(self._where), ExitStack() as held:
            connection = held.enter_context(connected(self._dsn))
            held.enter_context(connection.transaction())
            connection.execute(_NO_LIMITS)
            names = (_CLASS, _full(connection, self._table))
            [(is_ours,)] = connection.execute(_LOCK, names).fetchall()
            if not is_ours:
                raise self._conflict(connection.execute(_OTHER, names).fetchone())
            self._held = held.pop_all()

    def _conflict(self, other: tuple[int, str | None, str | None] | None) -> MulticloudDbError:
        who = ""
        if other is not None:
            pid, address, application = other
            # A user without pg_read_all_stats sees neither address nor name of another user.
            at = "" if application is None else f" from {address or 'the machine of the server'}"
            name = f" ({application})" if application else ""
            who = f"{at}{name}, process {pid} of the server,"
        return MulticloudDbError(
            f"table: another mirror{who} writes {self._where}; let one process write the table, and start "
            "this one again when the other has ended",
            ErrorDetail(ErrorCategory.CONFLICT),
        )

    def release(self) -> None:
        """Give the lock back, if this object has it; also if the connection was lost."""
        held, self._held = self._held, ExitStack()
        with suppress(psycopg.Error):  # the server has removed the lock with the connection
            held.close()
