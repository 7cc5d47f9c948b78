"""Appends changes to the log within one write transaction."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias, get_args
from uuid import UUID

import attrs
from attrs import define, frozen

from multiclouddb_api import ChangeType, MulticloudDbKey, encode_json, invalid_request
from multiclouddb_api.redaction import shorten
from multiclouddb_api.validators import is_a, type_name
from multiclouddb_embedded.mapping import CHANGE_TYPES, to_micros
from multiclouddb_embedded.store.collection import (
    Collection,
    PartitionRow,
    partition_hash,
    partition_identity,
    partition_rows,
)

MAX_DOCUMENT_BYTES: Final = 16 * 1024 * 1024
_LONG: Final = 1_000_000
"""After so many microseconds, a transaction takes its time anew."""

Scalar: TypeAlias = str | int | float | bool | bytes | Decimal | datetime | UUID
Key: TypeAlias = MulticloudDbKey | Mapping[str, Any] | Scalar
"""A `MulticloudDbKey`, a mapping of components by name, or one value for a component called `id`."""

_KEY: Final = is_a(MulticloudDbKey, Mapping, *get_args(Scalar))


@frozen
class Put:
    """Write a document. The change is a `CREATE` if no document has this key, and otherwise an `UPDATE`."""

    key: Key = attrs.field(repr=shorten, validator=_KEY)
    """The key of the document."""
    document: Mapping[str, Any] = attrs.field(repr=shorten, validator=is_a(Mapping))
    """The whole document, as a mapping from name to value."""


@frozen
class Delete:
    """Delete a document. If the document does not exist, nothing is written."""

    key: Key = attrs.field(repr=shorten, validator=_KEY)
    """The key of the document."""


Operation: TypeAlias = Put | Delete


@frozen(eq=False, repr=False)
class EncodedChange:
    """One operation, encoded for the tables of the store."""

    identity: bytes
    """The canonical JSON of the key."""
    hash: int
    """The hash of the key's partition key."""
    key: str
    """The key's components as JSON."""
    doc: str | None
    """The document as JSON, or None for a delete."""
    size: int
    """The total size of key and document in bytes."""


def encode(operation: Operation, collection: Collection) -> EncodedChange:
    """Check one operation and encode it."""
    if not isinstance(operation, Put | Delete):
        raise invalid_request(
            "operations", f"holds a {type_name(operation)}", "pass Put(key, document) and Delete(key)"
        )
    key = to_key(operation.key, collection)
    identity = key.canonical()
    whole = len(key.components) == key.partition_components
    text = encode_json(key.components)
    doc = encode_json(operation.document) if isinstance(operation, Put) else None
    if doc is not None and len(doc) > MAX_DOCUMENT_BYTES:
        raise invalid_request(
            "document",
            f"is {len(doc):,} bytes of JSON",
            f"pass at most {MAX_DOCUMENT_BYTES:,} bytes, and store a reference to larger data",
        )
    return EncodedChange(
        identity=identity,
        hash=partition_hash(identity if whole else partition_identity(key)),
        key=text.decode(),
        doc=doc.decode() if doc is not None else None,
        size=len(text) + len(doc or b""),
    )


def to_key(key: Key, collection: Collection) -> MulticloudDbKey:
    """Convert the caller's key, and check it against the collection's partition key."""
    if isinstance(key, Mapping):
        key = MulticloudDbKey(key, collection.partition_components)
    elif not isinstance(key, MulticloudDbKey):
        if not isinstance(key, Scalar):
            raise invalid_request(
                "key",
                f"is a {type_name(key)}",
                "pass a MulticloudDbKey, a mapping of components or one value",
            )
        key = MulticloudDbKey({"id": key})
    collection.check_key(key)
    return key


_CREATE, _UPDATE, _DELETE = range(3)


