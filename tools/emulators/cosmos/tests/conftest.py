"""Provides a server for each test, and a client of the unmodified azure-cosmos for this server."""

import threading
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.exceptions import CosmosHttpResponseError

from multiclouddb_cosmos_emulator import CosmosEmulator

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@contextmanager
def connect(endpoint, credential, **settings):
    """Connect a client, and close it only after the client's first request for the account has ended.

    The SDK makes this request in a thread. If the client were closed during this request, a socket would stay
    open.
    """
    with CosmosClient(endpoint, credential, **settings) as client:
        try:
            yield client
        finally:
            for thread in threading.enumerate():
                if thread.name == "cosmos-endpoint-refresh":
                    thread.join()


class Shop:
    """A server, a client, the database `shop`, and helpers that all tests use."""

    def __init__(self, **settings):
        self._open = ExitStack()
        # The server is stopped after the client, because `stop` raises the server's failures.
        self.server = self._open.enter_context(CosmosEmulator(start=START, **settings))
        self.client = self._open.enter_context(self.connect())
        self.database = self.client.create_database("shop")

    def connect(self, **settings):
        return connect(self.server.endpoint, self.server.key, **settings)

    def close(self):
        self._open.close()

    def create(self, name="orders", partitions=1, key="/pk", **more):
        if isinstance(key, str):
            key = PartitionKey(key)
        return self.database.create_container(
            name, key, offer_throughput=max(400, 6_000 * partitions), **more
        )

    def partitions(self, name="orders"):
        return self.server.partitions("shop", name)

    def ids(self, name="orders"):
        return [each["id"] for each in self.partitions(name)]

    def split(self, partition="0", name="orders", **more):
        return self.server.split("shop", name, partition, **more)

    def merge(self, first, second, name="orders"):
        return self.server.merge("shop", name, first, second)

    def fails(self, call, *arguments, **named):
        """Return the status and the substatus of an error."""
        with pytest.raises(CosmosHttpResponseError) as caught:
            call(*arguments, **named)
        return caught.value.status_code, caught.value.sub_status or 0


class Reader:
    """Reads a change feed page by page. Each page continues from the previous page's continuation."""

    def __init__(self, container, **start):
        self._container, self._start = container, start

    @property
    def continuation(self):
        return self._start["continuation"]

    def page(self, **more):
        # After this hook, the client replaces the partition's etag with its own continuation.
        seen = []
        pages = self._container.query_items_change_feed(
            **self._start, response_hook=lambda headers, _: seen.append(headers), **more
        ).by_page()
        items = list(next(pages, None) or [])
        self._start = {"continuation": seen[-1]["etag"]}
        return items

    def all(self, **more):
        found = []
        while page := self.page(**more):
            found += page
        return found


@pytest.fixture
def connected():
    return connect


@pytest.fixture
def shop():
    made = Shop()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def server(shop):
    return shop.server


@pytest.fixture
def container(shop):
    return shop.create()


@pytest.fixture
def direct(shop, container):
    """Return the database and the container through a client that does not try another region.

    A client that tries another region would need 1.5 s for each failed request.
    """
    with shop.connect(enable_endpoint_discovery=False) as client:
        database = client.get_database_client("shop")
        yield database, database.get_container_client("orders")


@pytest.fixture
def make_shop():
    """Return a function that makes shops with other settings. The shops are closed at the end of the test."""
    made = []

    def make(**settings):
        made.append(Shop(**settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def follow():
    """Return a function that makes readers of a change feed."""
    return Reader
