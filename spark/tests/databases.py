"""The databases that queries of the tests read: each makes feeds of `EVENTS` changes."""

from urllib.parse import quote

import attrs
from azure.cosmos import CosmosClient, PartitionKey

from benchmarks.servers import server_module
from multiclouddb_api import (
    ChangeFeedRequest,
    FromContinuationToken,
    Now,
    ResourceAddress,
    connect,
)
from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_embedded import EmbeddedStore

EVENTS = 120
KEYS = 40


@attrs.define
class Feed:
    """A collection of its own.

    Attributes:
        name: The database's.
        url: For `connect`, and the option.
        address: Where the collection is.
        write: Makes its events, through splits where a test can cause them.
        secrets: What nothing may show.
        position: Where a query starts.
    """

    name: str
    url: str
    address: ResourceAddress
    write: object
    secrets: tuple = ()
    position: str = "beginning"
    token: object = None

    def mark(self):
        """Remember where the feed stands."""
        with connect(self.url) as client:
            self.token = client.read_changes(ChangeFeedRequest(self.address, Now())).continuation_token

    def ids(self):
        """The ids of the events since then."""
        with connect(self.url) as client:
            request = ChangeFeedRequest(self.address, FromContinuationToken(self.token))
            return sorted(event.event_id for event in client.iterate_changes(request, until_idle=True))

    def options(self):
        """Those of the source."""
        database = {"database": self.address.database} if self.address.database else {}
        place = {"url": self.url, "collection": self.address.collection, **database}
        return {**place, "startingPosition": self.position}


class Embedded:
    """Files; the splits and merges are real."""

    def __init__(self, folder):
        self.folder = folder

    def feed(self, name):
        store = EmbeddedStore(self.folder / f"{name}.db", durable=False)
        with store:
            store.create_collection("items", partitions=3)

        def write():
            with EmbeddedStore(store.path, durable=False) as opened:
                for number in range(EVENTS):
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
    """DynamoDB Local; a stream's shard rolls over."""

    def __init__(self, folder):
        del folder
        self.server = server_module("dynamo", "local").LocalDynamo()
        self.region = server_module("dynamo", "server").REGION

    def feed(self, name):
        self.server.create_table(name)

        def write():
            for number in range(EVENTS):
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
    """A replica set that wants a password."""

    def __init__(self, folder):
        module = server_module("mongo", "mongod")
        self.server = module.ReplicaSet(folder / "mongo", auth=True)
        self.secrets = (module.PASSWORD, quote(module.PASSWORD, safe=""))

    def feed(self, name):
        items = self.server.client()["shop"][name]
        items.database.create_collection(name)

        def write():
            items.insert_many([{"_id": number, "n": number} for number in range(EVENTS - 20)])
            items.update_many({"_id": {"$lt": 10}}, {"$set": {"n": -1}})
            items.delete_many({"_id": {"$gte": EVENTS - 30}})

        assert self.secrets[1] in self.server.uri()
        return Feed("mongo", self.server.uri(), ResourceAddress("shop", name), write, self.secrets)

    def close(self):
        self.server.close()


class Cosmos:
    """Our emulator; a partition splits. Its key is in the environment."""

    def __init__(self, folder):
        del folder
        self.server = CosmosEmulator()
        self.server.__enter__()

    def feed(self, name):
        native = CosmosClient(self.server.endpoint, self.server.key, enable_endpoint_discovery=False)
        database = native.create_database_if_not_exists("shop")
        items = database.create_container(name, PartitionKey("/id"), offer_throughput=20_000)

        def write():
            for number in range(EVENTS):
                items.upsert_item({"id": f"k{number % KEYS}", "n": number})
                if number == EVENTS // 2:
                    (first, *_) = self.server.partitions("shop", name)
                    self.server.split("shop", name, first["id"])
            native.close()

        url = f"cosmos://{self.server.endpoint.split('/')[2]}?tls=false"
        # The service tells of no change before a query's first batch.
        return Feed("cosmos", url, ResourceAddress("shop", name), write, (self.server.key,), "now")

    def close(self):
        self.server.__exit__(None, None, None)


class Spanner:
    """Google's emulator; partitions are moved, split and merged by themselves."""

    def __init__(self, folder):
        del folder
        module = server_module("spanner", "emulator")
        self.server = module.Emulator(module.HASTY)

    def feed(self, name):
        made = self.server.database(
            f"CREATE TABLE {name} (id STRING(MAX) NOT NULL, n INT64) PRIMARY KEY (id)",
            f"CREATE CHANGE STREAM changes FOR {name} OPTIONS (value_capture_type = 'NEW_ROW')",
        )

        def write():
            for first in range(0, EVENTS, 5):
                with made.batch() as batch:
                    rows = [[f"k{number % KEYS}", number] for number in range(first, first + 5)]
                    batch.insert_or_update(name, ("id", "n"), rows)

        return Feed("spanner", self.server.url, ResourceAddress(made.database_id, name), write)

    def close(self):
        self.server.stop()


def credentials():
    """Those of DynamoDB Local: processes find them in their environment."""
    return server_module("dynamo", "server").CREDENTIALS


def has_spanner():
    """Whether this machine has the emulator, which no package registry has."""
    return server_module("spanner", "emulator").program() is not None
