"""Provides one Spark session per process, one embedded store per test, and readers of the store's feed."""

import random

import pytest

from multiclouddb_embedded import EmbeddedStore
from pyspark_multiclouddb.connection import close_connections

from .databases import Cosmos, Dynamo, Embedded, Mongo, credentials
from .queries import Queries

COLLECTION = "orders"


class Source:
    """A collection with its complete history, and the options that Spark needs to read it.

    Attributes:
        store: The store.
        truth: Every change made so far: (type, key, document).
    """

    def __init__(self, store):
        self.store = store
        self.truth = []
        self.documents = {}
        store.create_collection(COLLECTION, partitions=3)

    def options(self, **more):
        return {"url": f"embedded://{self.store.path}", "collection": COLLECTION, **more}

    def write(self, count, seed=0, keys=40):
        """Write some creates, updates and deletes."""
        dice = random.Random(f"{seed} {len(self.truth)}")
        for _ in range(count):
            key, number = f"k{dice.randrange(keys)}", len(self.truth)
            if key in self.documents and dice.random() < 0.2:
                self.store.delete(COLLECTION, key)
                del self.documents[key]
                self.truth.append(("DELETE", key, None))
            else:
                kind = self.store.put(COLLECTION, key, {"n": number})
                self.documents[key] = {"n": number}
                self.truth.append((kind.value, key, {"n": number}))

    def split(self, which=0):
        parts = self.store.partitions(COLLECTION)
        self.store.split(COLLECTION, parts[which % len(parts)].partition_id)

    def merge(self, which=0):
        parts = self.store.partitions(COLLECTION)
        first = which % (len(parts) - 1)
        self.store.merge(COLLECTION, parts[first].partition_id, parts[first + 1].partition_id)


@pytest.fixture
def source(tmp_path):
    with EmbeddedStore(tmp_path / "store.db", durable=False) as store:
        yield Source(store)


@pytest.fixture(scope="session")
def databases(tmp_path_factory):
    """Provide databases for queries in separate processes. Each server is started at its first use."""
    kinds = {kind.__name__.lower(): kind for kind in (Embedded, Dynamo, Mongo, Cosmos)}
    servers = {}

    def feeds(name, *wanted):
        """Make a feed with this name on each of these databases."""
        for kind in wanted:
            if kind not in servers:
                servers[kind] = kinds[kind](tmp_path_factory.mktemp(kind))
            yield servers[kind].feed(name)

    with pytest.MonkeyPatch.context() as patch:
        for variable, value in credentials().items():
            patch.setenv(variable, value)
        yield feeds
        for server in servers.values():
            server.close()


@pytest.fixture
def start_queries(tmp_path):
    """Return a function that makes `Queries`. The processes of these queries end with the test."""
    made = []

    def make(feeds, **settings):
        made.append(Queries(tmp_path / "queries", feeds, **settings))
        return made[-1]

    yield make
    for queries in made:
        queries.clean()


@pytest.fixture(autouse=True)
def no_connections_left():
    yield
    close_connections()
