"""Opens and shares connections to the file, and detects that the file was replaced."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Final, TypeAlias
from urllib.parse import quote

from multiclouddb_api import ErrorCategory
from multiclouddb_embedded.store.forking import Holder, Identity, check_inherited, file_identity, using_sqlite
from multiclouddb_spi import ProviderFault, cancelled

_READ_BUSY_SECONDS: Final = 0.8
AT_ONCE_SECONDS: Final = 0.05
"""How long a read may take in the thread of the caller."""
_STEPS: Final = 10_000  # some tenths of a millisecond
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


@contextmanager
def hurried(connection: sqlite3.Connection, until: float) -> Iterator[None]:
    """Inside the block, let a statement fail that waits for a lock or runs after `until` (monotonic)."""
    # SQLite calls the handler during a statement. It must not run Python's bytecode: there, a signal handler
    # could raise, for example KeyboardInterrupt, and SQLite's wrapper would swallow the exception.
    late = map(until.__lt__, iter(time.monotonic, None)).__next__
    connection.execute("PRAGMA busy_timeout = 0")
    connection.set_progress_handler(late, _STEPS)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)
        connection.execute(f"PRAGMA busy_timeout = {_READ_BUSY_SECONDS * 1000:.0f}")


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
        self.is_slow = False  # a read in the thread of a caller took too long
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
    def borrow(self, until: float, *, hurry: bool = False) -> Iterator[sqlite3.Connection]:
        """Lend a connection to the file that has this path now; wait for a free one until `until`.

        With `hurry`, it waits for no lock, and its statements fail at this time.
        """
        slots = self._slots
        if not slots.acquire(timeout=max(0.0, until - time.monotonic())):
            raise ProviderFault.of(
                ErrorCategory.TRANSIENT_FAILURE,
                "every connection to the store was in use until the deadline; try again, or give more time",
                retryable=True,
            )
        try:
            with using_sqlite():
                connection = self._take(hurry=hurry)
                sound = False
                try:
                    with hurried(connection, until) if hurry else nullcontext():
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
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            return
        idle, self._idle = self._idle, []
        self._lock.release()
        for connection in idle:
            connection.close()

    def interrupted(self) -> None:
        """Use no connection and no lock again; a statement of another thread ends."""
        idle, used = self._idle, list(self._used)
        self.begin_anew()
        for connection in used:
            connection.interrupt()
        for connection in idle:
            connection.close()

    def begin_anew(self) -> list[object]:
        self._slots = threading.BoundedSemaphore(self._size)
        self._lock = threading.Lock()
        kept: list[object] = [*self._used, *self._idle]
        self._used, self._idle = {}, []
        return kept

    def _take(self, *, hurry: bool) -> sqlite3.Connection:
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
        return connection or self._open(identity, hurry=hurry)

    def _open(self, identity: Identity, *, hurry: bool) -> sqlite3.Connection:
        connection = _read_connection(self._path, self._check, hurry=hurry)
        with self._lock:
            self._used[connection] = identity
        return connection

    def _give_back(self, connection: sqlite3.Connection, *, sound: bool) -> None:
        with self._lock:
            keep = self._used.pop(connection, None) == self._identity and sound and not self.closed
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()


class SingleConnection(Holder):
    """Keeps one connection open between calls."""

    # A lock that is not reentrant also keeps the fork of a signal handler from closing the connection.
    new_lock: ClassVar[Callable[[], Any]] = threading.RLock

    def __init__(self) -> None:
        self.closed = False
        self._connection: sqlite3.Connection | None = None
        self.begin_anew()
        super().__init__()

    def close(self) -> None:
        """Close the connection. Any thread may call this method, even twice."""
        with using_sqlite(), self._lock:
            self.closed = True
            self._drop()

    def let_go(self) -> None:
        """Close the connection, unless it is in use; the next call opens it again."""
        if self._lock.acquire(blocking=False):
            try:
                if self._connection is not None and not self._connection.in_transaction:
                    self._drop()
            finally:
                self._lock.release()

    def interrupted(self) -> None:
        """Use neither the connection nor the lock again; what a thread is using closes after its last use."""
        connection, lock = self._connection, self._lock
        self.begin_anew()
        if connection is not None and lock.acquire(blocking=False):
            connection.close()

    def begin_anew(self) -> list[object]:
        self._lock = type(self).new_lock()
        connection, self._connection = self._connection, None
        return [connection]

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Monitor(SingleConnection):
    """Reports whether any process has committed."""

    new_lock = threading.Lock

    def __init__(self, path: str, check: Callable[[sqlite3.Connection, str], None]) -> None:
        self._path, self._check = path, check
        self._identity: Identity | None = None
        self._opened = 0
        super().__init__()

    def version(self, until: float | None = None) -> Version:
        """Return a value that changes after every commit of any process; this costs a few microseconds.

        With `until`, the call waits for no lock, and fails after this time (monotonic).
        """
        identity = file_identity(self._path)
        with using_sqlite(), _held(self._lock, until):
            if self.closed:
                raise _closed()
            if self._connection is None or identity != self._identity:
                self._drop()
                self._connection = _read_connection(self._path, self._check, hurry=until is not None)
                self._identity = identity
                self._opened += 1
            with nullcontext() if until is None else hurried(self._connection, until):
                (count,) = self._connection.execute("PRAGMA data_version").fetchone()
            return identity, self._opened, count


@contextmanager
def _held(lock: threading.Lock, until: float | None) -> Iterator[None]:
    if not lock.acquire(timeout=-1 if until is None else max(0.0, until - time.monotonic())):
        raise TimeoutError("another thread asks whether the file has changed")
    try:
        yield
    finally:
        lock.release()


def _read_connection(
    path: str, check: Callable[[sqlite3.Connection, str], None], *, hurry: bool = False
) -> sqlite3.Connection:
    connection = connect(path, busy_seconds=0 if hurry else _READ_BUSY_SECONDS)
    try:
        check(connection, path)
        connection.execute("PRAGMA query_only = 1")
        connection.execute(f"PRAGMA cache_size = -{_READ_CACHE_KIB}")
    except BaseException:  # whatever ends it: nobody else can close the connection
        connection.close()
        raise
    return connection


def _closed() -> ProviderFault:
    return ProviderFault.of(
        ErrorCategory.TRANSIENT_FAILURE, "the provider was closed; connect again and continue from the token"
    )


SCHEMA_VERSION: Final = 1
_APPLICATION_ID: Final = 0x6D636462  # "mcdb"

# The page size is larger than SQLite's default of 4 KiB. With this size, scans take a third less time per
# row, and documents of up to 4 KB are stored in their row.
_PAGE_BYTES: Final = 16384

_TABLES: Final = """
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    version INTEGER NOT NULL,
    head_seq INTEGER NOT NULL,            -- the last change, split or merge
    head_ts INTEGER NOT NULL              -- the last commit, in microseconds since 1970; never goes back
);
CREATE TABLE collections (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    database TEXT NOT NULL,
    name TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    images TEXT NOT NULL,
    partition_key TEXT,                   -- names of components, as JSON; null = the first, whatever its name
    retention INTEGER,                    -- microseconds, or null
    created_seq INTEGER NOT NULL,
    trimmed INTEGER NOT NULL DEFAULT 0,   -- the highest seq that was removed
    partitions INTEGER NOT NULL DEFAULT 0, -- how many it ever had
    UNIQUE (database, name)
);
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    collection INTEGER NOT NULL,
    name TEXT NOT NULL,
    low INTEGER NOT NULL,                 -- hashes in [low, high)
    high INTEGER NOT NULL,
    parents TEXT NOT NULL,                -- names as JSON
    children TEXT NOT NULL DEFAULT '[]',
    start_seq INTEGER NOT NULL,           -- holds changes in (start_seq, end_seq]
    start_ts INTEGER NOT NULL,
    end_seq INTEGER,
    end_ts INTEGER,
    last_seq INTEGER NOT NULL,            -- its last change, or start_seq
    written INTEGER NOT NULL DEFAULT 0,   -- changes ever
    volume INTEGER NOT NULL DEFAULT 0,    -- bytes ever
    removed INTEGER NOT NULL DEFAULT 0,   -- changes removed by trim
    trimmed INTEGER NOT NULL DEFAULT 0,   -- the highest seq that was removed
    UNIQUE (collection, name)
);
CREATE UNIQUE INDEX partitions_open ON partitions (collection, low) WHERE end_seq IS NULL;
CREATE TABLE log (
    partition INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    ts INTEGER NOT NULL,
    type INTEGER NOT NULL,                -- 0 create, 1 update, 2 delete
    hash INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,             -- counts the partition's changes from 1
    volume INTEGER NOT NULL,              -- bytes of the partition up to and with this change
    size INTEGER NOT NULL,
    key TEXT NOT NULL,
    doc TEXT,
    old TEXT,
    PRIMARY KEY (partition, seq)
) WITHOUT ROWID;
CREATE INDEX log_hash ON log (partition, hash);
CREATE TABLE documents (
    collection INTEGER NOT NULL,
    id BLOB NOT NULL,                     -- the key's canonical JSON
    key TEXT NOT NULL,
    doc TEXT NOT NULL,
    PRIMARY KEY (collection, id)
) WITHOUT ROWID;
CREATE TABLE commits (
    ts INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL                  -- the last change committed then
);
"""


def create_store(connection: sqlite3.Connection, path: str, patience: float) -> None:
    """Create the tables in an empty file."""
    # If the file is already a store, do nothing. Several processes may call this function at the same time.
    if not _is_empty(connection, path):
        check_store(connection, path)
        return
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    enter_wal_mode(connection, patience)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_empty(connection, path):
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            for statement in _TABLES.split(";\n"):
                connection.execute(statement)
            connection.execute("INSERT INTO store VALUES (1, ?, 0, 0)", (SCHEMA_VERSION,))
        connection.execute("COMMIT")
    except BaseException:  # whatever ends it: others wait for the end of the transaction
        connection.execute("ROLLBACK")
        raise
    check_store(connection, path)


def check_store(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a file that is not a store, has several names, or is a store in a later format version."""
    if os.stat(path).st_nlink > 1:
        # SQLite has a log of commits for each name: what one has committed, the other one overwrites.
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"the file {path} has several names (hard links), each with a log of commits of its own, so that "
            "changes would be lost; copy the file in place of a link to it",
        )
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != _APPLICATION_ID:
        if _is_empty(connection, path):
            raise ProviderFault.of(
                ErrorCategory.NOT_FOUND,
                f"the file {path} is empty; EmbeddedStore(path) turns it into a store",
            )
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"the file {path} contains other data and is not an embedded store; name another file",
        )
    (version,) = connection.execute("SELECT version FROM store").fetchone()
    if version > SCHEMA_VERSION:
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"the store {path} has schema version {version}, but this multiclouddb supports "
            f"{SCHEMA_VERSION}; run: pip install --upgrade multiclouddb",
        )


def _is_empty(connection: sqlite3.Connection, path: str) -> bool:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    # SQLite mistakes a file of one byte for an empty file and would overwrite it.
    return bool(tables == 0) and os.stat(path).st_size != 1


def enter_wal_mode(connection: sqlite3.Connection, patience: float) -> None:
    """Switch to WAL mode, in which readers and a writer can work at the same time."""
    # If several processes switch to WAL mode at the same time, SQLite may give up at once, despite its busy
    # timeout. Therefore this function retries.
    until = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(0.005)
        else:
            return
