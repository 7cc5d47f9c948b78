"""How much of a database one read covers."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.redaction import shorten
from multiclouddb_api.validators import is_a, not_blank

__all__ = [
    "EntireCluster",
    "EntireCollection",
    "EntireDatabase",
    "FeedScope",
    "LogicalPartition",
    "PhysicalPartition",
]


@attrs.frozen
class EntireCollection:
    """The whole collection: fan-out, splits and merges are handled inside the token.

    Order: the service's commit order within each partition, none across partitions.
    """


@attrs.frozen
class PhysicalPartition:
    """One physical partition: a shard, a feed range, a partition token.

    When it ends, the page has `partition_retired` and names its children, each with a token. With
    `with_descendants`, reading continues in all partitions that it is split or merged into. The token keeps
    track of them, and `partition_retired` stays unset on every page.

    If the partition merges with a partition that does not descend from it, two readers read their child. Each
    reader starts the child as soon as it has drained its own parents, and does not know how far the other
    reader has come. So if partitions merge, only one reader of all parents, such as `EntireCollection`, keeps
    the order across the merge and reads each event once.

    Attributes:
        partition_id: From `list_physical_partitions`, `plan_partitions`, an event or a
            `ChildPartition`; valid for that provider and resource only.
        with_descendants: True to continue in the partitions that replace it after a split or merge. A token
            made with one value is refused with the other.

    Portability:
        An id means nothing to another provider or resource: `INVALID_REQUEST`. MongoDB has one
        partition, which never ends, so that both forms are the same there. Warnings 6, 7, 11 and 22 in
        docs/configuration.md.
    """

    partition_id: str = attrs.field(
        validator=[is_a(str), not_blank("take one from client.list_physical_partitions(address)")]
    )
    with_descendants: bool = attrs.field(default=False, kw_only=True, validator=is_a(bool))


@attrs.frozen
class LogicalPartition:
    """All documents with one partition key value.

    Attributes:
        key: A key whose `partition_key` components are compared; its further components are ignored.

    Portability:
        Native on Cosmos DB and the embedded store; on MongoDB the server filters its whole log;
        DynamoDB and Spanner refuse it with `UNSUPPORTED_CAPABILITY`: read `PhysicalPartition` and
        filter in the application. Gate on `Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE`. Warning 6
        in docs/configuration.md.
    """

    key: MulticloudDbKey = attrs.field(repr=shorten, validator=is_a(MulticloudDbKey))


@attrs.frozen
class EntireDatabase:
    """Every collection of `address.database`; each event carries its own address.

    Portability:
        MongoDB only, where it has no incarnation: the feed of a dropped database ends, but nothing
        detects that a token is used on another database of the same name. Gate on
        `Capability.CHANGE_FEED_DATABASE_SCOPE`. Warnings 13 and 20 in docs/configuration.md.
    """


@attrs.frozen
class EntireCluster:
    """Every database of the deployment; each event carries its own address.

    Portability:
        MongoDB only, where it has no incarnation. Gate on `Capability.CHANGE_FEED_CLUSTER_SCOPE`.
        Warnings 13 and 20 in docs/configuration.md.
    """


FeedScope: TypeAlias = (
    EntireCollection | PhysicalPartition | LogicalPartition | EntireDatabase | EntireCluster
)
"""Match on the case; all are frozen and comparable."""
