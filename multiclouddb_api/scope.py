"""Defines which part of a database one read covers."""

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
    """The whole collection; the token tracks all partitions and their splits and merges.

    Within each partition, events are returned in the service's commit order; there is no order across
    partitions.
    """


@attrs.frozen
class PhysicalPartition:
    """One physical partition: a DynamoDB shard, a Cosmos DB feed range or a Spanner partition token.

    When the partition ends, `partition_retired` is True on the last page, and the page contains a
    token for each child of the partition. With `with_descendants`, reading continues in all
    partitions that replace this partition after a split or merge. The token tracks these
    partitions, and `partition_retired` is False on every page.

    If the partition merges with a partition that does not descend from it, two readers read the
    common child. Each of the two readers starts to read the child as soon as it has finished its
    own partitions. Neither of the two readers knows the position of the other reader. Therefore, if
    partitions merge, use a single reader of all parents, such as `EntireCollection`. Only a single
    reader of all parents keeps the order across the merge and reads each event once.

    Portability:
        An id from another provider or resource is refused with `INVALID_REQUEST`. MongoDB has only one
        partition, which never ends, so `with_descendants` makes no difference on MongoDB. See warnings 6, 7,
        11 and 22 in docs/configuration.md.
    """

    partition_id: str = attrs.field(
        validator=[is_a(str), not_blank("take one from client.list_physical_partitions(address)")]
    )
    """An id from `list_physical_partitions`, `plan_partitions`, an event or a `ChildPartition`. The id is
    valid only for the provider and resource from which you obtained it."""
    with_descendants: bool = attrs.field(default=False, kw_only=True, validator=is_a(bool))
    """True to continue in the partitions that replace this partition after a split or merge. A token is
    refused if it was made with the other value of this field."""


@attrs.frozen
class LogicalPartition:
    """All documents with one partition key value.

    Portability:
        Cosmos DB and the embedded store support this scope natively. On MongoDB the server filters its whole
        log. DynamoDB and Spanner refuse this scope with `UNSUPPORTED_CAPABILITY`; instead, read
        `PhysicalPartition` and filter in the application. Check
        `Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE`. See warning 6 in docs/configuration.md.
    """

    key: MulticloudDbKey = attrs.field(repr=shorten, validator=is_a(MulticloudDbKey))
    """A key whose `partition_key` components are compared; its other components are ignored."""


@attrs.frozen
class EntireDatabase:
    """Every collection of `address.database`; each event contains its own address.

    Portability:
        This scope exists on MongoDB only. The feed of a dropped database ends, but the library cannot detect
        that a token is used on a new database with the same name. Check
        `Capability.CHANGE_FEED_DATABASE_SCOPE`. See warnings 13 and 20 in docs/configuration.md.
    """


@attrs.frozen
class EntireCluster:
    """Every database of the deployment; each event contains its own address.

    Portability:
        This scope exists on MongoDB only. The library cannot detect that a token of this scope is
        used on another deployment. Check `Capability.CHANGE_FEED_CLUSTER_SCOPE`. See warnings 13
        and 20 in docs/configuration.md.
    """


FeedScope: TypeAlias = (
    EntireCollection | PhysicalPartition | LogicalPartition | EntireDatabase | EntireCluster
)
"""The union of all scopes, which are frozen and comparable; use `match` on the class."""
