"""Reads one partition of the log."""

from __future__ import annotations

import sqlite3
import time
from typing import Final

from multiclouddb_api import MulticloudDbError, MulticloudDbKey, decode_json
from multiclouddb_embedded.mapping import EmbeddedMapper, EmbeddedView, Records, cursor_of, from_micros
from multiclouddb_embedded.partitions import Standing, outcome_of, standing
from multiclouddb_embedded.source import ReaderContext
from multiclouddb_embedded.store.connection import AT_ONCE_SECONDS, Interrupt, Version, snapshot
from multiclouddb_spi import Batch, Continue, Deadline, Outcome, Reached, Reader

# Finds the last row to read. A read returns at least one row, and otherwise as many of the wanted rows as fit
# into the byte limit. In most cases all wanted rows fit. Then only the last wanted row is examined. `before`
# is the total size in bytes of all rows that precede a row in the partition.
_BEFORE: Final = "SELECT seq, volume - size AS before FROM log WHERE partition = :partition AND seq > :first"
_BOUND: Final = f"""
WITH first AS ({_BEFORE} ORDER BY seq LIMIT 1),
last AS (
    SELECT * FROM ({_BEFORE} AND seq <= :last ORDER BY seq LIMIT 1 OFFSET :most - 1)
    UNION ALL SELECT * FROM ({_BEFORE} AND seq <= :last ORDER BY seq DESC LIMIT 1)
    LIMIT 1
)
SELECT CASE
    WHEN last.before < :bytes + first.before THEN last.seq
    ELSE (SELECT max(seq) FROM ({_BEFORE} AND seq <= last.seq) WHERE before < :bytes + first.before)
END FROM first, last
"""
# The same for the changes with one hash, or for all partitions of a collection.
_BOUND_SUM: Final = """
SELECT max(seq) FROM (
    SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before FROM (
        SELECT seq, size FROM {wanted} {reach} ORDER BY seq LIMIT :most
    )
) WHERE before < :bytes
"""
_ROWS: Final = """
SELECT count(*), max(ts), group_concat(seq), group_concat(ts), group_concat(type),
    CAST(group_concat(key, char(30)) AS BLOB), {new}, {old}
FROM {wanted}
"""
_TEXTS: Final = "CAST(group_concat(coalesce({column}, 'null'), char(30)) AS BLOB)"
_COPIES: Final = 3
"""SQLite joins the texts of an answer in one text, and has it several times in memory while it does so."""
_ALL: Final = "WHERE TRUE"
_ONE_HASH: Final = "INDEXED BY log_hash WHERE hash = :hash"
# Under `profile="mongo"`, `:partition` is the id of the collection.
_PARTITIONS: Final = "SELECT id FROM partitions WHERE collection = :partition AND last_seq > :first"
# A change that comes after the `:most`th change of its partition cannot be among the first `:most` changes of
# the collection.
_REACH: Final = """
AND seq <= coalesce((
    SELECT min((
        SELECT seq FROM log {filter} AND partition = p.id AND seq > :first
        ORDER BY seq LIMIT 1 OFFSET :most - 1
    )) FROM partitions p WHERE collection = :partition AND last_seq > :first
), :last)
"""


