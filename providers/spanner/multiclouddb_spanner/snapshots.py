"""Scans the rows of a table for `Snapshot()`: the plan, its segments, and the objects that readers share.

Every row is read as it was at one time T, the floor of the snapshot. The reads use an exact
timestamp, so every client in every process can make them. Reading of the change stream begins at
time T. If the database no longer keeps the data of time T (`version_retention_period`), the reader
of a segment reads the remaining rows as they were at a later time than T. The stream contains the
changes since T, so nothing is lost.

A segment is a range of the primary key, in the order of the table. The first segment begins before
every key, the last segment ends after every key, and each other segment begins where the previous
one ends. Only the service compares keys. Therefore keys can have several columns, any types, NULL
values and descending order.

T is the moment of the scan. The positions of a segment, `Segment.after` and `Segment.last`, are keys as JSON
text, or "" for no bound; the segment includes the key `last`. The rest of a plan is `[number of the next
segment, read after, [end of each segment]]`.

A database is scanned table by table, in the order of their names, each as it was at T. Its tables are those
that the stream watched at T, and the rest of the plan is `[segments for each table, or 0, the table, its rest
or null]`. If the database no longer keeps T, the tables of a later time are read: those that are dropped by
then have no rows, and the rows of new ones are in the stream.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar, cast

import grpc
import orjson
from google.cloud.spanner_v1 import PartitionReadRequest, ReadRequest

from multiclouddb_api import ErrorCategory
from multiclouddb_spanner.catalog import (
    ChangeStreamInfo,
    check_provisioned,
    check_same_key,
    columns_at,
    find,
    tables_at,
)
from multiclouddb_spanner.client import CancelScope, DatabaseClient, holding
from multiclouddb_spanner.errors import is_lost_version, status_of
from multiclouddb_spanner.position import micros, moment_of, place_of, text_at
from multiclouddb_spanner.records import plain_value, rows_of
from multiclouddb_spanner.source import ReaderContext
from multiclouddb_spi import (
    Cursor,
    FeedSpec,
    InvalidCursor,
    ProviderFault,
    Scan,
    ScanPlan,
    Seed,
    Segment,
    unsupported,
)

Answer = TypeVar("Answer")
_Cut: TypeAlias = tuple[list[Segment], Cursor | None]
_SECOND: Final = 1_000_000
_KEPT_SECONDS: Final = 0.5
_LATELY_SECONDS: Final = 5.0
_MOST_KNOWN: Final = 8
_LATER_SECONDS: Final = 60.0
# The distance from the edge of the stream's retention at which it is checked whether the stream is still the
# same.
_MARGIN: Final = 120 * _SECOND


def floor_of(at: int) -> str:
    """Return the `order_key` of the rows of a snapshot taken at the given time."""
    return f"{text_at(at)}|~"


def _is_key(text: Any) -> bool:
    try:
        return type(text) is str and (text == "" or type(orjson.loads(text)) is list)
    except ValueError:
        return False


def check_keys(*texts: Any) -> None:
    """Refuse a bound of a segment that is not a key."""
    if not all(map(_is_key, texts)):
        raise InvalidCursor("it is not a part of the table")


class Scans:
    """Stores recent information about the tables, for all scans of one feed."""

    def __init__(self, source: ReaderContext, spec: FeedSpec) -> None:
        self.source, self.spec = source, spec
        self._columns: dict[int, dict[str, list[str]]] = {}
        self._tables: dict[int, dict[str, ChangeStreamInfo]] = {}
        self._asking = threading.Lock()
        self._later = (-_LATER_SECONDS, 0)
        self._info: tuple[float, ChangeStreamInfo] = (time.monotonic(), source.info)
        self._checked: tuple[float, int, ChangeStreamInfo] | None = None
        self._lock = threading.Lock()

    def check(self, began: int, scope: CancelScope, *, lately: bool = False) -> ChangeStreamInfo:
        """Check that the table and the change stream are still those of a snapshot."""
        with self._lock:
            checked = self._checked
        kept = _LATELY_SECONDS if lately else _KEPT_SECONDS
        if checked is not None and checked[1] <= began and time.monotonic() - checked[0] < kept:
            return checked[2]
        started = time.monotonic()
        source, (when, info) = self.source, self._info
        if time.monotonic() - when > _KEPT_SECONDS:
            when = time.monotonic()
            info = find(source.client, self.spec.address, source.info.stream, scope)
            self._info = (when, info)
        check_provisioned(info, self.spec)
        check_same_key(source.info, info)
        if source.retention is None:
            source.measure(scope)
        now, retention = source.client.now(scope), source.retention
        at = began if retention is None else max(began, now - retention * _SECOND + _MARGIN)
        try:
            source.partitions(min(at, now), scope)
        except Exception as error:
            raise source.translated(error, at, scope, "of the snapshot") or error from error
        with self._lock:
            self._checked = (started, began, info)
        return info

    def columns(self, info: ChangeStreamInfo, at: int, *, whole: bool, scope: CancelScope) -> list[str]:
        """Return the columns that a table had at a given time, key columns first."""
        if not whole:
            return list(info.key_names)
        known = self._known(self._columns, columns_at, at, scope).get(info.table)
        if known is None:
            raise ProviderFault.of(
                ErrorCategory.NOT_FOUND, f"table {info.table!r} was dropped; create it and start again"
            )
        return [*info.key_names, *(name for name in known if name not in info.key_names)]

    def tables(self, at: int, scope: CancelScope) -> dict[str, ChangeStreamInfo]:
        """Return the tables of a database at a given time."""
        return self._known(self._tables, tables_at, at, scope)

    def table(
        self, segment: Segment, at: int, checked: ChangeStreamInfo, scope: CancelScope
    ) -> ChangeStreamInfo | None:
        """Return the table of a segment at a given time; None if it is gone, or another one by then.

        Args:
            segment: The segment.
            at: The time at which its rows are read.
            checked: What `check` has returned.
            scope: The time limit.
        """
        if not segment.collection:
            return checked
        found = self.tables(at, scope).get(segment.collection)
        # The rows of a table that was created again are all in the stream.
        return found if found is not None and segment.name.endswith(f"-{found.key_digest()}") else None

    def is_gone(
        self, info: ChangeStreamInfo | None, error: Exception, scope: CancelScope
    ) -> TypeGuard[ChangeStreamInfo]:
        """Return True if a read has failed because its table of a database was dropped meanwhile."""
        if info is None or self.source.info.table or status_of(error) is not grpc.StatusCode.NOT_FOUND:
            return False
        client = self.source.client
        found = tables_at(client, self.source.info, client.now(scope), scope).get(info.table)
        return found is None or found.key_digest() != info.key_digest()

    def later(self, lost: int, scope: CancelScope) -> int:
        """Return a time to read at, for one whose data is lost; the same for a minute, to ask less often."""
        when, at = self._later
        if at <= lost or time.monotonic() - when > _LATER_SECONDS:
            when, at = self._later = time.monotonic(), self.source.client.now(scope)
        return at

    def _known(
        self,
        answers: dict[int, Answer],
        ask: Callable[[DatabaseClient, ChangeStreamInfo, int, CancelScope], Answer],
        at: int,
        scope: CancelScope,
    ) -> Answer:
        with holding(self._asking, scope):
            known = answers.get(at)
            if known is None:
                if len(answers) >= _MOST_KNOWN:
                    answers.clear()
                known = answers[at] = ask(self.source.client, self.source.info, at, scope)
            return known


def plan_scan(scans: Scans, seeds: Sequence[Seed], segments: int | None, scope: CancelScope) -> ScanPlan:
    """Plan a scan."""
    # `Now()` is directly after the time that was read. Therefore the stream starts exactly where the rows of
    # that time end.
    began, source = place_of(seeds[0].cursor).first - 1, scans.source
    if not source.info.table and source.client.role is not None:
        raise unsupported(
            "Snapshot() of a database is not supported with a database_role: the tables that the role may "
            "not read are not listed, so their rows would be missing",
            "leave out database_role, or read each table with EntireCollection()",
        )
    scans.check(began, scope)
    scan = Scan(floor_of(began), moment_of(began))
    if not source.info.table:
        scans.tables(began, scope)  # refuses a table that cannot be read
        return ScanPlan(scan, [segments or 0, "", None], tuple(seeds))
    bounds, records = bounds_of(source.client, source.info, began, segments, scope)
    return ScanPlan(scan, [0, "", [*bounds]], tuple(seeds), len(bounds), records)


def cut(scans: Scans, scan: Scan, rest: Cursor, count: int, scope: CancelScope) -> _Cut:
    """Take the next segments from a plan."""
    if scans.source.info.table:
        return _cut_table(scan, rest, count)
    match rest:
        case [int() as wanted, str() as table, part] if type(wanted) is int and wanted >= 0:
            pass
        case _:
            raise _no_plan()
    found: list[Segment] = []
    half = time.monotonic() + scope.deadline.remaining() / 2
    while len(found) < count and not (found and time.monotonic() > half):
        if part is None:
            following = _next_table(scans, micros(scan.moment), table, wanted or None, scope)
            if following is None:
                return found, None
            table, part = following
        more, part = _cut_table(scan, part, count - len(found), table)
        found += more
    return found, [wanted, table, part]


def _next_table(
    scans: Scans, at: int, before: str, segments: int | None, scope: CancelScope
) -> tuple[str, Cursor] | None:
    """Return the next table of a database after a name, with the rest of its plan; None if there is none."""
    while True:
        info: ChangeStreamInfo | None = None
        try:
            tables = scans.tables(at, scope)
            name = min((each for each in tables if each > before), default=None)
            if name is None:
                return None
            info = tables[name]
            bounds, _ = bounds_of(scans.source.client, info, at, segments, scope)
            return name, [0, "", [*bounds], info.key_digest()]
        except Exception as error:
            if is_lost_version(error):
                at = scans.later(at, scope)
            elif scans.is_gone(info, error, scope):
                before = info.table
            else:
                raise


def _cut_table(scan: Scan, rest: Cursor, count: int, table: str = "") -> _Cut:
    """Take the next segments from the plan of one table."""
    match rest:
        case [int() as number, str() as after, [_, *_] as bounds, *of] if (
            type(number) is int and number >= 0 and len(of) == bool(table)
            and all(isinstance(each, str) and "/" not in each for each in of)
        ):  # fmt: skip
            check_keys(after, *bounds)
        case _:
            raise _no_plan()
    found: list[Segment] = []
    for end in cast("list[str]", bounds[:count]):
        name = "-".join(map(str, (number, *of)))
        found.append(scan.segment(name, after, end, collection=table))
        after, number = end, number + 1
    return found, [number, after, bounds[count:], *of] if bounds[count:] else None


def _no_plan() -> InvalidCursor:
    return InvalidCursor("it is no plan of a snapshot")


_SEGMENTS: Final = 8
_MOST_SEGMENTS: Final = 1000
_SMALL: Final = 1000
_PROBES: Final = 2
_REFUSED: Final = frozenset({grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED})


def key_text(values: Sequence[Any]) -> str:
    """Return a key, given as values of protobuf, as text."""
    return orjson.dumps([plain_value(value) for value in values]).decode()


def range_read(table: str, columns: Sequence[str], after: str, end: str, at: int, limit: int = 0) -> Any:
    """Make the request that reads a range of keys in the order of the primary key, without a session."""
    request = ReadRequest.pb()(table=table, columns=columns, limit=limit)
    request.transaction.single_use.read_only.read_timestamp.FromMicroseconds(at)
    part = request.key_set.ranges.add()
    # A key without parts matches every key. As an included bound, it therefore does not limit the range.
    start = part.start_open if after else part.start_closed
    start.SetInParent()
    start.extend(orjson.loads(after) if after else ())
    part.end_closed.SetInParent()
    part.end_closed.extend(orjson.loads(end) if end else ())
    return request


def keys_read(table: str, columns: Sequence[str], keys: Sequence[Sequence[Any]], at: int) -> Any:
    """Make the request that reads the rows with the given keys, without a session."""
    request = ReadRequest.pb()(table=table, columns=columns)
    request.transaction.single_use.read_only.read_timestamp.FromMicroseconds(at)
    for key in keys:
        request.key_set.keys.add().extend(key)
    return request


def bounds_of(
    client: DatabaseClient, info: ChangeStreamInfo, at: int, segments: int | None, scope: CancelScope
) -> tuple[list[str], int | None]:
    """Return the last key of each segment ("" for the last one), and the number of rows if it is known."""
    request = range_read(info.table, info.key_names, "", "", at, _SMALL + 1)
    keys = _keys(client, request, len(info.key_names), scope)
    count = min(segments or (1 if len(keys) <= _SMALL else _SEGMENTS), _MOST_SEGMENTS)
    if len(keys) <= _SMALL:
        size = max(1, -(-len(keys) // count))
        return [*keys[size - 1 : len(keys) - 1 : size], ""], len(keys)
    if count == 1:
        return [""], None
    try:
        return [*_thinned(_cuts(client, info, at, count, scope), count - 1), ""], None
    except grpc.RpcError as error:
        if status_of(error) not in _REFUSED:
            raise
        return [""], None


def _keys(
    client: DatabaseClient, request: Any, width: int, scope: CancelScope, *, first: bool = False
) -> list[str]:
    """Return the keys that a read returns; if `first` is True, return only the first key."""
    answer, keys = client.read(request, scope), list[str]()
    try:
        for rows in rows_of(answer, width):
            keys += [key_text(row) for row in rows]
            if first and keys:
                return keys[:1]
    finally:
        answer.cancel()
    return keys


def _cuts(
    client: DatabaseClient, info: ChangeStreamInfo, at: int, count: int, scope: CancelScope
) -> list[str]:
    """Return the first keys of the parts of the table, in table order."""
    half = time.monotonic() + scope.deadline.remaining() / 2
    asked = PartitionReadRequest.pb()(table=info.table, columns=info.key_names)
    asked.transaction.begin.read_only.read_timestamp.FromMicroseconds(at)
    asked.key_set.all_ = True
    asked.partition_options.max_partitions = count
    told = client.partition_read(asked, scope)
    first: dict[str, None] = {}
    for part in _thinned(told.partitions, _PROBES * count):
        request = ReadRequest.pb()(table=info.table, columns=info.key_names)
        request.transaction.id = told.transaction.id
        request.key_set.all_ = True
        request.partition_token = part.partition_token
        found = _keys(client, request, len(info.key_names), scope, first=True)
        first.update(dict.fromkeys(found))
        if time.monotonic() > half:
            break
    if len(first) < 2:
        return []
    # The keys are sorted by the service, which returns rows in table order, whatever their keys are.
    request = ReadRequest.pb()(table=info.table, columns=info.key_names)
    request.transaction.single_use.read_only.read_timestamp.FromMicroseconds(at)
    for key in first:
        request.key_set.keys.add().extend(orjson.loads(key))
    # No row lies before the first key.
    return _keys(client, request, len(info.key_names), scope)[1:]


def _thinned(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most the given number of items, chosen at even intervals."""
    if len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]
