"""Defines what a provider implements in addition to its feed, so that `Snapshot()` can scan a collection."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any, Final, Protocol, runtime_checkable

import orjson
from attrs import frozen

from multiclouddb_api import AtTime, Beginning, MulticloudDbKey
from multiclouddb_spi.batch import Segment
from multiclouddb_spi.contract import Seed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.time_limits import Deadline

__all__ = [
    "LATEST_MARK",
    "ScanPlan",
    "Segment",
    "SupportsBackfill",
    "SupportsSnapshot",
    "plan_id_of",
    "segment_id_of",
    "snapshot_event_id",
    "snapshot_event_ids",
    "snapshot_id_of",
]

_MARK: Final = "snapshot:"
LATEST_MARK: Final = "latest:"
"""The prefix of event ids in a feed that contains only latest versions; sinks recognize the feed by it."""
_DIGEST_BYTES: Final = 16
_INT64: Final = 2**63


@frozen
class ScanPlan:
    """The plan that `SupportsSnapshot.snapshot` returns.

    Attributes:
        plan_id: The name of this snapshot: unique among all snapshots of the collection, the same in every
            process, short, and without a colon. For example, twelve random hex digits, or the service's own
            name for the snapshot.
        cursor: A cursor that represents the whole scan; the first call of `segments` gets this cursor.
        seeds: The start positions of the stream, as `Feed.start` returns them for the whole scope.
        floor: The `order_key` of every row in the scan.
        moment: The time at which the snapshot began, according to the service's clock; it is the `timestamp`
            of every row.
        segments: The expected number of segments; None if the number is not known yet.
        records: The approximate number of rows, for display only; None if the service does not report it.
    """

    plan_id: str
    cursor: Cursor
    seeds: tuple[Seed, ...]
    floor: str
    moment: datetime
    segments: int | None = None
    records: int | None = None


@runtime_checkable
class SupportsSnapshot(Protocol):
    """A feed that can scan its collection for a snapshot.

    The scope of such a feed is a whole collection or one partition key.
    """

    def snapshot(self, segments: int | None, deadline: Deadline) -> ScanPlan:
        """Resolve the start of the stream, then plan the scan; finish both by the `deadline`.

        The provider determines first the positions of the stream, then the floor and the moment, then the
        division of the keys. The positions must be durable immediately. A later call makes another plan.

        Args:
            segments: The number of segments into which to divide the scan; None means that the provider
                chooses a number that suits the size of the collection and its partitions. A provider may make
                fewer segments. It may make more only if its service requires this. The scan of one partition
                key has one segment.
            deadline: The time by which the call must end.
        """
        ...

    def segments(self, cursor: Cursor, count: int, deadline: Deadline) -> tuple[list[Segment], Cursor | None]:
        """Take the next segments from a plan.

        The same cursor may be divided several times, in several processes, with different values of `count`.
        In each answer, the segments and the new cursor together represent everything that the old cursor
        represents.

        Args:
            cursor: `ScanPlan.cursor`, or the cursor of the remaining part that an earlier call returned.
            count: The maximum number of segments; at least one.
            deadline: The time by which the call must end.

        Returns:
            The segments, and the cursor of the remaining part of the plan (None if no part remains). If the
            list is empty but a part remains, the engine calls the method again.

        Raises:
            InvalidCursor: Raised if this provider cannot have made the cursor.
        """
        ...


@runtime_checkable
class SupportsBackfill(SupportsSnapshot, Protocol):
    """A feed whose stream can start only at `Now`; for `Beginning` and `AtTime`, a scan comes first.

    In such a scan, a row has the `order_key` of its last change. The rows have no common `order_key` (floor),
    so `SnapshotOrder.INTERLEAVED` is refused. A scan of one partition is followed by the stream of that
    partition alone.
    """

    def backfill(
        self, position: Beginning | AtTime, partition_id: str | None, deadline: Deadline
    ) -> ScanPlan | None:
        """Plan a scan like `snapshot`, but for a start position that the service does not support.

        Args:
            position: With `Beginning`, the scan returns every existing row; with `AtTime`, only the rows
                changed at that time or later.
            partition_id: The only partition to read, or None for the whole scope.
            deadline: The time by which the call must end.

        Returns:
            The plan of the scan; None if `partition_id` is unknown.
        """
        ...


def segment_id_of(plan_id: str, name: str) -> str:
    """Return the id of a segment.

    Args:
        plan_id: `ScanPlan.plan_id`.
        name: The segment's name in the plan, such as a number or a range. Each piece of a segment needs its
            own name.
    """
    return f"{_MARK}{plan_id}:{name}"


def snapshot_id_of(plan_id: str) -> str:
    """Return the id of a whole snapshot; it is used like the id of a partition or segment.

    Args:
        plan_id: `ScanPlan.plan_id`.
    """
    return f"{_MARK}{plan_id}"


def plan_id_of(partition_id: str) -> str | None:
    """Return the id of the plan to which a segment belongs; None for a partition of the service.

    Args:
        partition_id: The id that was passed to `Feed.open`.
    """
    if not partition_id.startswith(_MARK):
        return None
    return partition_id[len(_MARK) :].partition(":")[0]


def snapshot_event_id(plan_id: str, key: MulticloudDbKey) -> str:
    """Return the event id of a row; the id is the same whenever this snapshot reads the row again.

    Args:
        plan_id: `ScanPlan.plan_id`.
        key: The row's key.
    """
    digest = hashlib.blake2b(key.canonical(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{_MARK}{plan_id}:{digest}"


def snapshot_event_ids(plan_id: str, names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[str]:
    """Return the event ids of many rows; faster than `snapshot_event_id` if keys are text and integers.

    Args:
        plan_id: `ScanPlan.plan_id`.
        names: The names of the key's components.
        columns: The values of each component, one for each row.
    """
    if not all(map(_is_plain, columns)):
        rows = zip(*columns, strict=True)
        return [
            snapshot_event_id(plan_id, MulticloudDbKey(dict(zip(names, row, strict=True)))) for row in rows
        ]
    first, *more = names
    texts: Iterable[bytes] = map(orjson.dumps, columns[0])
    if more:
        parts = [texts]
        for name, column in zip(more, columns[1:], strict=True):
            parts += [repeat(b"],[%b," % orjson.dumps(name)), map(orjson.dumps, column)]
        texts = map(b"".join, zip(*parts, strict=False))
    # The hash object contains the common start of all texts; each row continues with a copy of the object.
    begun = hashlib.blake2b(b"[1,[[%b," % orjson.dumps(first), digest_size=_DIGEST_BYTES).copy
    begin, ids = f"{_MARK}{plan_id}:", []
    for text in texts:
        digest = begun()
        digest.update(text + b"]]]")
        ids.append(begin + digest.hexdigest())
    return ids


def _is_plain(column: Sequence[Any]) -> bool:
    """Return True if each value has the same text in JSON as in `MulticloudDbKey.canonical`."""
    kinds = set(map(type, column))
    if kinds <= {str}:
        return True
    return kinds <= {str, int} and all(-_INT64 <= each < _INT64 for each in column if type(each) is int)
