"""Keeps what a comparison has read in a folder, so that it fits into memory and survives a kill.

A run contains the digests of some rows, sorted by the hash of their keys; of the source's rows it also
contains the keys, compressed. A run is a file, written before the transaction that names it, together with
the token of the scan. So after a kill the folder contains a whole number of runs and the position at which to
go on; a file that no transaction names is removed.

The changes, and the keys that are judged one by one, are in tables of one SQLite database.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError, invalid_request
from multiclouddb_verify.comparison import Kind
from multiclouddb_verify.texts import SEPARATOR, Integers, Lines

__all__ = ["ORDER_BITS", "Pending", "Rows", "State"]

_RANGES: Final = 1024
_BOUNDS: Final = np.array([-(2**63) + number * 2**54 for number in range(_RANGES)], dtype=np.int64)
_AT_ONCE: Final = 200_000
"""The number of rows of both sides that are compared at once."""
_BLOCK: Final = 2048
"""The number of keys in a compressed block."""
_ROW: Final = np.dtype([("hash", "<i8"), ("digest", "<i8"), ("order", "<i4")])
ORDER_BITS: Final = 31
"""The bits of a digest of an `order_key`; the next bit marks a row that has to be looked at."""
Rows: TypeAlias = npt.NDArray[Any]
"""Rows of a run: `hash` of the key, `digest` of the document, and `order` (see `ORDER_BITS`)."""
Pending: TypeAlias = tuple[str, int, str | None, float]
"""A key that is judged one by one: its text, the digest of the scan, the kind of difference that an earlier
round found, and when."""

SUSPECTED: Final = "suspected"
"""The kind of a difference that only the digests have shown."""
_SCHEMA: Final = """
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE run (number INTEGER PRIMARY KEY, side TEXT, rows INTEGER, starts BLOB, blocks BLOB);
CREATE TABLE change (
    hash INTEGER, key TEXT, order_key TEXT, digest INTEGER, PRIMARY KEY (hash, key, order_key)
) WITHOUT ROWID;
CREATE TABLE pending (key TEXT PRIMARY KEY, scanned INTEGER, kind TEXT, since REAL) WITHOUT ROWID;
CREATE TABLE difference (key TEXT PRIMARY KEY, kind TEXT, orders TEXT, repaired INTEGER) WITHOUT ROWID;
"""


def rows_of(
    hashes: Integers, digests: Integers | Sequence[int], orders: npt.NDArray[Any] | Sequence[int] | int = 0
) -> Rows:
    """Put columns together to rows."""
    rows = np.empty(len(hashes), dtype=_ROW)
    rows["hash"], rows["digest"], rows["order"] = hashes, digests, orders
    return rows


class State:
    """The folder of one comparison; a context manager.

    Args:
        folder: The folder, which is created.
        identity: What is compared with what. A folder with the state of anything else is refused.
    """

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise MulticloudDbError(
                f"state: {folder} is in use by another verify; wait for its end, or give another folder",
                ErrorDetail(ErrorCategory.CONFLICT, retryable=True),
            ) from error
        self._codec = pa.Codec("zstd")
        self._open()
        found = self.fact("identity")
        if found is None:
            self._begin(identity)
        elif json.loads(found) != dict(identity):
            self.close()
            theirs, ours = (
                ", ".join(f"{name} {value}" for name, value in each.items())
                for each in (json.loads(found), identity)
            )
            raise invalid_request(
                "state",
                f"{folder} belongs to the comparison of {theirs}, but this one is of {ours}",
                "give another folder, or remove this one",
            )
        self._remove_unnamed()

    def _open(self) -> None:
        self._database = sqlite3.connect(self._folder / "state.db", isolation_level=None)
        # The file survives the death of the process without waiting for the disk, and that is enough here.
        for each in ("journal_mode=WAL", "synchronous=OFF", "cache_size=-16384", "wal_autocheckpoint=500"):
            self._database.execute(f"PRAGMA {each}")
        if not self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            with self.transaction():
                for statement in _SCHEMA.split(";\n"):
                    self._database.execute(statement)

    def _begin(self, identity: Mapping[str, str]) -> None:
        self.put("identity", json.dumps(dict(identity)))

    def begin_again(self) -> None:
        """Forget everything except what is compared."""
        identity = json.loads(self.fact("identity") or "{}")
        self._database.close()
        for path in self._folder.glob("state.db*"):
            path.unlink()
        self._open()
        self._begin(identity)
        self._remove_unnamed()

    def remove(self) -> None:
        """Remove the folder, because the comparison has ended."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Close the files; another process may go on."""
        self._database.close()
        self._lock.close()

    def transaction(self) -> _Transaction:
        """Make all writes inside a `with` block at once, or none of them."""
        return _Transaction(self._database)

    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(path.stat().st_size for path in self._folder.iterdir())

    # -- Facts

    def fact(self, name: str) -> str | None:
        """Return a fact, or None."""
        found = self._database.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    def put(self, name: str, value: object) -> None:
        """Store a fact as text; None removes it."""
        if value is None:
            self._database.execute("DELETE FROM fact WHERE name = ?", (name,))
        else:
            self._database.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, str(value)))

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
        starts = np.searchsorted(rows["hash"], _BOUNDS).astype(np.int64)
        blocks = list[tuple[int, int]]()
        number = self._database.execute("SELECT coalesce(max(number), 0) + 1 FROM run").fetchone()[0]
        with self._run(number).open("wb") as file:
            file.write(rows.tobytes())
            if keys is not None:
                for start in range(0, len(order), _BLOCK):
                    block = keys.take(order[start : start + _BLOCK]).data
                    packed = self._codec.compress(block)
                    file.write(packed)
                    blocks.append((packed.size, len(block)))
        self._database.execute(
            "INSERT INTO run VALUES (?, ?, ?, ?, ?)",
            (
                number, side, len(rows), self._pack(starts),
                self._pack(np.array(blocks, dtype=np.int64).reshape(-1, 2)),
            ),
        )  # fmt: skip

    def _pack(self, numbers: Integers) -> bytes:
        return numbers.astype("<i4").tobytes()

    def remove_runs(self, side: str) -> None:
        """Remove all rows of one side."""
        self._database.execute("DELETE FROM run WHERE side = ?", (side,))
        self._remove_unnamed()

    def count(self, side: str) -> int:
        """Return the number of rows of one side."""
        found = self._database.execute("SELECT coalesce(sum(rows), 0) FROM run WHERE side = ?", (side,))
        return int(found.fetchone()[0])

    def _run(self, number: int) -> Path:
        return self._folder / f"{number:06d}.run"

    def _remove_unnamed(self) -> None:
        named = {self._run(number) for (number,) in self._database.execute("SELECT number FROM run")}
        for path in self._folder.glob("*.run"):
            if path not in named:
                path.unlink()

    def ranges(self) -> Iterator[Range]:
        """Divide all hashes into ranges, each of which fits into memory."""
        runs = list(self._database.execute("SELECT number, side, rows, starts, blocks FROM run"))
        starts = {
            number: np.append(np.frombuffer(packed, dtype="<i4"), rows) for number, _, rows, packed, _ in runs
        }
        total = np.sum([np.zeros(_RANGES + 1, dtype=np.int64), *starts.values()], axis=0)
        edges = [0]
        for place in range(1, _RANGES):
            if total[place + 1] - total[edges[-1]] > _AT_ONCE:
                edges.append(place)
        edges.append(_RANGES)
        for first, last in pairwise(edges):
            yield Range(self, self._folder, runs, starts, first, last)

    def keys_of(self, number: int, blocks: bytes, count: int, places: Sequence[int]) -> list[str]:
        """Return the keys at some places of a run, in ascending order of the places."""
        sizes = np.frombuffer(blocks, dtype="<i4").reshape(-1, 2).astype(np.int64)
        ends = np.cumsum(sizes[:, 0])
        found, at, block = list[str](), -1, list[bytes]()
        with self._run(number).open("rb") as file:
            for place in places:
                if place // _BLOCK != at:
                    at = place // _BLOCK
                    file.seek(count * _ROW.itemsize + int(ends[at] - sizes[at, 0]))
                    packed = file.read(int(sizes[at, 0]))
                    text = self._codec.decompress(packed, decompressed_size=int(sizes[at, 1]), asbytes=True)
                    block = text.split(SEPARATOR)
                found.append(block[place % _BLOCK].decode())
        return found

    # -- Changes

    def add_changes(self, changes: Iterable[tuple[int, str, str, int]]) -> None:
        """Store versions of keys: hash and text of the key, `order_key` and digest."""
        self._database.executemany("INSERT OR REPLACE INTO change VALUES (?, ?, ?, ?)", changes)

    def changes_between(self, low: int, high: int) -> list[tuple[int, str, str, int]]:
        """Return the changes of keys with these hashes, both ends included."""
        return self._database.execute(
            "SELECT hash, key, order_key, digest FROM change WHERE hash BETWEEN ? AND ?", (low, high)
        ).fetchall()

    def changes(self, most: int) -> Iterator[list[tuple[int, str, int]]]:
        """Return hash, `order_key` and digest of all changes, at most so many at once."""
        found = self._database.execute("SELECT hash, order_key, digest FROM change")
        while chunk := found.fetchmany(most):
            yield chunk

    def versions(self, hashed: int, key: str) -> dict[str, int]:
        """Return the digests of the versions of a key by their `order_key`."""
        return dict(
            self._database.execute(
                "SELECT order_key, digest FROM change WHERE hash = ? AND key = ?", (hashed, key)
            )
        )

    # -- Keys that are judged one by one

    def add_pending(self, keys: Iterable[tuple[str, int]], *, suspected_at: float | None = None) -> None:
        """Store keys to judge: text, and digest of the scan; and when they were judged, if they were."""
        kind, since = (None, 0.0) if suspected_at is None else (SUSPECTED, suspected_at)
        rows = ((key, scanned, kind, since) for key, scanned in keys)
        self._database.executemany("INSERT OR REPLACE INTO pending VALUES (?, ?, ?, ?)", rows)

    def add_changed(self, sample: int) -> None:
        """Store all keys that have changed, as keys to judge; with a sample, one of so many."""
        self._database.execute(
            "INSERT OR IGNORE INTO pending SELECT DISTINCT key, 0, NULL, 0.0 FROM change WHERE hash % ? = 0",
            (sample,),
        )

    def judged(self) -> Iterator[str]:
        """Return the keys to judge, and those that differ."""
        for (key,) in self._database.execute("SELECT key FROM pending UNION ALL SELECT key FROM difference"):
            yield key

    def clear_pending(self) -> None:
        """Remove all keys to judge."""
        self._database.execute("DELETE FROM pending")

    def pending(self, after: str, most: int) -> list[Pending]:
        """Return some of the keys to judge, in the order of their texts."""
        return self._database.execute(
            "SELECT key, scanned, kind, since FROM pending WHERE key > ? ORDER BY key LIMIT ?",
            (after, most),
        ).fetchall()

    def pending_count(self) -> int:
        """Return the number of keys to judge."""
        return int(self._database.execute("SELECT count(*) FROM pending").fetchone()[0])

    def settle(self, keys: Iterable[str]) -> None:
        """Remove keys that are equal."""
        self._database.executemany("DELETE FROM pending WHERE key = ?", [(key,) for key in keys])

    def suspect(self, found: Iterable[tuple[str | None, float, str]]) -> None:
        """Store which difference a round found, and when: kind, time, key."""
        self._database.executemany("UPDATE pending SET kind = ?, since = ? WHERE key = ?", found)

    # -- Differences

    def confirm(self, found: Iterable[tuple[str, Kind, Sequence[str]]]) -> None:
        """Store confirmed differences: key, kind, and the `order_key` of each row."""
        rows = [(key, kind.value, json.dumps(list(orders))) for key, kind, orders in found]
        self._database.executemany("INSERT OR REPLACE INTO difference VALUES (?, ?, ?, 0)", rows)
        self.settle(key for key, _, _ in rows)

    def differences(
        self, after: str = "", most: int = 1000, *, repaired: bool = False
    ) -> list[tuple[str, Kind, tuple[str, ...]]]:
        """Return some of the differences, in the order of their keys."""
        found = self._database.execute(
            "SELECT key, kind, orders FROM difference WHERE repaired = ? AND key > ? ORDER BY key LIMIT ?",
            (int(repaired), after, most),
        )
        return [(key, Kind(kind), tuple(json.loads(orders))) for key, kind, orders in found]

    def kinds(self, *, repaired: bool = False) -> dict[Kind, int]:
        """Return the number of differences of each kind."""
        found = self._database.execute(
            "SELECT kind, count(*) FROM difference WHERE repaired = ? GROUP BY kind ORDER BY kind",
            (int(repaired),),
        )
        return {Kind(kind): count for kind, count in found}

    def repaired(self, keys: Iterable[str]) -> None:
        """Mark differences as repaired; a key that differs again is confirmed again."""
        self._database.executemany("UPDATE difference SET repaired = 1 WHERE key = ?", [(k,) for k in keys])


