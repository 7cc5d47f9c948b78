"""Scans the documents of a collection for `Snapshot()`: the plan, its segments, and the reader of a segment.

A segment is a range of keys. The keys are ordered by their canonical JSON, as in the table
`documents`. The last segment ends at the highest key that existed when the snapshot began.
Therefore the scan ends even if new keys are added at the end of the collection. The stream delivers
the keys that are added after the start of the snapshot.

A segment is read after the key `Segment.after`, and up to the key `Segment.last`, which it includes; both are
canonical JSON. The rest of a plan is `[rows in a segment, number of the next segment, start, end]`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias

import orjson
from attrs import frozen

from multiclouddb_api import LookupAnswer, MulticloudDbKey, decode_json
from multiclouddb_api.key import trusted_keys
from multiclouddb_embedded.mapping import ORDER_DIGITS, EmbeddedView, from_micros
from multiclouddb_embedded.partitions import check_there
from multiclouddb_embedded.source import ReaderContext, Scope
from multiclouddb_embedded.store.connection import Interrupt, snapshot
from multiclouddb_spi import (
    AnsweredRows,
    Batch,
    Continue,
    Cursor,
    Deadline,
    InvalidCursor,
    Outcome,
    Reader,
    RowMapper,
    Rows,
    Scan,
    Scanned,
    ScanPlan,
    Seed,
    Segment,
    look_up,
    looked_up,
)

_SEGMENTS: Final = 4
_LEAST_ROWS: Final = 1000
_ROW_BYTES: Final = 200
_PART: Final = 64
_MARKED: Final = b'"$'

_RANGE: Final = "FROM documents WHERE collection = :collection AND id > :after AND id <= :end"
_COUNT: Final = "SELECT count(*), max(id) FROM documents WHERE collection = :collection AND id > :after"
_HIGH: Final = f"SELECT id {_RANGE} ORDER BY id LIMIT 1 OFFSET :rows"
_ROWS: Final = f"SELECT id, key, doc {_RANGE} ORDER BY id LIMIT :most"
_BY_KEY: Final = "SELECT id, key, doc FROM documents WHERE collection = ? AND id IN"
_MOST_KEYS: Final = 500  # SQLite accepts at least 999 parameters
_KEYS: Final = f"SELECT id, key, NULL {_RANGE} ORDER BY id LIMIT :most"


def plan_scan(
    connection: sqlite3.Connection,
    scope: Scope,
    head: tuple[int, int],
    seeds: Sequence[Seed],
    segments: int | None,
) -> ScanPlan:
    """Plan a scan."""
    seq, ts = head
    if scope.key is None:
        row = connection.execute(_COUNT, {"collection": scope.collection.id, "after": b""}).fetchone()
        (records, end), after = row, b""
        rows = max(1 if segments else _LEAST_ROWS, -(-records // (segments or _SEGMENTS)))
    else:
        # The next character after `[1,[["id","a"]` is `]`, or `,` if the key has more components. Both
        # characters sort before `^`.
        after = scope.key[:-2]
        end, records, rows = after + b"^", None, 2**53
    # The floor is above the change `seq`, and below every later one.
    common = Scan(f"{seq:0{ORDER_DIGITS}d}~", from_micros(ts))
    count = None if records is None else max(1, -(-records // rows))
    return ScanPlan(common, [rows, 0, _text(after), _text(end or b"")], tuple(seeds), count or 1, records)


def cut(
    connection: sqlite3.Connection, scope: Scope, scan: Scan, rest: Cursor, count: int
) -> tuple[list[Segment], Cursor | None]:
    """Take the next segments from a plan."""
    match rest:
        case [int() as rows, int() as number, str() as after, str() as end] if _are_numbers(rows, number):
            pass
        case _:
            raise InvalidCursor("it is not a plan of a snapshot")
    check_there(connection, scope.collection)
    found: list[Segment] = []
    while after < end and len(found) < count:
        bounds = {"after": after.encode(), "end": end.encode()}
        part = {"collection": scope.collection.id, **bounds, "rows": rows - 1}
        high = connection.execute(_HIGH, part).fetchone()
        last = end if high is None else _text(high[0])
        found.append(scan.segment(str(number), after, last, rows))
        after, number = last, number + 1
    return found, [rows, number, after, end] if after < end else None


def _are_numbers(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < 2**62 for value in values)


def _text(canonical: bytes) -> str:
    return bytes(canonical).decode()


Row: TypeAlias = tuple[bytes, str, str | None]
"""One row: the key's canonical JSON, the key and the document."""


