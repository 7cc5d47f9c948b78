"""Starts the server of a group, writes the changes to read, and describes them for the programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from benchmarks.peers.data import FIELDS, document, item
from benchmarks.peers.peer import Group
from benchmarks.peers.peers import BATCH_SIZE
from testing.provider_servers import server_module

__all__ = ["FEEDS", "Size", "Spec"]

_DATABASE, _COLLECTION = "bench", "items"
_BATCH: Final = 1000
_DYNAMO_BATCH: Final = 25  # the service's limit for BatchWriteItem
# The server has more memory than in the tests, and the JVM also uses its better compiler, so that the server
# does not limit the rate.
_JAVA_OPTIONS: Final = ("-Xmx1g", "-XX:+UseSerialGC")

Spec: TypeAlias = dict[str, Any]


@attrs.frozen
class Size:
    """The numbers of changes in a feed.

    Attributes:
        events: The number of measured changes.
        warm_up: The number of changes before the measured changes. A peer also reads these warm-up
            changes.
        tail: The number of changes after the measured changes. Because more changes follow, a peer
            does not have to wait for its last batch at the end of the feed.
    """

    events: int
    warm_up: int
    tail: int = 0

    @property
    def least(self) -> int:
        """The number of changes that a peer must read."""
        return self.events + self.warm_up

    @property
    def written(self) -> int:
        """The number of all changes."""
        return self.least + self.tail


@contextmanager
def mongo(folder: Path, size: Size) -> Iterator[Spec]:
    """Start a replica set of one node, and insert this many documents into a collection.

    Yields:
        The description of the work.
    """
    with server_module("mongo", "mongod").ReplicaSet(folder) as server:
        collection = server.client()[_DATABASE].create_collection(_COLLECTION)
        second = _next_second(server.client())
        for first in range(0, size.written, _BATCH):
            numbers = range(first, min(size.written, first + _BATCH))
            collection.insert_many([document(number) for number in numbers])
        url = _url(server)
        spec = {"url": url, "database": _DATABASE, "collection": _COLLECTION, "second": second}
        spec |= {"batch_size": BATCH_SIZE, "debezium": debezium(url, second)}
        yield spec


def _url(server: Any) -> str:
    # This URL is as simple as a user would write it. No peer gets the options that tests use.
    return f"mongodb://{','.join(server.members)}/?replicaSet=rs"


def _next_second(client: Any) -> int:
    """Wait until a new second begins on the server's clock; return this second."""
    second: int = client.admin.command("ping")["operationTime"].time + 1
    while client.admin.command("hello")["localTime"].timestamp() < second:
        time.sleep(0.05)
    return second


def debezium(url: str, second: int) -> dict[str, str]:
    """Return the properties of Debezium's engine: the defaults, but without schemas in keys and values."""
    return {
        "name": "peers",
        "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
        "topic.prefix": "peers",
        "mongodb.connection.string": url,
        "capture.scope": "collection",
        "capture.target": f"{_DATABASE}.{_COLLECTION}",
        "collection.include.list": f"{_DATABASE}.{_COLLECTION}",
        "snapshot.mode": "no_data",
        "capture.start.op.time": str(second << 32),
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
    }


@contextmanager
def dynamo(folder: Path, size: Size) -> Iterator[Spec]:
    """Start DynamoDB Local with a table of this many items, each written once.

    Yields:
        The description of the work.
    """
    module = server_module("dynamo", "server")
    with server_module("dynamo", "local").LocalDynamo(java_options=_JAVA_OPTIONS) as server:
        arn = server.create_table(_COLLECTION, "NEW_IMAGE")
        for first in range(0, size.written, _DYNAMO_BATCH):
            numbers = range(first, min(size.written, first + _DYNAMO_BATCH))
            puts = [{"PutRequest": {"Item": item(number)}} for number in numbers]
            server.client().batch_write_item(RequestItems={_COLLECTION: puts})
        variables = {**module.CREDENTIALS, "AWS_DEFAULT_REGION": module.REGION}
        variables |= {"AWS_ENDPOINT_URL": server.endpoint_url, "AWS_CONFIG_FILE": str(folder / "none")}
        variables |= {"AWS_SHARED_CREDENTIALS_FILE": str(folder / "none")}
        spec = {"endpoint_url": server.endpoint_url, "region": module.REGION, "arn": arn}
        spec |= {"table": _COLLECTION, "fields": FIELDS, "variables": variables}
        yield spec


Feed: TypeAlias = Callable[[Path, Size], AbstractContextManager[Spec]]

FEEDS: Final[dict[Group, Feed]] = {Group.MONGO: mongo, Group.DYNAMO: dynamo}
