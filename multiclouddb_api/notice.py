"""Defines notices: facts about a feed that are not changes of a document."""

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
    """No further change will come after this token."""

    reason: str = attrs.field(validator=is_a(str))
    """The reason why the feed ended, on one line."""


@attrs.frozen
class Gap:
    """Changes were lost because they were older than the retention.

    Reading continued after them (`SkipToOldest`).

    Portability:
        A gap is possible on every database; the service decides how soon changes expire. See warnings 3 and
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
    """An audit found a partition that the feed did not cover; from now on the feed reads this partition.

    The service listed the partition so late that its parent was no longer being watched for children. The
    partition's events come after newer events of other partitions, and may be older than a watermark that was
    already reported.

    Portability:
        This notice occurs only on DynamoDB, which may list shards late and does not prove that a listing is
        complete. If a service names every child partition, no partition is found late. See warning 22 in
        docs/configuration.md.
    """

    partition_id: str = attrs.field(validator=is_a(str))
    """The partition."""
    starts_at: str = attrs.field(validator=is_a(str))
    """The position at which reading the partition starts, as readable text."""


@attrs.frozen
class SnapshotStarted:
    """A snapshot has begun.

    All later changes are kept, and the rows of the snapshot come on the next pages. Store the token
    of this notice's page before you read on. Only a read from this token or a later one continues the
    snapshot; any other read begins another snapshot.

    Portability:
        Check `Capability.CHANGE_FEED_SNAPSHOT`. On DynamoDB the floor is also less than the `order_key`
        of some older changes. See warning 23 in docs/configuration.md.
    """

    floor: str = attrs.field(validator=is_a(str))
    """The `order_key` of every row of the snapshot. This floor is greater than the `order_key` of every
    change that the rows certainly contain, and less than that of every change after this page."""
    partition_id: str = attrs.field(validator=is_a(str))
    """The id of the snapshot; the matching `BackfillDone` has the same id."""


@attrs.frozen
class BackfillDone:
    """The backfill from the current documents is complete; all later events are real changes.

    This notice is the last content of its page. With `SnapshotOrder.INTERLEAVED` or `AUTO`, keep deleted keys
    until you have stored the token of this page or of a later one.

    Portability:
        This notice occurs with `Snapshot()` on databases with `Capability.CHANGE_FEED_SNAPSHOT`. Otherwise it
        occurs only on Cosmos DB, if you opt into its backfill. See warnings 8 and 23 in
        docs/configuration.md.
    """

    partition_id: str = attrs.field(validator=is_a(str))
    """With `Snapshot()`, the id of the snapshot, as in `SnapshotStarted`. With Cosmos DB's opt-in, the
    partition whose backfill is complete."""


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
