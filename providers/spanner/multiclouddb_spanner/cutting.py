"""Divides the keys of a table into segments, and makes the requests that read rows.

For a small table, the keys are counted and divided evenly. For a large table, the service says how
it would divide a read into parts. The table is then divided at the first key of each part. The
parts themselves are valid only within a transaction, but a segment must be valid for days.
Therefore only the first key of each part is used, as a bound between segments. Whichever keys are
chosen as bounds, the ranges between them contain every key exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import grpc
import orjson
from google.cloud.spanner_v1 import PartitionReadRequest, ReadRequest

from multiclouddb_spanner.cancel_scope import CancelScope
from multiclouddb_spanner.catalog import ChangeStreamInfo
from multiclouddb_spanner.client import DatabaseClient
from multiclouddb_spanner.errors import status_of
from multiclouddb_spanner.forks import again
from multiclouddb_spanner.records import plain_value, rows_of
from multiclouddb_spi import Deadline

__all__ = ["bounds_of", "key_text", "range_read"]

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


def bounds_of(
    client: DatabaseClient,
    info: ChangeStreamInfo,
    at: int,
    segments: int | None,
    deadline: Deadline,
    scope: CancelScope,
) -> tuple[list[str], int | None]:
    """Return the last key of each segment ("" for the last one), and the number of rows if it is known."""
    request = range_read(info.table, info.key_names, "", "", at, _SMALL + 1)
    keys = _keys(client, request, len(info.key_names), deadline, scope)
    count = min(segments or (1 if len(keys) <= _SMALL else _SEGMENTS), _MOST_SEGMENTS)
    if len(keys) <= _SMALL:
        size = max(1, -(-len(keys) // count))
        return [*keys[size - 1 : len(keys) - 1 : size], ""], len(keys)
    if count == 1:
        return [""], None
    try:
        return [*_thinned(_cuts(client, info, at, count, deadline, scope), count - 1), ""], None
    except grpc.RpcError as error:
        if status_of(error) not in _REFUSED:
            raise
        return [""], None


def _keys(
    client: DatabaseClient,
    request: Any,
    width: int,
    deadline: Deadline,
    scope: CancelScope,
    *,
    first: bool = False,
) -> list[str]:
    """Return the keys that a read returns; if `first` is True, return only the first key."""

    def read() -> list[str]:
        answer, keys = client.read(request, deadline, scope), []
        try:
            for rows in rows_of(answer, width):
                keys += [key_text(row) for row in rows]
                if first and keys:
                    return keys[:1]
        finally:
            answer.cancel()
        return keys

    return again(read)


def _cuts(
    client: DatabaseClient,
    info: ChangeStreamInfo,
    at: int,
    count: int,
    deadline: Deadline,
    scope: CancelScope,
) -> list[str]:
    """Return the first keys of the parts of the table, in table order."""
    half = time.monotonic() + deadline.remaining() / 2
    asked = PartitionReadRequest.pb()(table=info.table, columns=info.key_names)
    asked.transaction.begin.read_only.read_timestamp.FromMicroseconds(at)
    asked.key_set.all_ = True
    asked.partition_options.max_partitions = count
    told = client.partition_read(asked, deadline, scope)
    first: dict[str, None] = {}
    for part in _thinned(told.partitions, _PROBES * count):
        request = ReadRequest.pb()(table=info.table, columns=info.key_names)
        request.transaction.id = told.transaction.id
        request.key_set.all_ = True
        request.partition_token = part.partition_token
        found = _keys(client, request, len(info.key_names), deadline, scope, first=True)
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
    return _keys(client, request, len(info.key_names), deadline, scope)[1:]


def _thinned(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most the given number of items, chosen at even intervals."""
    if len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]
