"""Defines small protocols: the client calls their methods, and the SPI implements them.

They are here so that applications do not have to import the engine. A package entry point tells the client
which engine to load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from multiclouddb_api.capability import CapabilitySet
from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.lookup import LookupAnswer
from multiclouddb_api.observer import Observer
from multiclouddb_api.page import ChangeFeedPage
from multiclouddb_api.plan import PlannedPartition
from multiclouddb_api.request import ChangeFeedRequest, OperationOptions, ProviderOptions, ResourceAddress
from multiclouddb_api.token_report import TokenReport

if TYPE_CHECKING:
    from multiclouddb_api.config import ClientConfig


class Backend(Protocol):
    """Represents one connected database; a client calls its methods."""

    def read_changes(self, request: ChangeFeedRequest, options: OperationOptions) -> ChangeFeedPage:
        """Return one page of changes; see `MulticloudDbClient.read_changes`."""
        ...

    def list_physical_partitions(
        self, address: ResourceAddress, options: OperationOptions
    ) -> tuple[str, ...]:
        """Return the ids of the open partitions; see `MulticloudDbClient.list_physical_partitions`."""
        ...

    def plan_partitions(
        self, request: ChangeFeedRequest, options: OperationOptions, *, with_descendants: bool
    ) -> tuple[PlannedPartition, ...]:
        """Return one token per partition; see `MulticloudDbClient.plan_partitions`."""
        ...

    def lookup(
        self,
        address: ResourceAddress,
        keys: Sequence[MulticloudDbKey],
        options: OperationOptions,
        provider_options: ProviderOptions | None,
    ) -> Mapping[MulticloudDbKey, LookupAnswer]:
        """Return the rows with these keys; see `MulticloudDbClient.lookup`."""
        ...

    def collections(self, database: str | None, options: OperationOptions) -> Sequence[ResourceAddress]:
        """Return the collections in any order; see `MulticloudDbClient.collections`."""
        ...

    def inspect(
        self,
        token: str,
        options: OperationOptions,
        key: MulticloudDbKey | None,
        provider_options: ProviderOptions | None,
    ) -> TokenReport:
        """Say what a token contains; see `MulticloudDbClient.inspect`."""
        ...

    def run_command(self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """See `MulticloudDbClient.run_command`."""
        ...

    def run_cursor_command(
        self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Any:
        """See `MulticloudDbClient.run_cursor_command`."""
        ...

    def capabilities(self, provider_options: ProviderOptions | None) -> CapabilitySet:
        """Return the capabilities of a request with these options, without any I/O."""
        ...

    def close(self) -> None:
        """End all running calls within a second and free all resources; may be called more than once."""
        ...


class Plugin(Protocol):
    """The object that a provider registers in the entry point group `multiclouddb.providers`."""

    provider_id: str

    def open(self, config: ClientConfig, native_client: object | None, observer: Observer | None) -> Backend:
        """Connect to the database; raises `MulticloudDbError` if the configuration is wrong."""
        ...
