"""Scans the documents of a collection for `Snapshot()`: the plan, its segments, and the reader of a segment.

A segment is a range of keys. The keys are ordered by their canonical JSON, as in the table
`documents`. The last segment ends at the highest key that existed when the snapshot began.
Therefore the scan ends even if new keys are added at the end of the collection. The stream delivers
the keys that are added after the start of the snapshot.

The cursor of a plan is `[plan id, seq, µs, rows in a segment, number of the next segment, start,
end]`. The cursor of a segment is `[plan id, seq, µs, start, end]`. Both bounds (`start` and `end`)
are keys. Reading begins after the key `start`, and includes the key `end`.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias

import orjson
from attrs import frozen

from multiclouddb_api import ChangeType, LookupAnswer, MulticloudDbKey, decode_json
from multiclouddb_api.key import trusted_keys
from multiclouddb_embedded.mapping import ORDER_DIGITS, View, from_micros
from multiclouddb_embedded.partitions import check_there
from multiclouddb_embedded.source import Scope, Source
from multiclouddb_embedded.store.connection import Interrupt, snapshot
from multiclouddb_spi import (
    Batch,
    ColumnMapper,
    Columns,
    Continue,
    Cursor,
    Deadline,
    InvalidCursor,
    Outcome,
    Reader,
    RecordFault,
    Scanned,
    ScanPlan,
    Seed,
    Segment,
    segment_id_of,
    snapshot_id_of,
)
from multiclouddb_spi.abilities import LOOKUP_PLAN

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
    plan_id = os.urandom(6).hex()
    cursor: Cursor = [plan_id, seq, ts, rows, 0, _text(after), _text(end or b"")]
    count = None if records is None else max(1, -(-records // rows))
    return ScanPlan(plan_id, cursor, tuple(seeds), _floor(seq), from_micros(ts), count or 1, records)


def cut(
    connection: sqlite3.Connection, scope: Scope, cursor: Cursor, count: int
) -> tuple[list[Segment], Cursor | None]:
    """Take the next segments from a plan."""
    match cursor:
        case [str(plan_id), int(seq), int(ts), int(rows), int(number), str(after), str(end)] if _are_numbers(
            seq, ts, rows, number
        ):
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
        found.append(Segment(segment_id_of(plan_id, str(number)), [plan_id, seq, ts, after, last], rows))
        after, number = last, number + 1
    return found, [plan_id, seq, ts, rows, number, after, end] if after < end else None


def _are_numbers(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < 2**62 for value in values)


def _floor(seq: int) -> str:
    """Return the `floor` of the snapshot: the order key of its rows."""
    return f"{seq:0{ORDER_DIGITS}d}~"


def _text(canonical: bytes) -> str:
    return bytes(canonical).decode()


Row: TypeAlias = tuple[bytes, str, str | None]
"""One row: the key's canonical JSON, the key and the document."""


@frozen(eq=False)
class _Mapper(ColumnMapper):
    view: View
    plan_id: str
    seq: int
    ts: int
    end: str

    def cursor_after(self, records: list[Row], count: int) -> Cursor:
        return [self.plan_id, self.seq, self.ts, _text(records[count - 1][0]), self.end]

    def columns(self, records: list[Row], start: int, stop: int, *, texts: bool) -> Columns | None:
        if texts:
            return None
        view, rows = self.view, records[start:stop]
        prefix, blake2b = f"{snapshot_id_of(self.plan_id)}:", hashlib.blake2b
        return Columns(
            [prefix + blake2b(row[0], digest_size=16).hexdigest() for row in rows],
            trusted_keys(_values([row[1] for row in rows]), view.partition_components),
            repeat(ChangeType.CREATE),
            repeat(from_micros(self.ts)),
            repeat(_floor(self.seq)),
            _values([row[2] or "null" for row in rows]) if view.with_new else repeat(None),
            backfilled=repeat(True),
            natives=[{"key": row[1], "doc": row[2]} for row in rows] if view.native else repeat(None),
        )

    def fault(self, records: list[Row], index: int, error: Exception | None) -> RecordFault:
        after = self.cursor_after(records, index + 1)
        return RecordFault(index, f"row {index} of the batch", "it is not the JSON that was stored", after)


def _values(texts: list[str]) -> list[Any]:
    """Return JSON objects and nulls."""
    joined = ",".join(texts).encode()
    values = [decode_json(text) for text in texts] if _MARKED in joined else orjson.loads(b"[%b]" % joined)
    if len(values) != len(texts) or not {dict, type(None)}.issuperset(map(type, values)):
        raise ValueError("not one JSON object per row")
    return values


class SegmentReader(Reader):
    """Reads the rows of one segment."""

    # Each fetch is one read transaction, so the rows of a fetch come from the same state of the store.

    def __init__(self, source: Source, view: View, cursor: Cursor) -> None:
        match cursor:
            case [str(plan_id), int(seq), int(ts), str(after), str(end)] if _are_numbers(seq, ts):
                self._source, self._after, self._end = source, after, end
            case _:
                raise InvalidCursor("it is not a segment of a snapshot")
        self._mapper = _Mapper(view, plan_id, seq, ts, self._end)
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
        begin = self._cursor()
        bounds = {"after": self._after.encode(), "end": self._end.encode()}
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
            self._after = _text(rows[-1][0])
        outcome: Outcome = Continue() if more else Scanned()
        return Batch(rows, self._mapper, begin, self._cursor(), outcome, nbytes, caught_up=not more)

    def _cursor(self) -> Cursor:
        mapper = self._mapper
        return [mapper.plan_id, mapper.seq, mapper.ts, self._after, self._end]


def look_up(
    connection: sqlite3.Connection, scope: Scope, view: View, now: int, keys: Sequence[MulticloudDbKey]
) -> dict[MulticloudDbKey, LookupAnswer]:
    """Return the rows of some of the keys."""
    check_there(connection, scope.collection)
    asked = {key.canonical(): key for key in keys[:_MOST_KEYS]}
    places = ", ".join("?" * len(asked))
    rows = connection.execute(f"{_BY_KEY} ({places})", (scope.collection.id, *asked)).fetchall()
    events = _Mapper(view, LOOKUP_PLAN, 0, now, "").events(rows, 0, len(rows))
    found: dict[MulticloudDbKey, LookupAnswer] = dict.fromkeys(asked.values())
    found.update((asked[bytes(row[0])], event) for row, event in zip(rows, events, strict=True))
    return found
