"""The conformance harness for a MongoDB replica set."""

import itertools
import time
from datetime import timedelta
from decimal import Decimal
from urllib.parse import quote

import bson
from bson.decimal128 import Decimal128
from bson.raw_bson import RawBSONDocument

from multiclouddb_api import ClientConfig, MulticloudDbKey, ResourceAddress
from multiclouddb_conformance.harness import Harness, Kind
from multiclouddb_conformance.values import KEYS, VALUES
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.provider import CAPABILITIES, PLUGIN

from .servers.mongod import PASSWORD, shared, wait_uncut

COUNTER = itertools.count()
# The oplog has 1 MB and is filled only by `trim`. The hashes of passwords can be checked quickly.
SMALL = {
    "oplog_mb": 1,
    "auth": True,
    # Positions move once a second, so nothing waits ten seconds for a moment to pass.
    "parameters": {
        "scramSHA256IterationCount": 5000,
        "ttlMonitorSleepSecs": 1,
        "periodicNoopIntervalSecs": 1,
    },
}
NOTE = "x" * 100_000


def native(value):
    match value:
        case Decimal():
            return Decimal128(value)
        case list():
            return [native(each) for each in value]
        case dict():
            return {name: native(each) for name, each in value.items()}
        case _:
            return value


class MongoHarness(Harness):
    """Writes with PyMongo. The tests of a worker share the servers, but each test has its own database."""

    capabilities = CAPABILITIES
    plugin = PLUGIN
    partitions = 1
    precision_seconds = 1.1
    rounding = timedelta(milliseconds=1)
    can_several = can_split = can_merge = can_keys_only = False
    # Every notice of a collection's feed ends the feed; test_notices.py tests other notices.
    can_notices = False
    expiry_updates = 1
    can_read_past_trim = False  # all collections share the oplog, so a position that does not advance expires
    value_types = frozenset(VALUES) - {"integer over 64 bit", "set"}
    key_types = frozenset(KEYS)
    secrets = (PASSWORD, quote(PASSWORD, safe=""))
    # The name of the replica set, and its number of members.
    servers_name = "us8 one"
    members = 1

    def open(self):
        self.servers = shared(self.servers_name, self.members, **SMALL)
        self.native = self.servers.client()
        self.database = f"us8-{next(COUNTER)}"
        self.left = set()
        self.left = self.cursors()
        self.disturbed = False

    def close(self):
        """Close the harness. If a server was disturbed, wait until the next second begins."""
        # Without the pause, `AtTime` in the next test would find changes from this test.
        if self.disturbed:
            time.sleep(1.2 - time.time() % 1)

    def config(self):
        return ClientConfig("mongo", {"url": self.servers.uri(appName="us8")})

    def create(self, name, kind, partitions):
        images = {"changeStreamPreAndPostImages": {"enabled": True}} if kind is Kind.OLD_IMAGES else {}
        self.native[self.database].create_collection(name, **images)
        return ResourceAddress(self.database, name)

    def missing(self):
        return ResourceAddress(self.database, "missing")

    def key(self, value):
        return MulticloudDbKey({"_id": value})

    def document(self, key, fields):
        return {"_id": key, **fields}

    def collection(self, address):
        return self.native[address.database][address.collection]

    def write(self, address, writes):
        collection = self.collection(address)

        def each(session=None):
            for write in writes:
                chosen = {"_id": native(write.key)}
                if write.document is None:
                    collection.delete_one(chosen, session=session)
                else:
                    document = native(dict(write.document))
                    collection.replace_one(chosen, document, upsert=True, session=session)

        if len(writes) == 1:
            each()
        else:
            with self.native.start_session() as session:
                session.with_transaction(each)

    def expire(self, address, key):
        """Make the server look for expired documents every second."""
        collection = self.collection(address)
        collection.create_index("until", expireAfterSeconds=0)
        collection.replace_one({"_id": native(key)}, {"until": self.now()})

    def recreate(self, address):
        self.collection(address).drop()
        self.native[address.database].create_collection(address.collection)

    def announce(self, address):
        """Drop a collection: the feed of its database or cluster continues."""
        self.native[address.database].create_collection("another").drop()

    def poison(self, address, key):
        """Write a text that is not UTF-8, which the server accepts but no driver can read."""
        bad = RawBSONDocument(bson.encode({"text": "damaged"}).replace(b"damaged", b"damage\xff"))
        self.collection(address).replace_one({"_id": native(key)}, {"inside": bad}, upsert=True)
        self.disturbed = True

    def trim(self, address):
        """Fill the oplog with no-op notes until all earlier entries are removed."""
        # No change stream shows such notes.
        admin, log = self.native.admin, self.native.local["oplog.rs"]
        # Read only this field of an entry, because no driver can read the text that `poison` wrote.
        last = log.find_one(projection=["ts"], sort=[("$natural", -1)])["ts"]
        note = {"appendOplogNote": 1, "data": {"note": NOTE}, "writeConcern": {"w": self.members}}
        while log.find_one(projection=["ts"])["ts"] <= last:
            for _ in range(15):
                admin.command(note)
            # The server removes only entries that a checkpoint covers, and looks for them once a second.
            admin.command("fsync")
            until = time.monotonic() + 1.1
            while log.find_one(projection=["ts"])["ts"] <= last and time.monotonic() < until:
                time.sleep(0.02)
        wait_uncut(lambda: log.find_one(projection=["ts"])["ts"])
        self.disturbed = True

    def other_options(self):
        return MongoOptions(pipeline=[{"$match": {}}])

    def command(self):
        return "admin", {"ping": 1}

    def open_readers(self):
        return len(self.cursors() - self.left)

    def cursors(self):
        now = {"$currentOp": {"allUsers": True, "idleCursors": True}}
        streams = {"$match": {"cursor.originatingCommand.pipeline.0.$changeStream": {"$exists": True}}}
        return {each["cursor"]["cursorId"] for each in self.native.admin.aggregate([now, streams])}
