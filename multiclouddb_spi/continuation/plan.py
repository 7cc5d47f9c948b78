"""Defines the form of a snapshot scan in a token.

    [id, cursor, flags, [floor, µs, rate, retention, done, segments, rows, records, credit]]

`cursor` identifies the part that is not divided into segments yet; null if everything is divided.
The flags are a set of bits. Bit 16 marks a plan. Bit 32 means that the stream is read only after
the scan. Bit 64 means that the start of the scan was announced. Bit 128 means `SnapshotOrder.AUTO`.
The segments that are currently read are ordinary entries with bit 8. Bit 8 means that no listing of
the service names the entry.
"""

from __future__ import annotations

import math
from typing import Any, Final

import attrs

from multiclouddb_api import Snapshot, SnapshotOrder, SnapshotProgress
from multiclouddb_spi.continuation.times import is_micros, to_micros
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import InvalidCursor
from multiclouddb_spi.scan import ScanPlan, snapshot_id_of

__all__ = [
    "Plan",
    "is_plan",
    "plan_from_json",
    "plan_of",
    "plan_to_json",
    "shown",
]

_PLAN: Final = 16
_HOLDS: Final = 32
_ANNOUNCED: Final = 64
_AUTO: Final = 128
_KNOWN: Final = _PLAN | _HOLDS | _ANNOUNCED | _AUTO
_MOST: Final = 2**53


@attrs.frozen
class Plan:
    """The plan of a scan that is not finished.

    Attributes:
        partition_id: The id of the plan among the entries of a lineage.
        cursor: The part of the key space that is not divided into segments yet; None if everything is
            divided.
        floor: The `order_key` of every row in the snapshot.
        moment: The start of the snapshot, in µs since 1970.
        holds: True if the engine reads no changes until the scan ends.
        announced: True after a page has contained the `SnapshotStarted` notice of this scan.
        auto: True if the engine may start to read changes before the scan ends.
        rate: `Snapshot.max_scan_rate`.
        retention: The number of seconds for which the service keeps a new position of the change stream; None
            if this time is not known.
        done: The number of segments that were read to their end.
        segments: The expected number of segments, or None.
        rows: The number of rows that were delivered.
        records: The approximate number of rows at the start, or None.
        credit: A fraction of a place on a page, in quarters: 0 to 3. The scan did not get this
            fraction on earlier pages.
    """

    partition_id: str
    cursor: Cursor
    floor: str
    moment: int
    holds: bool = False
    announced: bool = False
    auto: bool = False
    rate: float | None = None
    retention: int | None = None
    done: int = 0
    segments: int | None = None
    rows: int = 0
    records: int | None = None
    credit: int = 0

    def progress(self) -> SnapshotProgress:
        """The progress of the scan, in the form that applications see."""
        order = SnapshotOrder.ORDERED if self.holds else SnapshotOrder.INTERLEAVED
        return SnapshotProgress(order, self.done, self.segments, self.rows, self.records)


def plan_of(scan: ScanPlan, wanted: Snapshot) -> Plan:
    """Return the entry for a new snapshot.

    Args:
        scan: The plan that the provider returned.
        wanted: The snapshot that the application requested.
    """
    return Plan(
        snapshot_id_of(scan.plan_id),
        scan.cursor,
        scan.floor,
        to_micros(scan.moment),
        holds=wanted.order is not SnapshotOrder.INTERLEAVED,
        auto=wanted.order is SnapshotOrder.AUTO,
        rate=wanted.max_scan_rate,
        segments=shown(scan.segments),
        records=shown(scan.records),
    )


def shown(count: int | None) -> int | None:
    """Return a number that is only shown to users.

    A service's estimate may be any number. Return None if a token cannot store the number: if it is
    negative, too large or not an integer.

    Args:
        count: A number of segments or of records, reported by the provider.
    """
    return count if _is_count(count) else None


def plan_to_json(plan: Plan) -> Cursor:
    """Return a plan in the form that a token stores."""
    flags = _PLAN | plan.holds * _HOLDS | plan.announced * _ANNOUNCED | plan.auto * _AUTO
    counts: list[Cursor] = [plan.rate, plan.retention, plan.done, plan.segments, plan.rows, plan.records]
    return [plan.partition_id, plan.cursor, flags, [plan.floor, plan.moment, *counts, plan.credit]]


def is_plan(flags: int) -> bool:
    """Return whether these flags mark a plan in a format that this library supports."""
    return bool(flags & _PLAN) and not flags & ~_KNOWN


def plan_from_json(item: Any) -> Plan:
    """Return the plan that `plan_to_json` has converted, for an item whose flags mark a plan.

    Raises:
        InvalidCursor: Raised if `plan_to_json` did not make the value.
    """
    match item:
        case [
            str() as partition_id, cursor, int() as flags,
            [str() as floor, moment, rate, retention, done, segments, rows, records, (0 | 1 | 2 | 3) as
            credit],
        ] if (
            floor and is_micros(moment) and _is_rate(rate) and _is_count(done) and _is_count(rows)
            and all(value is None or _is_count(value) for value in (retention, segments, records))
            and type(credit) is int
        ):  # fmt: skip
            return Plan(
                partition_id, cursor, floor, moment, bool(flags & _HOLDS), bool(flags & _ANNOUNCED),
                bool(flags & _AUTO), rate, retention, done, segments, rows, records, credit,
            )  # fmt: skip
        case _:
            raise InvalidCursor("the plan of a snapshot is unreadable")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_rate(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 < value < math.inf)