@define(eq=False, repr=False)
class Moment:
    """The newest change of the store, including the changes of the current write transaction."""

    seq: int
    ts: int

    @property
    def end(self) -> tuple[int, int]:
        """Return the position after the last change."""
        return self.seq, self.ts

    def next(self) -> tuple[int, int]:
        """Return the position of a split or merge, which comes after every change so far."""
        self.seq += 1
        return self.end


@contextmanager
def write_transaction(connection: sqlite3.Connection, clock: Callable[[], datetime]) -> Iterator[Moment]:
    """Open a transaction: either all changes inside the block are committed, or none."""
    # Only one writer runs at a time, so the order of sequence numbers is the order of commits.
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Not before: while it waits for another writer, readers take the time for read (`visible_after`).
        now = to_micros(clock())
        head_seq, head_ts = connection.execute("SELECT head_seq, head_ts FROM store").fetchone()
        moment = Moment(head_seq, max(now, head_ts))
        yield moment
        if (now := to_micros(clock())) - moment.ts > _LONG:
            # Readers have been told meanwhile that everything so old was returned (`visible_after`).
            _set_times(connection, head_seq, now)
            moment.ts = now
        connection.execute("UPDATE store SET head_seq = ?, head_ts = ?", moment.end)
        if moment.seq > head_seq:
            connection.execute(
                "INSERT INTO commits VALUES (?, ?) ON CONFLICT (ts) DO UPDATE SET seq = excluded.seq",
                (moment.ts, moment.seq),
            )
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _set_times(connection: sqlite3.Connection, after: int, ts: int) -> None:
    """Give all that the transaction has written the time at which it ends."""
    for statement in (
        # Its partitions' changes alone are searched, by the key of the table.
        "UPDATE log SET ts = :ts WHERE partition IN (SELECT id FROM partitions WHERE last_seq > :after) "
        "AND seq > :after",
        "UPDATE partitions SET start_ts = :ts WHERE start_seq > :after",
        "UPDATE partitions SET end_ts = :ts WHERE end_seq > :after",
    ):
        connection.execute(statement, {"ts": ts, "after": after})


@define(eq=False, repr=False)
class _Tail:
    id: int
    low: int
    high: int
    last_seq: int
    written: int
    volume: int


class LogWriter:
    """Writes the changes of one collection."""

    def __init__(self, connection: sqlite3.Connection, collection: Collection, moment: Moment) -> None:
        self._connection, self._collection, self._moment = connection, collection, moment
        self._lows: list[int] = []
        self._tails: list[_Tail] = []
        old = "doc" if collection.images == "new_and_old" else "NULL"
        self._read = f"SELECT {old} FROM documents WHERE collection = ? AND id = ?"

    def write(self, change: EncodedChange) -> ChangeType | None:
        """Apply one change to the documents, and append it to the log."""
        place = (self._collection.id, change.identity)
        found = self._connection.execute(self._read, place).fetchone()
        if change.doc is None:
            if found is None:
                return None
            kind = _DELETE
            self._connection.execute("DELETE FROM documents WHERE collection = ? AND id = ?", place)
        else:
            kind = _CREATE if found is None else _UPDATE
            self._connection.execute(
                "INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", (*place, change.key, change.doc)
            )
        self._append(change, kind, found[0] if found is not None else None)
        return CHANGE_TYPES[kind]

    def flush(self) -> None:
        """Save the ends of the partitions. This method is called once, at the end of the transaction."""
        self._connection.executemany(
            "UPDATE partitions SET last_seq = ?, written = ?, volume = ? WHERE id = ?",
            [(tail.last_seq, tail.written, tail.volume, tail.id) for tail in self._tails],
        )

    def _append(self, change: EncodedChange, kind: int, old: str | None) -> None:
        moment, tail = self._moment, self._tail(change.hash)
        doc = None if self._collection.images == "keys" else change.doc
        size = change.size + (len(old.encode()) if old is not None else 0)
        moment.seq += 1
        tail.last_seq = moment.seq
        tail.written += 1
        tail.volume += size
        self._connection.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                tail.id, moment.seq, moment.ts, kind, change.hash,
                tail.written, tail.volume, size, change.key, doc, old,
            ),
        )  # fmt: skip

    def _tail(self, number: int) -> _Tail:
        index = bisect_right(self._lows, number) - 1
        if index >= 0 and number < self._tails[index].high:
            return self._tails[index]
        row = self._connection.execute(
            "SELECT id, low, high, last_seq, written, volume FROM partitions "
            "WHERE collection = ? AND end_seq IS NULL AND low <= ? ORDER BY low DESC LIMIT 1",
            (self._collection.id, number),
        ).fetchone()
        tail = _Tail(*row)
        self._lows.insert(index + 1, tail.low)
        self._tails.insert(index + 1, tail)
        return tail


