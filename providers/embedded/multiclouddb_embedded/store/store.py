"""Implements the store, which creates collections, writes documents, and splits and merges partitions."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, NoReturn

import attrs
import orjson
from attrs import frozen

from multiclouddb_api import (
    ChangeType,
    ErrorCategory,
    MulticloudDbKey,
    ResourceAddress,
    decode_json,
    invalid_request,
)
from multiclouddb_api.validators import check_type, each_is, is_a, to_utc, type_name
from multiclouddb_embedded.config import check_path
from multiclouddb_embedded.errors import failure, store_errors
from multiclouddb_embedded.mapping import to_micros
from multiclouddb_embedded.store.collection import (
    MAIN,
    Images,
    add_partitions,
    check_shape,
    even_ranges,
    find_collection,
    make_room,
    native_id,
    open_partition,
    partition_rows,
    remove_collection,
)
from multiclouddb_embedded.store.connection import SingleConnection, check_store, connect, create_store
from multiclouddb_embedded.store.forking import inherited, using_sqlite
from multiclouddb_embedded.store.log import (
    Delete,
    Key,
    LogWriter,
    Moment,
    Operation,
    Put,
    check_bounds,
    count_bound,
    encode,
    seq_before,
    to_key,
    trim_log,
    write_transaction,
)

_WAL_BYTES: Final = 64 * 1024 * 1024


class WriteConnection(SingleConnection):
    """The only connection that a store uses for writing."""

    def __init__(
        self, path: str, clock: Callable[[], datetime] | None, *, durable: bool, busy_seconds: float
    ) -> None:
        if clock is not None and not callable(clock):
            raise invalid_request("clock", f"must be a function, not {type_name(clock)}", "pass datetime.now")
        check_type("durable", durable, bool)
        check_type("busy_seconds", busy_seconds, int, float)
        self.path = path
        self._clock = clock or (lambda: datetime.now(UTC))
        self._durable, self._busy_seconds = durable, busy_seconds
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
        with self.reading(operation) as connection, write_transaction(connection, self.now) as moment:
            yield connection, moment

    def check_open(self) -> None:
        """Refuse to continue after `close`."""
        if self.closed:
            raise invalid_request("EmbeddedStore", "is closed", "open the file again: EmbeddedStore(path)")

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
        except BaseException:  # whatever ends it: nobody else can close the connection
            connection.close()
            raise
        return connection


_ROWS: Final = 500
_KEPT_CHARACTERS: Final = 256 * 1024 * 1024

Row = tuple[str, str]
"""The key and the document, both as JSON."""


class DocumentCursor(SingleConnection):
    """A cursor over the documents."""

    # If the process forks during the scan, the remaining rows are first read into memory.

    def __init__(self, path: str, database: str, collection: str) -> None:
        self._path, self._lost = path, False
        self._kept: list[list[Row]] = []
        super().__init__()
        with using_sqlite():
            self._connection = connect(path)
            try:
                self._connection.execute("BEGIN")
                found = find_collection(self._connection, database, collection)
                self._cursor = self._connection.execute(
                    "SELECT key, doc FROM documents WHERE collection = ? ORDER BY id", (found.id,)
                )
            except BaseException:  # whatever ends it: nobody else can close the connection
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
        (connection,) = super().begin_anew()
        if connection is None:
            return []
        self._lost = True
        return [connection, self._cursor]


@frozen
class PartitionRange:
    """An open partition of a collection, with its range of hashes."""

    partition_id: str = attrs.field(validator=is_a(str))
    """The id of the partition in the collection, for example `p0`."""
    low: int = attrs.field(validator=is_a(int))
    """The first hash in the range."""
    high: int = attrs.field(validator=is_a(int))
    """The first hash after the range."""
    parents: tuple[str, ...] = attrs.field(validator=each_is(str))
    """The ids of the partitions that this partition replaced."""


class EmbeddedStore:
    """A document store with a change feed in one SQLite file, which is created if it does not exist.

    The store writes the file, and a client from `connect("embedded:///…")` reads the feed. Any number of
    stores, in any number of threads and processes, can have the same file open: writers wait for each other,
    and readers never wait.

    After a fork, both the parent and the child can use a store. For this, the fork waits up to ten seconds
    for calls in other threads. If one does not end in time, or if the application has an SQLite connection of
    its own to the file, calls in the child raise `INVALID_REQUEST`.

    Args:
        path: The path of the file; its folder must exist.
        clock: A function that returns the time of commits, for tests. If it goes back, the store's time
            stands still.
        durable: True, the default, to flush each commit to the disk. With False, about 30 times as many
            single writes a second are possible: a crash of the process still loses nothing, but one of the
            machine may lose the last commits, even if readers have seen them.
        busy_seconds: How many seconds a write waits for other writers before it fails as `TRANSIENT_FAILURE`.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the folder is missing or the file is not a store.

    Examples:
        >>> with EmbeddedStore("/tmp/store.db") as store:
        ...     address = store.create_collection("orders", recreate=True)
        ...     store.put("orders", "o-1", {"status": "new"})
        <ChangeType.CREATE: 'CREATE'>
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], datetime] | None = None,
        durable: bool = True,
        busy_seconds: float = 30.0,
    ) -> None:
        self._session = WriteConnection(
            check_path("path", path), clock, durable=durable, busy_seconds=busy_seconds
        )

    @property
    def path(self) -> str:
        """The absolute path of the file."""
        return self._session.path

    @property
    def closed(self) -> bool:
        """Return True if the store is closed."""
        return self._session.closed

    def now(self) -> datetime:
        """Return the time of this store's clock."""
        return self._session.now()

    def create_collection(
        self,
        name: str,
        partitions: int = 4,
        database: str = MAIN,
        *,
        images: Images = "new",
        partition_key: Sequence[str] | None = None,
        retention: timedelta | None = None,
        recreate: bool = False,
        exist_ok: bool = False,
    ) -> ResourceAddress:
        """Create a collection and return its address.

        Args:
            name: The name of the collection.
            partitions: The number of partitions at the start, `p0`, `p1` and so on; 4 by default.
            database: The database of the collection, which need not be created first; `main` by default.
            images: What the log keeps of a change: only `"keys"`, also the `"new"` document (the default), or
                `"new_and_old"`.
            partition_key: The names of the components that form the partition key, with which every key has
                to begin; None, the default, for the first component, whatever its name.
            retention: For how long `trim(name)` keeps changes if it gets no bound; None, the default, if it
                always needs one.
            recreate: True to drop a collection with the same name first, whose tokens are then refused.
            exist_ok: True to keep an existing collection with this name and everything in it, provided that
                its `images` and `partition_key` are the given ones.

        Raises:
            MulticloudDbError: `CONFLICT` if the collection exists, unless it is dropped or kept.
        """
        check_type("name", name, str)
        check_type("database", database, str)
        address = ResourceAddress(database, name)
        check_shape(address, partitions, images, partition_key, retention)
        names = orjson.dumps(list(partition_key)).decode() if partition_key is not None else None
        kept = retention // timedelta(microseconds=1) if retention is not None else None
        with self._session.writing("create_collection") as (connection, moment):
            if make_room(connection, address, images, names, recreate=recreate, exist_ok=exist_ok):
                return address
            added = connection.execute(
                "INSERT INTO collections (database, name, incarnation, images, partition_key, retention, "
                "created_seq) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (database, name, uuid.uuid4().hex, images, names, kept, moment.seq),
            )
            assert added.lastrowid is not None
            add_partitions(connection, added.lastrowid, even_ranges(partitions), (), moment.end)
        return address

    def drop_collection(self, name: str, database: str = MAIN) -> None:
        """Drop a collection with its documents and changes; its readers then get `NOT_FOUND`.

        Args:
            name: The name of the collection.
            database: The database of the collection; `main` by default.
        """
        check_type("name", name, str)
        with self._session.writing("drop_collection") as (connection, _):
            remove_collection(connection, find_collection(connection, database, name).id)

    def put(
        self, collection: str, key: Key, document: Mapping[str, Any], *, database: str = MAIN
    ) -> ChangeType:
        """Write one document, and return whether this was a `CREATE` or an `UPDATE`.

        Args:
            collection: The name of the collection.
            key: A `MulticloudDbKey`, its components by name, or one value for a component called `id`.
            document: The whole document, which replaces an existing one.
            database: The database that contains the collection; `main` by default.

        Raises:
            MulticloudDbError: `INVALID_REQUEST`, with nothing written, if a value has no JSON form or the
                document is larger than 16 MiB.
        """
        (kind,) = self._write("put", collection, [Put(key, document)], database)
        assert kind is not None
        return kind

    def delete(self, collection: str, key: Key, *, database: str = MAIN) -> bool:
        """Delete a document; return False, and write nothing, if there is none.

        Args:
            collection: The name of the collection.
            key: The document's key, in one of the forms that `put` accepts.
            database: The database that contains the collection; `main` by default.
        """
        return self._write("delete", collection, [Delete(key)], database) != [None]

    def batch(self, collection: str, operations: Iterable[Operation], *, database: str = MAIN) -> int:
        """Apply `Put` and `Delete` operations in order, all of them or none, in one transaction.

        Args:
            collection: The name of the collection.
            operations: The operations, in the order in which to apply them.
            database: The database that contains the collection; `main` by default.

        Returns:
            The number of changes; deleting a document that does not exist is none.
        """
        return sum(kind is not None for kind in self._write("batch", collection, operations, database))

    def get(self, collection: str, key: Key, *, database: str = MAIN) -> dict[str, Any] | None:
        """Return the document with a key, or None.

        Args:
            collection: The name of the collection.
            key: The document's key, in one of the forms that `put` accepts.
            database: The database that contains the collection; `main` by default.
        """
        with self._session.reading("get") as connection:
            found = find_collection(connection, database, collection)
            row = connection.execute(
                "SELECT doc FROM documents WHERE collection = ? AND id = ?",
                (found.id, to_key(key, found).canonical()),
            ).fetchone()
        return decode_json(row[0]) if row is not None else None

    def scan(
        self, collection: str, *, database: str = MAIN
    ) -> Iterator[tuple[MulticloudDbKey, dict[str, Any]]]:
        """Return all documents with their keys, as of one point in time, sorted by the keys' canonical JSON.

        Args:
            collection: The name of the collection.
            database: The database that contains the collection; `main` by default.
        """
        self._session.check_open()
        check_type("collection", collection, str)
        check_type("database", database, str)

        def scanned() -> Iterator[tuple[MulticloudDbKey, dict[str, Any]]]:
            with (
                store_errors("scan", self.path),
                closing(DocumentCursor(self.path, database, collection)) as rows,
            ):
                while part := rows.fetch():
                    for key, doc in part:
                        yield MulticloudDbKey(decode_json(key), rows.partition_components), decode_json(doc)

        return scanned()

    def partitions(self, collection: str, *, database: str = MAIN) -> list[PartitionRange]:
        """Return the open partitions in the order of their ranges; neighbours in it can be merged.

        Args:
            collection: The name of the collection.
            database: The database that contains the collection; `main` by default.
        """
        with self._session.reading("partitions") as connection:
            found = find_collection(connection, database, collection)
            rows = [row for row in partition_rows(connection, found.id) if row.is_open]
        return [
            PartitionRange(row.name, row.low, row.high, row.parents)
            for row in sorted(rows, key=lambda row: row.low)
        ]

    def split(
        self, collection: str, partition_id: str, at: int | None = None, *, database: str = MAIN
    ) -> tuple[str, str]:
        """Close a partition, open two that share its range, and return their ids.

        Args:
            collection: The collection.
            partition_id: The partition: `p0`, or the public id that a client lists.
            at: The first hash of the upper partition; None means the middle of the range.
            database: The database of the collection.
        """
        with self._session.writing("split") as (connection, moment):
            found = find_collection(connection, database, collection)
            row = open_partition(connection, found, native_id(partition_id, found))
            check_type("at", at, int, type(None))
            middle = (row.low + row.high) // 2 if at is None else at
            if not row.low < middle < row.high:
                problem = f"{middle} does not divide [{row.low}, {row.high})"
                raise invalid_request("at", problem, "give a hash within this range, or leave it out")
            ranges = [(row.low, middle), (middle, row.high)]
            lower, upper = add_partitions(connection, found.id, ranges, [row], moment.next())
        return lower, upper

    def merge(self, collection: str, a: str, b: str, *, database: str = MAIN) -> str:
        """Close two adjacent partitions, open one with both ranges, and return its id.

        Args:
            collection: The name of the collection.
            a: One partition: `p0`, or the public id that a client lists.
            b: The adjacent partition.
            database: The database that contains the collection; `main` by default.
        """
        with self._session.writing("merge") as (connection, moment):
            found = find_collection(connection, database, collection)
            check_type("a", a, str)
            check_type("b", b, str)
            rows = [open_partition(connection, found, native_id(name, found)) for name in (a, b)]
            low, high = sorted(rows, key=lambda row: row.low)
            if low.high != high.low:
                problem = f"{a!r} and {b!r} are not adjacent"
                raise invalid_request("partition_id", problem, "see EmbeddedStore.partitions(collection)")
            ranges = [(low.low, high.high)]
            (child,) = add_partitions(connection, found.id, ranges, [low, high], moment.next())
        return child

    def trim(
        self,
        collection: str,
        *,
        max_age: timedelta | None = None,
        max_count: int | None = None,
        before: datetime | None = None,
        database: str = MAIN,
    ) -> int:
        """Remove old changes, but no documents; positions before the removed changes expire.

        If several bounds are given, the strictest applies. Without any, it is the collection's `retention`.

        Args:
            collection: The collection.
            max_age: Keep the changes that were committed within this time.
            max_count: Keep this number of newest changes in the collection; 0 removes all.
            before: Remove the changes that were committed before this time.
            database: The database of the collection; `main` by default.

        Returns:
            The number of changes that were removed.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if there is neither a bound nor a `retention`.
        """
        check_bounds(max_age, max_count)
        cutoff = to_micros(to_utc("before", before)) if before is not None else None
        with self._session.writing("trim") as (connection, moment):
            found = find_collection(connection, database, collection)
            age = max_age // timedelta(microseconds=1) if max_age is not None else None
            if age is None and cutoff is None and max_count is None:
                age = found.retention
            if age is None and cutoff is None and max_count is None:
                raise invalid_request(
                    "trim", f"{collection!r} has no retention", "pass max_age, max_count or before"
                )
            oldest = max(cutoff or 0, moment.ts - age if age is not None else 0)
            bound = seq_before(connection, oldest)
            if max_count is not None:
                rows = partition_rows(connection, found.id)
                bound = max(bound, count_bound(connection, rows, max_count, moment.seq))
            return trim_log(connection, found, bound)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._session.close()

    def __enter__(self) -> EmbeddedStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<EmbeddedStore {self.path}{' closed' if self.closed else ''}>"

    def __reduce__(self) -> NoReturn:
        way_out = "pickle store.path, and open the file again with EmbeddedStore(path)"
        raise invalid_request("EmbeddedStore", "cannot be pickled", way_out)

    def _write(
        self, operation: str, collection: str, operations: object, database: str
    ) -> list[ChangeType | None]:
        with self._session.reading(operation) as connection:
            found = find_collection(connection, database, collection)
        if not isinstance(operations, Iterable):
            way_out = "pass [Put(key, document), Delete(key)]"
            raise invalid_request("operations", f"must be a list, not {type_name(operations)}", way_out)
        changes = [encode(each, found) for each in operations]
        with self._session.writing(operation) as (connection, moment):
            if find_collection(connection, database, collection).id != found.id:
                raise failure(
                    ErrorCategory.CONFLICT, f"{found.name!r} was recreated while this call ran; call again"
                )
            writer = LogWriter(connection, found, moment)
            kinds = [writer.write(change) for change in changes]
            writer.flush()
        return kinds
