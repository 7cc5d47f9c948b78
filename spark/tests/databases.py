"""Provides the databases for the tests' queries. Each database makes feeds with `EVENTS` changes."""

from urllib.parse import quote

import attrs

from benchmarks.servers import server_module
from multiclouddb_api import (
    ChangeFeedRequest,
    FromContinuationToken,
    Now,
    ResourceAddress,
    connect,
)
from multiclouddb_embedded import EmbeddedStore

EVENTS = 120
KEYS = 40
PARTS = 3


@attrs.define
class Feed:
    """A collection for a single test.

    Attributes:
        name: The name of the database.
        url: The URL for `connect` and for the option `url`.
        address: The address of the collection.
        write: A function that writes all events of the feed, or one of three parts of them. On databases on
            which a test can split partitions, it also splits partitions between the writes.
        secrets: Texts that no output may contain.
        position: The start position of a query.
    """

    name: str
    url: str
    address: ResourceAddress
    write: object
    secrets: tuple = ()
    position: str = "beginning"
    token: object = None

    def mark(self):
        """Remember the current position of the feed."""
        with connect(self.url) as client:
            self.token = client.read_changes(ChangeFeedRequest(self.address, Now())).continuation_token

    def ids(self):
        """Return the ids of the events after the remembered position."""
        with connect(self.url) as client:
            request = ChangeFeedRequest(self.address, FromContinuationToken(self.token))
            return sorted(event.event_id for event in client.iterate_changes(request, until_idle=True))

    def options(self):
        """The options of the source."""
        database = {"database": self.address.database} if self.address.database else {}
        place = {"url": self.url, "collection": self.address.collection, **database}
        return {**place, "startingPosition": self.position}


def numbers_of(part):
    """Return the numbers of the events in a part, or of all events if the part is None."""
    size = EVENTS // PARTS
    return range(EVENTS) if part is None else range(part * size, (part + 1) * size)


class Embedded:
    """The embedded store uses files; its splits and merges are real."""

    def __init__(self, folder):
        self.folder = folder

    def feed(self, name):
        store = EmbeddedStore(self.folder / f"{name}.db", durable=False)
        with store:
            store.create_collection("items", partitions=3)

        def write(part=None):
            with EmbeddedStore(store.path, durable=False) as opened:
                for number in numbers_of(part):
                    opened.put("items", f"k{number % KEYS}", {"n": number})
                    parts = [part.partition_id for part in opened.partitions("items")]
                    if number == EVENTS // 3:
                        opened.split("items", parts[0])
                    if number == 2 * EVENTS // 3:
                        opened.merge("items", *parts[:2])

        return Feed("embedded", f"embedded://{store.path}", ResourceAddress(None, "items"), write)

    def close(self):
        pass


class Dynamo:
    """DynamoDB Local, with a stream whose shard rolls over."""

    def __init__(self, folder):
        del folder
        self.server = server_module("dynamo", "local").LocalDynamo()
        self.region = server_module("dynamo", "server").REGION

    def feed(self, name):
        self.server.create_table(name)

        def write(part=None):
            for number in numbers_of(part):
                item = {"pk": {"S": f"k{number % KEYS}"}, "n": {"N": str(number)}}
                self.server.client().put_item(TableName=name, Item=item)
                if number == EVENTS // 2:
                    self.server.rollover()

        url = f"dynamo://{self.region}?endpoint_url={self.server.endpoint_url}"
        secret = credentials()["AWS_SECRET_ACCESS_KEY"]
        return Feed("dynamo", url, ResourceAddress(None, name), write, (secret,))

    def close(self):
        self.server.close()


class Mongo:
    """A MongoDB replica set that requires a password."""

    def __init__(self, folder):
        module = server_module("mongo", "mongod")
        self.server = module.ReplicaSet(folder / "mongo", auth=True)
        self.secrets = (module.PASSWORD, quote(module.PASSWORD, safe=""))

    def feed(self, name):
        items = self.server.client()["shop"][name]
        items.database.create_collection(name)

        def write(part=None):
            for number in numbers_of(part):
                if number < EVENTS - 20:
                    items.insert_one({"_id": number, "n": number})
                elif number < EVENTS - 10:
                    items.update_one({"_id": number - 40}, {"$set": {"n": -1}})
                else:
                    items.delete_one({"_id": number - 40})

        assert self.secrets[1] in self.server.uri()
        return Feed("mongo", self.server.uri(), ResourceAddress("shop", name), write, self.secrets)

    def close(self):
        self.server.close()


class Cosmos:
    """The project's Cosmos DB emulator, with a partition that splits.

    The environment contains the key of the account.
    """

    def __init__(self, folder):
        from multiclouddb_cosmos_emulator import CosmosEmulator

        del folder
        self.server = CosmosEmulator()
        self.server.__enter__()
        self.natives = []

    def feed(self, name):
        from azure.cosmos import CosmosClient, PartitionKey

        native = CosmosClient(self.server.endpoint, self.server.key, enable_endpoint_discovery=False)
        self.natives.append(native)
        database = native.create_database_if_not_exists("shop")
        items = database.create_container(name, PartitionKey("/id"), offer_throughput=12_000)

        def write(part=None):
            for number in numbers_of(part):
                items.upsert_item({"id": f"k{number % KEYS}", "n": number})
                if number == EVENTS // 2:
                    (first, *_) = self.server.partitions("shop", name)
                    self.server.split("shop", name, first["id"])

        url = f"cosmos://{self.server.endpoint.split('/')[2]}?tls=false"
        # The service does not report changes that were made before the query's first batch.
        return Feed("cosmos", url, ResourceAddress("shop", name), write, (self.server.key,), "now")

    def close(self):
        for native in self.natives:
            native.close()
        self.server.__exit__(None, None, None)


def credentials():
    """Put credentials for DynamoDB Local into the environment, so that child processes find them."""
    return server_module("dynamo", "server").CREDENTIALS
