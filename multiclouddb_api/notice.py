"""Facts about a feed that are not changes of a document."""

from __future__ import annotations

from typing import TypeAlias

import attrs

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
    """The collection or database was dropped.

    Attributes:
        name: The dropped resource: `database/collection` or `database`.
    """

    name: str


@attrs.frozen
class Renamed:
    """The collection has another name now.

    Attributes:
        name: The old name.
        new_name: The name it has now.
    """

    name: str
    new_name: str


@attrs.frozen
class Invalidated:
    """The service ended the feed because the followed resource no longer exists.

    Attributes:
        reason: The service's own words, or ours; one line.
    """

    reason: str


@attrs.frozen
class FeedEnded:
    """No change will ever come after this token.

    Attributes:
        reason: The reason, on one line.
    """

    reason: str


@attrs.frozen
class Gap:
    """Changes were lost because retention had passed; the read continued after them (`SkipToOldest`).

    Attributes:
        partition_id: The partition whose position was too old.
        lost_from: The lost position, as text for a person.
        resumed_at: The position where the read continued, as text for a person.

    Portability:
        Everywhere; the service decides how soon that happens. Warnings 3 and 10 in docs/configuration.md.
    """

    partition_id: str
    lost_from: str
    resumed_at: str


@attrs.frozen
class RecordSkipped:
    """A record that could not be decoded was skipped with a `skip_token`.

    Attributes:
        partition_id: The partition that contains the record.
        position: Its position, as text for a person.
    """

    partition_id: str
    position: str


@attrs.frozen
class PartitionFoundLate:
    """An audit found a partition that the feed did not cover; the feed reads it from here on.

    The service listed the partition so late that its parent was no longer watched for children. Its events
    come after newer events of other partitions, and may be older than an already reported watermark.

    Attributes:
        partition_id: The partition.
        starts_at: The position where reading it starts, as text for a person.

    Portability:
        Only on DynamoDB, which may list shards late and does not prove that a listing is complete. Where a
        service names every child, no partition is found late. Warning 22 in docs/configuration.md.
    """

    partition_id: str
    starts_at: str


@attrs.frozen
class SnapshotStarted:
    """A snapshot has begun: changes are pinned from here on, and its rows come on the next pages.

    Store the token of its page before you read on. Only a read from this token or a later one continues the
    snapshot; any other read begins another snapshot.

    Attributes:
        floor: The `order_key` of every row of the snapshot. It is higher than that of every change that the
            rows certainly contain, and lower than that of every change after this page.
        partition_id: The id of the snapshot; its `BackfillDone` has the same id.

    Portability:
        Where `Capability.CHANGE_FEED_SNAPSHOT` is. On DynamoDB the floor also lies below older changes.
        Warning 23 in docs/configuration.md.
    """

    floor: str
    partition_id: str


@attrs.frozen
class BackfillDone:
    """The backfill from present documents is complete; all later events are real changes.

    The page with this notice contains nothing after it. With `SnapshotOrder.INTERLEAVED` and `AUTO`, keep
    deleted keys until you have stored the token of this page or a later one.

    Attributes:
        partition_id: With `Snapshot()` the id of the snapshot, as in `SnapshotStarted`; with Cosmos DB's
            opt-in the partition whose backfill is complete.

    Portability:
        With `Snapshot()`, where `Capability.CHANGE_FEED_SNAPSHOT` is; otherwise only on Cosmos DB, with the
        opt-in into its backfill. Warnings 8 and 23 in docs/configuration.md.
    """

    partition_id: str


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
"""Match on the case; later versions may add one."""
