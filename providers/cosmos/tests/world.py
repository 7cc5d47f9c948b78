"""Provides one container on the emulator. azure-cosmos writes to it, and the library's client reads it."""

from azure.cosmos import CosmosClient, PartitionKey

from multiclouddb_api import ClientConfig, Now, OperationOptions, ResourceAddress, connect
from multiclouddb_cosmos.provider import PLUGIN
from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_spi import Deadline, FeedSpec
from testing.consumer import Consumer

from .harness import close_client

DATABASE, NAME = "shop", "orders"
ADDRESS = ResourceAddress(DATABASE, NAME)
READ = "ReadChangeFeed"


def soon(number=30.0):
    return Deadline.after(number)


def seconds(number):
    return OperationOptions(timeout_seconds=number)


class World:
    """A server with one container."""

    def __init__(self, partitions=1, key="/pk", server=None, version=2, **settings):
        self.server = server or CosmosEmulator()
        self.native = CosmosClient(self.server.endpoint, self.server.key, enable_endpoint_discovery=False)
        self.database = self.native.create_database(DATABASE)
        self.key, self.version = key, version
        self.create(partitions, **settings)
        self._clients = []
        self.written = 0

    def create(self, partitions=1, **settings):
        kind = {"kind": "MultiHash"} if isinstance(self.key, list) else {}
        definition = PartitionKey(path=self.key, version=self.version, **kind)
        throughput = max(400, 6_000 * partitions)
        self.container = self.database.create_container(
            NAME, definition, offer_throughput=throughput, **settings
        )

    def recreate(self, partitions=1):
        self.database.delete_container(NAME)
        self.create(partitions)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        for client in self._clients:
            client.close()
        close_client(self.native)
        self.server.__exit__(kind, error, trace)

    # -- Writing

    def put(self, *keys, **fields):
        markers = []
        for key in keys:
            self.written += 1
            self.container.upsert_item({"id": str(key), "pk": key, "n": self.written, **fields})
            markers.append(self.written)
        return markers

    def fill(self, count):
        return self.put(*(f"k{self.written + number}" for number in range(count)))

    def upsert(self, **item):
        self.container.upsert_item({"id": "x", **item})

    def batch(self, key, *operations):
        self.container.execute_item_batch(list(operations), key)

    def partitions(self):
        return self.server.partitions(DATABASE, NAME)

    def split(self, partition="0", **more):
        return self.server.split(DATABASE, NAME, partition, **more)

    def merge(self, first, second):
        """Merge two partitions, on a server that can read all versions after a merge."""
        child = self.server.merge(DATABASE, NAME, first, second)
        with self.server._lock:
            self.server._container(DATABASE, NAME).partition(child).merged = False
        return child

    def trim(self):
        self.server.trim(DATABASE, NAME)

    def requests(self, operation=READ):
        return [(each.status, each.substatus) for each in self.server.journal.entries(operation)]

    # -- Reading

    def config(self, **others):
        host = self.server.endpoint.split("/")[2]
        tls = self.server.endpoint.startswith("https")
        return ClientConfig("cosmos", {"url": f"cosmos://{host}?tls={str(tls).lower()}"}, **others)

    def client(self, **others):
        """Make a client that is closed together with the world."""
        made = connect(self.config(**others))
        self._clients.append(made)
        return made

    def consumer(self, start=None, client=None, **request):
        """Make a consumer with its own client, which starts at `Now()` unless another start is given."""
        made = Consumer(ADDRESS, self.client, client or self.client(), start or Now(), request)
        if start is None:
            made.read()
        return made

    def feed(self, **spec):
        """Make a provider and a feed, without the engine."""
        provider = PLUGIN.connect(self.config(), None)
        self._clients.append(provider)
        return provider, provider.open_feed(FeedSpec(ADDRESS, **spec), soon())