def check_bounds(max_age: object, max_count: object) -> None:
    """Refuse bounds that have the wrong type or are negative."""
    if max_age is not None and not (isinstance(max_age, timedelta) and max_age >= timedelta(0)):
        raise invalid_request("max_age", f"is {max_age!r}", "pass a timedelta that is not negative")
    if max_count is not None and not (type(max_count) is int and max_count >= 0):
        raise invalid_request("max_count", f"is {max_count!r}", "pass a whole number; 0 removes all changes")


def seq_before(connection: sqlite3.Connection, ts: int) -> int:
    """Return the number of the last change that was committed before a time, or 0 if none is known."""
    row = connection.execute(
        "SELECT seq FROM commits WHERE ts < ? ORDER BY ts DESC LIMIT 1", (ts,)
    ).fetchone()
    return row[0] if row is not None else 0


def ordinal_at(connection: sqlite3.Connection, row: PartitionRow, seq: int) -> int:
    """Count all changes that the partition has ever received, up to and including `seq`."""
    if seq >= row.last_seq:
        return row.written
    found = connection.execute(
        "SELECT ordinal FROM log WHERE partition = ? AND seq <= ? ORDER BY seq DESC LIMIT 1", (row.id, seq)
    ).fetchone()
    return found[0] if found is not None else row.removed


def count_bound(
    connection: sqlite3.Connection, rows: Sequence[PartitionRow], keep: int, head_seq: int
) -> int:
    """Return the last sequence number to trim, so that at most `keep` changes remain."""
    rows = [row for row in rows if row.remaining]

    def gone(seq: int) -> int:
        return sum(ordinal_at(connection, row, seq) - row.removed for row in rows)

    excess = sum(row.remaining for row in rows) - keep
    return bisect_left(range(head_seq + 1), excess, key=gone) if excess > 0 else 0


def trim_log(connection: sqlite3.Connection, collection: Collection, bound: int) -> int:
    """Remove every change up to and including `bound`."""
    # All partitions are trimmed up to the same bound. Therefore, if a parent still has changes, no change of
    # its children has been removed.
    highest, total = 0, 0
    for row in partition_rows(connection, collection.id):
        count = ordinal_at(connection, row, bound) - row.removed if row.remaining else 0
        if not count:
            continue
        (last,) = connection.execute(
            "SELECT max(seq) FROM log WHERE partition = ? AND seq <= ?", (row.id, bound)
        ).fetchone()
        connection.execute("DELETE FROM log WHERE partition = ? AND seq <= ?", (row.id, bound))
        connection.execute(
            "UPDATE partitions SET removed = removed + ?, trimmed = ? WHERE id = ?", (count, last, row.id)
        )
        highest, total = max(highest, last), total + count
    if total:
        connection.execute("UPDATE collections SET trimmed = ? WHERE id = ?", (highest, collection.id))
        _forget_commits(connection)
    return total


def _forget_commits(connection: sqlite3.Connection) -> None:
    """Delete commit times that are no longer needed as start times of any collection."""
    # A start before the kept time would need changes that were removed.
    connection.execute(
        "DELETE FROM commits WHERE seq < (SELECT max(seq) FROM commits WHERE seq <= "
        "(SELECT min(max(trimmed, created_seq)) FROM collections))"
    )
