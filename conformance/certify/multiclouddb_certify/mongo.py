"""The harness for MongoDB, and what a run on it needs and leaves."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, timedelta
from decimal import Decimal
from importlib.metadata import version
from typing import Any, ClassVar, Final
from urllib.parse import quote

import bson
from bson.decimal128 import Decimal128
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient, monitoring
from pymongo.errors import AutoReconnect, CollectionInvalid, OperationFailure
from pymongo.uri_parser import parse_uri

from multiclouddb_api import ClientConfig, MulticloudDbKey, ProviderOptions, ResourceAddress
from multiclouddb_certify.certification import (
    LOCAL,
    PREFIX,
    Certification,
    DrillHarness,
    Granted,
    Permission,
    Run,
    RunPlace,
)
from multiclouddb_certify.wire import Call, WireObserver, WireResponse
from multiclouddb_conformance.harness import CollectionKind, Harness, Write
from multiclouddb_conformance.values import KEYS, VALUES
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.capabilities import CAPABILITIES
from multiclouddb_mongo.provider import PLUGIN
from multiclouddb_spi.connection import is_loopback

__all__ = ["CERTIFICATION", "MongoCertification", "MongoHarness", "OplogHarness", "native_client"]

_COUNTER: Final = itertools.count()
_NOTE: Final = "x" * 100_000
_SMALL: Final = 4 << 20
_SOON: Final = 5
_EXISTS: Final = 48  # NamespaceExists
_ELECTION_SECONDS: Final = 30
_ACTIONS: Final = (
    "changeStream", "collMod", "createCollection", "createIndex", "dropCollection", "dropDatabase", "find",
    "insert", "remove", "update",
)  # fmt: skip


def native(value: Any) -> Any:
    """Return a value as PyMongo writes it."""
    match value:
        case Decimal():
            return Decimal128(value)
        case list():
            return [native(each) for each in value]
        case dict():
            return {name: native(each) for name, each in value.items()}
        case _:
            return value


def native_client(url: str) -> MongoClient[dict[str, Any]]:
    """Return PyMongo's client for a URL."""
    return MongoClient(url, tz_aware=True, uuidRepresentation="standard", appname="certify")


