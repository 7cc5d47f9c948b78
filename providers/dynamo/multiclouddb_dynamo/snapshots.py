"""Scans a table for `Snapshot()`: the plan, its segments, and the reader of one segment.

A segment of the plan is a segment of DynamoDB's own `Scan`. The plan fixes `Segment` and
`TotalSegments` of the `Scan` calls. The key of any item is a position in the segment, even if the
item is deleted. The service keeps no state for a scan. Therefore any process can continue a scan
after any item, even days later.

A `Scan` names only the table, and a table that is deleted and created again has the same name. Therefore each
answer is followed by a check that the table still has the stream of the feed.
"""

from __future__ import annotations

import secrets
import threading
import time
from datetime import UTC, datetime
from typing import Any, Final

from botocore.exceptions import ClientError, ParamValidationError

from multiclouddb_dynamo.client import Calls, Table
from multiclouddb_dynamo.errors import GONE, REJECTED, code_of
from multiclouddb_dynamo.mapping import View
from multiclouddb_dynamo.partitions import replaced
from multiclouddb_dynamo.rows import FLOOR, MOST_SEGMENTS, Item, Part, RowMapper, moment_of
from multiclouddb_dynamo.source import Source
from multiclouddb_spi import (
    Batch,
    Continue,
    Cursor,
    Deadline,
    InvalidCursor,
    Outcome,
    Reader,
    Scanned,
    ScanPlan,
    Seed,
    Segment,
    cancelled,
)

__all__ = ["SameTable", "SegmentReader", "cut", "plan_scan", "segments_of"]

# A segment of this size is read in about a minute. If a Spark task fails, its segment is read again.
_SEGMENT_BYTES: Final = 256 << 20
_LEAST_SEGMENTS: Final = 8  # this many segments are read at a time
_USUAL_SEGMENTS: Final = 32_000
# The size of a parsed item in memory as a multiple of its text's size, and the first estimate of an item's
# size.
_SWELLING: Final = 6
_ITEM_BYTES: Final = 4096


