"""Provides one table on the scripted server. boto3 writes to it, and the library's client reads it."""

import os
import time

import attrs
from hypothesis import settings

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    MulticloudDbClient,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_dynamo import client as client_module
from multiclouddb_dynamo.provider import PLUGIN
from multiclouddb_dynamo_emulator import Habits, ScriptedStreams
from multiclouddb_spi import Deadline, FeedSpec

from .servers.server import REGION, Server, session

TABLE = "orders"
ADDRESS = ResourceAddress(collection=TABLE)
MANY_PAGES = 2000
# For each attempt, the seconds over which ten listings are distributed. On a busy machine, calls may arrive
# closer together than they were sent, and the service counts them when they arrive.
WINDOWS = (*[client_module._WINDOW_SECONDS] * 3, 1.3, 1.6, 2.0, 3.0)
# A slow machine must not fail a test.
patiently = settings(deadline=None, max_examples=int(os.environ.get("MULTICLOUDDB_EXAMPLES", "20")))


def seconds(number):
    """Return options that limit a call to the given number of seconds."""
    return OperationOptions(timeout_seconds=number)


class World:
    """A scripted server with one table.

    Attributes:
        script: The server's script.
        server: The server with its boto3 clients.
        arn: The ARN of the table's first stream.
        settings: Fields in each client's configuration.
    """

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
        """Write items whose records go to the given open shard; return their markers."""
        keys = [key["id"]["S"] for key in self.script.keys_of(shard, number, f"w{self.written}-")]
        return self.put(*keys)

    def put_everywhere(self):
        """Write one item into each open shard; return the markers."""
        return [marker for shard in self.open() for marker in self.put_in(shard)]

    def open(self):
        """Return the open shards."""
        return self.script.open_shards(TABLE)

    def roll_over(self):
        """Roll over every open shard."""
        return self.script.roll_over_all(TABLE)

    def chain(self):
        """Return the only open shard."""
        (shard,) = self.open()
        return shard

    # -- Reading

    def config(self, **others):
        """Return the configuration of a client."""
        connection = {"session": session(), "region": REGION, "endpoint_url": self.script.endpoint_url}
        return ClientConfig("dynamo", connection, **self.settings | others)

    def client(self, **others) -> MulticloudDbClient:
        """Make a client. The client is closed together with the world."""
        made = connect(self.config(**others))
        self._clients.append(made)
        return made

    def consumer(self, start=None, client=None, **request):
        """Make a consumer with its own client."""
        return Consumer(self, client or self.client(), start or Beginning(), request)

    def feed(self, **spec):
        """Make a provider and a feed; the engine is not used."""
        provider = PLUGIN.connect(self.config(), None)
        return provider, provider.open_feed(FeedSpec(ADDRESS, **spec), soon())


def soon(number=30.0):
    """Return a deadline that is the given number of seconds from now."""
    return Deadline.after(number)


@attrs.define
class Consumer:
    """A consumer that resumes from its token. `restart` simulates a new process."""

    world: World
    client: MulticloudDbClient
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
            page = self.read(self._patience())
            if page.idle:
                return markers(self.events[before:])
        raise AssertionError(f"not idle after {most} pages")

    def until_found(self, wanted, at_most=30):
        """Read pages until all the given markers have been delivered.

        Changes of a partition that a service lists late come after an idle page.
        """
        until = time.monotonic() + at_most
        while not set(wanted) <= set(self.markers):
            assert time.monotonic() < until, f"{sorted(set(wanted) - set(self.markers))} are missing"
            self.read(self._patience())

    def _patience(self):
        """Wait after a page without events, as a real client waits between polls."""
        if not self.pages or self.pages[-1].events:
            return None
        return OperationOptions(wait_seconds=0.05)

    def restart(self):
        """Continue as a new process that has the same token."""
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
    """Return the markers of events, in order."""
    return [event.new_item_state["n"] for event in events if event.new_item_state is not None]
