"""Implements a feed that reads the log of one collection."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Hashable, Mapping, Sequence
from datetime import datetime

from multiclouddb_api import (
    AtTime,
    Beginning,
    ErrorReason,
    LogicalPartition,
    LookupAnswer,
    MulticloudDbKey,
    Now,
)
from multiclouddb_embedded.errors import PROVIDER_ID
from multiclouddb_embedded.mapping import EmbeddedView, describe, from_micros, position_of, to_micros
from multiclouddb_embedded.partitions import Family, find_head, read_family, read_head, read_shape
from multiclouddb_embedded.reader import EmbeddedReader
from multiclouddb_embedded.source import ReaderContext
from multiclouddb_embedded.store.collection import check_kind
from multiclouddb_embedded.store.log import seq_before
from multiclouddb_spi import (
    Cursor,
    Deadline,
    Feed,
    FeedIdentity,
    FeedStart,
    Head,
    Position,
    Reader,
    Scan,
    ScanPlan,
    Seed,
    Segment,
    Survey,
    expired,
)


class EmbeddedFeed(Feed):
    """A feed that reads the log of one collection."""

    def __init__(self, source: ReaderContext) -> None:
        self.spec = source.spec
        self.identity = FeedIdentity(PROVIDER_ID, self.spec.address, source.scope.collection.incarnation)
        self._source, self._scope, self._store = source, source.scope, source.store

    @property
    def reads_at_once(self) -> bool:
        """True unless a read in the thread of a caller took too long."""
        return not self._store.pool.is_slow

    def visible_after(self) -> float:
        """Return how long a commit may take, before which a long transaction reads the clock again."""
        return 5.0

    def clock(self, deadline: Deadline) -> datetime:
        """Return the store's time: the time that a commit would get now."""
        with self._store.reading(deadline) as connection:
            return from_micros(max(self._store.now(), read_head(connection)[1]))

    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Resolve a start. A feed can also start in a partition that was split or merged."""
        with self._store.reading(deadline) as connection:
            self._check_key(connection)
            family = read_family(connection, self._scope)
            match position:
                case Beginning():
                    where = None
                case Now():
                    where = read_head(connection)
                case AtTime(utc):
                    where = _place_at(connection, family, utc, self._store.profile.precision)
        if partition_id is not None:
            return family.one(partition_id, where)
        return family.beginning() if where is None else family.at(*where)

    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> Reader:
        view = self._view(self.public_id(partition_id))
        bound = position_of(until) if until is not None else None
        return EmbeddedReader(self._source, partition_id, view, position_of(cursor), bound)

    def open_segment(self, segment: Segment) -> Reader:
        from multiclouddb_embedded.snapshots import SegmentReader  # many processes never scan

        return SegmentReader(self._source, self._view(self.public_id(segment.segment_id)), segment)

    def survey(
        self,
        asked: Mapping[str, Cursor],
        deadline: Deadline,
        *,
        expired: Collection[str] = frozenset(),
        since: datetime | None = None,
        whole: bool = True,
    ) -> Survey:
        """State all partitions, from one read transaction; the store knows those that are gone too."""
        del expired, whole
        with self._store.reading(deadline) as connection:
            family = read_family(connection, self._scope)
            ts = 0 if since is None else max(0, to_micros(since))
            return family.survey(asked, (seq_before(connection, ts), ts))

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        """Return the latest of the parents' ends, because all parents end where the child starts."""
        return max(cursors, key=position_of)

    def compare(self, a: Cursor, b: Cursor) -> int | None:
        """Compare sequence numbers."""
        left, right = position_of(a)[0], position_of(b)[0]
        return (left > right) - (left < right)

    def headroom(self, cursor: Cursor, now: datetime) -> float | None:
        """Return the collection's retention minus the age of the position."""
        retention = self._scope.collection.retention
        if retention is None:
            return None
        return max(0, retention - (to_micros(now) - position_of(cursor)[1])) / 1_000_000

    def snapshot(self, segments: int | None, deadline: Deadline) -> ScanPlan:
        """Return the stream positions, the `floor` and the plan, all from one read transaction."""
        from multiclouddb_embedded.snapshots import plan_scan

        with self._store.reading(deadline) as connection:
            self._check_key(connection)
            family = read_family(connection, self._scope)
            head = read_head(connection)
            return plan_scan(connection, self._scope, head, family.at(*head), segments)

    def segments(
        self, scan: Scan, rest: Cursor, count: int, deadline: Deadline
    ) -> tuple[list[Segment], Cursor | None]:
        """Return the next segments of the plan, which are found by counting rows."""
        from multiclouddb_embedded.snapshots import cut

        with self._store.reading(deadline) as connection:
            return cut(connection, self._scope, scan, rest, count)

    def moment(self, cursor: Cursor) -> int | None:
        """Return the sequence number, which counts the changes of the whole store."""
        return position_of(cursor)[0]

    def describe(self, cursor: Cursor) -> Position:
        """Return a text such as `sequence 4711`, and a lower limit for the times of later changes."""
        return describe(cursor)

    def heads(
        self, cursors: Mapping[str, Cursor], max_records: int | None, deadline: Deadline
    ) -> dict[str, Head]:
        """Return the current end of each partition, all from one read transaction."""
        with self._store.reading(deadline) as connection:
            return {
                name: find_head(connection, self._scope, name, position_of(cursor), max_records)
                for name, cursor in cursors.items()
            }

    def change_mark(self, deadline: Deadline) -> Hashable:
        """Return the last change of the store, and the state of the collection's partitions and log."""
        with self._store.reading(deadline) as connection:
            return read_head(connection), read_shape(connection, self._scope)

    def lookup(
        self, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> dict[MulticloudDbKey, LookupAnswer]:
        """Return rows as of one read transaction."""
        from multiclouddb_embedded.snapshots import look_up_rows

        with self._store.reading(deadline) as connection:
            now = max(self._store.now(), read_head(connection)[1])
            return look_up_rows(connection, self._scope, self._view(""), now, keys)

    def _view(self, partition_id: str) -> EmbeddedView:
        spec = self.spec
        return EmbeddedView(
            spec.address,
            partition_id,
            self._scope.collection.partition_components,
            with_new=spec.with_new,
            with_old=spec.with_old,
            native=spec.include_native,
        )

    def _check_key(self, connection: sqlite3.Connection) -> None:
        if isinstance(self.spec.scope, LogicalPartition):
            check_kind(connection, self._scope.collection, self.spec.scope.key)


def _place_at(
    connection: sqlite3.Connection, family: Family, utc: datetime, precision: int
) -> tuple[int, int]:
    """Round a time down, and return the position before the first change at or after this time."""
    ts = max(0, to_micros(utc))
    if seq_before(connection, ts) < family.trimmed:
        raise expired(f"changes since {utc.isoformat()} were trimmed", ErrorReason.TRIMMED)
    ts -= ts % precision
    return max(seq_before(connection, ts), family.created, family.trimmed), ts
