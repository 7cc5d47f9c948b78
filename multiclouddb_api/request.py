"""Defines the request that describes one read."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import attrs

from multiclouddb_api.address import ResourceAddress
from multiclouddb_api.options import ProviderOptions
from multiclouddb_api.position import AtTime, Beginning, FromContinuationToken, Now, StartPosition
from multiclouddb_api.scope import (
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    FeedScope,
    LogicalPartition,
    PhysicalPartition,
)
from multiclouddb_api.snapshot import Resnapshot, Snapshot
from multiclouddb_api.validators import at_least, is_a

__all__ = ["ChangeFeedRequest", "Fail", "NewItemStateMode", "OldItemStateMode", "OnExpired", "SkipToOldest"]


class NewItemStateMode(Enum):
    """Defines whether events include the document as it is after the change.

    Portability:
        `REQUIRE` needs a stream with new images on DynamoDB, a change stream of full rows on
        Spanner, or pre- and post-images on MongoDB. Without the required stream or images, the read
        raises `UNSUPPORTED_CAPABILITY`. Without images, MongoDB looks up the updated document at
        the time of the read. See warnings 4, 5 and 15 in docs/configuration.md.
    """

    OMIT = "omit"
    """Never include the document; this reduces the cost if the service can omit the document."""
    INCLUDE_IF_AVAILABLE = "include_if_available"
    """Include the full document if the service has it, else None; a partial document is never returned."""
    REQUIRE = "require"
    """Include the full document, or raise `UNSUPPORTED_CAPABILITY` before the first event."""


class OldItemStateMode(Enum):
    """Defines whether events include the document as it was before the change.

    Portability:
        Every value except `OMIT` needs `Capability.CHANGE_FEED_OLD_ITEM_STATE`. Cosmos DB does not support
        this capability, and the other services need a setting. See warning 12 in docs/configuration.md.
    """

    OMIT = "omit"
    """Never include the old document."""
    INCLUDE_IF_AVAILABLE = "include_if_available"
    """Include the full old document if the service has it, else None.

    A partial document is never returned.
    """
    REQUIRE = "require"
    """Include the full old document, or raise `UNSUPPORTED_CAPABILITY` before the first event."""


@attrs.frozen
class Fail:
    """If the position is older than the retention, the read raises `CHECKPOINT_EXPIRED`."""


@attrs.frozen
class SkipToOldest:
    """If the position is older than the retention, report a `Gap` and continue at the oldest change.

    Portability:
        Works on every database; the service decides how soon a position becomes too old. See warnings 3 and
        10 in docs/configuration.md.
    """


OnExpired: TypeAlias = Fail | SkipToOldest | Resnapshot
"""What to do if the service no longer keeps the changes that follow a position."""


@attrs.frozen
class ChangeFeedRequest:
    """Describes one read of a change feed.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` when the request is built; the message names the field.
    """

    address: ResourceAddress = attrs.field(validator=is_a(ResourceAddress))
    """The address of the collection, table or container."""
    start_position: StartPosition = attrs.field(
        validator=is_a(Beginning, Now, AtTime, Snapshot, FromContinuationToken)
    )
    """The position to start from; use a token to resume."""
    scope: FeedScope = attrs.field(
        factory=EntireCollection,
        validator=is_a(EntireCollection, PhysicalPartition, LogicalPartition, EntireDatabase, EntireCluster),
    )
    """The part of the database or collection to read; the entire collection by default."""
    new_item_state_mode: NewItemStateMode = attrs.field(
        default=NewItemStateMode.INCLUDE_IF_AVAILABLE, validator=is_a(NewItemStateMode)
    )
    """Whether events include the new document."""
    old_item_state_mode: OldItemStateMode = attrs.field(
        default=OldItemStateMode.OMIT, validator=is_a(OldItemStateMode)
    )
    """Whether events include the old document; every value except `OMIT` needs a capability."""
    max_page_size: int = attrs.field(
        default=0, validator=[is_a(int), at_least(0, "use 0 for the provider's own page size")]
    )
    """The upper limit of `len(page.events)`; 0 means the provider's own page size."""
    on_expired: OnExpired = attrs.field(factory=Fail, validator=is_a(Fail, SkipToOldest, Resnapshot))
    """What to do if the position is older than the retention."""
    include_native: bool = attrs.field(default=False, validator=is_a(bool))
    """True to receive the vendor's own record in `event.native`."""
    provider_options: ProviderOptions | None = attrs.field(
        default=None, validator=is_a(ProviderOptions, type(None))
    )
    """The options of one provider, or None. If they belong to another provider, the request is refused."""
