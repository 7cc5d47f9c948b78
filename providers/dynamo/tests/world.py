"""Provides one table on the scripted server. boto3 writes to it, and the library's client reads it."""

import os

from hypothesis import settings

from multiclouddb_api import (
    Beginning,
    ClientConfig,
    MulticloudDbClient,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_dynamo.provider import PLUGIN
from multiclouddb_dynamo_emulator import Habits, ScriptedStreams
from multiclouddb_spi import Deadline, FeedSpec
from multiclouddb_spi.continuation.token import decode_token
from testing.consumer import Consumer, markers

from .servers.server import REGION, Server, session

TABLE = "orders"
ADDRESS = ResourceAddress(collection=TABLE)
HOUR = 3600
EXPIRED = 16 * 60  # an iterator is valid for 15 minutes
# A slow machine must not fail a test.
patiently = settings(deadline=None, max_examples=int(os.environ.get("MULTICLOUDDB_EXAMPLES", "20")))


def seconds(number):
    return OperationOptions(timeout_seconds=number)


def soon(number=30.0):
    return Deadline.after(number)


class World:
    """A scripted server with one table. `settings` are fields in each client's configuration."""

    def __init__(self, shards=1, view="NEW_AND_OLD_IMAGES", **habits):
        self.script = ScriptedStreams(habits=Habits(initial_shards=shards, **habits))
        self.server = Server(self.script.endpoint_url)
        self.journal, self.habits = self.script.journal, self.script.habits
        self.troubles = self.script.troubles
        self.arn = self.server.create_table(TABLE, view, partition_key="id")
        self._clients = []
        self.written = 0
        self.settings = {}

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        for client in self._clients:
            client.close()
        self.server.close()
        self.script.__exit__(*raised)

    # -- Writing

    def put(self, *keys):
        """Write one item for each key, with increasing numbers as markers. Return the markers."""
        markers = []
        for key in keys:
            self.written += 1
            item = {"id": {"S": key}, "n": {"N": str(self.written)}}
            self.server.client().put_item(TableName=TABLE, Item=item)
            markers.append(self.written)
        return markers

    def put_in(self, shard, number=1):
        keys = [key["id"]["S"] for key in self.script.keys_of(shard, number, f"w{self.written}-")]
        return self.put(*keys)

    def put_everywhere(self):
        """Write one item into each open shard; return the markers."""
        return [marker for shard in self.open() for marker in self.put_in(shard)]

    def open(self):
        return self.script.open_shards(TABLE)

    def roll_over(self):
        return self.script.roll_over_all(TABLE)

    def enable(self, enabled=True):
        """Enable or disable the stream of the table."""
        stream = {"StreamEnabled": enabled} | ({"StreamViewType": "NEW_AND_OLD_IMAGES"} if enabled else {})
        self.server.client().update_table(TableName=TABLE, StreamSpecification=stream)

    def chain(self):
        (shard,) = self.open()
        return shard

    # -- Reading

    def config(self, **others):
        connection = {"session": session(), "region": REGION, "endpoint_url": self.script.endpoint_url}
        return ClientConfig("dynamo", connection, **self.settings | others)

    def client(self, **others) -> MulticloudDbClient:
        """Make a client. The client is closed together with the world."""
        made = connect(self.config(**others))
        self._clients.append(made)
        return made

    def consumer(self, start=None, client=None, **request):
        return Consumer(
            ADDRESS, self.client, client or self.client(), start or Beginning(), request, pause=0.05
        )

    def feed(self, **spec):
        """Make a provider and a feed; the engine is not used."""
        provider = PLUGIN.connect(self.config(), None)
        return provider, provider.open_feed(FeedSpec(ADDRESS, **spec), soon())


def native(name):
    return name.rpartition(":")[2]


def state_of(token):
    """Return the shards with their cursors that a token contains."""
    return decode_token(token).state["p"]


def fetch(reader, records=1000):
    return reader.fetch(records, 1 << 20, 0.0, soon())


def all_of(batch):
    return markers(batch.events(0, len(batch)))