class MongoHarness(DrillHarness):
    """A harness that writes with PyMongo; each test has its own database."""

    capabilities = CAPABILITIES
    plugin = PLUGIN
    partitions = 1
    precision_seconds = 11
    rounding = timedelta(milliseconds=1)
    can_several = can_split = can_merge = can_keys_only = False
    # Every notice of a collection's feed ends the feed; test_notices.py tests other notices.
    can_notices = False
    expiry_updates = 1
    can_read_past_trim = False  # all collections share the oplog, so a position that does not advance expires
    can_trim = can_expire = False  # they need hours, or minutes, as a cluster is set by default
    value_types = frozenset(VALUES) - {"integer over 64 bit", "set"}
    key_types = frozenset(KEYS)
    spellings = (1, 1.0, Decimal("1.00"), 1.5, Decimal("1.50"), True, "1")
    url: ClassVar[str]
    prefix: ClassVar[str] = PREFIX

    def open(self) -> None:
        """Make the native client."""
        self.native = native_client(self.url)
        password = parse_uri(self.url, validate=False)["password"] if "+srv" not in self.url else None
        if password:
            self.secrets = (password, quote(password, safe=""))
        self.begin()

    def begin(self) -> None:
        """Choose the database."""
        self.database = f"{self.prefix}-{next(_COUNTER)}"
        self.left: set[int] = set()
        self.left = self.cursors()
        self.disturbed = self.kept = False

    def close(self) -> None:
        """Drop the database."""
        self.settle()
        if not self.kept:
            self.native.drop_database(self.database)
        self.native.close()

    def keep(self) -> None:
        """Leave the database when the harness is closed."""
        self.kept = True

    def writer(self) -> str:
        """Return the primary."""
        self.native.admin.command("ping")
        return "{}:{}".format(*(self.native.primary or ("nobody", 0)))

    def step_down(self) -> None:
        """Ask the primary to step down, and wait until there is another; the service may not allow it."""
        before = self.writer()
        with suppress(AutoReconnect, OperationFailure):
            self.native.admin.command("replSetStepDown", 60)
            until = time.monotonic() + _ELECTION_SECONDS
            while self.writer() == before and time.monotonic() < until:
                time.sleep(0.1)

    def settle(self) -> None:
        """If a server was disturbed, wait until the next second begins."""
        # Without the pause, `AtTime` in the next test would find changes from this test.
        if self.disturbed:
            time.sleep(1.2 - time.time() % 1)

    def config(self) -> ClientConfig:
        """Return the configuration of the URL."""
        return ClientConfig("mongo", {"url": self.url})

    def create(self, name: str, kind: CollectionKind, partitions: int) -> ResourceAddress:
        """Create a collection, with images if they are wanted."""
        del partitions
        images: dict[str, Any] = {}
        if kind is CollectionKind.OLD_IMAGES:
            images = {"changeStreamPreAndPostImages": {"enabled": True}}
        try:
            self.native[self.database].create_collection(name, **images)
        except (CollectionInvalid, OperationFailure) as error:
            # A killed process, or a first try, has asked for it; the name of a run is given only once.
            exists = isinstance(error, CollectionInvalid) or error.code == _EXISTS
            if not exists or Run.of(self.database) is None:
                raise
        return ResourceAddress(self.database, name)

    def missing(self) -> ResourceAddress:
        """Return the address of a collection that does not exist."""
        return ResourceAddress(self.database, "missing")

    def key(self, value: Any) -> MulticloudDbKey:
        """Return the key, which is the `_id`; the decimals among the suite's keys are those of a double."""
        return MulticloudDbKey({"_id": float(value) if isinstance(value, Decimal) else value})

    def document(self, key: Any, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the document, which contains its `_id`."""
        return {"_id": key, **fields}

    def collection(self, address: ResourceAddress) -> Any:
        """Return PyMongo's collection."""
        return self.native[str(address.database)][str(address.collection)]

    def write(self, address: ResourceAddress, writes: Sequence[Write]) -> None:
        """Write one document, or several in one transaction."""
        collection = self.collection(address)

        def each(session: Any = None) -> None:
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

    def recreate(self, address: ResourceAddress) -> None:
        """Drop and create the collection."""
        self.collection(address).drop()
        self.native[str(address.database)].create_collection(str(address.collection))

    def announce(self, address: ResourceAddress) -> None:
        """Drop a collection: the feed of its database or cluster continues."""
        self.native[str(address.database)].create_collection("another").drop()

    def poison(self, address: ResourceAddress, key: Any) -> None:
        """Write a text that is not UTF-8, which the server accepts but no driver can read."""
        bad = RawBSONDocument(bson.encode({"text": "damaged"}).replace(b"damaged", b"damage\xff"))
        self.collection(address).replace_one({"_id": native(key)}, {"inside": bad}, upsert=True)
        self.disturbed = True

    def expire(self, address: ResourceAddress, key: Any) -> None:
        """Let the server delete a document."""
        collection = self.collection(address)
        collection.create_index("until", expireAfterSeconds=0)
        collection.replace_one({"_id": native(key)}, {"until": self.now()})

    def other_options(self) -> ProviderOptions:
        """Return a pipeline."""
        return MongoOptions(pipeline=[{"$match": {}}])

    def command(self) -> tuple[str, Mapping[str, Any]]:
        """Return `ping`."""
        return "admin", {"ping": 1}

    def open_readers(self) -> int | None:
        """Return the number of change streams that are open since the test began."""
        return len(self.cursors() - self.left)

    def cursors(self) -> set[int]:
        """Return the cursors of all change streams of this user; those of others need a privilege."""
        now = {"$currentOp": {"allUsers": False, "idleCursors": True}}
        streams = {"$match": {"cursor.originatingCommand.pipeline.0.$changeStream": {"$exists": True}}}
        return {each["cursor"]["cursorId"] for each in self.native.admin.aggregate([now, streams])}


class OplogHarness(MongoHarness):
    """A harness for a server of a test, with an oplog of 1 MB that `trim` fills."""

    can_trim = True
    members = 1

    def trim(self, address: ResourceAddress) -> None:
        """Fill the oplog with no-op notes until all earlier entries are removed."""
        # No change stream shows such notes.
        del address
        admin, log = self.native.admin, self.native.local["oplog.rs"]

        def first() -> Any:
            # Read only this field of an entry, because no driver can read the text that `poison` wrote.
            found = log.find_one(projection=["ts"])
            assert found is not None
            return found["ts"]

        newest = log.find_one(projection=["ts"], sort=[("$natural", -1)])
        assert newest is not None
        last = newest["ts"]
        note = {"appendOplogNote": 1, "data": {"note": _NOTE}, "writeConcern": {"w": self.members}}
        while first() <= last:
            for _ in range(15):
                admin.command(note)
            # The server removes only entries that a checkpoint covers, and looks for them once a second.
            admin.command("fsync")
            until = time.monotonic() + 1.1
            while first() <= last and time.monotonic() < until:
                time.sleep(0.02)
        # During truncation, the server removes an entry of the oplog every few milliseconds. Requests are
        # counted instead of seconds, because a busy server delays both its oplog and its answers.
        found, looks, until = first(), 0, time.monotonic() + 180
        while looks < 15:
            if time.monotonic() > until:
                raise TimeoutError("the oplog is still cut after three minutes")
            time.sleep(0.01)
            before, found = found, first()
            looks = looks + 1 if found == before else 0
        self.disturbed = True


class _Listener(monitoring.CommandListener):
    """Shows an observer the commands of every client that is made from now on."""

    def __init__(self, observer: WireObserver) -> None:
        self._observer: WireObserver | None = observer
        self._asked: dict[int, Call] = {}

    def stop(self) -> None:
        self._observer = None

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if self._observer is not None:
            call = self._asked[event.request_id] = Call(event.command_name, {}, event.command)
            self._observer.asked(call)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        self._ended(event.request_id)

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        self._ended(event.request_id)

    def _ended(self, request: int) -> None:
        call = self._asked.pop(request, None)
        if self._observer is not None and call is not None:
            self._observer.answered(call, WireResponse(0, {}))


class MongoCertification(Certification):
    """MongoDB: a cluster is billed by the hour, whatever it does."""

    provider_id = "mongo"
    suite = "multiclouddb_certify.suites.mongo"
    collection_seconds = 1.0

    def place(self, url: str) -> RunPlace:
        """Ask the server what it is."""
        with native_client(url) as client:
            hello = client.admin.command("hello")
            number = client.server_info()["version"]
            hosts = sorted(host for host, _ in client.nodes)
        sharded = hello.get("msg") == "isdbgrid"
        members = len(hello.get("hosts", ()))
        shape = "a sharded cluster" if sharded else f"a replica set of {members}"
        problem = None
        if not sharded and "setName" not in hello:
            problem = "the server is no replica set, and has no change streams; start it with --replSet"
        account = LOCAL if all(map(is_loopback, hosts)) else ",".join(hosts)
        return RunPlace(
            account, None, f"MongoDB {number}, {shape}", hello["localTime"].astimezone(UTC), problem
        )

    def creates(self, url: str, run: Run) -> Sequence[str]:
        """Return the databases."""
        return (f"databases {run.prefix}-…, one at a time as a rule, on the cluster as it is",)

    def permissions(self, url: str, run: Run) -> Sequence[Permission]:
        """Ask the server for the privileges of the user."""
        with native_client(url) as client:
            status = client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
        if not status["authenticatedUsers"]:
            return [Permission(each, Granted.YES, "the server asks for no user") for each in _ACTIONS]
        have = {
            action
            for each in status["authenticatedUserPrivileges"]
            if each["resource"].get("anyResource") or each["resource"].get("db") == ""
            for action in each["actions"]
        }
        return [
            Permission(each, Granted.YES if each in have or "anyAction" in have else Granted.NO)
            for each in _ACTIONS
        ]

    def harness(self, url: str, run: Run) -> type[Harness]:
        """Return the harness of a cluster, or of a server of a test whose oplog can be filled."""
        base: type[MongoHarness] = MongoHarness
        members: dict[str, Any] = {}
        with native_client(url) as client:
            with suppress(OperationFailure):  # a user who may not ask, or a router
                asked = client.admin.command("getParameter", ttlMonitorEnabled=1, ttlMonitorSleepSecs=1)
                members["can_expire"] = asked["ttlMonitorEnabled"] and asked["ttlMonitorSleepSecs"] <= _SOON
            hello = client.admin.command("hello")
            if "setName" in hello and all(is_loopback(host) for host, _ in client.nodes):
                with suppress(OperationFailure):  # a user who may not look
                    size = client.local.command("collStats", "oplog.rs")["maxSize"]
                    if size <= _SMALL:
                        base, members["members"] = OplogHarness, len(hello["hosts"])
        return type(base.__name__, (base,), {"url": url, "prefix": run.prefix, **members})

    def drill_problem(self, url: str, name: str) -> str | None:
        """Say that there is no other member that could be elected."""
        with native_client(url) as client:
            hello = client.admin.command("hello")
        able = len(hello.get("hosts", ()))
        if name != "election" or able > 1:
            return None
        if hello.get("msg") == "isdbgrid":
            return "a router does not say which members its shards have; give the URL of one shard"
        return f"the replica set has {able} member that can be the primary; it needs three"

    def wire(self, observer: WireObserver) -> AbstractContextManager[object]:
        """Show the commands of PyMongo."""
        return _listening(observer)

    def found(self, url: str) -> Iterator[str]:
        """Return the databases with the prefix."""
        with native_client(url) as client:
            names = client.list_database_names()
        yield from (name for name in names if Run.of(name))

    def remove(self, url: str, name: str) -> None:
        """Drop a database."""
        with native_client(url) as client:
            client.drop_database(name)

    def versions(self) -> Mapping[str, str]:
        """Return the version of PyMongo."""
        return {"pymongo": version("pymongo")}


@contextmanager
def _listening(observer: WireObserver) -> Iterator[None]:
    listener = _Listener(observer)
    monitoring.register(listener)
    try:
        yield
    finally:
        listener.stop()


CERTIFICATION: Final = MongoCertification()
