"""Holds the objects that all readers of one change stream share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs

from multiclouddb_api import ErrorCategory, ErrorReason
from multiclouddb_spanner.catalog import (
    ChangeStreamInfo,
    check_table,
    how_to_create,
    keys_of,
    left_out_at,
    look_again,
    retention_of,
    types_of,
    unwatched,
    watch_of,
)
from multiclouddb_spanner.client import INT64, STRING, TIMESTAMP, CancelScope, DatabaseClient, QueryResult
from multiclouddb_spanner.errors import (
    earliest_of,
    interval_of,
    is_foreign_partition,
    is_outside_partition,
    is_past,
    is_stale,
    is_without_stream,
)
from multiclouddb_spanner.position import micros_of, text_at
from multiclouddb_spanner.records import (
    Children,
    DataRecord,
    Item,
    Shape,
    Shapes,
    parse_rows,
    rows_of,
    with_problem,
)
from multiclouddb_spanner.watched import PastSchemas, WatchedTimes, first_at
from multiclouddb_spi import ProviderFault, collector_paused
from multiclouddb_spi.faults import START_AGAIN, START_ANEW, expired

# The interval of the service's heartbeats: the longest that it allows. Windows end by themselves, so the
# provider rarely needs heartbeats, but has to read those of a history without changes.
_HEARTBEAT_MS: Final = "300000"
_LOG: Final = logging.getLogger("multiclouddb.spanner")


class Window:
    """A query of one partition between two times, both included."""

    def __init__(
        self, answer: QueryResult, table: str, shapes: Shapes, end: int, *, waits: float, current: bool
    ) -> None:
        # `waits`: by how many seconds `end` was ahead of the clock; `current`: if it reaches the present.
        self.end, self.waits, self.current = end, waits, current
        self.began = time.monotonic()
        self._answer = answer
        self._messages: Iterator[list[Item]] = (_parsed(rows, table, shapes) for rows in rows_of(answer))

    @property
    def expires(self) -> float:
        """Return the value of `time.monotonic()` at which gRPC ends the call."""
        return self._answer.expires

    def next(self) -> list[Item] | None:
        """Return the records of the next message, or None after the last message."""
        return next(self._messages, None)

    def cancel(self) -> None:
        self._answer.cancel()


def _parsed(rows: Sequence[Sequence[Any]], table: str, shapes: Shapes) -> list[Item]:
    with collector_paused():  # parsing makes many objects, and all of them are still in use
        return list(parse_rows(rows, table, shapes))


_SECOND = 1_000_000
# The permitted difference between the oldest readable time and the current time minus the retention period.
_SLACK = 60 * _SECOND
# The minimum distance between a start at the oldest change and the edge of retention. The edge advances while
# the partitions are read for the first time. Therefore the distance is also at least twice the time that the
# call may take. In any case, the distance is at most a tenth of the retention.
_MARGIN = 60 * _SECOND
# How often the provider asks the service whether the stream still watches the table, and for its options.
_CHECK_SECONDS = 60.0
# The start of the search for the oldest change, if the stream's retention is not listed: no stream keeps
# changes for as long (the maximum was 7 days, and is 30 days now).
_LONGEST = 10 * 365 * 86400 * _SECOND
# No stream can have a shorter retention_period.
_SHORTEST_SECONDS = 86400
# Requests up to these sizes may be limited after a connection has broken. After four whole answers, the size
# of a limited request doubles.
_FULL_SPAN = 3600 * _SECOND
_FULL_ROWS = 4096
_ARRIVED = 4


class RequestSizes:
    """The sizes of the next requests after a connection has broken; nothing of a broken message arrives."""

    def __init__(self, full: int) -> None:
        self._full = full
        self._sizes: dict[str, tuple[int, int]] = {}

    def of(self, name: str) -> int | None:
        """Return the size of the next request for a partition or segment; None for no limit."""
        found = self._sizes.get(name)
        return None if found is None else found[0]

    def broke(self, name: str, size: int) -> None:
        """Record that the connection has broken within the answer to a request of the given size."""
        self._sizes[name] = max(1, size // 4), 0

    def arrived(self, name: str, *, small: bool = False) -> None:
        """Record that a whole answer has arrived; `small` if much more would have arrived too."""
        found = self._sizes.get(name)
        if found is not None:
            size, count = found[0], found[1] + 1
            if small or count == _ARRIVED:
                size, count = 2 * size, 0
            if size >= self._full:
                self._sizes.pop(name, None)
            else:
                self._sizes[name] = size, count


class ReaderContext:
    """One change stream, and the table whose changes are read from the stream."""

    def __init__(self, client: DatabaseClient, info: ChangeStreamInfo, slots: threading.Semaphore) -> None:
        self.client, self.info, self.slots = client, info, slots
        self.shapes = Shapes()
        self.spans, self.row_limits = RequestSizes(_FULL_SPAN), RequestSizes(_FULL_ROWS)
        self._watched = PastSchemas(lambda at, scope: watch_of(client, self.info, scope, at))
        self._checking = threading.Lock()
        self._watched_at = time.monotonic()
        self._measured: int | None = None
        self._types: dict[str, dict[str, str]] = {}
        self._fitting: Shape | None = None
        self._began_at = 0  # the time at which the stream was created, if its retention cannot be measured
        # When a partition ended whose children the service has not named yet.
        self.ended: dict[str, int] = {}
        self._times: WatchedTimes | None = None
        self._looked_at = 0.0
        self.resume_at = 0

    def _begin(self, token: str | None, start: int, end: int | None, scope: CancelScope) -> QueryResult:
        till = None if end is None else text_at(end)
        values = [(TIMESTAMP, text_at(start)), (TIMESTAMP, till), (STRING, token), (INT64, _HEARTBEAT_MS)]
        if self.info.postgres:
            sql = f'SELECT * FROM spanner."read_json_{self.info.stream}"($1, $2, $3, $4, NULL)'
            names = ("p1", "p2", "p3", "p4")
        else:
            sql = (
                f"SELECT ChangeRecord FROM READ_{self.info.stream}(start_timestamp => @s, "
                "end_timestamp => @e, partition_token => @t, heartbeat_milliseconds => @h)"
            )
            names = ("s", "e", "t", "h")
        return self.client.query(sql, dict(zip(names, values, strict=True)), scope)

    def partitions(self, at: int, scope: CancelScope) -> list[str]:
        shapes, tokens = Shapes(), dict[str, None]()
        for rows in rows_of(self._begin(None, at, None, scope)):
            for item in parse_rows(rows, self.info.table, shapes):
                if isinstance(item, Children):
                    tokens.update(dict.fromkeys(item.parents))
        return list(tokens)

    def window(
        self, token: str, start: int, end: int, scope: CancelScope, *, waits: float = 0, current: bool = False
    ) -> Window:
        answer = self._begin(token, start, end, scope)
        return Window(answer, self.info.table, self.shapes, end, waits=waits, current=current)

    def has(
        self, token: str, start: int, end: int, wanted: Callable[[Item], bool], scope: CancelScope
    ) -> bool:
        """Read a partition up to the first wanted item; return True if there is one."""
        window = self.window(token, start, end, scope)
        try:
            while (items := window.next()) is not None:
                if any(map(wanted, items)):
                    return True
        finally:
            window.cancel()
        return False

    @property
    def retention(self) -> int | None:
        """Return for how many seconds the stream keeps changes; None if that is not known.

        A stream that sets no `retention_period` has the service's default, which Google has changed before.
        It can be measured as soon as the stream is older than that.
        """
        return self._measured if self.info.retention is None else self.info.retention

    def measure(self, scope: CancelScope) -> None:
        """Measure the retention of a stream that sets none."""
        if self.info.retention is None:
            self._began_at = self.earliest(self.client.now(scope), scope)
            self._measured = self._kept_since(self._began_at, scope)

    def kept(self, now: int) -> int:
        """Return for how many seconds the stream surely keeps changes."""
        known = self.retention
        return max(_SHORTEST_SECONDS, (now - self._began_at) // _SECOND) if known is None else known

    def _kept_since(self, earliest: int, scope: CancelScope) -> int | None:
        """Return the retention if the oldest time that can be read moves; None if the stream began there."""
        if self._refused_past(earliest, scope) is None:
            return None
        return (self.client.now(scope) - earliest) // _SECOND

    def _refused_past(self, at: int, scope: CancelScope) -> Exception | None:
        """Return the service's refusal of a time because it is too old, or None."""
        try:
            self.partitions(at, scope)
        except Exception as error:
            if not is_past(error):
                raise
            return error
        return None

    def earliest(self, now: int, scope: CancelScope) -> int:
        """Return the oldest time that can be read."""
        stated = self.info.retention
        bound = now - (_LONGEST if stated is None else stated * _SECOND)
        error = self._refused_past(bound, scope)
        if error is None:
            return bound
        named = earliest_of(error)
        if named is not None:
            return micros_of(named, up=True)
        return first_at(bound, now, lambda at: self._refused_past(at, scope) is None)

    def oldest(self, now: int, scope: CancelScope) -> tuple[int, list[str]]:
        """Return the oldest time from which a feed can read every partition, and its partitions."""
        # The oldest readable time moves forward, unless it is the time at which the stream was created.
        earliest, retention = self.earliest(now, scope), self.retention
        kept = now - earliest if retention is None else retention * _SECOND
        margin = round(min(max(_MARGIN, 2 * scope.deadline.remaining() * _SECOND), kept / 10))
        # If the retention is not known, the service's refusal shows that the oldest time moves.
        at = max(earliest, self.resume_at, now - kept + margin if retention is not None else 0)
        while True:
            try:
                return at, self.partitions(at, scope)
            except Exception as error:
                if not is_past(error) or scope.deadline.passed():
                    raise
                # The retention period has been shortened, or was not known.
                named = earliest_of(error)
                at = (at if named is None else micros_of(named, up=True)) + margin

    def interval(self, token: str, now: int, scope: CancelScope) -> tuple[int, int] | None:
        """Return the start and the end (or now) of a partition; None for one of another stream."""
        earliest = self.earliest(now, scope)
        for at in (earliest, now):
            error = self._refusal(token, at, scope)
            if error is None and at == earliest:
                return earliest, now
            if error is not None and is_foreign_partition(error):
                return None
            named = interval_of(error) if error is not None else None
            if named is not None:
                return micros_of(named[0], up=True), micros_of(named[1])
        if error is not None:
            return None
        # The service does not name the start, so it is searched for within the retention.
        return first_at(earliest, now, lambda at: self._refusal(token, at, scope) is None), now

    def _refusal(self, token: str, at: int, scope: CancelScope) -> Exception | None:
        """Return the reason why a partition cannot be read at a given time, or None."""
        try:
            self.has(token, at, at, lambda item: False, scope)
        except Exception as error:
            if not (is_outside_partition(error) or is_foreign_partition(error) or is_past(error)):
                raise
            return error
        return None

    def watched_whole(self, record: DataRecord, scope: CancelScope) -> bool:
        """Return True if the stream watched all columns when a record was written."""
        return self._watched.at(record.shape, record.at, scope).whole(record.table) is True

    def check_watched(self, at: int, scope: CancelScope) -> int | None:
        """Check that the stream watches the table; return when it next did not after a position, or None."""
        self._check_present(scope)
        for begin, end in self._holes(at, scope):
            if at < begin:
                return begin
            if at < end:
                self.resume_at = max(self.resume_at, end)
                raise expired(
                    f"change stream {self.info.stream!r} did not watch {self.info.what}, or left "
                    f"some of its changes out, from about {text_at(begin)} to about {text_at(end)}, so they "
                    "are not recorded"
                )
        return None

    def first_watched(self, at: int, scope: CancelScope) -> int:
        """Return the first time, from a given one on, at which the stream may have watched what is read."""
        return next((end for begin, end in self._holes(at, scope) if begin <= at < end), at)

    def _holes(self, at: int, scope: CancelScope) -> Iterator[tuple[int, int]]:
        times, here = self._times, time.monotonic()
        if times is None or here - self._looked_at >= _CHECK_SECONDS or not times.reaches(at):
            now = self.client.now(scope)
            if times is None:
                times = self._times = WatchedTimes(self._was_watched, now)
            times.look(at, now, scope)
            self._looked_at = here
        return times.holes()

    def _was_watched(self, at: int, scope: CancelScope) -> bool:
        if unwatched(self.client, self.info, scope, at):
            return False
        return left_out_at(self.client, self.info, at, scope) <= self.info.left_out

    def _check_present(self, scope: CancelScope) -> None:
        # Without this check, the feed of a table that is no longer watched would look idle forever, and the
        # copy of one whose deletes are left out by now would look right.
        now = time.monotonic()
        if now - self._watched_at < _CHECK_SECONDS or not self._checking.acquire(blocking=False):
            return
        try:
            self.info = look_again(self.client, self.info, scope)
            self.measure(scope)
            self._compare_types(types_of(self.client, self.info, scope))
            self._watched_at = now
        finally:
            self._checking.release()

    def _compare_types(self, found: dict[str, dict[str, str]]) -> None:
        """Warn if a table has other columns than at the last check."""
        known, self._types = self._types, found
        for table, types in found.items():
            if known.get(table, types) != types:
                self._warn(table, known[table], types)

    def _warn(self, table: str, before: dict[str, str], found: dict[str, str]) -> None:
        changed = [
            *(f"{name} was added" for name in sorted(found.keys() - before.keys())),
            *(f"{name} was dropped" for name in sorted(before.keys() - found.keys())),
            *(
                f"{name} has another type"
                for name in sorted(found)
                if before.get(name, found[name]) != found[name]
            ),
        ]
        _LOG.warning(
            "the columns of table %r have changed: %s. Spanner rewrites stored rows for this without change "
            "records, so a copy has their old values until they change or are read by a Snapshot(); "
            "multiclouddb verify compares them.",
            table,
            ", ".join(changed),
        )

    def fitted(self, record: DataRecord, scope: CancelScope) -> DataRecord:
        """Return a record; if it is one of another table with the same name, with a problem."""
        shape = record.shape
        if shape is self._fitting or shape.problem is not None:  # a shape with a problem has no types
            return record
        if self._fits(shape):
            self._fitting = shape
            return record
        # Either the table is another one by now, which is raised here, or the record is older than it.
        check_table(self.client, self.info, scope)
        return with_problem(
            record, f"it is a change of an earlier table {record.table!r}, which had another primary key"
        )

    def _fits(self, shape: Shape) -> bool:
        """Return True if a record has the key columns of the table and no others, with their types."""
        # With a key column more or less, changes of several rows would have one key, or none.
        kinds = zip(self.info.key_names, self.info.key_types, strict=False)
        return shape.key_names == set(self.info.key_names) and all(
            shape.kinds[name] == kind for name, kind in kinds if kind
        )

    # -- Errors whose meaning depends on the call

    def translated(
        self, error: Exception, at: int, scope: CancelScope, token: str | None = None
    ) -> ProviderFault | None:
        """Return the fault for an error of a read, or None if `classify` can determine its meaning."""
        name = self.info.stream
        if is_without_stream(error):
            return ProviderFault.of(
                ErrorCategory.NOT_FOUND,
                f"change stream {name!r} was dropped; create it and start again: "
                f"{how_to_create(self.info.table, postgres=self.info.postgres)}",
            )
        if is_foreign_partition(error):
            return ProviderFault.of(
                ErrorCategory.INVALID_REQUEST,
                f"partition {_short(token)} does not belong to change stream {name!r}: it belongs to another "
                "one, or to an earlier one that was recreated under the same name; start again",
                reason=ErrorReason.WRONG_RESOURCE,
            )
        if is_past(error):
            return self._past(error, at, scope, resumes=token is not None)
        if is_outside_partition(error):
            return ProviderFault.of(
                ErrorCategory.INVALID_REQUEST,
                f"partition {_short(token)} of change stream {name!r} did not exist at {text_at(at)}: it "
                "started later or had already ended; pass a token as it was returned, or start again",
            )
        return None

    def unnamed(self, token: str) -> ProviderFault:
        """Return the fault for a partition that has ended, but whose children the service has not named."""
        return ProviderFault.of(
            ErrorCategory.TRANSIENT_FAILURE,
            f"the query of partition {_short(token)} of change stream {self.info.stream!r} ended without "
            "naming the partitions that follow; nothing is lost, its position has not moved; try again",
            retryable=True,
        )

    def _past(self, error: Exception, at: int, scope: CancelScope, *, resumes: bool) -> ProviderFault:
        name = self.info.stream
        # The retention period may have changed since the stream was found.
        self.info = attrs.evolve(self.info, retention=retention_of(self.client, self.info, scope))
        now = self.client.now(scope)
        named = earliest_of(error)
        earliest = self.earliest(now, scope) if named is None else micros_of(named, up=True)
        # An oldest time within the retention is the time when the stream was created.
        retention = self.info.retention
        if retention is None:
            retention = self._measured = self._kept_since(earliest, scope)
        is_younger = retention is None or earliest > now - retention * _SECOND + _SLACK
        if resumes and is_younger and not is_stale(error):  # a stale partition is one of this stream
            return ProviderFault.of(
                ErrorCategory.INVALID_REQUEST,
                f"change stream {name!r} was created at {text_at(earliest)}, and this position is at "
                f"{text_at(at)}: the position belongs to an earlier stream that was recreated under the same "
                f"name, and the changes of the earlier stream are gone; {START_ANEW}",
                reason=ErrorReason.RECREATED,
            )
        return ProviderFault.of(
            ErrorCategory.CHECKPOINT_EXPIRED,
            f"change stream {name!r} keeps nothing before {text_at(earliest)}, and this position is at "
            f"{text_at(at)}; a longer retention_period keeps more; {START_AGAIN}",
            reason=ErrorReason.AGED_OUT,
        )