class SameTable:
    """Checks that a table is still the table of a feed. Several threads can share one object.

    A stream's ARN is never used again. Therefore an answer is from this table if a check after the
    answer succeeds. Readers that wait at the same time share one call.

    Args:
        source: The objects that all readers of the feed share.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._proved_at = -1.0

    def check(self) -> None:
        """Check that the table is still the same.

        If another thread starts a check after this call has begun, this call uses the result of
        that check.

        Raises:
            ProviderFault: Raised if the table or its stream was replaced, or the table was deleted.
            Exception: The error that boto3 raised.
        """
        since = time.monotonic()
        with self._lock:
            if self._proved_at >= since:
                return
            began = time.monotonic()
            fault = replaced(self._source.calls, self._source.spec.address, self._source.arn)
            if fault is not None:
                raise fault
            self._proved_at = began


def segments_of(wanted: int | None, table: Table) -> int:
    """Return the number of segments for a scan.

    Args:
        wanted: The number that the application requests, or None.
        table: The table. The service may have measured its size six hours ago.
    """
    if wanted is None:
        wanted = min(max(-(-table.nbytes // _SEGMENT_BYTES), _LEAST_SEGMENTS), _USUAL_SEGMENTS)
    return min(wanted, MOST_SEGMENTS)


def plan_scan(source: Source, seeds: list[Seed], wanted: int | None) -> ScanPlan:
    """Plan a scan, and read one item to find out early whether the identity may scan the table.

    Args:
        source: The objects that all readers of the feed share.
        seeds: The start positions of the stream, resolved before this call.
        wanted: The number of segments that the application requests, or None.
    """
    _scan(source.calls, str(source.spec.address.collection), Part("", 0, 1, 0), source.table, 1)
    seconds = source.seconds()
    if seconds is None:  # the service gives no time; nothing depends on the time of a row
        seconds = int(datetime.now(UTC).timestamp())
    total, items = segments_of(wanted, source.table), source.table.items
    plan_id = secrets.token_hex(6)
    cursor: Cursor = [plan_id, seconds, total, items // total, 0]
    return ScanPlan(plan_id, cursor, tuple(seeds), FLOOR, moment_of(seconds), total, items or None)


def cut(cursor: Cursor, count: int) -> tuple[list[Segment], Cursor | None]:
    """Take the next segments from a plan, without I/O.

    Raises:
        InvalidCursor: Raised if the cursor is not a plan.
    """
    match cursor:
        case [str() as plan_id, int() as seconds, int() as total, int() as items, int() as number] if (
            0 <= number < total <= MOST_SEGMENTS and items >= 0
        ):
            pass
        case _:
            raise InvalidCursor("it is not a plan of a scan")
    end = min(total, number + count)
    parts = [Part(plan_id, seconds, total, each) for each in range(number, end)]
    found = [Segment(part.segment_id, part.cursor, items or None) for part in parts]
    return found, None if end == total else [plan_id, seconds, total, items, end]


def _scan(calls: Calls, name: str, part: Part, table: Table, limit: int, native: bool = False) -> Any:
    after = part.start_key(table.key_names)
    return calls.scan(name, (part.segment, part.total), after, limit, native=native)


class SegmentReader(Reader):
    """Reads the items of one segment, with one `Scan` call per fetch.

    Args:
        source: The objects that all readers of the feed share.
        same: An object that checks that the feed's table was not replaced by another table with the same
            name.
        view: The properties that all events of the segment share.
        part: The start position.
    """

    def __init__(self, source: Source, same: SameTable, view: View, part: Part) -> None:
        self._source, self._same, self._view, self._part = source, same, view, part
        self._item_bytes = _ITEM_BYTES
        self._cancelled = threading.Event()

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Fetch items. An answer of the service contains at most a megabyte.

        Raises:
            ProviderFault: Raised if the table or its stream was replaced, or the table was deleted.
            Exception: The error that boto3 raised.
        """
        if self._cancelled.is_set():
            raise cancelled()
        if self._part.is_over:
            return self._batch([], self._part, {}, 0)
        begin, limit = self._part, min(max_records, max(1, max_bytes // self._item_bytes))
        answer = self._answer(limit)
        items: list[Item] = answer["Items"]
        nbytes = _size(answer, len(items))
        if items:
            self._item_bytes = max(1, nbytes // len(items))
        last = answer.get("LastEvaluatedKey")
        # The service may examine many items and return none of them. In that case, the key belongs to none of
        # the returned items.
        self._part = begin.at_end() if not last else begin.after(last, self._view.key_names)
        return self._batch(items, begin, answer, nbytes)

    def cancel(self) -> None:
        """Prevent another fetch. A running call ends after boto3's read timeout of 10 s at the latest."""
        self._cancelled.set()

    def close(self) -> None:
        """Do nothing, because the reader holds no resources."""

    def _answer(self, limit: int) -> Any:
        source, name = self._source, str(self._source.spec.address.collection)
        try:
            answer = _scan(source.calls, name, self._part, source.table, limit, self._view.native)
        except (ClientError, ParamValidationError) as error:
            # Another table with the same name may have a different key, and it cannot be read while it is
            # being created.
            if code_of(error) in GONE | REJECTED:
                fault = replaced(source.calls, source.spec.address, source.arn)
                if fault is not None:
                    raise fault from error
            raise
        self._same.check()
        return answer

    def _batch(self, items: list[Item], begin: Part, answer: Any, nbytes: int) -> Batch:
        outcome: Outcome = Scanned() if self._part.is_over else Continue()
        charge = (answer.get("ConsumedCapacity") or {}).get("CapacityUnits")
        return Batch(
            items,
            RowMapper(self._view, begin),
            begin.cursor,
            self._part.cursor,
            outcome,
            nbytes,
            caught_up=self._part.is_over,
            charge=None if charge is None else float(charge),
            requests=1 if answer else 0,
        )


def _size(answer: Any, count: int) -> int:
    """Estimate the memory size of an answer."""
    length = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("content-length", "")
    return _SWELLING * int(length) if count and length.isdecimal() else _ITEM_BYTES * count
