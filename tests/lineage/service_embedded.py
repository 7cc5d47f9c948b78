"""The embedded store as a service that the explorer reads."""

import sqlite3
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from multiclouddb_api import ClientConfig, MulticloudDbKey
from multiclouddb_conformance.explore.service import Service
from multiclouddb_conformance.explore.world import ListingKind
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_embedded.provider import EmbeddedPlugin
from multiclouddb_embedded.store.collection import partition_hash, partition_identity

NAME = "orders"
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
PLUGIN = EmbeddedPlugin()


class EmbeddedService(Service):
    """A store in a file; each earlier state is a copy of the file."""

    kind = ListingKind.LISTED

    def __init__(self):
        self._folder, self._numbers, self._store = TemporaryDirectory(), count(), None
        self._now = BEGUN

    def _open(self, content=None):
        if self._store is not None:
            self._store.close()
            Path(self._store.path).unlink()
        path = Path(self._folder.name, f"{next(self._numbers)}.db")
        if content is not None:
            path.write_bytes(content)
        self._store = EmbeddedStore(path, clock=lambda: self._now, durable=False)

    def begin(self, partitions):
        self._now = BEGUN
        self._open()
        self.address = self._store.create_collection(NAME, partitions)
        return self._open_names()

    def _open_names(self):
        return [each.partition_id for each in self._store.partitions(NAME)]

    def save(self):
        with sqlite3.connect(self._store.path) as connection:
            content = connection.serialize()
        connection.close()
        # The copy is no longer in WAL mode, because it has no WAL beside it.
        return self._now, content[:18] + b"\1\1" + content[20:]

    def restore(self, saved):
        self._now, content = saved
        self._open(content)

    def provider(self):
        return PLUGIN.connect(ClientConfig("embedded", {}), self._store)

    def reshape(self, parents, children):
        match parents, children:
            case [one], 1:
                raise AssertionError(f"{one} cannot roll")
            case [one], _:
                return self._store.split(NAME, one)
            case _:
                return [self._store.merge(NAME, *parents)]

    rolls = chains = False

    def can_merge(self, names):
        there = self._open_names()
        return abs(there.index(names[0]) - there.index(names[1])) == 1

    def holder(self, key):
        place = partition_hash(partition_identity(MulticloudDbKey({"id": key})))
        return next(
            each.partition_id for each in self._store.partitions(NAME) if each.low <= place < each.high
        )

    def put(self, keys, moment):
        self._now = max(self._now, BEGUN + timedelta(hours=moment))
        for key in keys:
            self._store.put(NAME, key, {"n": moment})

    def forget(self, moment):
        self._store.trim(NAME, before=BEGUN + timedelta(hours=moment, minutes=30))

    def close(self):
        if self._store is not None:
            self._store.close()
        self._folder.cleanup()
