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

    With all three, rows of the snapshot have one `order_key`, the floor: apply an event only if its
    `order_key` is higher than the one of the row that you have.

    Portability:
        `AUTO` changes over only where the service says how long a position is kept; elsewhere it is
        `ORDERED`. Warning 24 in docs/configuration.md.
    """

    ORDERED = "ordered"
    """Every row of the snapshot comes before any change. When the scan takes longer than the service keeps
    changes, the read raises `CHECKPOINT_EXPIRED`."""
    INTERLEAVED = "interleaved"
    """Rows and changes come together, so that no position gets old. A delete may come before an old form of
    the same row: keep deleted keys with their `order_key` (tombstones) until you have stored a token after
    `BackfillDone`."""
    AUTO = "auto"
    """Begins as `ORDERED`. Becomes `INTERLEAVED` when the positions of the changes have used half of the time
    that they are kept: keep deleted keys as for `INTERLEAVED`."""


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
    """Every row that exists, then every change, with nothing lost between.

    The first page has no rows, only a `SnapshotStarted` notice: store its token before you read on. From then
    on the changes are pinned: a row that is changed after that call comes again as a change. Rows come with
    `backfilled=True`, `type=CREATE` and the snapshot's floor as `order_key`. The page with the last row has a
    `BackfillDone` notice. No page is `idle` before that, and the watermark stays at the snapshot's moment.

    The token holds how far the scan is, so that any process can continue it at any row, for days.

    Attributes:
        order: How rows and changes are mixed.
        segments: Into how many segments the collection is cut; None = as the provider sees fit. A client
            reads up to eight of them at the same time; `plan_partitions` gives one token for each.
        max_scan_rate: The scan's highest rate a second, because a scan costs money and load: in what the
            service charges (`native_charge`) where it reports a charge, else in rows. None = no bound. Each
            client keeps it for itself; `plan_partitions` divides it between its tokens.

    Raises:
        MulticloudDbError: When it is built: `INVALID_REQUEST` that names the field. At the first read:
            `UNSUPPORTED_CAPABILITY` where the database has no snapshots.

    Portability:
        Check `Capability.CHANGE_FEED_SNAPSHOT`; its note says whether the rows show one moment or are each as
        they were when they were read. For a whole collection or one partition key, not for
        `PhysicalPartition`, `EntireDatabase` or `EntireCluster`. Warnings 23 and 24 in docs/configuration.md.
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
    """A position older than retention starts another snapshot: deletes that were lost are found, too.

    The page has a `Gap` and a `SnapshotStarted` notice and no events. Before you store its token, set the
    `order_key` of every row and every tombstone of your target to `""`. Then apply events as always. When
    `BackfillDone` has come, rows that still have `""` were deleted: delete them. docs/how-to/snapshot.md
    shows it with SQLite.

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
    """How far the scan of a snapshot is.

    Attributes:
        order: What is active now: `ORDERED` while the changes wait, `INTERLEAVED` once they are read too.
        segments_done: The number of segments that were read.
        segments: How many there will be; None while that is not known.
        rows: How many rows were delivered, by every process that this token came through.
        records: About how many rows there were at the start; None where the service does not say.
    """

    order: SnapshotOrder
    segments_done: int
    segments: int | None
    rows: int
    records: int | None
