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

The cursor of a plan is `[plan id, T, number of the next segment, read after, [end of each segment]]`; the
cursor of a segment is `[plan id, T, later, read after, end]`. T is in microseconds since 1970, and `later` is
the time from T to the time at which the rows are read. The bounds (`read after` and `end`) are keys as JSON
text, or "" for no bound. The segment includes the key `end`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from typing import Final, cast

import attrs
import orjson

from multiclouddb_api import ErrorCategory
from multiclouddb_spanner.cancel_scope import CancelScope
from multiclouddb_spanner.catalog import ChangeStreamInfo, check_provisioned, columns_at, find
from multiclouddb_spanner.cutting import bounds_of
from multiclouddb_spanner.position import moment_of, place_of, text_at
from multiclouddb_spanner.source import Source
from multiclouddb_spi import (
    Cursor,
    Deadline,
    FeedSpec,
    InvalidCursor,
    ProviderFault,
    ScanPlan,
    Seed,
    Segment,
    segment_id_of,
)

__all__ = [
    "Scans",
    "Span",
    "cut",
    "floor_of",
    "is_segment",
    "plan_scan",
    "span_of",
]

_SECOND: Final = 1_000_000
_MOST: Final = 2**62
_KEPT_SECONDS: Final = 0.5
_LATELY_SECONDS: Final = 5.0
_MOST_KNOWN: Final = 64
# The distance from the edge of the stream's retention at which it is checked whether the stream is still the
# same.
_MARGIN: Final = 120 * _SECOND


def floor_of(at: int) -> str:
    """Return the `order_key` of the rows of a snapshot taken at the given time."""
    return f"{text_at(at)}|~"


@attrs.frozen
class Span:
    """The content of the cursor of a segment."""

    plan_id: str
    began: int
    at: int
    after: str
    end: str

    def cursor(self) -> Cursor:
        """Return the position in the form that a token stores."""
        return [self.plan_id, self.began, self.at - self.began, self.after, self.end]


def is_segment(cursor: Cursor) -> bool:
    """Return True if a cursor belongs to a segment."""
    match cursor:
        case [str(), began, later, str() as after, str() as end]:
            return _are_moments(began, later) and _is_key(after) and _is_key(end)
        case _:
            return False


def span_of(cursor: Cursor) -> Span:
    """Convert a stored position to a `Span`; the inverse of `Span.cursor`."""
    if not is_segment(cursor):
        raise InvalidCursor("it is no segment of a snapshot")
    plan_id, began, later, after, end = cast("tuple[str, int, int, str, str]", cursor)
    return Span(plan_id, began, began + later, after, end)


def _are_moments(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < _MOST for value in values)


def _is_key(text: str) -> bool:
    try:
        return text == "" or type(orjson.loads(text)) is list
    except ValueError:
        return False


class Scans:
    """Stores recent information about the table, for all scans of one feed."""

    def __init__(self, source: Source, spec: FeedSpec) -> None:
        self.source, self.spec = source, spec
        self._columns: dict[tuple[int, bool], list[str]] = {}
        self._info: tuple[float, ChangeStreamInfo] = (time.monotonic(), source.info)
        self._checked: tuple[float, int, ChangeStreamInfo] | None = None
        self._lock = threading.Lock()

    def check(
        self, began: int, deadline: Deadline, scope: CancelScope, *, lately: bool = False
    ) -> ChangeStreamInfo:
        """Check that the table and the change stream are still those of a snapshot."""
        with self._lock:
            checked = self._checked
        kept = _LATELY_SECONDS if lately else _KEPT_SECONDS
        if checked is not None and checked[1] <= began and time.monotonic() - checked[0] < kept:
            return checked[2]
        started = time.monotonic()
        info = self._check(began, deadline, scope)
        with self._lock:
            self._checked = (started, began, info)
        return info

    def _check(self, began: int, deadline: Deadline, scope: CancelScope) -> ChangeStreamInfo:
        source, (when, info) = self.source, self._info
        if time.monotonic() - when > _KEPT_SECONDS:
            when = time.monotonic()
            info = find(source.client, self.spec.address, source.info.stream, deadline, scope)
            self._info = (when, info)
        check_provisioned(info, self.spec)
        if info.key_names != source.info.key_names:
            raise ProviderFault.of(
                ErrorCategory.NOT_FOUND,
                f"table {info.table!r} was dropped and created again with another primary key; start again",
            )
        now = source.client.now(deadline, scope)
        at = max(began, now - source.info.retention * _SECOND + _MARGIN)
        try:
            source.partitions(min(at, now), deadline, scope)
        except Exception as error:
            raise source.translated(error, at, deadline, scope, "of the snapshot") or error from error
        return info

    def columns(self, at: int, *, whole: bool, deadline: Deadline, scope: CancelScope) -> list[str]:
        """Return the columns that the table had at a given time, key columns first."""
        info = self.source.info
        if not whole:
            return list(info.key_names)
        known = self._columns.get((at, whole))
        if known is None:
            known = columns_at(self.source.client, info, at, deadline, scope)
            if not known:
                raise ProviderFault.of(
                    ErrorCategory.NOT_FOUND, f"table {info.table!r} was dropped; create it and start again"
                )
            if len(self._columns) >= _MOST_KNOWN:
                self._columns.clear()
            self._columns[at, whole] = known
        return known


def plan_scan(
    scans: Scans, seeds: Sequence[Seed], segments: int | None, deadline: Deadline, scope: CancelScope
) -> ScanPlan:
    """Plan a scan."""
    # `Now()` is directly after the time that was read. Therefore the stream starts exactly where the rows of
    # that time end.
    began, source = place_of(seeds[0].cursor).first - 1, scans.source
    scans.check(began, deadline, scope)
    bounds, records = bounds_of(source.client, source.info, began, segments, deadline, scope)
    plan_id = secrets.token_hex(6)
    cursor: Cursor = [plan_id, began, 0, "", [*bounds]]
    return ScanPlan(plan_id, cursor, tuple(seeds), floor_of(began), moment_of(began), len(bounds), records)


def cut(cursor: Cursor, count: int) -> tuple[list[Segment], Cursor | None]:
    """Take the next segments from a plan."""
    match cursor:
        case [str() as plan_id, int() as began, int() as number, str() as after, [*bounds]] if (
            _are_moments(began, number) and _is_key(after) and bounds and all(map(_is_bound, bounds))
        ):
            pass
        case _:
            raise InvalidCursor("it is no plan of a snapshot")
    found: list[Segment] = []
    for end in cast("list[str]", bounds[:count]):
        span = Span(plan_id, began, began, after, end)
        found.append(Segment(segment_id_of(plan_id, str(number)), span.cursor()))
        after, number = end, number + 1
    return found, [plan_id, began, number, after, bounds[count:]] if bounds[count:] else None


def _is_bound(value: object) -> bool:
    return type(value) is str and _is_key(value)
