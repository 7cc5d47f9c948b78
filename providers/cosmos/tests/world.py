"""Provides one container on the emulator. azure-cosmos writes to it, and the library's client reads it."""

import attrs
from azure.cosmos import CosmosClient, PartitionKey

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_cosmos.provider import PLUGIN
from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_spi import Deadline, FeedSpec

from .harness import close_client

DATABASE, NAME = "shop", "orders"
ADDRESS = ResourceAddress(DATABASE, NAME)
READ = "ReadChangeFeed"
MANY_PAGES = 2000


def soon(number=30.0):
    """Return a deadline in the given number of seconds."""
    return Deadline.after(number)


def seconds(number):
    """Return the options of a call that limit its duration to the given number of seconds."""
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
        """Write one item for each key, and return the markers. Each item contains a marker, a number that
        counts up."""
        markers = []
        for key in keys:
            self.written += 1
            self.container.upsert_item({"id": str(key), "pk": key, "n": self.written, **fields})
            markers.append(self.written)
        return markers

    def fill(self, count):
        """Write the given number of new items."""
        return self.put(*(f"k{self.written + number}" for number in range(count)))

    def upsert(self, **item):
        """Write one item with the id `x`."""
        self.container.upsert_item({"id": "x", **item})

    def batch(self, key, *operations):
        """Write a transaction."""
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
        """Return the result of each request that was made so far, as (status, substatus)."""
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
        made = Consumer(self, client or self.client(), start or Now(), request)
        if start is None:
            made.read()
        return made

    def feed(self, **spec):
        """Make a provider and a feed, without the engine."""
        provider = PLUGIN.connect(self.config(), None)
        self._clients.append(provider)
        return provider, provider.open_feed(FeedSpec(ADDRESS, **spec), soon())


@attrs.define
class Consumer:
    """A consumer that resumes from its token. `restart` simulates a new process."""

    world: World
    client: object
    start: object
    request: dict
    events: list = attrs.field(factory=list)
    notices: list = attrs.field(factory=list)
    pages: list = attrs.field(factory=list)

    def read(self, options=None):
        """Read one page."""
        page = self.client.read_changes(ChangeFeedRequest(ADDRESS, self.start, **self.request), options)
        self.start = FromContinuationToken(page.continuation_token)
        self.events += page.events
        self.notices += page.notices
        self.pages.append(page)
        return page

    def until_idle(self, most=MANY_PAGES):
        """Read pages until a page is idle. Return the markers that were delivered."""
        before = len(self.events)
        for _ in range(most):
            if self.read().idle:
                return markers(self.events[before:])
        raise AssertionError(f"not idle after {most} pages")

    def restart(self):
        """Continue like a new process with the same token."""
        self.client.close()
        self.client = self.world.client()
        return self

    @property
    def token(self):
        return self.start.token

    @property
    def markers(self):
        return markers(self.events)


def markers(events):
    """Return the markers that events contain, in the order of the events."""
    return [event.new_item_state["n"] for event in events if event.new_item_state is not None]