class Range:
    """The rows of both sides whose hashes are in one range."""

    def __init__(
        self,
        state: State,
        folder: Path,
        runs: Sequence[tuple[int, str, int, bytes, bytes]],
        starts: Mapping[int, Integers],
        first: int,
        last: int,
    ) -> None:
        self.low = int(_BOUNDS[first])
        self.high = int(_BOUNDS[last]) - 1 if last < _RANGES else 2**63 - 1
        self._state = state
        self._keys: list[tuple[int, int, bytes, int, int, int]] = []
        sides: dict[str, list[Rows]] = {"source": [], "target": []}
        read = 0
        for number, side, count, _, blocks in runs:
            start, end = int(starts[number][first]), int(starts[number][last])
            with (folder / f"{number:06d}.run").open("rb") as file:
                file.seek(start * _ROW.itemsize)
                sides[side].append(np.fromfile(file, dtype=_ROW, count=end - start))
            if side == "source":
                self._keys.append((number, count, blocks, start, read, read + end - start))
                read += end - start
        empty = np.empty(0, dtype=_ROW)
        self.source: Rows = np.concatenate([empty, *sides["source"]])
        self.target: Rows = np.concatenate([empty, *sides["target"]])

    def source_keys(self, places: Integers) -> list[str]:
        """Return the keys of some of the source's rows, given by their ascending places."""
        found: list[str] = []
        for number, count, blocks, start, first, last in self._keys:
            inside = places[(places >= first) & (places < last)] - first + start
            if len(inside):
                found += self._state.keys_of(number, blocks, count, inside.tolist())
        return found


class _Transaction:
    """All writes inside the block are made at once, or none of them."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._database.execute("COMMIT" if kind is None else "ROLLBACK")


def default_folder(identity: Mapping[str, str]) -> Path:
    """Return the folder for the state of a comparison, in the user's cache."""
    import hashlib

    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).hexdigest()[:20]
    return Path(cache) / "multiclouddb" / "verify" / name
