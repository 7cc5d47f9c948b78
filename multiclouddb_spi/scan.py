"""The ability to scan a collection, for `Snapshot()`: what a provider author implements besides the feed.

A snapshot is a start position: first every row that exists, then every change. The provider says how its
service scans; the engine does the rest: the order of scan and stream, the token, the rate, the notices, and
when the scan is over. A provider has the ability when its feeds implement `SupportsSnapshot` and its
capabilities name `Capability.CHANGE_FEED_SNAPSHOT`.

- *Plan.* `snapshot` resolves the start of the stream **first**, then makes the plan of the scan. The plan has
  an id, a floor, a moment, and a cursor for everything that is not cut into segments yet.
- *Segments.* `segments` cuts the next segments off a plan. A segment is a part of the collection's keys that
  is read like a partition: the engine calls `Feed.open(segment_id, cursor)` and fetches from the reader.
  About eight are active at once, so a plan of 32,000 segments is never listed as a whole. The segments of one
  plan together hold every key, each key in exactly one segment.
- *Cursors.* A segment's cursor holds all that its reader needs: the plan's id, floor and moment, the keys of
  the segment, and the last key that was read. It means the same in any process, for days, and also when the
  service splits or moves the collection's partitions. There is a position after every row. The methods
  `compare`, `describe`, `headroom` and `without_hints` of the feed must accept it, as they accept a cursor of
  the stream (`compare` may return None, `describe` may give no time).
- *Ids.* `segment_id_of` makes a segment's id from the plan's id and a name. It can never be the id of a
  partition, and `plan_id_of` finds the plan's id in it; None means that it is the id of a partition.
- *Rows.* A row that exists when `snapshot` returns, and that is not changed or deleted afterwards, comes at
  least once, with every retry, split, cut and lost token. A row that is changed meanwhile may come in its old
  form, in its new form, or not at all: the stream has the change. A row comes as an event with `type=CREATE`,
  `backfilled=True`, `timestamp` = the plan's moment, `event_id` = `snapshot_event_id(plan_id, key)`,
  `order_key` = the floor, `old_item_state=None`, `by_expiry=False`, and as `partition_id` the public id of
  the segment.
- *Floor.* The text that every row has as its `order_key`. It sorts above the `order_key` of every change that
  the scan is certain to show, and below the `order_key` of every change that is committed after `snapshot`
  has returned. It is never empty. Where no such text exists (a service whose `order_key` says nothing before
  the stream is read), it is a text below every change, and the capability's note says so.
- *Stream.* The seeds lie at or before the floor: every change after the floor is read from the stream. A
  change that the scan has shown already may come again from the stream.
- *End.* A segment ends with the outcome `Scanned`, on the batch with its last row or on an empty one. It
  never ends with `Drained`, `Awaiting` or `Ended`, except `Ended` with a notice when the collection is
  dropped. A segment that is better read in pieces (its keys are on several nodes now) ends with
  `Scanned(pieces)`: the pieces hold what was not read of it, and no key of another segment.
- *Batches of a segment.* `caught_up` is False while more rows follow. `watermark` and `headroom` are None.
  `charge` is what the scan cost; `Snapshot.max_scan_rate` counts it, and counts rows where it is None.
- *Rate.* The engine keeps the rate. It asks a segment for at most the rows of about one second at a time, and
  waits between the fetches. A provider neither waits nor counts.
- *Errors.* As everywhere: the engine retries. A plan that can no longer be continued (the service refuses its
  positions) raises `CHECKPOINT_EXPIRED`.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Final, Protocol, runtime_checkable

import attrs

from multiclouddb_api import AtTime, Beginning, MulticloudDbKey
from multiclouddb_spi.batch import Segment
from multiclouddb_spi.contract import Seed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.deadline import Deadline

__all__ = [
    "ScanPlan",
    "Segment",
    "SupportsBackfill",
    "SupportsSnapshot",
    "plan_id_of",
    "segment_id_of",
    "snapshot_event_id",
    "snapshot_id_of",
]

_MARK: Final = "snapshot:"


@attrs.frozen
class ScanPlan:
    """The result of `SupportsSnapshot.snapshot`.

    Attributes:
        plan_id: Names this snapshot: unique among all snapshots of the collection, the same in every process,
            short, without a colon. Twelve random hex digits, or what the service calls the snapshot.
        cursor: The whole scan: `segments` cuts the first segments off it.
        seeds: The seeds of the stream, as `Feed.start` gives them for all of the scope.
        floor: The `order_key` of every row of the scan.
        moment: When the snapshot began, by the service's clock; the `timestamp` of every row.
        segments: How many segments there will be; None where that is not known yet.
        records: About how many rows there are; None where the service does not say. Only shown.
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
    """A feed that can scan its collection. Its scope is a whole collection, or one partition key."""

    def snapshot(self, segments: int | None, deadline: Deadline) -> ScanPlan:
        """Resolve the start of the stream, then plan the scan; over by the `deadline`.

        In this order: the positions of the stream, durable at once; then the floor and the moment; then how
        the keys are cut. A later call makes another plan.

        Args:
            segments: Into how many segments to cut the scan; None = as many as make sense for the size of the
                collection and the partitions that it has. A provider may cut fewer, and more only where its
                service needs it. One partition key is one segment.
            deadline: When it has to be over.
        """
        ...

    def segments(self, cursor: Cursor, count: int, deadline: Deadline) -> tuple[list[Segment], Cursor | None]:
        """Cut the next segments off a plan.

        The same cursor may be cut several times, in several processes, also with another `count`: each answer
        covers everything that the cursor stands for.

        Args:
            cursor: `ScanPlan.cursor`, or the rest that an earlier call has returned.
            count: How many segments at most; at least one.
            deadline: When it has to be over.

        Returns:
            The segments, and the cursor of the rest; None when there is no rest. An empty list with a rest
            means that the engine asks again.

        Raises:
            InvalidCursor: This provider cannot have made the cursor.
        """
        ...