@frozen(eq=False)
class _Mapper(RowMapper):
    view: EmbeddedView
    segment: Segment

    def rows(self, records: list[Row], start: int, stop: int, *, texts: bool) -> Rows | None:
        if texts:
            return None
        view, rows = self.view, records[start:stop]
        return Rows(
            trusted_keys(_values([row[1] for row in rows]), view.partition_components),
            _values([row[2] or "null" for row in rows]) if view.with_new else repeat(None),
            canonical=[row[0] for row in rows],
            natives=[{"key": row[1], "doc": row[2]} for row in rows] if view.native else repeat(None),
        )

    def place_after(self, records: list[Row], count: int) -> str:
        return _text(records[count - 1][0])


def _values(texts: list[str]) -> list[Any]:
    joined = ",".join(texts).encode()
    values = [decode_json(text) for text in texts] if _MARKED in joined else orjson.loads(b"[%b]" % joined)
    if len(values) != len(texts) or not {dict, type(None)}.issuperset(map(type, values)):
        raise ValueError("not one JSON object per row")
    return values


class SegmentReader(Reader):
    """Reads the rows of one segment."""

    # Each fetch is one read transaction, so the rows of a fetch come from the same state of the store.

    def __init__(self, source: ReaderContext, view: EmbeddedView, segment: Segment) -> None:
        self._source, self._segment, self._mapper = source, segment, _Mapper(view, segment)
        self._interrupt = Interrupt()
        self._rows, self._texts = (_ROWS, 3) if view.with_new else (_KEYS, 2)

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        pool = self._source.store.pool
        with pool.borrow(deadline.at) as connection, self._interrupt.covers(connection), snapshot(connection):
            check_there(connection, self._source.scope.collection)
            return self._fetch(connection, max_records, max_bytes)

    def cancel(self) -> None:
        """Interrupt the running statement. This takes milliseconds."""
        self._interrupt.cancel()

    def close(self) -> None:
        """Do nothing, because a reader holds no resources and the connections belong to the pool."""

    def _fetch(self, connection: sqlite3.Connection, max_records: int, max_bytes: int) -> Batch:
        begin = self._segment
        bounds = {"after": begin.after.encode(), "end": begin.last.encode()}
        part = {"collection": self._source.scope.collection.id, **bounds, "most": max_records + 1}
        cursor, rows, nbytes, more = connection.execute(self._rows, part), list[Row](), 0, True
        while len(rows) <= max_records and nbytes < max_bytes and more:
            taken = cursor.fetchmany(_PART)
            rows += taken
            nbytes += _ROW_BYTES * len(taken)
            for column in list(zip(*taken, strict=True))[: self._texts]:
                nbytes += sum(map(len, column))
            more = len(taken) == _PART
        if len(rows) > max_records:
            del rows[max_records:]
            more = True
        elif more:
            more = cursor.fetchone() is not None
        if rows:
            self._segment = begin.at(self._mapper.place_after(rows, len(rows)))
        outcome: Outcome = Continue() if more else Scanned()
        end = self._segment.cursor
        return Batch(rows, self._mapper, begin.cursor, end, outcome, nbytes, caught_up=not more)


def look_up_rows(
    connection: sqlite3.Connection,
    scope: Scope,
    view: EmbeddedView,
    now: int,
    keys: Sequence[MulticloudDbKey],
) -> dict[MulticloudDbKey, LookupAnswer]:
    """Return the rows of some of the keys."""
    check_there(connection, scope.collection)

    def normal(key: MulticloudDbKey) -> MulticloudDbKey:
        scope.collection.check_key(key)
        return key

    def ask(asked: list[MulticloudDbKey]) -> AnsweredRows:
        query = f"{_BY_KEY} ({', '.join('?' * len(asked))})"
        ids = [key.canonical() for key in asked]
        rows = connection.execute(query, (scope.collection.id, *ids)).fetchall()
        return AnsweredRows(_Mapper(view, looked_up(from_micros(now))).events(rows, 0, len(rows)))

    return look_up(keys, _MOST_KEYS, normal, ask)
