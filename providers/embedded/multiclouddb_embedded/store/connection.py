"""Connections to the file: how they are opened and shared, and how a change of the file is noticed."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias
from urllib.parse import quote

from multiclouddb_api import ErrorCategory
from multiclouddb_spi import Deadline, Fault, ProviderFault

__all__ = ["ConnectionPool", "Monitor", "Version", "connect", "snapshot"]

_READ_BUSY_SECONDS: Final = 0.8
_READ_CACHE_KIB: Final = 4096

Version: TypeAlias = tuple[int, int, int]
"""Device and inode of the file, and SQLite's counter of commits."""


def connect(
    path: str, *, create: bool = False, busy_seconds: float = _READ_BUSY_SECONDS
) -> sqlite3.Connection:
    """A connection in autocommit mode, for one thread at a time, whichever.

    Args:
        path: The file, absolute.
        create: True to make an empty file when there is none.
        busy_seconds: How long to wait for a lock. In WAL mode readers hardly ever wait; a waiting
            connection cannot be interrupted, hence the short default.

    Raises:
        sqlite3.OperationalError: The file is missing, and `create` is not set.
    """
    return sqlite3.connect(
        f"file:{quote(path)}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
    )


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything read inside is of one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _file_identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


class ConnectionPool:
    """Read connections of one provider, at most `size` at a time.

    A file that was deleted and made anew is noticed when a connection is borrowed.

    Args:
        path: The store.
        size: Bound on open connections; a further borrower waits.
        check: Refuses a file that is no store; called once a connection.
    """

    def __init__(self, path: str, size: int, check: Callable[[sqlite3.Connection, str], None]) -> None:
        self._path, self._check = path, check
        self._slots = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._identity: tuple[int, int] | None = None
        self._idle: list[sqlite3.Connection] = []
        self._used: dict[sqlite3.Connection, tuple[int, int]] = {}
        self.closed = False

    def __len__(self) -> int:
        """How many connections are open."""
        return len(self._idle) + len(self._used)

    @contextmanager
    def borrow(self, deadline: Deadline) -> Iterator[sqlite3.Connection]:
        """One connection to the file that is there now.

        Raises:
            ProviderFault: `TRANSIENT_FAILURE` when the pool is closed, or none got free in time.
            FileNotFoundError: The file is gone.
        """
        if not self._slots.acquire(timeout=deadline.remaining()):
            raise _busy()
        try:
            connection = self._take()
            sound = False
            try:
                yield connection
                sound = True
            finally:
                self._give_back(connection, sound=sound)
        finally:
            self._slots.release()

    def close(self) -> None:
        """Interrupt what runs and close everything; idempotent, any thread."""
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
            for connection in self._used:
                connection.interrupt()
        for connection in idle:
            connection.close()

    def _take(self) -> sqlite3.Connection:
        identity = _file_identity(self._path)
        stale: list[sqlite3.Connection] = []
        with self._lock:
            if self.closed:
                raise _closed()
            if identity != self._identity:
                self._identity, stale, self._idle = identity, self._idle, []
            connection = self._idle.pop() if self._idle else None
            if connection is not None:
                self._used[connection] = identity
        for old in stale:
            old.close()
        return connection or self._open(identity)

    def _open(self, identity: tuple[int, int]) -> sqlite3.Connection:
        connection = _read_connection(self._path, self._check)
        with self._lock:
            self._used[connection] = identity
        return connection

    def _give_back(self, connection: sqlite3.Connection, *, sound: bool) -> None:
        with self._lock:
            keep = self._used.pop(connection) == self._identity and sound and not self.closed
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()


class Monitor:
    """Tells whether anything was committed; one connection for all readers of a provider.

    Args:
        path: The store.
        check: Refuses a file that is no store.
    """

    def __init__(self, path: str, check: Callable[[sqlite3.Connection, str], None]) -> None:
        self._path, self._check = path, check
        self._lock = threading.Lock()
        self._identity: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    def version(self) -> Version:
        """Another value after every commit of any process; costs a few microseconds.

        Raises:
            FileNotFoundError: The file is gone.
        """
        identity = _file_identity(self._path)
        with self._lock:
            if self._closed:
                raise _closed()
            if self._connection is None or identity != self._identity:
                self._drop()
                self._connection, self._identity = _read_connection(self._path, self._check), identity
            (count,) = self._connection.execute("PRAGMA data_version").fetchone()
        return (*identity, count)

    def close(self) -> None:
        """Close the connection; idempotent, any thread."""
        with self._lock:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _read_connection(path: str, check: Callable[[sqlite3.Connection, str], None]) -> sqlite3.Connection:
    connection = connect(path)
    try:
        check(connection, path)
        connection.execute("PRAGMA query_only = 1")
        connection.execute(f"PRAGMA cache_size = -{_READ_CACHE_KIB}")
    except BaseException:
        connection.close()
        raise
    return connection


def _busy() -> ProviderFault:
    return ProviderFault(
        Fault(
            ErrorCategory.TRANSIENT_FAILURE,
            "every connection to the store was in use until the deadline; try again, or give more time",
            retryable=True,
        )
    )


def _closed() -> ProviderFault:
    return ProviderFault(
        Fault(
            ErrorCategory.TRANSIENT_FAILURE, "the provider was closed; connect again and go on from the token"
        )
    )
