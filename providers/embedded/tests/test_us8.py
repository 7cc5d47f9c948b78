"""Runs the whole conformance suite on the embedded store."""

import sqlite3

from multiclouddb_api import ClientConfig
from multiclouddb_conformance.harness import Harness, Kind
from multiclouddb_conformance.us8 import *  # noqa: F403
from multiclouddb_embedded import Delete, EmbeddedStore, Put
from multiclouddb_embedded.provider import CAPABILITIES, PLUGIN

IMAGES = {Kind.PLAIN: "new", Kind.KEYS_ONLY: "keys", Kind.OLD_IMAGES: "new_and_old"}


class EmbeddedHarness(Harness):
    profile = None
    capabilities = CAPABILITIES
    plugin = PLUGIN
    can_expire = can_other_options = can_secrets = can_notices = False

    def open(self):
        self.store = EmbeddedStore(self.folder / "store.db", durable=False)

    def close(self):
        self.store.close()

    def config(self):
        connection = {"path": self.store.path, "profile": self.profile}
        return ClientConfig("embedded", {name: value for name, value in connection.items() if value})

    def create(self, name, kind, partitions, *, recreate=False):
        return self.store.create_collection(name, partitions, images=IMAGES[kind], recreate=recreate)

    def write(self, address, writes):
        operations = [Delete(w.key) if w.document is None else Put(w.key, w.document) for w in writes]
        self.store.batch(address.collection, operations)

    def split(self, address, partition_id):
        self.store.split(address.collection, partition_id)

    def merge(self, address, a, b):
        self.store.merge(address.collection, a, b)

    def trim(self, address):
        self.store.trim(address.collection, max_count=0)

    def poison(self, address, key):
        self.store.put(address.collection, key, {"n": "poison"})
        with sqlite3.connect(self.store.path) as connection:
            connection.execute("UPDATE log SET doc = '{broken' WHERE seq = (SELECT max(seq) FROM log)")
        connection.close()

    def recreate(self, address):
        self.create(address.collection, Kind.PLAIN, self.partitions, recreate=True)


HARNESS = EmbeddedHarness
