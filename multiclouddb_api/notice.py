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
]


@attrs.frozen
class Dropped:
    """The collection or database was dropped.

    Attributes:
        name: What was dropped, `database/collection` or `database`.
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
    """The service ended the feed because what it followed is gone.

    Attributes:
        reason: The service's own words, or ours; one line.
    """

    reason: str


@attrs.frozen
class FeedEnded:
    """No change will ever come after this token.

    Attributes:
        reason: Why; one line.
    """

    reason: str


@attrs.frozen
class Gap:
    """Changes were lost to retention; the read continued after them (`SkipToOldest`).

    Attributes:
        partition_id: The partition whose position was too old.
        lost_from: That position, as text for a person.
        resumed_at: Where the read continued, as text for a person.

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
        partition_id: The partition that it is in.
        position: Its position, as text for a person.
    """

    partition_id: str
    position: str


@attrs.frozen
class PartitionFoundLate:
    """An audit found a partition that the feed did not cover; it is read from here on.

    The service listed it so late that its parent was no longer watched for children. Its events come after
    newer events of other partitions, and may be older than a watermark that was reported before.

    Attributes:
        partition_id: The partition.
        starts_at: The position that it is read from, as text for a person.

    Portability:
        Only on DynamoDB, which may list shards late and does not prove that a listing is complete. Where a
        service names every child, no partition is found late. Warning 22 in docs/configuration.md.
    """

    partition_id: str
    starts_at: str


@attrs.frozen
class BackfillDone:
    """The backfill from present documents is complete; from here on events are real changes.

    Attributes:
        partition_id: The partition that is done.

    Portability:
        Only on Cosmos DB, with the opt-in into its backfill. Warning 8 in docs/configuration.md.
    """

    partition_id: str


Notice: TypeAlias = (
    Dropped | Renamed | Invalidated | FeedEnded | Gap | RecordSkipped | PartitionFoundLate | BackfillDone
)
"""Match on the case; later versions may add one."""
