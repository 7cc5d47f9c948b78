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

    In each order, apply an event only if its `order_key` is greater than that of your stored row. The rows of
    a snapshot have a common `order_key`, called the floor, so every change that is newer than the snapshot
    replaces them (on Cosmos DB, each row has the `order_key` of its last change).

    Portability:
        Cosmos DB refuses `INTERLEAVED` with `UNSUPPORTED_CAPABILITY`. `AUTO` switches only if the service
        reports how long it keeps a position, and otherwise behaves like `ORDERED`. See warning 24 in
        docs/configuration.md.
    """

    ORDERED = "ordered"
    """Every row of the snapshot comes before any change. If the scan takes longer than the service keeps
    changes, the read raises `CHECKPOINT_EXPIRED`."""
    INTERLEAVED = "interleaved"
    """Rows and changes are mixed, so that no position becomes too old. A delete may then come before an old
    version of the same row, so keep deleted keys with their `order_key` (tombstones) until you have stored
    the token of the page with `BackfillDone` or of a later one."""
    AUTO = "auto"
    """Starts as `ORDERED`, and switches to `INTERLEAVED` when half of the service's retention time has
    passed. So it needs the tombstones of `INTERLEAVED`."""


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

    The first page has no rows, only a `SnapshotStarted` notice: store its token before you read on. From then
    on the token holds the progress of the scan, so another process can continue it, even days later. Each row
    is an event with `type=CREATE`, `backfilled=True` and the snapshot's floor as `order_key` (on Cosmos DB
    the `order_key` of its last change); a row that changes later is returned again, as a change. The page
    with the last row also has a `BackfillDone` notice. Before it, no page is `idle`, and the watermark stays
    at the time of the snapshot.

    With `changes=False` the feed has the rows alone and ends after them: the page with the last row also has
    a `FeedEnded` notice, and a read from this page's token returns it again. A row that changes after the
    first page then comes in its old or new state, or not at all. If you need the changes of such rows, take a
    token from `Now()` before the scan, and read from it afterwards.

    Raises:
        MulticloudDbError: When the snapshot is built, `INVALID_REQUEST` with the name of the field. At the
            first read, `UNSUPPORTED_CAPABILITY` if the database or the scope has no snapshots.

    Portability:
        Check `Capability.CHANGE_FEED_SNAPSHOT`, whose note also says whether all rows are of one moment, or
        each row is as it was when the scan read it. The scope must be a whole collection, one partition key
        or a database, and not `PhysicalPartition` or `EntireCluster`. See warnings 23 and 24 in
        docs/configuration.md.
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
    """Into how many segments to divide the collection (of a database, each collection); None lets the
    provider decide. One client reads up to eight at the same time; with `plan_partitions`, each has a token
    of its own."""
    max_scan_rate: float | None = attrs.field(
        default=None, validator=[is_a(int, float, type(None)), _is_rate]
    )
    """The most that the scan may read in a second, to limit cost and load: in the unit of `native_charge` if
    the service reports a charge, otherwise in rows. None means no limit. Each client applies it on its own,
    so `plan_partitions` divides it among its tokens."""
    changes: bool = attrs.field(default=True, kw_only=True, validator=is_a(bool))
    """False for the rows alone, for which `order` has no meaning."""


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

    Its first page has a `Gap` and a `SnapshotStarted` notice and no events. Before you store its token, set
    the `order_key` of every row and tombstone of your target to `""`; then apply events as usual. A row that
    still has `""` after `BackfillDone` no longer exists in the source, so delete it. (The sinks do all of
    this; docs/reference/snapshots.md shows it with SQLite.) Iterate over pages, because a loop over single
    events is refused: it would not see the notices.

    Portability:
        Check `Capability.CHANGE_FEED_SNAPSHOT`. The scope must be a whole collection or one partition key.
        See warnings 3 and 23 in docs/configuration.md.
    """

    snapshot: Snapshot = attrs.field(factory=Snapshot, validator=[is_a(Snapshot), _has_changes])
    """The settings of the new snapshot."""


@frozen
class SnapshotProgress:
    """The progress of a snapshot's scan."""

    order: SnapshotOrder = attrs.field(validator=is_a(SnapshotOrder))
    """`ORDERED` while only rows are read, `INTERLEAVED` once changes are read too."""
    segments_done: int = attrs.field(validator=is_a(int))
    """The number of segments that have been read completely."""
    segments: int | None = attrs.field(validator=is_a(int, type(None)))
    """The expected total number of segments; None while the total is unknown."""
    rows: int = attrs.field(validator=is_a(int))
    """The number of rows that were delivered from the start of the snapshot to this token, over all reads;
    for a segment of a plan, since the segment was planned."""
    records: int | None = attrs.field(validator=is_a(int, type(None)))
    """The approximate number of rows at the start of the scan; None if the service does not report it."""
    units: int | None = attrs.field(default=None, validator=is_a(int, type(None)))
    """The approximate charge of the whole scan, in the unit of `native_charge`; None if it is not known."""
