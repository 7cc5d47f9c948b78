"""The provider `dynamo`, for feeds that read the stream of a DynamoDB table."""

from __future__ import annotations

from typing import ClassVar, Final

from botocore.exceptions import BotoCoreError

from multiclouddb_api import (
    CapabilitySet,
    ClientConfig,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_dynamo.capabilities import CAPABILITIES
from multiclouddb_dynamo.catalog import check_table, find_table
from multiclouddb_dynamo.client import Calls
from multiclouddb_dynamo.config import DynamoClients, DynamoConfig
from multiclouddb_dynamo.errors import PROVIDER_ID, classify
from multiclouddb_dynamo.feed import DynamoFeed
from multiclouddb_dynamo.shards import ShardMap
from multiclouddb_dynamo.source import Source
from multiclouddb_spi import Deadline, Fault, FeedSpec, Provider, ProviderFault, ProviderPlugin
from multiclouddb_spi.connection import checked_native


class DynamoProvider(Provider):
    """The provider for one AWS region."""

    provider_id: ClassVar[str] = PROVIDER_ID

    def __init__(self, clients: DynamoClients, *, ours: bool, vendor_retried: bool) -> None:
        self._calls = Calls(clients, ours=ours, vendor_retried=vendor_retried)
        self._vendor_retried = vendor_retried

    def capabilities(self) -> CapabilitySet:
        return CAPABILITIES

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> DynamoFeed:
        """Find the table and its stream, and check that the records contain the required item images."""
        table, arn = find_table(self._calls, spec.address)
        check_table(table, spec)
        return DynamoFeed(Source(self._calls, spec, table, arn, ShardMap(self._calls, arn)))

    def collections(self, database: str | None, deadline: Deadline) -> list[ResourceAddress]:
        if database is not None:
            raise invalid_request(
                "database", f"is {database!r}", "leave it out, because DynamoDB has no databases"
            )
        return [ResourceAddress(collection=name) for name in self._calls.table_names(deadline)]

    def classify(self, error: Exception) -> Fault:
        return classify(error, vendor_retried=self._vendor_retried)

    def close(self) -> None:
        self._calls.close()


class DynamoPlugin(ProviderPlugin):
    """The plugin to which the provider's entry point refers."""

    provider_id: ClassVar[str] = PROVIDER_ID
    declared = CAPABILITIES
    config_type = DynamoConfig

    def connect(self, config: ClientConfig, native_client: object | None) -> DynamoProvider:
        """Make boto3's clients, without calling the service. A `DynamoClients` is used unchanged."""
        checked = DynamoConfig.from_client(config)
        if native_client is None:
            try:
                clients = checked.clients(config.max_concurrency)
            except (BotoCoreError, ValueError) as error:
                raise ProviderFault(classify(error)) from error
            return DynamoProvider(clients, ours=True, vendor_retried=checked.own_retries)
        own = checked_native(
            native_client, DynamoClients, "pass DynamoClients(dynamodb=…, streams=…) from multiclouddb_dynamo"
        )
        return DynamoProvider(own, ours=False, vendor_retried=True)


PLUGIN: Final = DynamoPlugin()