class EmbeddedReader(Reader):
    """Reads one partition forward."""

    # In one fetch, the store's last change, the partition and its rows come from the same state of the store.
    # Each fetch is one read transaction. Therefore no split can happen between the answers "no more changes"
    # and "closed".

    def __init__(
        self,
        source: ReaderContext,
        name: str,
        view: EmbeddedView,
        position: tuple[int, int],
        until: tuple[int, int] | None,
    ) -> None:
        self._source, self._name, self._view = source, name, view
        self._mapper = EmbeddedMapper(view)
        self._position, self._until = position, until
        self._interrupt = Interrupt()
        self._idle: tuple[Version, Batch] | None = None
        new, old = view.with_new, view.with_old
        every_key = source.scope.hash is None
        keeps, whole = _ALL if every_key else _ONE_HASH, source.scope.whole
        place = f"partition IN ({_PARTITIONS})" if whole else "partition = :partition"
        wanted = f"log {keeps} AND {place} AND seq > :first AND seq <= :last"
        reach = _REACH.format(filter=keeps) if whole else ""
        self._bound = _BOUND if every_key and not whole else _BOUND_SUM.format(wanted=wanted, reach=reach)
        self._more = f"SELECT 1 FROM {wanted} LIMIT 1"
        self._rows = _ROWS.format(
            new=_TEXTS.format(column="doc") if new else "NULL",
            old=_TEXTS.format(column="old") if old else "NULL",
            wanted=f"(SELECT * FROM {wanted} ORDER BY seq)" if whole else wanted,
        )

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Fetch records. While there are no records, check for commits every few milliseconds."""
        patience = deadline.sooner(wait)
        while True:
            batch = self._look(max_records, max_bytes, deadline.at)
            left = patience.remaining()
            if self._idle is None or left <= 0:
                return batch
            if self._interrupt.cancelled.wait(min(self._source.options.poll_seconds, left)):
                return batch

    def fetch_at_once(self, max_records: int, max_bytes: int) -> Batch:
        """Fetch records in the caller's thread; raise an error if the file is slow or locked."""
        until = time.monotonic() + AT_ONCE_SECONDS
        try:
            return self._look(max_records, max_bytes, until, hurry=True)
        finally:
            # A file that is locked or on a slow disk would make every page of the caller wait.
            if time.monotonic() >= until:
                self._source.store.pool.is_slow = True

    def _look(self, max_records: int, max_bytes: int, until: float, *, hurry: bool = False) -> Batch:
        version = self._source.store.monitor.version(until if hurry else None)
        if self._idle is not None and self._idle[0] == version:
            return self._idle[1]
        batch = self._read(max_records, max_bytes, until, hurry=hurry)
        nothing = not len(batch) and batch.caught_up and isinstance(batch.outcome, Continue)
        self._idle = (version, batch) if nothing else None
        return batch

    def cancel(self) -> None:
        """Interrupt the running statement, and end a waiting fetch within milliseconds."""
        self._interrupt.cancel()

    def close(self) -> None:
        """Discard the last answer. The reader closes no connection, because the pool owns the connections."""
        self._idle = None

    def _read(self, max_records: int, max_bytes: int, until: float, *, hurry: bool) -> Batch:
        source = self._source
        with (
            source.store.pool.borrow(until, hurry=hurry) as connection,
            self._interrupt.covers(connection),
            snapshot(connection),
        ):
            state = standing(connection, source.scope, self._name, self._position)
            return self._batch(connection, state, max_records, max_bytes)

    def _batch(
        self, connection: sqlite3.Connection, state: Standing, max_records: int, max_bytes: int
    ) -> Batch:
        end_seq = state.end[0]
        last = end_seq if self._until is None else min(end_seq, self._until[0])
        part = {
            "partition": state.row.id,
            "hash": self._source.scope.hash,
            "first": max(self._position[0], state.before),
            "last": min(last, state.row.last_seq),
            "most": max_records,
            "bytes": max(1, max_bytes // _COPIES),
        }
        records, cut = self._select(connection, part)
        outcome: Outcome = Continue()
        position = cut
        if position is None:
            position, outcome = self._end(connection, state)
        begin, self._position = self._position, position
        return Batch(
            records,
            self._mapper,
            cursor_of(*begin),
            cursor_of(*position),
            outcome,
            records.nbytes,
            caught_up=cut is None,
            watermark=from_micros(position[1]),
            headroom=self._headroom(position[1], caught_up=cut is None),
        )

    def _select(
        self, connection: sqlite3.Connection, part: dict[str, int | None]
    ) -> tuple[Records, tuple[int, int] | None]:
        """Return the next rows, and the position after them if there are more."""
        bound = connection.execute(self._bound, part).fetchone()
        if bound is None or bound[0] is None:
            return _NOTHING, None
        last = bound[0]
        row = connection.execute(self._rows, {**part, "last": last}).fetchone()
        count, last_ts, *columns = row
        records = Records(count, *columns)
        if self._source.scope.key is not None:
            records = _matching(records, self._source.scope.key, self._view.partition_components)
        more = last < part["last"] and connection.execute(self._more, {**part, "first": last}).fetchone()
        return records, (last, last_ts) if more else None

    def _end(self, connection: sqlite3.Connection, state: Standing) -> tuple[tuple[int, int], Outcome]:
        """Return the position and the outcome of the partition if there are no more rows."""
        seq, ts = self._position
        end_seq, end_ts = state.end
        if self._until is not None and self._until[0] <= end_seq:
            return max(self._until, self._position), Reached()
        position = max(end_seq, seq), max(end_ts, ts)
        return position, outcome_of(connection, self._source.scope, state.row, position)

    def _headroom(self, ts: int, *, caught_up: bool) -> float | None:
        # At the end of the log, the result is the whole retention, because no later change can be removed
        # yet.
        retention = self._source.scope.collection.retention
        if retention is None:
            return None
        age = 0 if caught_up else self._source.store.now() - ts
        return max(0, retention - age) / 1_000_000


_NOTHING: Final = Records(0, "", "", "", b"", None, None)


def _matching(records: Records, canonical: bytes, components: int) -> Records:
    # The check is needed because two keys can have the same hash.

    def is_other(text: bytes) -> bool:
        try:
            names = list(decode_json(text).items())[:components]
            return MulticloudDbKey(dict(names), components).canonical() != canonical
        except (MulticloudDbError, AttributeError):
            return False  # the row is damaged, so it must not be skipped but reported

    others = [is_other(text) for text in records.texts("keys", 0, len(records))]
    if not any(others):
        return records
    return records.select(index for index, other in enumerate(others) if not other)
