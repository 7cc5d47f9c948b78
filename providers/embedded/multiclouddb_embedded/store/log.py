"""Appends changes to the log within one write transaction."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager

from multiclouddb_api import ChangeType
from multiclouddb_embedded.mapping import CHANGE_TYPES
from multiclouddb_embedded.store.change import EncodedChange
from multiclouddb_embedded.store.collection import Collection

_CREATE, _UPDATE, _DELETE = range(3)


class Moment:
    """The newest change of the store, including the changes of the current write transaction."""

    __slots__ = ("seq", "ts")

    def __init__(self, seq: int, ts: int) -> None:
        self.seq, self.ts = seq, ts

    @property
    def end(self) -> tuple[int, int]:
        """Return the position after the last change."""
        return self.seq, self.ts

    def next(self) -> tuple[int, int]:
        """Return the position of a split or merge, which comes after every change so far."""
        self.seq += 1
        return self.end


@contextmanager
def write_transaction(connection: sqlite3.Connection, now: int) -> Iterator[Moment]:
    """Open a transaction: either all changes inside the block are committed, or none."""
    # Only one writer runs at a time, so the order of sequence numbers is the order of commits.
    connection.execute("BEGIN IMMEDIATE")
    try:
        head_seq, head_ts = connection.execute("SELECT head_seq, head_ts FROM store").fetchone()
        moment = Moment(head_seq, max(now, head_ts))
        yield moment
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


class _Tail:
    """The end of one open partition."""

    __slots__ = ("high", "id", "last_seq", "low", "volume", "written")

    def __init__(self, id: int, low: int, high: int, last_seq: int, written: int, volume: int) -> None:  # noqa: A002
        self.id, self.low, self.high = id, low, high
        self.last_seq, self.written, self.volume = last_seq, written, volume


class LogWriter:
    """Writes the changes of one collection."""

    def __init__(self, connection: sqlite3.Connection, collection: Collection, moment: Moment) -> None:
        self._connection, self._collection, self._moment = connection, collection, moment
        self._lows: list[int] = []
        self._tails: list[_Tail] = []
        self._read = (
            "SELECT doc FROM documents WHERE collection = ? AND id = ?"
            if collection.images == "new_and_old"
            else "SELECT NULL FROM documents WHERE collection = ? AND id = ?"
        )

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
