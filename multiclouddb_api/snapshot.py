"""Defines the snapshot start positions, which deliver every existing row and then every change."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import attrs
from attrs import frozen

from multiclouddb_api.errors import invalid_request
from multiclouddb_api.validators import at_least, is_a

_LEAST_RATE = 1e-6
_MOST = 10**15


class SnapshotOrder(StrEnum):
    """The order in which the rows of a snapshot and the changes are delivered.

    In all three orders, all rows of the snapshot have the same `order_key`, which is called the floor. Apply
    an event only if its `order_key` is greater than that of your stored row.

    Portability:
        `AUTO` switches to `INTERLEAVED` only if the service reports how long it keeps a position; otherwise
        it behaves like `ORDERED`. See warning 24 in docs/configuration.md.
    """

    ORDERED = "ordered"
    """Every row of the snapshot comes before any change.

    If the scan takes longer than the service keeps changes, the read raises `CHECKPOINT_EXPIRED`.
    """
    INTERLEAVED = "interleaved"
    """Rows and changes are mixed, so that no position becomes too old.

    A delete may be delivered before an old version of the same row. So keep deleted keys with their
    `order_key` (tombstones) until you have stored the token of the page with `BackfillDone` or of a later
    one.
    """
    AUTO = "auto"
    """Starts as `ORDERED`, and switches to `INTERLEAVED` after half of the service's retention time has
    passed. Keep the keys of deleted documents in your sink, as `INTERLEAVED` requires.
    """


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


@frozen
class Snapshot:
    """Delivers every existing row and then every change; no change during the scan is lost.

    The first page contains no rows, only a `SnapshotStarted` notice. Store its token before you read on. No
    change after the first call is missed: if a row is changed later, it is returned again as a change. Each
    row is an event with `backfilled=True`, `type=CREATE` and the snapshot's floor as `order_key`. The page
    with the last row also contains a `BackfillDone` notice. Before this notice, no page is `idle`, and the
    watermark remains at the time of the snapshot.

    With `changes=False`, the feed contains the rows alone and ends after them: the page with the last row
    also contains a `BackfillDone` and a `FeedEnded` notice, and a read from its token returns `FeedEnded`
    again. A row that is changed after the first page may then be returned in its old or new state, or not at
    all. If you need the changes of such rows, take a token from `Now()` before the scan, and read the changes
    from this token.

    The token contains the progress of the scan, so another process can continue it, even days later.

    Raises:
        MulticloudDbError: Raised when the snapshot is built: `INVALID_REQUEST` with a message that names the
            field. Raised by the first read: `UNSUPPORTED_CAPABILITY` if the database does not support
            snapshots.

    Portability:
        Check `Capability.CHANGE_FEED_SNAPSHOT`. Its note says whether all rows show the state at one moment,
        or each row shows the state when it was read. Snapshots are possible for a whole collection or one
        partition key, not for `PhysicalPartition`, `EntireDatabase` or `EntireCluster`. See warnings 23 and
        24 in docs/configuration.md.
    """

    order: SnapshotOrder = attrs.field(default=SnapshotOrder.AUTO, validator=is_a(SnapshotOrder))
    """The order in which rows and changes are delivered."""
    segments: int | None = attrs.field(
        default=None,
        validator=[
            is_a(int, type(None)),
            attrs.validators.optional(at_least(1, "leave it out to let the provider decide")),
            attrs.validators.optional(_is_holdable),
        ],
    )
    """The number of segments into which the collection is divided; None lets the provider decide. A client
    reads up to eight segments at the same time; `plan_partitions` returns one token for each segment."""
    max_scan_rate: float | None = attrs.field(
        default=None, validator=[is_a(int, float, type(None)), _is_rate]
    )
    """The maximum rate of the scan per second, which limits cost and load. The unit is that of
    `native_charge` if the service reports a charge, and otherwise rows. None means no limit. Each client
    applies the limit separately; `plan_partitions` divides it among its tokens.
    """
    changes: bool = attrs.field(default=True, kw_only=True, validator=is_a(bool))
    """False for the rows alone; `order` then has no meaning, and `plan_partitions` returns only segments."""


def _has_changes(instance: object, attribute: attrs.Attribute[Any], value: Snapshot) -> None:
    if not value.changes:
        raise invalid_request(
            f"{type(instance).__name__}.{attribute.name}",
            "has changes=False, so the feed would end after the rows",
            "leave out changes=False",
        )


@frozen
class Resnapshot:
    """If a position is older than the retention, start a new snapshot, which also reveals lost deletes.

    The first page contains a `Gap` and a `SnapshotStarted` notice, and no events. Before you store its token,
    set the `order_key` of every row and every tombstone of your target to `""`. Then apply events as usual.
    After `BackfillDone`, rows whose `order_key` is still `""` no longer exist in the source, so delete them.
    docs/reference/snapshots.md shows this with SQLite.

    Portability:
        Check `Capability.CHANGE_FEED_SNAPSHOT`. A new snapshot is possible only with a whole collection or
        one partition key. Iterate over pages, because a loop over single events would not see the notices.
        See warnings 3 and 23 in docs/configuration.md.
    """

    snapshot: Snapshot = attrs.field(factory=Snapshot, validator=[is_a(Snapshot), _has_changes])
    """The settings of the new snapshot."""


@frozen
class SnapshotProgress:
    """The progress of a snapshot's scan."""

    order: SnapshotOrder = attrs.field(validator=is_a(SnapshotOrder))
    """The current order: `ORDERED` while only rows are read, `INTERLEAVED` once changes are read too."""
    segments_done: int = attrs.field(validator=is_a(int))
    """The number of segments that have been read completely."""
    segments: int | None = attrs.field(validator=is_a(int, type(None)))
    """The expected total number of segments; None while the total is unknown."""
    rows: int = attrs.field(validator=is_a(int))
    """The number of rows delivered so far, counted over all reads from the start of the snapshot to this
    token; in a segment that was planned, since it was planned."""
    records: int | None = attrs.field(validator=is_a(int, type(None)))
    """The approximate number of rows at the start of the scan; None if the service does not report it."""
