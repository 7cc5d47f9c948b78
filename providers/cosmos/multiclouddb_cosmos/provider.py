"""The provider `cosmos`, which reads the change feeds of containers in an Azure Cosmos DB account."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Final

import attrs
from azure.cosmos import CosmosClient

from multiclouddb_api import CapabilitySet, ClientConfig, ProviderOptions, ResourceAddress
from multiclouddb_cosmos.client import SDK, Calls
from multiclouddb_cosmos.config import CosmosConfig
from multiclouddb_cosmos.errors import PROVIDER_ID, classify
from multiclouddb_cosmos.feed import AllVersionsFeed, CosmosFeed, LatestFeed
from multiclouddb_cosmos.options import CAPABILITIES, CosmosOptions
from multiclouddb_cosmos.source import ReaderContext
from multiclouddb_cosmos.transport import make_client
from multiclouddb_spi import Deadline, Fault, FeedSpec, Provider, ProviderPlugin
from multiclouddb_spi.connection import checked_native


class CosmosProvider(Provider):
    """The provider for one Cosmos DB account."""

    provider_id: ClassVar[str] = PROVIDER_ID
    options_type = CosmosOptions

    def __init__(self, calls: Calls, defaults: CosmosOptions, *, vendor_retried: bool) -> None:
        self._calls, self._defaults, self._vendor_retried = calls, defaults, vendor_retried

    def capabilities(self) -> CapabilitySet:
        """Return the capabilities in the mode of the connection."""
        return self._defaults.narrow(CAPABILITIES)

    def complete(self, options: ProviderOptions) -> CosmosOptions:
        """Return the options of a request, with the mode and the marker of the connection."""
        assert isinstance(options, CosmosOptions)
        return options.completed(self._defaults)

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> CosmosFeed:
        """Open a feed. Only the first read shows whether the account supports the feed."""
        source = ReaderContext.opened(self._calls, spec, deadline)
        return LatestFeed(source) if source.is_latest else AllVersionsFeed(source)

    def collections(self, database: str | None, deadline: Deadline) -> list[ResourceAddress]:
        """Return the containers of a database, or those of all databases in the account."""
        return self._calls.addresses(database, deadline)

    def classify(self, error: Exception) -> Fault:
        """Classify an exception of azure-cosmos."""
        return classify(error, vendor_retried=self._vendor_retried)

    def renew(self, since: float) -> bool:
        """Ask for a new token, if the client is the library's own and its identity has tokens."""
        return self._calls.renew(since)

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
        SDK.check()
        if native_client is not None:  # its address is not needed
            config = attrs.evolve(config, connection={"url": "cosmos://native", **config.connection})
        checked = CosmosConfig.from_client(config)
        defaults = CosmosOptions(mode=checked.mode, delete_marker=checked.delete_marker)
        if native_client is not None:
            own = checked_native(native_client, CosmosClient, "pass an azure.cosmos.CosmosClient")
            return CosmosProvider(Calls(None, own), defaults, vendor_retried=True)
        calls = Calls(partial(make_client, checked, config.max_concurrency))
        return CosmosProvider(calls, defaults, vendor_retried=False)


PLUGIN: Final = CosmosPlugin()
