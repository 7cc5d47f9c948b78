"""The options of a request, and the capabilities of each mode."""

from __future__ import annotations

from types import NoneType
from typing import Final, Literal

import attrs
from attrs import frozen

from multiclouddb_api import (
    Capability,
    CapabilityNote,
    CapabilitySet,
    ProviderOptions,
    ScanFacts,
    ScanFloor,
    Support,
)
from multiclouddb_api.validators import check_type, is_a
from multiclouddb_cosmos.config import MODES, check_marker, check_mode

_NATIVE, _EMULATED, _UNSUPPORTED = Support.NATIVE, Support.EMULATED, Support.UNSUPPORTED
_NO_WIDER: Final = "a feed covers one container; read each container with EntireCollection()"
_ONE_KEY: Final = "the scope is one partition key, or the first components of a hierarchical partition key"
_START: Final = (
    "a feed of all versions can start only at Now() or at a token; for this start, ask for a backfill with "
    "provider_options=CosmosOptions(backfill=True), or else start at Now()"
)

CAPABILITIES: Final = CapabilitySet(
    {
        Capability.CHANGE_FEED: CapabilityNote(
            _NATIVE,
            "enable continuous backup and then enableAllVersionsAndDeletesChangeFeed on the account; without "
            "them, choose CosmosOptions(mode='latest')",
        ),
        Capability.CHANGE_FEED_BEGINNING: CapabilityNote(_EMULATED, _START),
        Capability.CHANGE_FEED_POINT_IN_TIME: CapabilityNote(
            _EMULATED, f"{_START}; the given time is rounded down to a whole second"
        ),
        Capability.CHANGE_FEED_SNAPSHOT: CapabilityNote(
            _NATIVE,
            "supports only SnapshotOrder.ORDERED; costs the request units of reading every item once",
        ),
        Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: CapabilityNote(_NATIVE, _ONE_KEY),
        Capability.LOOKUP: CapabilityNote(
            _NATIVE,
            "needs the data actions items/read and executeQuery; costs one request unit for each KiB of an "
            "item; an answer may lack the newest writes, except on an account with strong or bounded "
            "staleness consistency, where a look-up costs twice the units",
        ),
        Capability.CHANGE_FEED_ROWS: CapabilityNote(_NATIVE, "costs what the scan of a snapshot costs"),
        Capability.CHANGE_FEED_ALL_VERSIONS: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_DELETES: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_CHANGE_TYPES: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_OLD_ITEM_STATE: CapabilityNote(
            _UNSUPPORTED,
            "the service does not send previous items, except in a preview, in which include_native=True has "
            "them in event.native; keep what you need from earlier events",
        ),
        Capability.CHANGE_FEED_DATABASE_SCOPE: CapabilityNote(_UNSUPPORTED, _NO_WIDER),
        Capability.CHANGE_FEED_CLUSTER_SCOPE: CapabilityNote(_UNSUPPORTED, _NO_WIDER),
        Capability.RUN_COMMAND: CapabilityNote(
            _UNSUPPORTED, "use azure-cosmos for everything except the feed"
        ),
    },
    ScanFacts(
        ScanFloor.ROW,
        0.0,
        "request units for each page of the feed of latest versions, as for each read of the feed",
        is_charged=True,
    ),
)
"""The capabilities of a container in an account that offers the feed with all versions and deletes."""

LATEST: Final = CapabilitySet(
    {
        **CAPABILITIES.notes,
        Capability.CHANGE_FEED: CapabilityNote(
            _NATIVE, "needs no setting of the account; no position expires"
        ),
        Capability.CHANGE_FEED_BEGINNING: CapabilityNote(
            _NATIVE, "returns every existing item once; within a range, in the order of the last changes"
        ),
        Capability.CHANGE_FEED_POINT_IN_TIME: CapabilityNote(
            _NATIVE, "the start is in whole seconds, so up to one second early; it is never late"
        ),
        Capability.CHANGE_FEED_SNAPSHOT: CapabilityNote(
            _UNSUPPORTED, "use Beginning(), which does the same with mode='latest'"
        ),
        Capability.CHANGE_FEED_ALL_VERSIONS: CapabilityNote(
            _UNSUPPORTED,
            "with mode='latest', the feed contains only the newest version of each item; for every version, "
            "choose mode='all_versions'",
        ),
        Capability.CHANGE_FEED_DELETES: CapabilityNote(
            _UNSUPPORTED,
            "with mode='latest', the service does not report deletes; set a flag and a time to live instead "
            "of deleting, and name the flag with delete_marker; or choose mode='all_versions'",
        ),
        Capability.CHANGE_FEED_CHANGE_TYPES: CapabilityNote(
            _UNSUPPORTED,
            "with mode='latest', every write is an UPDATE; treat it as an upsert, or choose "
            "mode='all_versions'",
        ),
    },
    CAPABILITIES.scan,
)
"""The capabilities of a container that is read with `mode="latest"`."""

