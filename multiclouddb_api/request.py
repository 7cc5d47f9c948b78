"""The request for one read."""

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
    """Whether events carry the document as it is after the change.

    Portability:
        `REQUIRE` needs a stream with new images on DynamoDB, a change stream of full rows on Spanner
        and pre- and post-images on MongoDB; otherwise it raises `UNSUPPORTED_CAPABILITY`. Without images
        MongoDB looks up the document of an update when the update is read. Warnings 4, 5 and 15 in
        docs/configuration.md.
    """

    OMIT = "omit"
    """Never include it; this is cheaper if the service can leave it out."""
    INCLUDE_IF_AVAILABLE = "include_if_available"
    """The full document where the service has it, else None; never a partial document."""
    REQUIRE = "require"
    """The full document, or `UNSUPPORTED_CAPABILITY` before the first event."""


class OldItemStateMode(Enum):
    """Whether events carry the document as it was before the change.

    Portability:
        Anything but `OMIT` needs `Capability.CHANGE_FEED_OLD_ITEM_STATE`: not on Cosmos DB, and
        elsewhere with a setting. Warning 12 in docs/configuration.md.
    """

    OMIT = "omit"
    """Never."""
    INCLUDE_IF_AVAILABLE = "include_if_available"
    """The full old document where the service has it, else None; never a partial document."""
    REQUIRE = "require"
    """The full old document, or `UNSUPPORTED_CAPABILITY` before the first event."""


@attrs.frozen
class Fail:
    """A position older than retention raises `CHECKPOINT_EXPIRED`."""


@attrs.frozen
class SkipToOldest:
    """A position older than retention gives a `Gap` notice, and the read continues at the oldest change.

    Portability:
        Everywhere; the service decides how soon a position is too old. Warnings 3 and 10 in
        docs/configuration.md.
    """


OnExpired: TypeAlias = Fail | SkipToOldest | Resnapshot
"""What to do when changes after the position are no longer kept."""


@attrs.frozen
class ChangeFeedRequest:
    """One read of a change feed.

    Attributes:
        address: The collection, table or container.
        start_position: The start position; a token to resume.
        scope: The part of the database or collection to read; the entire collection by default.
        new_item_state_mode: Whether events carry the new document.
        old_item_state_mode: Whether events carry the old document; needs a capability.
        max_page_size: Hard limit on `len(page.events)`; 0 = the provider's own page size.
        on_expired: What to do if a position is older than retention.
        include_native: True to get the vendor's own record in `event.native`.
        provider_options: A provider's own options, or None. Other providers refuse them.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` that names the field, when it is built.
    """

    address: ResourceAddress = attrs.field(validator=is_a(ResourceAddress))
    start_position: StartPosition = attrs.field(
        validator=is_a(Beginning, Now, AtTime, Snapshot, FromContinuationToken)
    )
    scope: FeedScope = attrs.field(
        factory=EntireCollection,
        validator=is_a(EntireCollection, PhysicalPartition, LogicalPartition, EntireDatabase, EntireCluster),
    )
    new_item_state_mode: NewItemStateMode = attrs.field(
        default=NewItemStateMode.INCLUDE_IF_AVAILABLE, validator=is_a(NewItemStateMode)
    )
    old_item_state_mode: OldItemStateMode = attrs.field(
        default=OldItemStateMode.OMIT, validator=is_a(OldItemStateMode)
    )
    max_page_size: int = attrs.field(
        default=0, validator=[is_a(int), at_least(0, "use 0 for the provider's own page size")]
    )
    on_expired: OnExpired = attrs.field(factory=Fail, validator=is_a(Fail, SkipToOldest, Resnapshot))
    include_native: bool = attrs.field(default=False, validator=is_a(bool))
    provider_options: ProviderOptions | None = attrs.field(
        default=None, validator=is_a(ProviderOptions, type(None))
    )
