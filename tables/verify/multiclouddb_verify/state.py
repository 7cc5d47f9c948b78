"""Keeps what a comparison has read in a folder, so that it fits into memory and survives a kill.

A run contains the digests of some rows, sorted by the hash of their keys; of the source's rows it also
contains the keys, compressed. A run is a file, written before the transaction that names it, together with
the token of the scan. So after a kill the folder contains a whole number of runs and the position at which to
go on; a file that no transaction names is removed.

The changes, and the keys that are judged one by one, are in tables of one SQLite database.

What an interrupted comparison leaves proves nothing about the table of today. So only its reading of the
source can be taken up, which the stream brings up to date; everything that it has read of the table, and
every judgement, is removed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from multiclouddb_spi.faults import digest_in
from multiclouddb_verify.comparison import DifferenceKind
from multiclouddb_verify.database import Transaction, cursor_of
from multiclouddb_verify.runs import BOUNDS, RANGES, ROW, HashRange, Rows
from multiclouddb_verify.state_folder import FILE_MODE, FILES, broken, locked, private, translated, unusable
from multiclouddb_verify.texts import SEPARATOR, Integers, Lines

__all__ = ["Confirmed", "Pending", "State", "after"]

_AT_ONCE: Final = 200_000
"""The number of rows of both sides that are compared at once."""
_BLOCK: Final = 2048
"""The number of keys in a compressed block."""
Pending: TypeAlias = tuple[str, int, str | None, float]
"""A key that is judged one by one: its text, the digest of the scan, the kind of difference that an earlier
round found, and when."""


@attrs.frozen
class Confirmed:
    """A difference that two rounds have found, and what the judgement stands on.

    Attributes:
        key: The key, as in the table.
        kind: The kind.
        orders: The `order_key` of each row of the table.
        scanned: The digest of the scan.
        expected: The digest that the source has, by the scan and the changes after it.
        last: The `order_key` of the key's last change, or an empty text if there was none.
    """

    key: str
    kind: DifferenceKind
    orders: tuple[str, ...]
    scanned: int
    expected: int
    last: str


SUSPECTED: Final = "suspected"
"""The kind of a difference that only the digests have shown."""
FORMAT: Final = 4
"""The format of the folder. Raise the number when the meaning of the files changes, even if the schema
stays."""
RESUME: Final = "pass resume=True (--resume) to take up its reading of the source instead"
_SCHEMA: Final = """
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE run (
    number INTEGER PRIMARY KEY, side TEXT, rows INTEGER, starts BLOB, blocks BLOB, bytes INTEGER, sum INTEGER
);
CREATE TABLE change (
    hash INTEGER, key TEXT, order_key TEXT, digest INTEGER, first_read REAL,
    PRIMARY KEY (hash, key, order_key)
) WITHOUT ROWID;
CREATE TABLE pending (key TEXT PRIMARY KEY, scanned INTEGER, kind TEXT, since REAL) WITHOUT ROWID;
CREATE TABLE difference (
    key TEXT PRIMARY KEY, kind TEXT, orders TEXT, scanned INTEGER, expected INTEGER, last TEXT, note TEXT,
    repaired INTEGER
) WITHOUT ROWID;
CREATE TABLE spelling (key TEXT PRIMARY KEY, own TEXT) WITHOUT ROWID;
CREATE TABLE unknown (key TEXT PRIMARY KEY, reason TEXT) WITHOUT ROWID;
"""
_OF_THE_SOURCE: Final = (
    "identity",
    "k",
    "at",
    "follow",
    "floor",
    "scan",
    "scanned",
    "parts",
    "rows",
    "charge",
    "changes",
    "unreadable",
    "unread_changes",
    "unread_keys",
)
"""The facts that a later comparison may take up. All others say something about the table as it was."""
_MOST_UNREADABLE: Final = 10_000
_NO_RECORD: Final = "the record of {} at {} cannot be decoded, so nobody knows what the source has of its key"
_OLD: Final = -1.0
"""Stands for the time at which a change was first read, where a left-over comparison has read it."""


class State:
    """The folder of one comparison.

    Args:
        folder: The folder, which is created.
        identity: What is compared with what, and everything on which the reading of the source depends.
        resume: True to take up the reading of the source by a left-over comparison with the same identity.
            Otherwise what is left over is removed.
        advice: Why it is removed then, or what to do instead; for the report.

    Attributes:
        resumes: Whether the folder contains a reading of the source that can be taken up.
        left_over: What has become of a left-over comparison; None if there was none.

    Raises:
        MulticloudDbError: `CONFLICT` if another process uses the folder; `INVALID_REQUEST` if it cannot be
            used as a folder of `verify`, or if what has to be taken up is broken.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, str], *, resume: bool = False, advice: str = RESUME
    ) -> None:
        self._folder, self._identity = folder, dict(identity)
        self._codec = pa.Codec("zstd")
        self.resumes = False
        self.left_over: str | None = None
        self._database: sqlite3.Connection | None = None
        self._lock = locked(folder)
        try:
            self._begin_or_resume(resume, advice)
        except BaseException:  # whatever ends it: nobody else can free the folder's lock
            self.close()
            raise

    def _begin_or_resume(self, resume: bool, advice: str) -> None:
        if not (self._folder / "state.db").exists():
            self._begin()
        elif not resume:
            self.begin_again(advice)
        else:
            self._open()
            # It may have been killed before the schema was complete.
            has_facts = self._sql("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0
            if not has_facts or self.fact("k") is None:
                self.begin_again("it had read nothing")
                return
            found: dict[str, str] = json.loads(self.fact("identity") or "{}")
            names = sorted(
                name for name in {*found, *self._identity} if found.get(name) != self._identity.get(name)
            )
            if names:
                self.begin_again(f"it was of another comparison: {', '.join(names)} differ")
            else:
                self._take_up()

    def _take_up(self) -> None:
        """Keep what was read of the source, and nothing else."""
        with self.transaction():
            names = self._sql("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (name,) in names:
                if name not in ("fact", "run", "change"):
                    self._sql(f"DELETE FROM {name}")
            self._sql("DELETE FROM run WHERE side = 'target'")
            self._sql(
                f"DELETE FROM fact WHERE name NOT IN ({', '.join('?' * len(_OF_THE_SOURCE))})", _OF_THE_SOURCE
            )
        self._remove_unnamed()
        for number, size, total in self._sql("SELECT number, bytes, sum FROM run").fetchall():
            with translated(self._folder):
                found = self._run(number).read_bytes()
            if len(found) != size or zlib.crc32(found) != total:
                raise broken(self._folder, f"{self._run(number).name} is damaged")
        self.resumes = True
        self.left_over = (
            f"a left-over comparison in {self._folder} is taken up: {self.number('rows'):,} rows of the "
            "source are not read again; the table is"
        )

    def begin_again(self, reason: str) -> None:
        """Remove what is left over, and begin.

        Args:
            reason: Why it is not taken up, for the report.
        """
        self._erase()
        self.resumes = False
        self.left_over = f"a left-over comparison in {self._folder} was removed; {reason}"
        self._begin()

    def _begin(self) -> None:
        self._open()
        with self.transaction():
            for statement in _SCHEMA.split(";\n"):
                self._sql(statement)
            self.put("identity", json.dumps(self._identity))

    def _open(self) -> None:
        path = self._folder / "state.db"
        with translated(self._folder):
            # SQLite gives its other files the mode of this one.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, FILE_MODE))
            self._database = sqlite3.connect(path, isolation_level=None)
        # The file survives the death of the process without waiting for the disk. What a crash of the machine
        # has damaged is found when it is taken up.
        for each in ("journal_mode=WAL", "synchronous=OFF", "cache_size=-16384", "wal_autocheckpoint=500"):
            self._sql(f"PRAGMA {each}")

    def _sql(self, statement: str, values: Sequence[object] | Mapping[str, object] = ()) -> sqlite3.Cursor:
        assert self._database is not None
        try:
            return cursor_of(self._database, self._folder).execute(statement, values)
        except sqlite3.Error as error:
            raise unusable(self._folder, error) from error

    def _sql_many(self, statement: str, values: Iterable[Sequence[object]]) -> None:
        assert self._database is not None
        try:
            self._database.executemany(statement, values)
        except sqlite3.Error as error:
            raise unusable(self._folder, error) from error

    def remove(self) -> None:
        """Remove the files, because the comparison has ended, and the folder if nothing else is in it."""
        self._erase()
        # The lock is held until the file has gone: a process that has opened it meanwhile looks again.
        with suppress(OSError):
            (self._folder / "lock").unlink()
            self._folder.rmdir()
        self.close()

    def _erase(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        with translated(self._folder):
            for path in self._folder.iterdir():
                if path.name != "lock" and FILES.fullmatch(path.name):
                    path.unlink()

    def close(self) -> None:
        """Close the files; another process may use the folder."""
        if self._database is not None:
            self._database.close()
            self._database = None
        self._lock.close()

    def transaction(self) -> Transaction:
        """Make all writes inside a `with` block at once, or none of them."""
        return Transaction(self._sql)

    def size(self) -> int:
        """Return the bytes of all files."""
        with translated(self._folder):
            return sum(path.stat().st_size for path in self._folder.iterdir())

    # -- Facts

    def fact(self, name: str) -> str | None:
        """Return a fact, or None."""
        found = self._sql("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    def put(self, name: str, value: object) -> None:
        """Store a fact as text; None removes it."""
        if value is None:
            self._sql("DELETE FROM fact WHERE name = ?", (name,))
        else:
            self._sql("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, str(value)))

    def number(self, name: str) -> int:
        """Return a fact that is a number; 0 if there is none."""
        return int(self.fact(name) or 0)

    def add(self, name: str, count: int) -> None:
        """Add to a fact that is a number."""
        self.put(name, self.number(name) + count)

    # -- Runs

    def add_run(self, side: str, rows: Rows, keys: Lines | None = None) -> None:
        """Store rows; call it inside a transaction, with everything that belongs to them.

        Args:
            side: `source` or `target`.
            rows: The rows.
            keys: The keys of the rows.
        """
        order = np.argsort(rows["hash"])
        rows = rows[order]
        starts = np.searchsorted(rows["hash"], BOUNDS).astype(np.int64)
        blocks = list[tuple[int, int]]()
        number = self._sql("SELECT coalesce(max(number), 0) + 1 FROM run").fetchone()[0]
        size = total = 0
        with translated(self._folder), open(self._run(number), "wb", opener=private) as file:

            def write(piece: Any) -> None:
                nonlocal size, total
                size, total = size + file.write(piece), zlib.crc32(piece, total)

            write(rows.tobytes())
            if keys is not None:
                for start in range(0, len(order), _BLOCK):
                    block = keys.take(order[start : start + _BLOCK]).data
                    packed = self._codec.compress(block)
                    write(packed)
                    blocks.append((packed.size, len(block)))
        self._sql(
            "INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                number, side, len(rows), self._pack(starts),
                self._pack(np.array(blocks, dtype=np.int64).reshape(-1, 2)), size, total,
            ),
        )  # fmt: skip

    def _pack(self, numbers: Integers) -> bytes:
        return numbers.astype("<i4").tobytes()

    def remove_runs(self, side: str) -> None:
        """Remove all rows of one side."""
        self._sql("DELETE FROM run WHERE side = ?", (side,))
        self._remove_unnamed()

    def count(self, side: str) -> int:
        """Return the number of rows of one side."""
        found = self._sql("SELECT coalesce(sum(rows), 0) FROM run WHERE side = ?", (side,))
        return int(found.fetchone()[0])

    def _run(self, number: int) -> Path:
        return self._folder / f"{number:06d}.run"

    def _remove_unnamed(self) -> None:
        named = {self._run(number) for (number,) in self._sql("SELECT number FROM run")}
        with translated(self._folder):
            for path in self._folder.glob("*.run"):
                if path not in named:
                    path.unlink()

    def ranges(self) -> Iterator[HashRange]:
        """Divide all hashes into ranges, each of which fits into memory."""
        runs = list(self._sql("SELECT number, side, rows, starts, blocks FROM run"))
        starts = {
            number: np.append(np.frombuffer(packed, dtype="<i4"), rows) for number, _, rows, packed, _ in runs
        }
        total = np.sum([np.zeros(RANGES + 1, dtype=np.int64), *starts.values()], axis=0)
        edges = [0]
        for place in range(1, RANGES):
            if total[place + 1] - total[edges[-1]] > _AT_ONCE:
                edges.append(place)
        edges.append(RANGES)
        for first, last in pairwise(edges):
            yield HashRange(self.keys_of, self._folder, runs, starts, first, last)

    def keys_of(self, number: int, blocks: bytes, count: int, places: Sequence[int]) -> list[str]:
        """Return the keys at some places of a run, in ascending order of the places."""
        sizes = np.frombuffer(blocks, dtype="<i4").reshape(-1, 2).astype(np.int64)
        ends = np.cumsum(sizes[:, 0])
        found, at, block = list[str](), -1, list[bytes]()
        with translated(self._folder), self._run(number).open("rb") as file:
            for place in places:
                if place // _BLOCK != at:
                    at = place // _BLOCK
                    file.seek(count * ROW.itemsize + int(ends[at] - sizes[at, 0]))
                    packed = file.read(int(sizes[at, 0]))
                    text = self._codec.decompress(packed, decompressed_size=int(sizes[at, 1]), asbytes=True)
                    block = text.split(SEPARATOR)
                found.append(block[place % _BLOCK].decode())
        return found

    # -- Changes

    def add_changes(self, changes: Iterable[tuple[int, str, str, int]], at: float) -> None:
        """Store versions of keys: hash and text of the key, `order_key` and digest.

        Args:
            changes: The versions. One that is delivered again keeps the time at which it was first read.
            at: The time.
        """
        self._sql_many(
            "INSERT INTO change VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET digest = excluded.digest, "
            f"first_read = CASE first_read WHEN {_OLD} THEN excluded.first_read ELSE first_read END",
            ((*change, at) for change in changes),
        )

    def age_changes(self) -> None:
        """Mark all changes as read by a left-over comparison; those that are read again are today's."""
        self._sql(f"UPDATE change SET first_read = {_OLD}")

    def fold_changes(self) -> int:
        """Keep only the last of a key's aged changes, which is its state at today's position.

        Return the number of changes that are kept.
        """
        self._sql(
            f"DELETE FROM change WHERE first_read = {_OLD} AND order_key < (SELECT max(other.order_key) "
            f"FROM change AS other WHERE other.hash = change.hash AND other.key = change.key "
            f"AND other.first_read = {_OLD})"
        )
        return int(self._sql("SELECT count(*) FROM change").fetchone()[0])

    def changes_between(self, low: int, high: int) -> list[tuple[int, str, str, int]]:
        """Return the changes of keys with these hashes, both ends included."""
        return self._sql(
            "SELECT hash, key, order_key, digest FROM change WHERE hash BETWEEN ? AND ?", (low, high)
        ).fetchall()

    def changes(self, most: int) -> Iterator[list[tuple[int, str, int]]]:
        """Return hash, `order_key` and digest of all changes, at most so many at once."""
        found = self._sql("SELECT hash, order_key, digest FROM change")
        while chunk := found.fetchmany(most):
            yield chunk

    def versions(self, hashed: int, key: str) -> dict[str, int]:
        """Return the digests of the versions of a key by their `order_key`."""
        return dict(
            self._sql("SELECT order_key, digest FROM change WHERE hash = ? AND key = ?", (hashed, key))
        )

    # -- Keys that are judged one by one

    def add_pending(self, keys: Iterable[tuple[str, int]], *, suspected_at: float | None = None) -> None:
        """Store keys to judge: text, and digest of the scan; and when they were judged, if they were."""
        kind, since = (None, 0.0) if suspected_at is None else (SUSPECTED, suspected_at)
        rows = ((key, scanned, kind, since) for key, scanned in keys)
        self._sql_many("INSERT OR REPLACE INTO pending VALUES (?, ?, ?, ?)", rows)

    def add_changed(self, sample: int) -> None:
        """Store all keys that have changed, as keys to judge; with a sample, some of them."""
        self._sql(
            "INSERT OR IGNORE INTO pending SELECT DISTINCT key, 0, NULL, 0.0 FROM change WHERE hash % ? = 0",
            (sample,),
        )

    def judged(self) -> Iterator[str]:
        """Return the keys to judge, those that differ, and the sink's own texts of both."""
        for (key,) in self._sql(
            "SELECT key FROM pending UNION ALL SELECT key FROM difference "
            "UNION ALL SELECT own FROM spelling WHERE own IS NOT NULL"
        ):
            yield key

    def add_spellings(self, found: Iterable[tuple[str, str | None]]) -> None:
        """Store keys of the table that a sink would not write: their texts, and the sink's own texts."""
        self._sql_many("INSERT OR REPLACE INTO spelling VALUES (?, ?)", found)

    def spellings(self, first: str, last: str) -> dict[str, str | None]:
        """Return the sink's texts for the keys in a range, ends included, that it spells otherwise."""
        return dict(self._sql("SELECT * FROM spelling WHERE key BETWEEN ? AND ?", (first, last)))

    def is_open(self, key: str) -> bool:
        """Return whether a key is not judged yet, differs, or is not known; any other key is equal."""
        tables = ("pending WHERE", "difference WHERE repaired = 0 AND", "unknown WHERE")
        found = " UNION ALL ".join(f"SELECT 1 FROM {table} key = :key" for table in tables)
        return bool(self._sql(f"SELECT EXISTS ({found})", {"key": key}).fetchone()[0])

    def clear_pending(self) -> None:
        """Remove all keys to judge."""
        self._sql("DELETE FROM pending")

    def pending(self, first: str, most: int) -> list[Pending]:
        """Return some of the keys to judge, in the order of their texts."""
        return self._sql(
            "SELECT key, scanned, kind, since FROM pending WHERE key >= ? ORDER BY key LIMIT ?",
            (first, most),
        ).fetchall()

    def waiting(self) -> Iterator[str]:
        """Return all keys to judge, in the order of their texts."""
        for (key,) in self._sql("SELECT key FROM pending ORDER BY key"):
            yield key

    def pending_count(self) -> int:
        """Return the number of keys to judge."""
        return int(self._sql("SELECT count(*) FROM pending").fetchone()[0])

    def behind(self, since: float) -> Iterator[str]:
        """Return keys to judge that did not change any more, but whose last change the sink did not reach.

        Args:
            since: The time from which on they did not change.
        """
        found = self._sql(
            "SELECT pending.key FROM pending "
            "JOIN (SELECT key, max(first_read) AS read FROM change GROUP BY key) AS last USING (key) "
            "WHERE pending.kind IS NULL AND last.read <= ? ORDER BY pending.key",
            (since,),
        )
        for (key,) in found:
            yield key

    def settle(self, keys: Iterable[str]) -> None:
        """Remove keys that are equal."""
        self._sql_many("DELETE FROM pending WHERE key = ?", ((key,) for key in keys))

    def suspect(self, found: Iterable[tuple[str | None, float, str]]) -> None:
        """Store which difference a round found, and when: kind, time, key."""
        self._sql_many("UPDATE pending SET kind = ?, since = ? WHERE key = ?", found)

    # -- Differences

    def confirm(self, found: Sequence[Confirmed]) -> None:
        """Store confirmed differences."""
        rows = (
            (each.key, each.kind.value, json.dumps(list(each.orders)), each.scanned, each.expected, each.last)
            for each in found
        )
        self._sql_many("INSERT OR REPLACE INTO difference VALUES (?, ?, ?, ?, ?, ?, NULL, 0)", rows)
        self.settle(each.key for each in found)

    def confirmed(self, first: str, most: int) -> list[Confirmed]:
        """Return some of the differences that are left, in the order of their keys."""
        found = self._sql(
            "SELECT key, kind, orders, scanned, expected, last FROM difference "
            "WHERE repaired = 0 AND key >= ? ORDER BY key LIMIT ?",
            (first, most),
        )
        return [
            Confirmed(key, DifferenceKind(kind), tuple(json.loads(orders)), *rest)
            for key, kind, orders, *rest in found
        ]

    def differences(
        self, first: str = "", most: int = 1000, *, repaired: bool = False
    ) -> list[tuple[str, DifferenceKind, tuple[str, ...], str | None]]:
        """Return some of the differences, in the order of their keys: key, kind, orders, and a note.

        The note says which answers have agreed if the row was repaired, and otherwise why it was not.
        """
        found = self._sql(
            "SELECT key, kind, orders, note FROM difference "
            "WHERE repaired = ? AND key >= ? ORDER BY key LIMIT ?",
            (int(repaired), first, most),
        )
        return [
            (key, DifferenceKind(kind), tuple(json.loads(orders)), note) for key, kind, orders, note in found
        ]

    def kinds(self, *, repaired: bool = False) -> dict[DifferenceKind, int]:
        """Return the number of differences of each kind."""
        found = self._sql(
            "SELECT kind, count(*) FROM difference WHERE repaired = ? GROUP BY kind ORDER BY kind",
            (int(repaired),),
        )
        return {DifferenceKind(kind): count for kind, count in found}

    def repaired(self, found: Iterable[tuple[str, str]]) -> None:
        """Mark differences as repaired: key, and which answers have agreed.

        A key that differs again is confirmed again.
        """
        self._sql_many(
            "UPDATE difference SET repaired = 1, note = ? WHERE key = ?", [(note, key) for key, note in found]
        )

    def explain(self, found: Iterable[tuple[str, str]]) -> None:
        """Store why differences are not repaired: key, and the reason."""
        self._sql_many("UPDATE difference SET note = ? WHERE key = ?", [(note, key) for key, note in found])

    def judge_again(self, found: Sequence[Confirmed]) -> None:
        """Judge differences again, because their keys have moved."""
        self.add_pending((each.key, each.scanned) for each in found)
        self._sql_many("DELETE FROM difference WHERE key = ?", [(each.key,) for each in found])

    def name_foreign(self, keys: Iterable[str]) -> None:
        """Mark ghosts whose keys are texts that the sink would not write."""
        named = [(DifferenceKind.FOREIGN.value, key) for key in keys]
        self._sql_many("UPDATE difference SET kind = ? WHERE key = ? AND repaired = 0", named)

    def give_up(self, found: Iterable[tuple[str, str]]) -> None:
        """Store keys without a verdict, because it is not known what the source has: key, and the reason."""
        rows = list(found)
        self._sql_many("INSERT OR REPLACE INTO unknown VALUES (?, ?)", rows)
        keys = [(key,) for key, _ in rows]
        self._sql_many("DELETE FROM pending WHERE key = ?", keys)
        self._sql_many("DELETE FROM difference WHERE key = ? AND repaired = 0", keys)

    def leave_out(self, found: Iterable[tuple[str, str]], *, are_changes: bool = False) -> None:
        """Store records that cannot be decoded, whose keys are not known.

        They belong to what was read of the source, so a later comparison that takes it up takes up these too.

        Args:
            found: The partition and the position of each record.
            are_changes: Whether they are changes, and not rows of a scan.
        """
        there, found = self.unreadable(), list(found)
        new = {f"{where} at {position}": _NO_RECORD.format(where, position) for where, position in found}
        if are_changes:
            digests = {digest_in(position) for _, position in found}
            if None in digests:
                self.put("unread_changes", 1)
            if known := digests - {None}:
                self.put("unread_keys", json.dumps(sorted({*self.unread_keys(), *known})))
        if not new.keys() <= there.keys() and len(there) < _MOST_UNREADABLE:
            self.put("unreadable", json.dumps(there | new))

    def unread_keys(self) -> list[str]:
        """Return the `key_digest` of each key that has a change that cannot be decoded, where it is known."""
        found: list[str] = json.loads(self.fact("unread_keys") or "[]")
        return found

    def unreadable(self) -> dict[str, str]:
        """Return the places of the records that cannot be decoded, and what is said of each."""
        found: dict[str, str] = json.loads(self.fact("unreadable") or "{}")
        return found

    def unknown(self, most: int) -> dict[str, str]:
        """Return some of the keys for which it is not known what the source has, with the reasons."""
        return dict(self._sql("SELECT key, reason FROM unknown ORDER BY key LIMIT ?", (most,)))

    def unknown_count(self) -> int:
        """Return the number of keys for which it is not known what the source has."""
        return int(self._sql("SELECT count(*) FROM unknown").fetchone()[0])


def after(key: str) -> str:
    """Return the text that follows a key in the order of texts; the first text of all is empty."""
    return f"{key}\0"
