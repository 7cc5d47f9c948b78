"""The databases that the demo can follow: the embedded store, or a server that `PROVIDER` names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib import import_module
from typing import Any, Final, Protocol

from benchmarks.servers import server_module
from demo.flights import ALL_ROWS, COLUMNS, KEY, TEXTS
from demo.places import COLLECTION, Places
from multiclouddb_api import encode_json
from multiclouddb_embedded import Delete, EmbeddedStore, Operation, Put

__all__ = ["Store", "default_rows", "find_store", "open_store", "plain", "start_store"]

_URL: Final = "DEMO_URL"
_DATABASE: Final = "DEMO_DATABASE"
_FEW_ROWS: Final = 5_000
"""The number of flights for a database whose server is slower than a file."""


class Store(Protocol):
    """A database with the collection of flights. Each process of the demo opens its own."""

    @property
    def url(self) -> str:
        """The URL of the database."""
        ...

    @property
    def database(self) -> str | None:
        """The name of the database, None if the service has none."""
        ...

    def fill(self, batches: Iterator[Sequence[Put]]) -> int:
        """Write the documents that exist before the pipeline starts; return their number."""
        ...

    def write(self, operations: Sequence[Operation]) -> None:
        """Create, replace and delete documents."""
        ...

    def reshape(self) -> None:
        """Split or merge a partition, if the service lets a user do so."""
        ...

    def key(self, flight: Mapping[str, Any]) -> str:
        """Return the key of a flight, as the table stores it."""
        ...

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return the key and the document of every flight, read without multiclouddb where possible."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def default_rows() -> int:
    """Return the number of flights to follow if nobody says."""
    return ALL_ROWS if _name() == "embedded" else _FEW_ROWS


def start_store(stack: ExitStack, places: Places) -> None:
    """Start the server, and create the collection; the processes of the demo find both in the environment."""
    _STORES[_name()].start(stack, places)


def find_store() -> tuple[str, str | None]:
    """Return the URL and the name of the started database; the name is None if the service has none."""
    return os.environ[_URL], os.environ.get(_DATABASE) or None


def open_store() -> Store:
    """Open the database that `PROVIDER` names."""
    made: Store = _STORES[_name()](*find_store())
    return made


def plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a flight, without what a service adds to a document."""
    return {name: document[name] for name in COLUMNS if document.get(name) is not None}


def _name() -> str:
    name = os.environ.get("PROVIDER") or "embedded"
    if name not in _STORES:
        raise SystemExit(f"PROVIDER must be one of {', '.join(_STORES)}, not {name!r}")
    return name


def _found(url: str, database: str | None) -> None:
    os.environ[_URL] = url
    os.environ[_DATABASE] = database or ""


def _id(flight: Any) -> str:
    """Return a key of one text, from a flight or the key of one."""
    return "|".join(str(flight[name]) for name in KEY)


class _Opened:
    """What all databases share: a key is one text."""

    name = "id"

    def __init__(self, url: str, database: str | None) -> None:
        self.url, self.database = url, database

    def fill(self, batches: Iterator[Sequence[Put]]) -> int:
        count = 0
        for batch in batches:
            self.write(batch)
            count += len(batch)
        return count

    def write(self, operations: Sequence[Operation]) -> None:
        raise NotImplementedError

    def reshape(self) -> None:
        pass

    def key(self, flight: Mapping[str, Any]) -> str:
        return encode_json({self.name: _id(flight)}).decode()

    def close(self) -> None:
        pass


