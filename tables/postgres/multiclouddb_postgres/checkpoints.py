"""Stores checkpoints in a table of PostgreSQL."""

from __future__ import annotations

import hashlib
from typing import Final

from psycopg import sql

from multiclouddb_api import (
    Checkpoint,
    ErrorReason,
    invalid_request,
)
from multiclouddb_api.checkpoint import MOST_BYTES, check_name, conflict, next_version
from multiclouddb_api.validators import check_type
from multiclouddb_postgres.server import (
    Connection,
    check_dsn,
    has_ours,
    has_password,
    repeated,
    secret_dsn,
    where,
)

CHECKPOINTS: Final = "multiclouddb_checkpoints"
"""The table with the checkpoints, in the first schema of the user's `search_path`."""
_CREATE: Final = f"""
CREATE TABLE IF NOT EXISTS {CHECKPOINTS} (
    name text COLLATE "C" PRIMARY KEY, version text NOT NULL, token text NOT NULL, sha256 text NOT NULL,
    saved_at timestamptz NOT NULL DEFAULT now()
)"""


_SCHEMA: Final = """
SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_MAY_READ: Final = """
SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""


class PostgresCheckpointStore:
    """Keeps checkpoints by name in the table `multiclouddb_checkpoints`; it implements `CheckpointStore`.

    Workers on several machines can share it. Each call is a transaction on a connection of its own;
    `merge_into_postgres(…, checkpoint_name=…)` writes the same table in the transaction of the rows.

    Args:
        dsn: A connection string, such as `postgresql://user@host/database`. The first `save` needs CREATE on
            the schema.
    """

    def __init__(self, dsn: str) -> None:
        dsn = secret_dsn(dsn)
        check_type("dsn", dsn, str)
        check_dsn(dsn)
        self._dsn, self._where = dsn, where(dsn, CHECKPOINTS)

    def load(self, name: str) -> Checkpoint | None:
        """Return the checkpoint, or None if no checkpoint has this name.

        Args:
            name: The name of the checkpoint.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the checkpoint was changed by something else than a store;
                `TRANSIENT_FAILURE` if the server cannot be reached.
        """
        check_name(name)
        return repeated(self._dsn, self._where, lambda connection: loaded(connection, self._where, name))

    def save(self, name: str, token: str, expected: str | None) -> Checkpoint:
        """Replace the checkpoint if it still has the expected version.

        When the call returns, the new checkpoint is as durable as a commit of the server.

        Args:
            name: The name of the checkpoint.
            token: The token to keep.
            expected: The version that `load` or the last `save` returned; None if there must be no
                checkpoint with this name yet.

        Raises:
            MulticloudDbError: `CONFLICT` if another worker has written the checkpoint; `TRANSIENT_FAILURE` if
                the server cannot be reached: then load the checkpoint again, because it may have been saved.
        """
        check_name(name)
        check_type("expected", expected, str, type(None))
        Checkpoint(token, "1")  # refuses a token that no checkpoint may contain, before the server is asked
        return repeated(
            self._dsn, self._where, lambda connection: saved(connection, self._where, name, token, expected)
        )

    def delete(self, name: str) -> bool:
        """Delete a checkpoint, even a damaged one; return False if there is none.

        Args:
            name: The name of the checkpoint.

        Raises:
            MulticloudDbError: `TRANSIENT_FAILURE` if the server cannot be reached.
        """
        check_name(name)
        delete = f"DELETE FROM {CHECKPOINTS} WHERE name = %s"
        return repeated(
            self._dsn,
            self._where,
            lambda connection: (
                has_ours(connection, CHECKPOINTS) and connection.execute(delete, (name,)).rowcount > 0
            ),
        )

    def __repr__(self) -> str:
        return f"PostgresCheckpointStore({self._where!r})"


