"""The provider `dynamo`, for feeds that read the stream of a DynamoDB table."""

from __future__ import annotations

from typing import ClassVar, Final

from botocore.exceptions import BotoCoreError

from multiclouddb_api import (
    Capability,
    CapabilityNote,
    CapabilitySet,
    ClientConfig,
    ResourceAddress,
    ScanFacts,
    ScanFloor,
    Support,
    invalid_request,
)
from multiclouddb_dynamo.catalog import check_table, find_table
from multiclouddb_dynamo.client import Calls
from multiclouddb_dynamo.config import DynamoClients, DynamoConfig
from multiclouddb_dynamo.errors import PROVIDER_ID, classify
from multiclouddb_dynamo.feed import DynamoFeed
from multiclouddb_dynamo.mapping import CEILING
from multiclouddb_dynamo.shards import ShardMap
from multiclouddb_dynamo.source import DELAY_SECONDS, EMPTY_ANSWERS, Source
from multiclouddb_spi import Deadline, Fault, FeedSpec, Provider, ProviderFault, ProviderPlugin
from multiclouddb_spi.connection import checked_native

_NATIVE, _UNSUPPORTED = Support.NATIVE, Support.UNSUPPORTED
_NO_WIDER: Final = "a stream covers one table; read each table with EntireCollection()"

# A stream usually shows a change within a second.
_SETTLE_SECONDS: Final = 10.0

CAPABILITIES: Final = CapabilitySet(
    {
        Capability.CHANGE_FEED: CapabilityNote(
            _NATIVE,
            "enable the table's stream (StreamSpecification); new items need NEW_IMAGE or "
            f"NEW_AND_OLD_IMAGES; {EMPTY_ANSWERS} answers in a row without records count as the end "
            f"of an open shard, and then `read_until` is an estimate: {DELAY_SECONDS:.0f} seconds before "
            "the last of them",
        ),
        Capability.CHANGE_FEED_BEGINNING: CapabilityNote(
            _NATIVE, "starts at the oldest record; a stream keeps records for 24 hours"
        ),
        Capability.CHANGE_FEED_POINT_IN_TIME: CapabilityNote(
            _UNSUPPORTED,
            "a stream starts at its beginning, at now or at a token; start at Beginning() and leave out "
            "events whose event.timestamp is earlier",
        ),
        Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: CapabilityNote(
            _UNSUPPORTED,
            "the feed cannot select changes by partition key; read PhysicalPartition(…) or "
            "EntireCollection() and keep the events whose event.key.partition_key you want",
        ),
        Capability.CHANGE_FEED_SNAPSHOT: CapabilityNote(
            _NATIVE,
            "convergent: each item is as it was when it was read, so a target equals the table only"
            ' when the stream has caught up; the floor "00" is lower than every change; needs the '
            "permission dynamodb:Scan; all items are read consistently, so 2 TB cost about 537 million "
            "read units (see native_charge and max_scan_rate)",
        ),
        Capability.LOOKUP: CapabilityNote(
            _NATIVE,
            "needs the permission dynamodb:BatchGetItem; each item is read consistently, which costs one "
            "read unit for every 4 KB of it",
        ),
        Capability.CHANGE_FEED_ROWS: CapabilityNote(_NATIVE, "costs what the scan of a snapshot costs"),
        Capability.CHANGE_FEED_ALL_VERSIONS: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_DELETES: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_CHANGE_TYPES: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_OLD_ITEM_STATE: CapabilityNote(
            _NATIVE, "needs a stream of type OLD_IMAGE or NEW_AND_OLD_IMAGES"
        ),
        Capability.CHANGE_FEED_DATABASE_SCOPE: CapabilityNote(_UNSUPPORTED, _NO_WIDER),
        Capability.CHANGE_FEED_CLUSTER_SCOPE: CapabilityNote(_UNSUPPORTED, _NO_WIDER),
        Capability.RUN_COMMAND: CapabilityNote(_UNSUPPORTED, "use boto3 for everything except the feed"),
    },
    ScanFacts(
        ScanFloor.LOW,
        _SETTLE_SECONDS,
        "one read unit for every 4 KB that a scan reads, at least one for each request",
        units_per_kib=0.25,
        ceiling=CEILING,
    ),
)
"""The capabilities of a table with an enabled stream."""


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
