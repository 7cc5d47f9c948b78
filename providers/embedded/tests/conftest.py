"""Provides a store with its own clock, and a provider for this store that is used without the engine."""

import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from multiclouddb_api import Beginning, ClientConfig, ResourceAddress
from multiclouddb_conformance.waiting import SOON
from multiclouddb_embedded import EmbeddedOptions, EmbeddedStore
from multiclouddb_embedded.provider import PLUGIN
from multiclouddb_spi import Continue, Deadline, FeedSpec, ProviderFault


def faulty(category, *words):
    """Expect a fault with this category, whose message contains the given words in this order."""
    match = ".*".join(map(re.escape, words)) or None
    return pytest.raises(ProviderFault, match=match, check=lambda error: error.fault.category == category)


class Ticker:
    """A clock whose time changes only when a test moves it."""

    def __init__(self):
        self.moment = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def __call__(self):
        return self.moment

    def tick(self, **by):
        self.moment += timedelta(**by)
        return self.moment


class World:
    """One store and its provider, which is used without the engine."""

    def __init__(self, store, clock):
        self.store, self.clock, self.path = store, clock, store.path
        self.provider = PLUGIN.connect(ClientConfig("embedded"), store)

    def deadline(self):
        return Deadline.after(SOON)

    def feed(self, collection="items", **spec):
        spec = {"options": EmbeddedOptions(), **spec}
        return self.provider.open_feed(FeedSpec(ResourceAddress("main", collection), **spec), self.deadline())

    def start(self, feed, position=None, partition_id=None):
        return feed.start(position or Beginning(), partition_id, self.deadline())

    def fetch(self, reader, most=1000, nbytes=1 << 20, wait=0.0):
        return reader.fetch(most, nbytes, wait, self.deadline())

    def drain(self, reader, most=1000):
        """Return every event up to the current end, and the batch that reported the end."""
        events = []
        while True:
            batch = self.fetch(reader, most)
            events += batch.events(0, len(batch))
            if batch.caught_up or not isinstance(batch.outcome, Continue):
                return events, batch

    def read_all(self, feed, position=None):
        """Read the seeds and their descendants, parents first. Return the events by partition."""
        seeds = self.start(feed, position)
        todo = {seed.partition_id: (seed.parents, seed.cursor) for seed in seeds}
        events = {}
        while todo:
            name = next(name for name, (parents, _) in todo.items() if not set(parents) & set(todo))
            _, cursor = todo.pop(name)
            events[name], last = self.drain(feed.open(name, cursor))
            for child in getattr(last.outcome, "children", ()):
                todo.setdefault(child.partition_id, (child.parents, child.cursor))
        return events

    def sql(self, statement, *values):
        """Run SQL on the store's file directly, without the library."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()


@pytest.fixture
def clock():
    return Ticker()


@pytest.fixture
def store(tmp_path, clock):
    with EmbeddedStore(tmp_path / "store.db", clock=clock, durable=False) as opened:
        yield opened


@pytest.fixture
def world(store, clock):
    made = World(store, clock)
    yield made
    made.provider.close()
