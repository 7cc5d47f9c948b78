"""Defines notices, which report facts about a feed other than changes to documents."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from multiclouddb_api.validators import is_a

__all__ = [
    "BackfillDone",
    "Dropped",
    "FeedEnded",
    "Gap",
    "Invalidated",
    "Notice",
    "PartitionFoundLate",
    "RecordSkipped",
    "Renamed",
    "SnapshotStarted",
]


@attrs.frozen
class Dropped:
    """The collection or database was dropped."""

    name: str = attrs.field(validator=is_a(str))
    """The dropped resource: `database/collection` or `database`."""


@attrs.frozen
class Renamed:
    """The collection has been renamed."""

    name: str = attrs.field(validator=is_a(str))
    """The old name."""
    new_name: str = attrs.field(validator=is_a(str))
    """The new name of the collection."""


@attrs.frozen
class Invalidated:
    """The service ended the feed because the resource that it follows no longer exists."""

    reason: str = attrs.field(validator=is_a(str))
    """The reason on one line, in the service's own words or in the library's."""


@attrs.frozen
class FeedEnded:
    """No more changes will follow this token."""

    reason: str = attrs.field(validator=is_a(str))
    """The reason why the feed ended, on one line."""


@attrs.frozen
class Gap:
    """Changes were lost because they were older than the retention.

    The read continues with the oldest remaining change (`SkipToOldest`) or with a new snapshot
    (`Resnapshot`).

    Portability:
        A gap can occur on every database; the service decides how soon changes expire. See warnings 3 and
        10 in docs/configuration.md.
    """

    partition_id: str = attrs.field(validator=is_a(str))
    """The partition whose position had expired."""
    lost_from: str = attrs.field(validator=is_a(str))
    """The position that was lost, as readable text."""
    resumed_at: str = attrs.field(validator=is_a(str))
    """The position at which reading continued, as readable text."""


@attrs.frozen
class RecordSkipped:
    """A record that could not be decoded was skipped with a `skip_token`."""

    partition_id: str = attrs.field(validator=is_a(str))
    """The partition that contains the skipped record."""
    position: str = attrs.field(validator=is_a(str))
    """The position of the skipped record, as readable text."""


@attrs.frozen
class PartitionFoundLate:
    """An audit found a partition that the feed did not cover; the feed now reads this partition too.

    The service listed the partition only after the library had stopped looking for more children of its
    parent. The partition's events are delivered after newer events of other partitions. These late events may
    be older than a watermark that was already reported.

    Portability:
        This notice occurs only on DynamoDB, which may list shards late and never confirms that a listing is
        complete. If a service names every child partition, no partition is found late. See warning 22 in
        docs/configuration.md.
    """

    partition_id: str = attrs.field(validator=is_a(str))
    """The partition that the audit found."""
    starts_at: str = attrs.field(validator=is_a(str))
    """The position at which reading the partition starts, as readable text."""


@attrs.frozen
class SnapshotStarted:
    """A snapshot has begun.

    The library will deliver all later changes, and the next pages contain the rows of the snapshot. Store the
    token of the page that contains this notice before you continue reading. Only a read from this token or a
    later token continues the snapshot; any other read starts a new snapshot.

    Portability:
        Check `Capability.CHANGE_FEED_SNAPSHOT`. On DynamoDB, some changes that are older than the
        snapshot also have an `order_key` above the floor. See warning 23 in docs/configuration.md.
    """

    floor: str = attrs.field(validator=is_a(str))
    """The `order_key` of every row of the snapshot. This `order_key` is called the floor of the snapshot. The
    floor is greater than the `order_key` of every change that is certainly included in the rows. The floor is
    less than the `order_key` of every change after this page."""
    partition_id: str = attrs.field(validator=is_a(str))
    """The id of the snapshot; the matching `BackfillDone` has the same id."""
    whole: bool = attrs.field(default=True, validator=is_a(bool))
    """True if the snapshot delivers every row of the collection, so that a target can delete all other rows
    at `BackfillDone`. False for one segment of a plan, for one partition or partition key, and for a backfill
    from `AtTime`."""


@attrs.frozen
class BackfillDone:
    """The backfill is complete; all later events are real changes.

    Nothing on the page comes after this notice. With `SnapshotOrder.INTERLEAVED` or `AUTO`, keep deleted keys
    until you have stored the token of this page or of a later one.

    Portability:
        This notice occurs with `Snapshot()` on databases with `Capability.CHANGE_FEED_SNAPSHOT`.
        Without `Snapshot()`, this notice occurs only if you opt into the backfill of Cosmos DB. See
        warnings 8 and 23 in docs/configuration.md.
    """

    partition_id: str = attrs.field(validator=is_a(str))
    """With `Snapshot()`, the id of the snapshot, as in `SnapshotStarted`. With the opt-in backfill of Cosmos
    DB, the partition whose backfill is complete."""
    floor: str = attrs.field(default="", validator=is_a(str))
    """The floor of the snapshot, as in `SnapshotStarted`."""


Notice: TypeAlias = (
    Dropped
    | Renamed
    | Invalidated
    | FeedEnded
    | Gap
    | RecordSkipped
    | PartitionFoundLate
    | SnapshotStarted
    | BackfillDone
)
"""The union of all notices; use `match` on the class, because later versions may add classes."""