class _Embedded:
    """The embedded store: a file, with splits and merges, and a log that is trimmed."""

    @staticmethod
    def start(stack: ExitStack, places: Places) -> None:
        del stack
        with EmbeddedStore(places.store) as store:
            store.create_collection(COLLECTION, partitions=4, partition_key=KEY[:2])
        _found(f"embedded://{places.store.resolve()}", None)

    def __init__(self, url: str, database: str | None) -> None:
        self.url, self.database = url, database
        self._store = EmbeddedStore(url.removeprefix("embedded://"))
        self._reshapes = self._steps()

    def fill(self, batches: Iterator[Sequence[Put]]) -> int:
        """Write the documents; the store forgets the changes, so that only a scan can find them."""
        count = 0
        for batch in batches:
            self.write(batch)
            count += len(batch)
        self._store.trim(COLLECTION, max_count=0)
        return count

    def write(self, operations: Sequence[Operation]) -> None:
        self._store.batch(COLLECTION, list(operations))

    def reshape(self) -> None:
        next(self._reshapes)

    def _steps(self) -> Iterator[object]:
        """Split and merge partitions alternately; each call of `next` makes one step."""
        while True:
            first = self._store.partitions(COLLECTION)[0].partition_id
            yield self._store.split(COLLECTION, first)
            one, other = (each.partition_id for each in self._store.partitions(COLLECTION)[:2])
            yield self._store.merge(COLLECTION, one, other)

    def key(self, flight: Mapping[str, Any]) -> str:
        return encode_json({name: flight[name] for name in KEY}).decode()

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for key, document in self._store.scan(COLLECTION):
            yield encode_json(key.components).decode(), document

    def close(self) -> None:
        self._store.close()


class _Mongo(_Opened):
    """A replica set of one member."""

    name = "_id"

    @staticmethod
    def start(stack: ExitStack, places: Places) -> None:
        server = stack.enter_context(server_module("mongo", "mongod").ReplicaSet(places.root / "mongod"))
        server.client()["shop"].create_collection(COLLECTION)
        _found(server.uri(), "shop")

    def __init__(self, url: str, database: str | None) -> None:
        from pymongo import MongoClient

        super().__init__(url, database)
        self._client: Any = MongoClient(url)
        self._items = self._client["shop"][COLLECTION]

    def write(self, operations: Sequence[Operation]) -> None:
        from pymongo import DeleteOne, ReplaceOne

        calls: list[Any] = []
        for each in operations:
            this = {"_id": _id(each.key)}
            calls.append(
                ReplaceOne(this, each.document, upsert=True) if isinstance(each, Put) else DeleteOne(this)
            )
        self._items.bulk_write(calls)

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for document in self._items.find():
            yield encode_json({"_id": document["_id"]}).decode(), plain(document)

    def close(self) -> None:
        self._client.close()


class _Dynamo(_Opened):
    """DynamoDB Local."""

    name = "pk"
    _MOST: Final = 25  # requests of a batch

    @staticmethod
    def start(stack: ExitStack, places: Places) -> None:
        del places
        module = server_module("dynamo", "server")
        server = stack.enter_context(closing(server_module("dynamo", "local").LocalDynamo()))
        server.create_table(COLLECTION)
        os.environ.update(module.CREDENTIALS)
        _found(f"dynamo://{module.REGION}?endpoint_url={server.endpoint_url}", None)

    def __init__(self, url: str, database: str | None) -> None:
        super().__init__(url, database)
        self._server = server_module("dynamo", "server").Server(url.partition("endpoint_url=")[2])

    def write(self, operations: Sequence[Operation]) -> None:
        from boto3.dynamodb.types import TypeSerializer

        write = TypeSerializer().serialize
        for first in range(0, len(operations), self._MOST):
            requests = []
            for each in operations[first : first + self._MOST]:
                key = {"pk": write(_id(each.key))}
                if isinstance(each, Put):
                    item = key | {name: write(value) for name, value in each.document.items()}
                    requests.append({"PutRequest": {"Item": item}})
                else:
                    requests.append({"DeleteRequest": {"Key": key}})
            asked = {COLLECTION: requests}
            while asked:
                asked = self._server.client().batch_write_item(RequestItems=asked)["UnprocessedItems"]

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        from boto3.dynamodb.types import TypeDeserializer

        read = TypeDeserializer().deserialize
        for page in self._server.client().get_paginator("scan").paginate(TableName=COLLECTION):
            for item in page["Items"]:
                values = {name: read(value) for name, value in item.items()}
                numbers = {
                    name: int(values[name]) for name in COLUMNS if name in values and name not in TEXTS
                }
                yield encode_json({"pk": values["pk"]}).decode(), plain(values | numbers)

    def close(self) -> None:
        self._server.close()