_EVERY: Final = Shape(())
"""Stands for every shape, because one schema answers for all tables."""


class DatabaseContext(ReaderContext):
    """One change stream, and all the tables that it watches.

    A record names its table and its columns, but not the order of the key columns, and the table may have
    another key by now, or be gone. So the order comes from the schema of the time of the record.
    """

    def __init__(self, client: DatabaseClient, info: ChangeStreamInfo, slots: threading.Semaphore) -> None:
        super().__init__(client, info, slots)
        self._keys = PastSchemas(lambda at, scope: keys_of(client, scope, postgres=info.postgres, at=at))

    def watched_whole(self, record: DataRecord, scope: CancelScope) -> bool:
        whole = self._watched.at(_EVERY, record.at, scope).whole(record.table)
        # If the table was not watched up to a minute before, the schema of another record does not name it.
        return super().watched_whole(record, scope) if whole is None else whole

    def fitted(self, record: DataRecord, scope: CancelScope) -> DataRecord:
        """Return a record with the order of its key columns; with a problem if that is not known."""
        names = record.shape.key_names
        if len(names) == 1 or record.shape.problem is not None:
            return record
        if not names:
            return with_problem(record, f"table {record.table!r} has no key column (PRIMARY KEY ())")
        for shape in (_EVERY, record.shape):
            key = self._keys.at(shape, record.at, scope).get(record.table, {})
            if key.keys() == names:
                return attrs.evolve(record, key_names=tuple(key))
        return with_problem(
            record,
            f"it is a change of an earlier table {record.table!r}, and the database no longer has the schema "
            "that tells the order of its key columns",
        )


def _short(token: str | None) -> str:
    return "(none)" if token is None else f"{token[:12]}…"
