"""The provider `embedded`, whose feeds read the log of an `EmbeddedStore`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final

from multiclouddb_api import CapabilitySet, ClientConfig, ResourceAddress, invalid_request
from multiclouddb_embedded.config import EmbeddedConfig, EmbeddedOptions
from multiclouddb_embedded.errors import PROVIDER_ID, classify, missing_file
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_embedded.mapping import to_micros
from multiclouddb_embedded.partitions import check_images
from multiclouddb_embedded.profile import PLAIN, Profile
from multiclouddb_embedded.source import OpenStore, ReaderContext, scope_of
from multiclouddb_embedded.store.collection import MAIN, find_collection, list_collections
from multiclouddb_embedded.store.connection import ConnectionPool, Monitor, check_store
from multiclouddb_spi import Deadline, Fault, FeedSpec, Provider, ProviderPlugin
from multiclouddb_spi.connection import checked_native

_CONNECTIONS: Final = 16

CAPABILITIES: Final = PLAIN.capabilities
"""The capabilities of an embedded store without a profile."""


class EmbeddedProvider(Provider):
    """The provider for one store, opened for reading."""

    provider_id: ClassVar[str] = PROVIDER_ID
    options_type: ClassVar[type[EmbeddedOptions]] = EmbeddedOptions

    def __init__(self, path: str, now: Callable[[], datetime], profile: Profile = PLAIN) -> None:
        self._store = OpenStore(
            path,
            ConnectionPool(path, _CONNECTIONS, check_store),
            Monitor(path, check_store),
            lambda: to_micros(now()),
            profile,
        )

    def capabilities(self) -> CapabilitySet:
        return self._store.profile.capabilities

    def full_address(self, address: ResourceAddress) -> ResourceAddress:
        return ResourceAddress(address.database or MAIN, address.collection)

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> EmbeddedFeed:
        """Find the collection, and check that its log contains what the spec requires."""
        store = self._store
        address = self.full_address(spec.address)
        if address.collection is None or address.database is None:
            raise invalid_request("address.collection", "is None", "name the collection")
        with store.reading(deadline) as connection:
            collection = find_collection(connection, address.database, address.collection)
        check_images(collection, spec)
        return EmbeddedFeed(ReaderContext(store, spec, scope_of(collection, spec, store.profile)))

    def collections(self, database: str | None, deadline: Deadline) -> list[ResourceAddress]:
        with self._store.reading(deadline) as connection:
            return list_collections(connection, database)

    def classify(self, error: Exception) -> Fault:
        return classify(error, self._store.path)

    def interrupted(self) -> None:
        self._store.interrupted()

    def close(self) -> None:
        self._store.close()


class EmbeddedPlugin(ProviderPlugin):
    """The plugin that the provider's entry point names."""

    provider_id: ClassVar[str] = PROVIDER_ID
    config_type = EmbeddedConfig

    def __init__(self, profile: Profile = PLAIN) -> None:
        self._profile = profile

    def capabilities(self) -> CapabilitySet:
        return self._profile.capabilities

    def connect(self, config: ClientConfig, native_client: object | None) -> EmbeddedProvider:
        """Check the configuration, and connect to a store that already exists."""
        if native_client is None:
            checked = EmbeddedConfig.from_client(config, profile=self._profile)
            if not Path(checked.path).exists():
                raise missing_file(checked.path)
            return EmbeddedProvider(checked.path, lambda: datetime.now(UTC), checked.profile)
        from multiclouddb_embedded.store.store import EmbeddedStore  # readers of a file do not need it

        store = checked_native(native_client, EmbeddedStore, "pass an EmbeddedStore, or None")
        if store.closed:
            raise invalid_request("native_client", "is closed", "pass an open EmbeddedStore")
        checked = EmbeddedConfig.from_client(config, path=store.path, profile=self._profile)
        if checked.path != store.path:
            problem = f"has the file {store.path}, but the connection names another file"
            raise invalid_request("native_client", problem, "name one file")
        return EmbeddedProvider(store.path, store.now, checked.profile)


PLUGIN: Final = EmbeddedPlugin()
