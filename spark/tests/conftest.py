"""Provides one embedded store or simulation per test, databases for the whole run, and simulated deaths."""

import random
import sqlite3
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import deltalake
import pytest
from deltalake import DeltaTable
from deltalake.table import TableMerger

from multiclouddb_conformance.simulation import Simulation, SimulationProvider
from multiclouddb_conformance.sink_harness import Death
from multiclouddb_embedded import EmbeddedStore
from pyspark_multiclouddb import connection
from pyspark_multiclouddb.connection import close_connections
from pyspark_multiclouddb.named_table import NamedTable

from .drivers import Cosmos, Dynamo, Embedded, Mongo, Queries, credentials, end

COLLECTION = "orders"


class Source:
    """A collection with its complete history, and the options that Spark needs to read it."""

    def __init__(self, store):
        self.store = store
        self.truth = []
        self.documents = {}
        store.create_collection(COLLECTION, partitions=3)

    def options(self, **more):
        return {"url": f"embedded://{self.store.path}", "collection": COLLECTION, **more}

    def write(self, count, seed=0, keys=40):
        dice = random.Random(f"{seed} {len(self.truth)}")
        for _ in range(count):
            key, number = f"k{dice.randrange(keys)}", len(self.truth)
            if key in self.documents and dice.random() < 0.2:
                self.delete(key)
            else:
                self.put(key, {"n": number})

    def put(self, key, document):
        kind = self.store.put(COLLECTION, key, document)
        self.documents[key] = document
        self.truth.append((kind.value, key, document))

    def delete(self, key):
        self.store.delete(COLLECTION, key)
        del self.documents[key]
        self.truth.append(("DELETE", key, None))

    def fill(self, count, first=0):
        for number in range(first, first + count):
            self.put(f"k{number}", {"n": number})

    def delete_some(self, count=5):
        gone = sorted(self.documents)[:count]
        for key in gone:
            self.delete(key)
        return gone

    def lose(self):
        """Expire all changes, deletes included, that were made while the query was stopped."""
        self.write(15, seed="lost")
        self.trim()
        self.write(3, seed="kept")

    def trim(self, most=0):
        self.store.trim(COLLECTION, max_count=most)

    def damage(self, *numbers, row=None):
        """Damage the changes with these numbers, or the stored document with this key."""
        with closing(sqlite3.connect(self.store.path)) as database, database:
            each = [(number,) for number in numbers]
            database.executemany("UPDATE log SET doc = 'damaged' WHERE seq = ?", each)
            if row is not None:
                update = "UPDATE documents SET doc = 'damaged' WHERE key LIKE ?"
                assert database.execute(update, (f"%{row}%",)).rowcount == 1

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


@pytest.fixture
def simulation(monkeypatch):
    """Provide a simulated database, whose `provider` the option `url=simulation://` opens."""
    sim = Simulation(partitions=2)
    sim.provider = SimulationProvider(sim)
    place = {"url": "simulation://", "database": "sim", "collection": "items"}
    sim.options = lambda **more: {**place, **more}
    monkeypatch.setattr(connection, "open_provider", lambda config: sim.provider)
    monkeypatch.setattr("multiclouddb_spi.retry.time", SimpleNamespace(sleep=lambda seconds: None))
    return sim


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table"


@pytest.fixture
def kills(monkeypatch):
    """Return a function that makes the process die once, at a random commit to a Delta table."""
    left = {"dice": None, "chance": 0.0}

    def patched(original):
        def call(*args, **kwargs):
            dice = left["dice"]
            if dice is None or dice.random() >= left["chance"]:
                return original(*args, **kwargs)
            left["dice"] = None
            if dice.random() < 0.5:
                original(*args, **kwargs)
            raise Death

        return call

    monkeypatch.setattr(DeltaTable, "update", patched(DeltaTable.update))
    monkeypatch.setattr(TableMerger, "execute", patched(TableMerger.execute))
    monkeypatch.setattr(DeltaTable, "create", staticmethod(patched(DeltaTable.create)))
    monkeypatch.setattr(deltalake, "write_deltalake", patched(deltalake.write_deltalake))
    return partial(left.update)


@pytest.fixture
def table_deaths(monkeypatch):
    """Return a function that makes the process die once, around a statement that changes Spark's table."""
    left, commit = {"dice": None, "chance": 0.0}, NamedTable.commit

    def call(self, statement, check=None):
        dice = left["dice"]
        if dice is None or dice.random() >= left["chance"]:
            return commit(self, statement, check)
        left["dice"] = None
        if dice.random() < 0.5:
            commit(self, statement, check)
        raise Death

    def dies(dice, chance=0.0):
        left.update(dice=dice, chance=chance)

    monkeypatch.setattr(NamedTable, "commit", call)
    return dies


@pytest.fixture
def few_tasks(spark):
    """Let the session run each step in one task, because a table with some dozens of rows needs no more."""
    wanted = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.leafNodeDefaultParallelism": "1",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


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
        if queries.process is not None:
            end(queries.process)


@pytest.fixture(autouse=True)
def no_connections_left():
    yield
    close_connections()
