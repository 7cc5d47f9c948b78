"""Defines what a provider implements in addition to its feed, so that `Snapshot()` can scan a collection."""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from attrs import frozen

from multiclouddb_api import AtTime, Beginning
from multiclouddb_spi.contract import Seed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.segment import Scan, Segment
from multiclouddb_spi.time_limits import Deadline

LATEST_MARK: Final = "latest:"
"""The prefix of event ids in a feed that contains only latest versions; sinks recognize the feed by it."""


@frozen
class ScanPlan:
    """The plan that `SupportsSnapshot.snapshot` returns.

    Attributes:
        scan: What all rows of the scan have in common.
        rest: JSON that represents the whole scan; the first call of `segments` gets it. Only the provider
            reads it, so it contains what dividing the scan needs in addition to `scan`.
        seeds: The start positions of the stream, as `Feed.start` returns them for the whole scope.
        segments: The expected number of segments; None if the number is not known yet.
        records: The approximate number of rows, for display only; None if the service does not report it.
        units: The approximate charge of the whole scan, in the unit of `Batch.charge`, for display only; None
            if it is not known.
    """

    scan: Scan
    rest: Cursor
    seeds: tuple[Seed, ...]
    segments: int | None = None
    records: int | None = None
    units: int | None = None


@runtime_checkable
class SupportsSnapshot(Protocol):
    """A feed that can scan its collection for a snapshot.

    The scope of such a feed is a whole collection, one partition key, or, if the provider has
    `Capability.CHANGE_FEED_DATABASE_SCOPE`, a database. `Feed.open_segment` opens a reader of a segment.
    """

    def snapshot(self, segments: int | None, deadline: Deadline) -> ScanPlan:
        """Resolve the start of the stream, then plan the scan; finish both by the `deadline`.

        The order matters: first the positions of the stream, which must be durable at once, then the floor
        and the moment, then the division of the keys. A later call makes another plan.

        Args:
            segments: Into how many segments to divide the scan; None for a number that suits the size of the
                collection and its partitions. A provider may make fewer, and more only if its service
                requires it. The scan of one partition key has one segment; in the scan of a database, this is
                the number for each collection.
            deadline: The time by which the call must end.
        """
        ...

    def segments(
        self, scan: Scan, rest: Cursor, count: int, deadline: Deadline
    ) -> tuple[list[Segment], Cursor | None]:
        """Take the next segments from a plan.

        The same rest may be divided several times, in several processes, with different values of `count`.
        Each time, the segments and the new rest together must cover exactly what the old rest covers.

        Args:
            scan: `ScanPlan.scan`.
            rest: `ScanPlan.rest`, or the remaining part that an earlier call returned.
            count: The maximum number of segments; at least one.
            deadline: The time by which the call must end.

        Returns:
            The segments (`Scan.segment`), and the rest of the plan, or None if there is none. If the list is
            empty but there is a rest, the engine calls again.

        Raises:
            InvalidCursor: Raised if this provider cannot have made the rest or the `shared` of the scan.
        """
        ...


@runtime_checkable
class SupportsBackfill(SupportsSnapshot, Protocol):
    """A feed whose stream can start only at `Now`; for `Beginning` and `AtTime`, a scan comes first.

    In such a scan, a row has the `order_key` of its last change and not a common one (floor), so
    `SnapshotOrder.INTERLEAVED` is refused. A scan of one partition is followed by the stream of that
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