_BACKFILLED: Final = (Capability.CHANGE_FEED_BEGINNING, Capability.CHANGE_FEED_POINT_IN_TIME)


def _check_mode(instance: object, attribute: object, value: object) -> None:
    if value is not None:
        check_mode("CosmosOptions.mode", value)


@frozen
class CosmosOptions(ProviderOptions):
    """The options of a request to Cosmos DB."""

    backfill: bool = attrs.field(default=False, validator=is_a(bool))
    """True to accept that `Beginning()` and `AtTime(…)` are emulated; False by default.

    The service can start its feed of all versions and deletes only now or at a token. So the feed first
    returns the current items, as `CREATE` events with `backfilled=True`, then a `BackfillDone` notice, and
    then every change since the first read. An item that was deleted before that read is never returned. With
    `mode="latest"`, the option has no effect.
    """
    mode: Literal["all_versions", "latest"] | None = attrs.field(
        default=None, validator=_check_mode, metadata={"positions": True}
    )
    """`"all_versions"` for all versions and deletes, which the account must offer; `"latest"` for the newest
    version of each item that was created or changed; None, the default, for the mode of the connection,
    which is `"all_versions"` unless its URL has `?mode=latest`.

    With `"latest"`, the account needs no continuous backup, and no position expires. But there are no deletes
    and no intermediate versions, and each event is an `UPDATE` with the item. A token of one mode is refused
    in the other.
    """
    delete_marker: str | None = attrs.field(default=None, validator=is_a(str, NoneType))
    """With `mode="latest"`, the path of a property that marks an item as deleted, such as `"/deleted"`.

    An item in which it is `true` is returned as a `DELETE` with the item as `old_item_state`, whatever the
    `old_item_state_mode`; one in which it is `false` or absent as an `UPDATE`; one in which it has another
    type raises `PROVIDER_ERROR`. None, the default, is for the marker of the connection, which has none
    unless its URL has `&delete_marker=…`.
    """

    @property
    def is_latest(self) -> bool:
        """Return True if the feed contains only latest versions."""
        return self.mode == "latest"

    def completed(self, defaults: CosmosOptions) -> CosmosOptions:
        """Return these options with the mode and the marker of the connection where they name none."""
        check_type("defaults", defaults, CosmosOptions)
        mode, marker = self.mode or defaults.mode, self.delete_marker
        if marker is not None:
            check_marker("CosmosOptions.delete_marker", marker, mode)
        elif mode == "latest":
            marker = defaults.delete_marker
        return attrs.evolve(self, mode=mode, delete_marker=marker)

    def position_digest(self) -> str:
        """Return the mode, and for the usual one an empty text."""
        return "latest" if self.is_latest else ""

    def describe_digest(self, digest: str) -> str:
        """Return the mode that a digest stands for."""
        check_type("digest", digest, str)
        return f"mode={(digest or MODES[0])!r}"

    def narrow(self, capabilities: CapabilitySet) -> CapabilitySet:
        """Return the capabilities of the mode."""
        check_type("capabilities", capabilities, CapabilitySet)
        if self.mode is None:
            return capabilities
        return LATEST if self.is_latest else CAPABILITIES

    def opts_into(self, capability: Capability) -> bool:
        """Return True if the caller accepts an emulated start."""
        check_type("capability", capability, Capability)
        return self.backfill and capability in _BACKFILLED