class _Spanner(_Opened):
    """Google's emulator of Cloud Spanner, which splits and merges partitions by itself."""

    @staticmethod
    def start(stack: ExitStack, places: Places) -> None:
        del places
        module = server_module("spanner", "emulator")
        server = module.Emulator(module.HASTY)
        stack.callback(server.stop)
        columns = ", ".join(f"{name} {'STRING(MAX)' if name in TEXTS else 'INT64'}" for name in COLUMNS)
        made = server.database(
            f"CREATE TABLE {COLLECTION} (id STRING(MAX), {columns}) PRIMARY KEY (id)",
            f"CREATE CHANGE STREAM {COLLECTION}_stream FOR {COLLECTION} "
            "OPTIONS (value_capture_type = 'NEW_ROW')",
        )
        _found(server.url, made.database_id)

    def __init__(self, url: str, database: str | None) -> None:
        super().__init__(url, database)
        server = server_module("spanner", "emulator").Emulator(host=url.partition("emulator_host=")[2])
        self._database = server.instance.database(database)

    def write(self, operations: Sequence[Operation]) -> None:
        keys: Any = import_module("google.cloud.spanner_v1").KeySet

        puts = [each for each in operations if isinstance(each, Put)]
        gone = [[_id(each.key)] for each in operations if isinstance(each, Delete)]
        with self._database.batch() as batch:
            if puts:
                rows = [[_id(each.key), *map(each.document.get, COLUMNS)] for each in puts]
                batch.insert_or_update(COLLECTION, ("id", *COLUMNS), rows)
            if gone:
                batch.delete(COLLECTION, keys(keys=gone))

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        keys: Any = import_module("google.cloud.spanner_v1").KeySet

        with self._database.snapshot() as snapshot:
            for name, *values in snapshot.read(COLLECTION, ("id", *COLUMNS), keys(all_=True)):
                yield encode_json({"id": name}).decode(), plain(dict(zip(COLUMNS, values, strict=True)))


class _Cosmos(_Opened):
    """This project's emulator of Cosmos DB, one of whose partitions splits."""

    @staticmethod
    def start(stack: ExitStack, places: Places) -> None:
        from azure.cosmos import CosmosClient, PartitionKey

        from multiclouddb_cosmos_emulator import CosmosEmulator

        del places
        server = stack.enter_context(CosmosEmulator())
        os.environ["AZURE_COSMOS_KEY"] = server.key
        with CosmosClient(server.endpoint, server.key, enable_endpoint_discovery=False) as client:
            database = client.create_database("shop")
            database.create_container(COLLECTION, PartitionKey("/id"), offer_throughput=12_000)
        _found(f"cosmos://{server.endpoint.split('/')[2]}?tls=false", "shop")

    def __init__(self, url: str, database: str | None) -> None:
        from azure.cosmos import CosmosClient

        super().__init__(url, database)
        endpoint = "http://" + url.removeprefix("cosmos://").partition("?")[0]
        key = os.environ["AZURE_COSMOS_KEY"]
        self._client = CosmosClient(endpoint, key, enable_endpoint_discovery=False)
        self._items = self._client.get_database_client("shop").get_container_client(COLLECTION)

    def write(self, operations: Sequence[Operation]) -> None:
        for each in operations:
            name = _id(each.key)
            if isinstance(each, Put):
                self._items.upsert_item({"id": name, **each.document})
            else:
                self._items.delete_item(name, name)

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for document in self._items.read_all_items():
            yield encode_json({"id": document["id"]}).decode(), plain(document)

    def close(self) -> None:
        self._client.close()


_STORES: Final[Mapping[str, Any]] = {
    "embedded": _Embedded,
    "mongo": _Mongo,
    "dynamo": _Dynamo,
    "spanner": _Spanner,
    "cosmos": _Cosmos,
}