@runtime_checkable
class SupportsBackfill(SupportsSnapshot, Protocol):
    """A feed that starts at now only: `Beginning` and `AtTime` are an ordered scan and then the stream.

    Its rows carry the `order_key` of their own last change and no floor, so `SnapshotOrder.INTERLEAVED` is
    refused. A scan of one partition is followed by the stream of that partition alone.
    """

    def backfill(
        self, position: Beginning | AtTime, partition_id: str | None, deadline: Deadline
    ) -> ScanPlan | None:
        """As `snapshot`, for a start that the service does not have.

        Args:
            position: `Beginning` for every row that exists; `AtTime` for those changed then or later.
            partition_id: Only this partition, or None for all of the scope.
            deadline: When it has to be over.

        Returns:
            None when there is no such partition.
        """
        ...


def segment_id_of(plan_id: str, name: str) -> str:
    """The id of a segment.

    Args:
        plan_id: `ScanPlan.plan_id`.
        name: Names the segment in the plan: a number, a range. A piece of a segment has another name.
    """
    return f"{_MARK}{plan_id}:{name}"


def snapshot_id_of(plan_id: str) -> str:
    """The id of a snapshot among the ids of partitions and segments.

    Args:
        plan_id: `ScanPlan.plan_id`.
    """
    return f"{_MARK}{plan_id}"


def plan_id_of(partition_id: str) -> str | None:
    """The plan's id in the id of a segment; None for a partition of the service.

    Args:
        partition_id: The id that was passed to `Feed.open`.
    """
    if not partition_id.startswith(_MARK):
        return None
    return partition_id[len(_MARK) :].partition(":")[0]


def snapshot_event_id(plan_id: str, key: MulticloudDbKey) -> str:
    """The id of the event of a row: the same whenever the row is read again in this snapshot.

    Args:
        plan_id: `ScanPlan.plan_id`.
        key: The row's key.
    """
    digest = hashlib.blake2b(key.canonical(), digest_size=16).hexdigest()
    return f"{_MARK}{plan_id}:{digest}"
