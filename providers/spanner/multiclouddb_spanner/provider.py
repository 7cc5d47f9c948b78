"""The provider `spanner`, whose feeds read the change streams of Cloud Spanner."""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Final

from google.auth.exceptions import GoogleAuthError
from google.cloud.spanner_v1.client import Client

from multiclouddb_api import (
    CapabilitySet,
    ClientConfig,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_api.process import Unforkable
from multiclouddb_spanner.capabilities import CAPABILITIES
from multiclouddb_spanner.catalog import check_provisioned, find, table_names
from multiclouddb_spanner.client import CancelScope, DatabaseClient
from multiclouddb_spanner.config import SpannerConfig
from multiclouddb_spanner.errors import PROVIDER_ID, classify
from multiclouddb_spanner.feed import SpannerFeed
from multiclouddb_spanner.source import DatabaseContext, ReaderContext
from multiclouddb_spi import Deadline, Fault, FeedSpec, Provider, ProviderFault, ProviderPlugin

__all__ = ["PLUGIN", "SpannerPlugin", "SpannerProvider"]

# The number of answers that may stay open between two reads. Running calls are not included. A connection
# carries a hundred streams.
_KEPT_ANSWERS: Final = 32
_GRPC: Final = Unforkable("gRPC")


class SpannerProvider(Provider):
    """The provider for one Spanner instance."""

    provider_id: ClassVar[str] = PROVIDER_ID

    def __init__(self, client: Any, config: SpannerConfig, *, ours: bool) -> None:
        self._made, self._config, self._ours = client, config, ours
        self._making = threading.Lock()
        self._slots = threading.Semaphore(_KEPT_ANSWERS)
        self._lock = threading.Lock()
        self._databases: dict[str, DatabaseClient] = {}
        self._admin: Any = None

    def capabilities(self) -> CapabilitySet:
        return CAPABILITIES

    @property
    def _client(self) -> Any:
        with self._making:
            if self._made is None:
                self._made = self._config.client()
            return self._made

    def find_credentials(self) -> None:
        """Make the vendor's client. An outage of what has the credentials is left to the calls that follow.

        Raises:
            ProviderFault: There are no credentials.
        """
        try:
            self._client  # noqa: B018 - made on use
        except (GoogleAuthError, OSError, ValueError) as error:
            fault = classify(error)
            if not fault.retryable:
                raise ProviderFault(fault) from error

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> SpannerFeed:
        """Find what is read and its change stream, and check which rows the stream's records contain."""
        if spec.address.database is None:
            way_out = "name the database and the table: ResourceAddress(database, table)"
            raise invalid_request("address.database", "is missing", way_out)
        database = self._database(spec.address.database)
        info = find(database, spec.address, self._config.change_stream, CancelScope(deadline))
        check_provisioned(info, spec)
        context = DatabaseContext if spec.address.collection is None else ReaderContext
        source = context(database, info, self._slots)
        source.measure(CancelScope(deadline))
        return SpannerFeed(source, spec)

    def collections(self, database: str | None, deadline: Deadline) -> list[ResourceAddress]:
        names = [] if database is None else [database]
        if database is None:
            self._admin = self._admin or self._client.database_admin_api
            parent = self._client.instance(self._config.instance).name
            _GRPC.used()
            listed = self._admin.list_databases(parent=parent, retry=None, timeout=deadline.remaining())
            names = [each.name.rpartition("/")[2] for each in listed]
        return [
            ResourceAddress(name, table)
            for name in names
            for table in table_names(self._database(name), CancelScope(deadline))
        ]

    def classify(self, error: Exception) -> Fault:
        return classify(error)

    def close(self) -> None:
        """Cancel every call, delete the sessions, and close the library's channels, within a second."""
        with self._lock:
            databases, self._databases = list(self._databases.values()), {}
        for database in databases:
            database.close()
        if self._ours and self._admin is not None:
            self._admin.transport.close()

    def open_calls(self) -> int:
        with self._lock:
            return sum(database.open_calls() for database in self._databases.values())

    def _database(self, name: str) -> DatabaseClient:
        client = self._client
        with self._lock:
            database = self._databases.get(name)
            if database is None:
                _GRPC.used()
                found = client.instance(self._config.instance).database(name)
                own = self._config.transport(client) if self._ours else found.spanner_api.transport
                database = self._databases[name] = DatabaseClient(
                    str(found.name), own, ours=self._ours, role=self._config.database_role
                )
            return database


class SpannerPlugin(ProviderPlugin):
    """The plugin that the provider's entry point names."""

    provider_id: ClassVar[str] = PROVIDER_ID
    declared = CAPABILITIES
    config_type = SpannerConfig

    def connect(self, config: ClientConfig, native_client: object | None) -> SpannerProvider:
        """Make the vendor's client, without calling the service."""
        _GRPC.check()
        checked = SpannerConfig.from_client(config)
        if native_client is None:
            provider = SpannerProvider(None, checked, ours=True)
            provider.find_credentials()
            return provider
        if not isinstance(native_client, Client):
            raise invalid_request(
                "native_client", f"is a {type(native_client).__name__}", "pass a google.cloud.spanner.Client"
            )
        if native_client.project != checked.project:
            raise invalid_request(
                "native_client",
                f"belongs to project {native_client.project!r}, and the configuration to {checked.project!r}",
                "name the same project in both",
            )
        return SpannerProvider(native_client, checked, ours=False)


PLUGIN: Final = SpannerPlugin()
