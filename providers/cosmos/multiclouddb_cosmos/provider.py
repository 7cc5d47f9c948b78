"""The provider `cosmos`, which reads the change feeds of containers in an Azure Cosmos DB account."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Final

from azure.cosmos import CosmosClient

from multiclouddb_api import (
    Capability,
    CapabilityNote,
    CapabilitySet,
    ClientConfig,
    ResourceAddress,
    ScanFacts,
    ScanFloor,
    Support,
)
from multiclouddb_cosmos.client import Calls
from multiclouddb_cosmos.config import CosmosConfig, CosmosOptions
from multiclouddb_cosmos.errors import PROVIDER_ID, classify
from multiclouddb_cosmos.feed import CosmosFeed
from multiclouddb_cosmos.source import Source
from multiclouddb_cosmos.transport import make_client
from multiclouddb_spi import Deadline, Fault, FeedSpec, Provider, ProviderPlugin
from multiclouddb_spi.connection import checked_native

_NATIVE, _EMULATED, _UNSUPPORTED = Support.NATIVE, Support.EMULATED, Support.UNSUPPORTED
_NO_WIDER: Final = "a feed covers one container; read each container with EntireCollection()"
_START: Final = (
    "a feed with all versions and deletes starts only at now or at a token; ask for a backfill with "
    "provider_options=CosmosOptions(backfill=True), or start at Now()"
)

CAPABILITIES: Final = CapabilitySet(
    {
        Capability.CHANGE_FEED: CapabilityNote(
            _NATIVE, "enable continuous backup and then enableAllVersionsAndDeletesChangeFeed on the account"
        ),
        Capability.CHANGE_FEED_BEGINNING: CapabilityNote(_EMULATED, _START),
        Capability.CHANGE_FEED_POINT_IN_TIME: CapabilityNote(_EMULATED, f"{_START}; in whole seconds"),
        Capability.CHANGE_FEED_SNAPSHOT: CapabilityNote(
            _NATIVE,
            "supports only SnapshotOrder.ORDERED, and changes=False; the scan reads every item once and "
            "costs the usual request units; each row has the order_key of the item's last change",
        ),
        Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: CapabilityNote(
            _NATIVE, "the scope is one partition key, or the first components of a hierarchical partition key"
        ),
        Capability.LOOKUP: CapabilityNote(
            _NATIVE,
            "one point read for each key, which costs one request unit for each KiB; needs the data action "
            "items/read; the consistency is that of the account",
        ),
        Capability.CHANGE_FEED_OLD_ITEM_STATE: CapabilityNote(
            _UNSUPPORTED, "the service does not send previous items; keep what you need from earlier events"
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
    ),
)
"""The capabilities of a container in an account that offers the feed with all versions and deletes."""


class CosmosProvider(Provider):
    """The provider for one Cosmos DB account."""

    provider_id: ClassVar[str] = PROVIDER_ID
    options_type = CosmosOptions

    def __init__(self, calls: Calls, *, vendor_retried: bool) -> None:
        self._calls, self._vendor_retried = calls, vendor_retried

    def capabilities(self) -> CapabilitySet:
        """Return the capabilities of a container whose account offers all versions and deletes."""
        return CAPABILITIES

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> CosmosFeed:
        """Open a feed. Only the first read shows whether the account supports the feed."""
        return CosmosFeed(Source.opened(self._calls, spec, deadline))

    def collections(self, database: str | None, deadline: Deadline) -> list[ResourceAddress]:
        """Return the containers of a database, or those of all databases in the account."""
        return self._calls.addresses(database, deadline)

    def classify(self, error: Exception) -> Fault:
        """Classify an exception of azure-cosmos."""
        return classify(error, vendor_retried=self._vendor_retried)

    def close(self) -> None:
        """Close the connections of the client, if the library made this client."""
        self._calls.close()


class CosmosPlugin(ProviderPlugin):
    """The plugin to which the provider's entry point refers."""

    provider_id: ClassVar[str] = PROVIDER_ID
    declared = CAPABILITIES
    config_type = CosmosConfig

    def connect(self, config: ClientConfig, native_client: object | None) -> CosmosProvider:
        """Check the configuration. azure-cosmos first contacts the account when it is used."""
        if native_client is not None:
            own = checked_native(native_client, CosmosClient, "pass an azure.cosmos.CosmosClient")
            return CosmosProvider(Calls(None, own), vendor_retried=True)
        checked = CosmosConfig.from_client(config)
        return CosmosProvider(
            Calls(partial(make_client, checked, config.max_concurrency)), vendor_retried=False
        )


PLUGIN: Final = CosmosPlugin()
