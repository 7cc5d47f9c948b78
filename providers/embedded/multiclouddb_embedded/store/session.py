"""Manages a store's connection, which its threads share.

The connection is closed before a fork and opened again after it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from multiclouddb_api import invalid_request
from multiclouddb_api.validators import check_type, to_utc, type_name
from multiclouddb_embedded.errors import store_errors
from multiclouddb_embedded.mapping import to_micros
from multiclouddb_embedded.store.collection import find_collection
from multiclouddb_embedded.store.connection import connect
from multiclouddb_embedded.store.forking import Holder, inherited, using_sqlite
from multiclouddb_embedded.store.log import Moment, write_transaction
from multiclouddb_embedded.store.schema import check_store, create_store

_WAL_BYTES: Final = 64 * 1024 * 1024


class Session(Holder):
    """The only connection that a store uses for writing."""

    def __init__(
        self, path: str, clock: Callable[[], datetime] | None, *, durable: bool, busy_seconds: float
    ) -> None:
        if clock is not None and not callable(clock):
            raise invalid_request("clock", f"must be a function, not {type_name(clock)}", "pass datetime.now")
        check_type("durable", durable, bool)
        check_type("busy_seconds", busy_seconds, int, float)
        self.path = path
        self.closed = False
        self._clock = clock or (lambda: datetime.now(UTC))
        self._durable, self._busy_seconds = durable, busy_seconds
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        super().__init__()
        with using_sqlite(), store_errors("open", self.path):
            self._connection = self._open(create=True)

    def now(self) -> datetime:
        """Return the clock's time in UTC."""
        return to_utc("clock", self._clock())

    @contextmanager
    def reading(self, operation: str) -> Iterator[sqlite3.Connection]:
        """Provide the connection outside a transaction; failures are raised as `MulticloudDbError`."""
        self.check_open()
        with using_sqlite(), self._lock, store_errors(operation, self.path):
            self.check_open()
            if self._connection is None:
                self._connection = self._open(create=False)
            yield self._connection

    @contextmanager
    def writing(self, operation: str) -> Iterator[tuple[sqlite3.Connection, Moment]]:
        """Provide the connection inside a write transaction, which is committed at the end of the block."""
        now = to_micros(self.now())
        with self.reading(operation) as connection, write_transaction(connection, now) as moment:
            yield connection, moment

    def check_open(self) -> None:
        """Refuse to continue after `close`."""
        if self.closed:
            raise invalid_request("EmbeddedStore", "is closed", "open the file again: EmbeddedStore(path)")

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        with using_sqlite(), self._lock:
            self.closed = True
            self._drop()

    def let_go(self) -> None:
        """Close the connection, unless a transaction is open. The next call opens a new connection."""
        if self._lock.acquire(blocking=False):
            try:
                if self._connection is not None and not self._connection.in_transaction:
                    self._drop()
            finally:
                self._lock.release()

    def begin_anew(self) -> list[object]:
        """Make a new lock, and drop the connection."""
        self._lock = threading.RLock()
        connection, self._connection = self._connection, None
        return [connection]

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self, *, create: bool) -> sqlite3.Connection:
        connection = connect(self.path, create=create, busy_seconds=self._busy_seconds)
        try:
            if create:
                create_store(connection, self.path, self._busy_seconds)
            else:
                check_store(connection, self.path)
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
            # Without this setting, macOS leaves synced data in the disk's own cache.
            connection.execute(f"PRAGMA fullfsync = {int(self._durable)}")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        except BaseException:
            connection.close()
            raise
        return connection


_ROWS: Final = 500
_KEPT_CHARACTERS: Final = 256 * 1024 * 1024

Row = tuple[str, str]
"""The key and the document, both as JSON."""


class Scan(Holder):
    """A cursor over the documents."""

    # If the process forks during the scan, the remaining rows are first read into memory.

    def __init__(self, path: str, database: str, collection: str) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._path, self._lost = path, False
        self._kept: list[list[Row]] = []
        with using_sqlite():
            self._connection: sqlite3.Connection | None = connect(path)
            try:
                self._connection.execute("BEGIN")
                found = find_collection(self._connection, database, collection)
                self._cursor = self._connection.execute(
                    "SELECT key, doc FROM documents WHERE collection = ? ORDER BY id", (found.id,)
                )
            except BaseException:
                self._connection.close()
                raise
        self.partition_components = found.partition_components

    def fetch(self) -> list[Row]:
        """Return the next rows; an empty list at the end."""
        with using_sqlite(), self._lock:
            if self._kept:
                return self._kept.pop(0)
            if self._lost:
                raise inherited(self._path)
            return self._cursor.fetchmany(_ROWS) if self._connection is not None else []

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        with using_sqlite(), self._lock:
            self._drop()

    def let_go(self) -> None:
        """Read the remaining rows and close the connection, unless there are too many rows."""
        if self._connection is None or not self._lock.acquire(blocking=False):
            return
        try:
            size = sum(len(key) + len(doc) for part in self._kept for key, doc in part)
            while size <= _KEPT_CHARACTERS:
                part = self._cursor.fetchmany(_ROWS)
                if not part:
                    self._drop()
                    return
                self._kept.append(part)
                size += sum(len(key) + len(doc) for key, doc in part)
        finally:
            self._lock.release()

    def begin_anew(self) -> list[object]:
        """After a fork without `let_go`, keep only the rows that are already in memory."""
        self._lock = threading.RLock()
        if self._connection is None:
            return []
        kept: list[object] = [self._connection, self._cursor]
        self._connection, self._lost = None, True
        return kept

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
