"""The databases of a long run: what writes to them, breaks them, and reads them without the library."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore.exceptions import BotoCoreError, ClientError
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from testing.provider_servers import server_module
from testing.proxy import Proxy

__all__ = ["CANARY", "COLLECTIONS", "FAILURES", "Source", "Writer", "document", "sources"]

COLLECTIONS: Final = ("orders", "customers", "items", "bills", "notes")
CANARY: Final = "canary"
"""The document that contains the time at which it was written, so that a table shows how late it is."""
_KEYS: Final = 400
_CANARY_SECONDS: Final = 5.0
FAILURES: Final = (PyMongoError, BotoCoreError, ClientError)


class Source(ABC):
    """A database with the collections of the run."""

    name: str
    key: str
    """The name of the key."""

    @abstractmethod
    def toml(self) -> str:
        """Return the connection as a file for the command has it."""

    def address(self, collection: str) -> str:
        """Return the address of a collection on the command line."""
        return collection

    @abstractmethod
    def make(self, collection: str) -> None:
        """Make a collection."""

    @abstractmethod
    def drop(self, collection: str) -> None:
        """Drop a collection."""

    @abstractmethod
    def put(self, collection: str, key: str, document: Mapping[str, Any]) -> None:
        """Write a document."""

    @abstractmethod
    def change(self, collection: str, key: str, total: int) -> None:
        """Change one field of a document, if it exists."""

    @abstractmethod
    def delete(self, collection: str, key: str) -> None:
        """Delete a document."""

    @abstractmethod
    def read(self, collection: str) -> dict[str, dict[str, Any]]:
        """Return the documents by their keys, without the key."""

    @abstractmethod
    def break_off(self) -> None:
        """Begin an outage."""

    @abstractmethod
    def come_back(self) -> None:
        """End the outage."""

    def roll_over(self) -> None:  # noqa: B027 - not every database has shards
        """Replace each shard by another."""

    @abstractmethod
    def close(self) -> None:
        """Stop the server."""


class _Mongo(Source):
    """A replica set of one mongod; an outage kills it."""

    name, key = "mongo", "_id"

    def __init__(self, folder: Path) -> None:
        self._set = server_module("mongo", "mongod").ReplicaSet(folder, oplog_mb=200)
        self._client: MongoClient[dict[str, Any]] = MongoClient(self._url, serverSelectionTimeoutMS=3000)
        self._shop = self._client["shop"]

    @property
    def _url(self) -> str:
        return f"mongodb://{self._set.members[0]}/?replicaSet=rs"

    def toml(self) -> str:
        return f'provider = "mongo"\n\n[connection]\nurl = "{self._url}"\n'

    def address(self, collection: str) -> str:
        return f"shop/{collection}"

    def make(self, collection: str) -> None:
        self._shop.create_collection(collection)

    def drop(self, collection: str) -> None:
        self._shop.drop_collection(collection)

    def put(self, collection: str, key: str, document: Mapping[str, Any]) -> None:
        self._shop[collection].replace_one({"_id": key}, dict(document), upsert=True)

    def change(self, collection: str, key: str, total: int) -> None:
        self._shop[collection].update_one({"_id": key}, {"$set": {"total": total}})

    def delete(self, collection: str, key: str) -> None:
        self._shop[collection].delete_one({"_id": key})

    def read(self, collection: str) -> dict[str, dict[str, Any]]:
        return {each.pop("_id"): each for each in self._shop[collection].find()}

    def break_off(self) -> None:
        self._set.kill(self._set.members[0])

    def come_back(self) -> None:
        self._set.restart(self._set.members[0])
        self._set.wait_primary()

    def close(self) -> None:
        self._client.close()
        self._set.close()


class _Dynamo(Source):
    """DynamoDB Local behind a proxy, because its data is in memory; an outage cuts the connections."""

    name, key = "dynamo", "id"

    def __init__(self) -> None:
        self._server = server_module("dynamo", "local").LocalDynamo()
        self._client = self._server.client()
        self._proxy = Proxy(self._server.endpoint_url.removeprefix("http://"))
        self._to, self._of = TypeSerializer(), TypeDeserializer()

    def toml(self) -> str:
        url = f"http://127.0.0.1:{self._proxy.port}"
        return f'provider = "dynamo"\n\n[connection]\nregion = "eu-west-1"\nendpoint_url = "{url}"\n'

    def make(self, collection: str) -> None:
        self._server.create_table(collection, partition_key="id")

    def drop(self, collection: str) -> None:
        self._client.delete_table(TableName=collection)

    def put(self, collection: str, key: str, document: Mapping[str, Any]) -> None:
        item = {name: self._to.serialize(value) for name, value in {"id": key, **document}.items()}
        self._client.put_item(TableName=collection, Item=item)

    def change(self, collection: str, key: str, total: int) -> None:
        with suppress(self._client.exceptions.ConditionalCheckFailedException):
            self._client.update_item(
                TableName=collection,
                Key={"id": {"S": key}},
                UpdateExpression="SET #total = :total",
                ExpressionAttributeNames={"#total": "total"},
                ConditionExpression="attribute_exists(id)",
                ExpressionAttributeValues={":total": {"N": str(total)}},
            )

    def delete(self, collection: str, key: str) -> None:
        self._client.delete_item(TableName=collection, Key={"id": {"S": key}})

    def read(self, collection: str) -> dict[str, dict[str, Any]]:
        found = {}
        for page in self._client.get_paginator("scan").paginate(TableName=collection, ConsistentRead=True):
            for item in page["Items"]:
                document = {name: _plain(self._of.deserialize(value)) for name, value in item.items()}
                found[document.pop("id")] = document
        return found

    def break_off(self) -> None:
        self._proxy.cut()

    def come_back(self) -> None:
        self._proxy.heal()

    def roll_over(self) -> None:
        self._server.rollover()

    def close(self) -> None:
        self._proxy.close()
        self._server.close()


def sources(folder: Path) -> list[Source]:
    """Start the servers of the databases.

    Args:
        folder: Where MongoDB keeps its data.
    """
    return [_Mongo(folder), _Dynamo()]


class Writer(threading.Thread):
    """Writes to each collection until it is stopped; a write that fails is given up.

    Args:
        source: The database.
        a_second: How many writes there are in a second, all collections together.
        seed: The seed of what is written.
    """

    def __init__(self, source: Source, a_second: float, seed: int) -> None:
        super().__init__(name=f"writer-{source.name}", daemon=True)
        self._source, self._pause = source, 1 / a_second
        self._random = random.Random(seed)
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self._left_out: set[str] = set()
        self.written = self.failed = 0
        self.last_failure = ""

    def run(self) -> None:
        """Write until `stop` is called."""
        told_at = 0.0
        while not self._stopped.wait(self._pause):
            with self._lock:
                try:
                    if time.time() - told_at > _CANARY_SECONDS:
                        told_at = time.time()
                        self.tell()
                    self._write()
                    self.written += 1
                except FAILURES as error:
                    self.failed += 1
                    self.last_failure = f"{type(error).__name__}: {error}"[:300]

    def tell(self) -> None:
        """Write the time to each collection."""
        for each in self.collections():
            self._source.put(each, CANARY, {"at": int(time.time() * 1000), "total": 0, "status": "told"})

    def collections(self) -> list[str]:
        """Return the collections that are written to."""
        return [each for each in COLLECTIONS if each not in self._left_out]

    def leave_out(self, collection: str) -> None:
        """Write no more to a collection; when this returns, the last write is done."""
        with self._lock:
            self._left_out.add(collection)

    def take_up(self, collection: str) -> None:
        """Write to a collection again."""
        with self._lock:
            self._left_out.discard(collection)

    def stop(self) -> None:
        """End, and wait for the last write."""
        self._stopped.set()
        self.join()

    def _write(self) -> None:
        collection = self._random.choice(self.collections())
        key, total = f"k-{self._random.randrange(_KEYS)}", self._random.randrange(1_000_000)
        match self._random.random():
            case luck if luck < 0.55:
                self._source.put(collection, key, document(total))
            case luck if luck < 0.85:
                self._source.change(collection, key, total)
            case _:
                self._source.delete(collection, key)


def document(total: int, status: str = "new") -> dict[str, Any]:
    """Return a document of about 300 bytes."""
    return {"total": total, "status": status, "tags": [total % 7, {"deep": [True, None]}], "pad": "ü" * 100}


def _plain(value: Any) -> Any:
    """Return a value with ints in place of decimals, as this run writes no others."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value if isinstance(value, str | bool) or value is None else int(value)