def store_at(url: str) -> PostgresCheckpointStore:
    """Open the store that a URL names, for `open_checkpoint_store`."""
    url = secret_dsn(url)
    if has_password(url):
        raise invalid_request(
            "checkpoint_store", "has a password", "leave it to PGPASSWORD or ~/.pgpass: URLs end up in logs"
        )
    return PostgresCheckpointStore(url)


def stored_token(connection: Connection, name: str, schema: str | None = None) -> str | None:
    """Return the token of a checkpoint, or None if there is none.

    Args:
        connection: The connection.
        name: The name of the checkpoint.
        schema: The schema of its table. With None, or if no table is there now, the `search_path` decides.
    """
    if schema is not None and connection.execute(_MAY_READ, (schema, CHECKPOINTS)).fetchone() is None:
        schema = None
    found = loaded(connection, CHECKPOINTS, name, schema=schema)
    return None if found is None else found.token


def current_schema(connection: Connection) -> str | None:
    """Return the schema with the table of checkpoints to which the `search_path` leads; None if to none."""
    found = connection.execute(_SCHEMA, (CHECKPOINTS,)).fetchone()
    return None if found is None else str(found[0])


def is_kept_in(connection: Connection, schema: str, name: str) -> bool:
    """Return whether a checkpoint is in another schema, or may be there where this user cannot look."""
    found = connection.execute(_MAY_READ, (schema, CHECKPOINTS)).fetchone()
    if found is None:
        return False
    [may_read] = found
    return not may_read or stored_token(connection, name, schema) is not None


def loaded(
    connection: Connection, place: str, name: str, *, locks: bool = False, schema: str | None = None
) -> Checkpoint | None:
    """Return a checkpoint, in a transaction of the caller."""
    table = sql.Identifier(CHECKPOINTS) if schema is None else sql.Identifier(schema, CHECKPOINTS)
    if not has_ours(connection, table.as_string(connection)):
        return None
    query = sql.SQL("SELECT version, substr(token, 1, %s), sha256 FROM {} WHERE name = %s {}").format(
        table, sql.SQL("FOR UPDATE" if locks else "")
    )
    row = connection.execute(query, (MOST_BYTES + 1, name)).fetchone()
    if row is None:
        return None
    version, token, checksum = row
    if len(token) > MOST_BYTES:
        raise invalid_request(
            f"checkpoint {name!r}",
            f"in {place} has more than {MOST_BYTES >> 20} MiB",
            f"restore it from a backup, or call delete({name!r}) to begin again at the request's "
            "start_position",
            ErrorReason.MALFORMED,
        )
    if checksum != _checksum(name, version, token):
        raise invalid_request(
            f"checkpoint {name!r}",
            f"in {place} does not match its checksum: it was changed or damaged",
            f"restore it from a backup, or call delete({name!r}) to begin again at the request's "
            "start_position",
            ErrorReason.MALFORMED,
        )
    return Checkpoint(token, version)


def saved(connection: Connection, place: str, name: str, token: str, expected: str | None) -> Checkpoint:
    """Replace a checkpoint, in a transaction of the caller."""
    if not has_ours(connection, CHECKPOINTS):
        # Of two workers that create the table at the same time, the second waits for the first.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (CHECKPOINTS,))
        connection.execute(_CREATE)
    found = loaded(connection, place, name, locks=True)
    if (None if found is None else found.version) != expected:
        raise conflict(place, name, expected, found)
    made = Checkpoint(token, next_version(found))
    row = (made.version, token, _checksum(name, made.version, token), name)
    if found is None:
        insert = (
            "INSERT INTO {} (version, token, sha256, name) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
        )
        query = sql.SQL(insert)
    else:
        query = sql.SQL(
            "UPDATE {} SET version = %s, token = %s, sha256 = %s, saved_at = now() WHERE name = %s"
        )
    if not connection.execute(query.format(sql.Identifier(CHECKPOINTS)), row).rowcount:
        raise conflict(place, name, expected, loaded(connection, place, name))
    return made


def _checksum(name: str, version: str, token: str) -> str:
    return hashlib.sha256("\n".join((name, version, token)).encode()).hexdigest()
