"""The provider `dynamo`, for feeds that read the stream of a DynamoDB table."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

import boto3
import botocore
import botocore.session

from multiclouddb_api import (
    CapabilitySet,
    ClientConfig,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_dynamo.capabilities import CAPABILITIES, capabilities_of
from multiclouddb_dynamo.catalog import check_readable, check_table, find_table
from multiclouddb_dynamo.client import Calls
from multiclouddb_dynamo.config import DynamoConfig
from multiclouddb_dynamo.errors import PROVIDER_ID, classify
from multiclouddb_dynamo.feed import DynamoFeed
from multiclouddb_dynamo.native import DynamoClients
from multiclouddb_dynamo.shards import ShardMap
from multiclouddb_dynamo.source import ReaderContext
from multiclouddb_spi import Deadline, Fault, FeedSpec, Provider, ProviderFault, ProviderPlugin
from multiclouddb_spi.connection import checked_native


class DynamoProvider(Provider):
    """The provider for one AWS region."""

    provider_id: ClassVar[str] = PROVIDER_ID

    def __init__(
        self,
        clients: DynamoClients,
        *,
        ours: bool,
        vendor_retried: bool,
        credentials: Credentials | None = None,
    ) -> None:
        self._calls = Calls(clients, ours=ours, vendor_retried=vendor_retried)
        self._vendor_retried = vendor_retried
        self._credentials = credentials
        self._capabilities = _capabilities_with(clients.streams.meta.service_model)

    def capabilities(self) -> CapabilitySet:
        return self._capabilities

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> DynamoFeed:
        """Find the table and its stream, and check that the records contain the required item images."""
        table, arn = find_table(self._calls, spec.address)
        check_table(table, spec)
        shards = ShardMap(self._calls, arn, partial(check_readable, self._calls, spec.address))
        return DynamoFeed(ReaderContext(self._calls, spec, table, arn, shards))

    def collections(self, database: str | None, deadline: Deadline) -> list[ResourceAddress]:
        if database is not None:
            raise invalid_request(
                "database", f"is {database!r}", "leave it out, because DynamoDB has no databases"
            )
        return [ResourceAddress(collection=name) for name in self._calls.table_names(deadline)]

    def classify(self, error: Exception) -> Fault:
        return classify(error, vendor_retried=self._vendor_retried)

    def renew(self, since: float) -> bool:
        """Look for other credentials in a new session, if the application has not given one."""
        return self._credentials is not None and self._credentials.renew(since, self._calls)

    def close(self) -> None:
        self._calls.close()


class Credentials:
    """Makes sessions, which look for credentials in the environment, the profile and the machine's role.

    boto3 renews credentials itself if it knows when they end. It reads a file of credentials only once, and
    does not know when those in it end, so a program that has renewed the file is not noticed.
    """

    def __init__(self, make: Callable[[boto3.Session], DynamoClients]) -> None:
        self._make, self._session, self._has_any = make, boto3.Session(), False
        self._lock, self._renewed_at = threading.Lock(), -math.inf

    def clients(self) -> DynamoClients:
        """Return clients with the credentials of the last session."""
        # A session that has found none looks again, but its clients do not.
        self._has_any = self._session.get_credentials() is not None
        return self._make(self._session)

    def renew(self, since: float, calls: Calls) -> bool:
        """Give clients of a new session to `calls`. Return False if it has the credentials of the old one."""
        with self._lock:
            if self._renewed_at > since:
                return True
            session = boto3.Session()
            found = _frozen(session)
            if found is None or (self._has_any and found == _frozen(self._session)):
                return False
            self._session, self._renewed_at = session, time.monotonic()
            calls.use(self.clients())
            return True


def _capabilities_with(model: Any) -> CapabilitySet:
    """Return the capabilities of botocore's model of the streams, which says what a call may ask for."""
    asked = model.operation_model("GetShardIterator").input_shape.members
    return capabilities_of(botocore.__version__, knows_times="Timestamp" in asked)


def _frozen(session: boto3.Session) -> Any:
    with contextlib.suppress(Exception):  # the refusal that asked for a renewal says more
        found = session.get_credentials()
        return None if found is None else found.get_frozen_credentials()
    return None


class DynamoPlugin(ProviderPlugin):
    """The plugin to which the provider's entry point refers."""

    provider_id: ClassVar[str] = PROVIDER_ID
    declared = CAPABILITIES
    config_type = DynamoConfig

    def capabilities(self) -> CapabilitySet:
        """Return what the installed botocore can ask for."""
        return _capabilities_with(botocore.session.Session().get_service_model("dynamodbstreams"))

    def connect(self, config: ClientConfig, native_client: object | None) -> DynamoProvider:
        """Make boto3's clients, without calling the service. A `DynamoClients` is used unchanged."""
        checked = DynamoConfig.from_client(config)
        if native_client is None:
            make, session = partial(checked.clients, config.max_concurrency), checked.session
            try:
                credentials = Credentials(make) if session is None else None
                clients = make(session) if credentials is None else credentials.clients()
            except Exception as error:  # boto3 also raises what its files and programs make it raise
                raise ProviderFault(classify(error)) from error
            return DynamoProvider(
                clients, ours=True, vendor_retried=checked.own_retries, credentials=credentials
            )
        own = checked_native(
            native_client, DynamoClients, "pass DynamoClients(dynamodb=…, streams=…) from multiclouddb_dynamo"
        )
        return DynamoProvider(own, ours=False, vendor_retried=True)


PLUGIN: Final = DynamoPlugin()
