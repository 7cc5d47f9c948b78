"""Opens and shares connections to the file, and detects that the file was replaced."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias
from urllib.parse import quote

from multiclouddb_api import ErrorCategory
from multiclouddb_embedded.store.forking import Holder, Identity, check_inherited, file_identity, using_sqlite
from multiclouddb_spi import Deadline, ProviderFault, cancelled

_READ_BUSY_SECONDS: Final = 0.8
_READ_CACHE_KIB: Final = 4096
# The lock is held only for microseconds, but a signal handler that forks may have interrupted the thread that
# holds the lock.
_LOCK_SECONDS: Final = 1.0

Version: TypeAlias = tuple[Identity, int, int]
"""The identity of the file, the connection that was queried, and SQLite's counter of commits on this
connection."""


def connect(
    path: str, *, create: bool = False, busy_seconds: float = _READ_BUSY_SECONDS
) -> sqlite3.Connection:
    """Open a connection in autocommit mode."""
    # Only one thread at a time may use the connection.
    check_inherited(path)
    return sqlite3.connect(
        f"file:{quote(path)}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
    )


class Interrupt:
    """Ends the statement that a reader is running. Any thread may use this object."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def cancel(self) -> None:
        """End the running statement, and prevent every later statement."""
        self.cancelled.set()
        with self._lock:
            if self._connection is not None:
                self._connection.interrupt()

    @contextmanager
    def covers(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Inside the block, allow another thread to end the statements of this connection."""
        with self._lock:
            if self.cancelled.is_set():
                raise cancelled()
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Make all reads inside the block see the same state."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class ConnectionPool(Holder):
    """Provides read connections of one provider, at most `size` at a time."""

    def __init__(self, path: str, size: int, check: Callable[[sqlite3.Connection, str], None]) -> None:
        self._path, self._size, self._check = path, size, check
        self._identity: Identity | None = None
        self._idle: list[sqlite3.Connection] = []
        self._used: dict[sqlite3.Connection, Identity] = {}
        self.closed = False
        self.begin_anew()
        super().__init__()

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._idle) + len(self._used)

    @contextmanager
    def borrow(self, deadline: Deadline) -> Iterator[sqlite3.Connection]:
        """Provide a connection to the file that now has this path."""
        if not self._slots.acquire(timeout=deadline.remaining()):
            raise ProviderFault.of(
                ErrorCategory.TRANSIENT_FAILURE,
                "every connection to the store was in use until the deadline; try again, or give more time",
                retryable=True,
            )
        slots = self._slots
        try:
            with using_sqlite():
                connection = self._take()
                sound = False
                try:
                    yield connection
                    sound = True
                finally:
                    self._give_back(connection, sound=sound)
        finally:
            slots.release()

    def close(self) -> None:
        """Interrupt running statements and close every connection."""
        # Any thread may call this method, even twice.
        with self._lock:
            self.closed = True
            for connection in self._used:
                connection.interrupt()
        with using_sqlite():
            self.let_go()

    def let_go(self) -> None:
        """Close idle connections."""
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            return
        idle, self._idle = self._idle, []
        self._lock.release()
        for connection in idle:
            connection.close()

    def begin_anew(self) -> list[object]:
        """Make new locks, and drop all connections."""
        self._slots = threading.BoundedSemaphore(self._size)
        self._lock = threading.Lock()
        kept: list[object] = [*self._used, *self._idle]
        self._used, self._idle = {}, []
        return kept

    def _take(self) -> sqlite3.Connection:
        identity = file_identity(self._path)
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

    def _open(self, identity: Identity) -> sqlite3.Connection:
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


class Monitor(Holder):
    """Reports whether any process has committed."""

    def __init__(self, path: str, check: Callable[[sqlite3.Connection, str], None]) -> None:
        self._path, self._check = path, check
        self._identity: Identity | None = None
        self._connection: sqlite3.Connection | None = None
        self._opened = 0
        self._closed = False
        self.begin_anew()
        super().__init__()

    def version(self) -> Version:
        """Return a value that changes after every commit of any process; this costs a few microseconds."""
        identity = file_identity(self._path)
        with using_sqlite(), self._lock:
            if self._closed:
                raise _closed()
            if self._connection is None or identity != self._identity:
                self._drop()
                self._connection, self._identity = _read_connection(self._path, self._check), identity
                self._opened += 1
            (count,) = self._connection.execute("PRAGMA data_version").fetchone()
            return identity, self._opened, count

    def close(self) -> None:
        """Close the connection. Any thread may call this method, even twice."""
        with using_sqlite(), self._lock:
            self._closed = True
            self._drop()

    def let_go(self) -> None:
        """Close the connection; the next call opens it again."""
        if self._lock.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._lock.release()

    def begin_anew(self) -> list[object]:
        """Make a new lock, and drop the connection."""
        self._lock = threading.Lock()
        connection, self._connection = self._connection, None
        return [connection]

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


def _closed() -> ProviderFault:
    return ProviderFault.of(
        ErrorCategory.TRANSIENT_FAILURE, "the provider was closed; connect again and continue from the token"
    )
