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
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final, cast

import grpc
import orjson
from google.cloud.spanner_v1 import PartitionReadRequest, ReadRequest

from multiclouddb_api import ErrorCategory
from multiclouddb_spanner.catalog import ChangeStreamInfo, check_provisioned, check_same_key, columns_at, find
from multiclouddb_spanner.client import CancelScope, DatabaseClient
from multiclouddb_spanner.errors import status_of
from multiclouddb_spanner.position import moment_of, place_of, text_at
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
)

_SECOND: Final = 1_000_000
_KEPT_SECONDS: Final = 0.5
_LATELY_SECONDS: Final = 5.0
_MOST_KNOWN: Final = 64
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
    """Stores recent information about the table, for all scans of one feed."""

    def __init__(self, source: ReaderContext, spec: FeedSpec) -> None:
        self.source, self.spec = source, spec
        self._columns: dict[int, list[str]] = {}
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

    def columns(self, at: int, *, whole: bool, scope: CancelScope) -> list[str]:
        """Return the columns that the table had at a given time, key columns first."""
        info = self.source.info
        if not whole:
            return list(info.key_names)
        known = self._columns.get(at)
        if known is None:
            known = columns_at(self.source.client, info, at, scope)
            if not known:
                raise ProviderFault.of(
                    ErrorCategory.NOT_FOUND, f"table {info.table!r} was dropped; create it and start again"
                )
            if len(self._columns) >= _MOST_KNOWN:
                self._columns.clear()
            self._columns[at] = known
        return known


def plan_scan(scans: Scans, seeds: Sequence[Seed], segments: int | None, scope: CancelScope) -> ScanPlan:
    """Plan a scan."""
    # `Now()` is directly after the time that was read. Therefore the stream starts exactly where the rows of
    # that time end.
    began, source = place_of(seeds[0].cursor).first - 1, scans.source
    scans.check(began, scope)
    bounds, records = bounds_of(source.client, source.info, began, segments, scope)
    scan = Scan(floor_of(began), moment_of(began))
    return ScanPlan(scan, [0, "", [*bounds]], tuple(seeds), len(bounds), records)


def cut(scan: Scan, rest: Cursor, count: int) -> tuple[list[Segment], Cursor | None]:
    """Take the next segments from a plan."""
    match rest:
        case [int() as number, str() as after, [_, *_] as bounds] if type(number) is int and number >= 0:
            check_keys(after, *bounds)
        case _:
            raise InvalidCursor("it is no plan of a snapshot")
    found: list[Segment] = []
    for end in cast("list[str]", bounds[:count]):
        found.append(scan.segment(str(number), after, end))
        after, number = end, number + 1
    return found, [number, after, bounds[count:]] if bounds[count:] else None


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
