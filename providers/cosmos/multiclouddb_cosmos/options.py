"""Options that only the Cosmos DB provider has."""

from __future__ import annotations

from typing import Final

import attrs

from multiclouddb_api import Capability, ProviderOptions
from multiclouddb_api.validators import check_type, is_a

_BACKFILLED: Final = (Capability.CHANGE_FEED_BEGINNING, Capability.CHANGE_FEED_POINT_IN_TIME)


@attrs.frozen
class CosmosOptions(ProviderOptions):
    """Options of a feed."""

    backfill: bool = attrs.field(default=False, validator=is_a(bool))
    """True to accept that the library emulates `Beginning()` and `AtTime(…)`; False by default.

    The service can start its feed with all versions and deletes only at the current time or at a token.
    Therefore the feed first returns the current items as `CREATE` events with `backfilled` set, then a
    `BackfillDone` notice, and then every change since the start. The feed never returns an item that was
    deleted before the start.
    """

    def opts_into(self, capability: Capability) -> bool:
        """Return True if the caller accepts an emulated start."""
        check_type("capability", capability, Capability)
        return self.backfill and capability in _BACKFILLED
