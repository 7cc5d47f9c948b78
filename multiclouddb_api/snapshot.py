"""Snapshots: every row that exists, then every change."""

from __future__ import annotations

from enum import Enum
from typing import Any

import attrs

from multiclouddb_api.errors import invalid_request
from multiclouddb_api.validators import at_least, is_a

__all__ = ["Resnapshot", "Snapshot", "SnapshotOrder", "SnapshotProgress"]

_LEAST_RATE = 1e-6
_MOST = 10**15


class SnapshotOrder(Enum):
    """How the rows of a snapshot and the changes after it are mixed.

    With all three, all rows of the snapshot have the same `order_key`, the floor. Apply an event only if its
    `order_key` is higher than that of the row you have stored.

    Portability:
        `AUTO` changes over only where the service says how long a position is kept; elsewhere it is
        `ORDERED`. Warning 24 in docs/configuration.md.
    """

    ORDERED = "ordered"
    """Every row of the snapshot comes before any change. If the scan takes longer than the service keeps
    changes, the read raises `CHECKPOINT_EXPIRED`."""
    INTERLEAVED = "interleaved"
    """Rows and changes are mixed, so that no position gets old. A delete may come before an old form of the
    same row, so keep deleted keys with their `order_key` (tombstones) until you have stored a token after
    `BackfillDone`."""
    AUTO = "auto"
    """Starts as `ORDERED`, and changes to `INTERLEAVED` when half of the time for which the service keeps the
    changes has passed. Keep deleted keys as for `INTERLEAVED`."""


def _is_rate(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not _LEAST_RATE <= value <= _MOST:
        raise invalid_request(
            f"{type(instance).__name__}.{attribute.name}",
            f"must be from {_LEAST_RATE} to {_MOST}, got {value}",
            "leave it out to read as fast as the service allows",
        )


def _is_holdable(instance: object, attribute: attrs.Attribute[Any], value: int) -> None:
    if value > _MOST:
        raise invalid_request(
            f"{type(instance).__name__}.{attribute.name}",
            f"must be at most {_MOST}",
            "leave it out to let the provider decide",
        )


@attrs.frozen
class Snapshot:
    """Every row that exists, then every change; no change in between is lost.

    The first page contains no rows, only a `SnapshotStarted` notice: store its token before you read on. From
    then on no change is missed: a row that is changed after that call is returned again as a change. Rows
    come with `backfilled=True`, `type=CREATE` and the snapshot's floor as `order_key`. The page with the last
    row contains a `BackfillDone` notice. No page is `idle` before that, and the watermark stays at the
    snapshot's moment.

    The token contains the progress of the scan, so any process can continue it at any row, even days later.

    Attributes:
        order: How rows and changes are mixed.
        segments: The number of segments that the collection is cut into; None = the provider decides. A
            client reads up to eight of them at the same time; `plan_partitions` gives one token for each.
        max_scan_rate: The highest rate of the scan per second; a limit saves money and load. The unit is that
            of `native_charge` if the service reports a charge, else rows. None = no limit. Each client
            applies the limit on its own; `plan_partitions` divides it between its tokens.

    Raises:
        MulticloudDbError: When it is built: `INVALID_REQUEST` that names the field. At the first read:
            `UNSUPPORTED_CAPABILITY` where the database has no snapshots.

    Portability:
        Check `Capability.CHANGE_FEED_SNAPSHOT`; its note says whether all rows are as of one moment, or each
        row is as of the moment when it was read. Snapshots are possible for a whole collection or one
        partition key, not for `PhysicalPartition`, `EntireDatabase` or `EntireCluster`. Warnings 23 and 24 in
        docs/configuration.md.
    """

    order: SnapshotOrder = attrs.field(default=SnapshotOrder.AUTO, validator=is_a(SnapshotOrder))
    segments: int | None = attrs.field(
        default=None,
        validator=[
            is_a(int, type(None)),
            attrs.validators.optional(at_least(1, "leave it out to let the provider decide")),
            attrs.validators.optional(_is_holdable),
        ],
    )
    max_scan_rate: float | None = attrs.field(
        default=None, validator=[is_a(int, float, type(None)), _is_rate]
    )


@attrs.frozen
class Resnapshot:
    """A position older than retention starts another snapshot, which also reveals the lost deletes.

    The page contains a `Gap` and a `SnapshotStarted` notice and no events. Before you store its token, set
    the `order_key` of every row and every tombstone of your target to `""`. Then apply events as always.
    After `BackfillDone`, rows that still have `""` no longer exist in the source: delete them.
    docs/how-to/snapshot.md shows this with SQLite.

    Attributes:
        snapshot: How to scan.

    Portability:
        Check `Capability.CHANGE_FEED_SNAPSHOT`. Only with a whole collection or one partition key, and only
        in a loop over pages: a loop over single events would not see the notices. Warnings 3 and 23 in
        docs/configuration.md.
    """

    snapshot: Snapshot = attrs.field(factory=Snapshot, validator=is_a(Snapshot))


@attrs.frozen
class SnapshotProgress:
    """The progress of a snapshot's scan.

    Attributes:
        order: The present order: `ORDERED` while the changes wait, `INTERLEAVED` once they are read too.
        segments_done: The number of segments that were read.
        segments: The expected total number of segments; None while it is not known.
        rows: The number of delivered rows, summed over all processes that this token has passed through.
        records: The approximate number of rows at the start; None if the service does not report it.
    """

    order: SnapshotOrder
    segments_done: int
    segments: int | None
    rows: int
    records: int | None
