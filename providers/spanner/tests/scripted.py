"""Provides the scripted server for this provider's tests, with a database and with network failures."""

import base64
import itertools
import json
from datetime import timedelta
from decimal import Decimal

from multiclouddb_api import ClientConfig, ResourceAddress
from multiclouddb_conformance.faults import (
    ChildrenFirst,
    DropMidPage,
    ExpireIterator,
    MergeMidPage,
    ServerFailure,
    Silent,
    Slow,
    SplitMidPage,
    Throttle,
    Trimmed,
)
from multiclouddb_conformance.harness import Harness, Kind
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.values import VALUES
from multiclouddb_spanner.provider import CAPABILITIES, PLUGIN
from multiclouddb_spanner_emulator import Habits, ScriptedSpanner, Write

from .harness import COLUMNS, SpannerHarness, columns_of

PROJECT, INSTANCE = "tests", "tests"
READ = "ChangeStream"
COUNTER = itertools.count()


def wire(name, value):
    """Return a value in the form that the protocol uses."""
    if value is None or isinstance(value, bool):
        return value
    if COLUMNS.get(name) == "JSON":
        return json.dumps(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else json.dumps(value)
    return format(value, "f") if isinstance(value, Decimal) else str(value)


class Scripted:
    """A scripted server with one database.

    Args:
        habits: The settings of the server.
        statements: The DDL statements.
    """

    def __init__(self, *statements, habits=None, postgres=False):
        self.server = ScriptedSpanner(habits)
        self.server.start()
        self.name = f"scripted-{next(COUNTER)}"
        self.database = f"projects/{PROJECT}/instances/{INSTANCE}/databases/{self.name}"
        self.server.create(self.database, *statements, postgres=postgres)
        self.url = f"spanner://{PROJECT}/{INSTANCE}?emulator_host={self.server.host}"

    def write(self, table, *rows, kind="insert_or_update", names=("id", "n")):
        """Write one transaction, and return its commit timestamp."""
        values = [[wire(name, value) for name, value in zip(names, row, strict=True)] for row in rows]
        return self.server.commit(self.database, Write(kind, table, names, values))

    def connect(self):
        """Connect the library's client."""
        return open_client(PLUGIN, ClientConfig("spanner", {"url": self.url}))

    def close(self):
        self.server.stop()


class ScriptedHarness(Harness):
    """A harness with one server for each test.

    The server's clock defines the time, and faults happen on the network.
    """

    capabilities = CAPABILITIES
    plugin = PLUGIN
    rounding = timedelta(microseconds=1)
    can_read_past_trim = False  # a position before the earliest timestamp is always refused
    can_keys_only = can_notices = can_other_options = can_secrets = False
    can_late_children = can_audit = False  # a partition ends only when its children are named
    can_fork = False  # a gRPC server in the same process does not survive a fork
    value_types = frozenset(VALUES) - {"integer over 64 bit", "datetime", "uuid", "set"}
    key_types = SpannerHarness.key_types
    habits = ()

    def open(self):
        self.scripted = Scripted(habits=Habits(**dict(self.habits)))
        self.server = self.scripted.server

    def close(self):
        self.scripted.close()

    def config(self):
        return ClientConfig("spanner", {"url": self.scripted.url})

    def create(self, name, kind, partitions):
        capture = "NEW_ROW_AND_OLD_VALUES" if kind is Kind.OLD_IMAGES else "NEW_ROW"
        columns = ", ".join(f"{column} {of}" for column, of in COLUMNS.items())
        self.server.habits.initial_partitions = partitions
        self.statements = [
            f"CREATE TABLE {name} (id STRING(MAX) NOT NULL, {columns}) PRIMARY KEY (id)",
            f"CREATE CHANGE STREAM {name}_stream FOR {name} OPTIONS (value_capture_type = '{capture}')",
        ]
        self.server.execute(self.scripted.database, *self.statements)
        return ResourceAddress(self.scripted.name, name)

    def document(self, key, fields):
        return {"id": key, **dict.fromkeys(COLUMNS), **columns_of(fields)}

    def write(self, address, writes):
        names = ["id", *COLUMNS]
        natives = []
        for write in writes:
            if write.document is None:
                natives.append(Write("delete", address.collection, (), [[write.key]]))
            else:
                row = self.document(write.key, write.document)
                values = [wire(name, row[name]) for name in names]
                natives.append(Write("insert_or_update", address.collection, names, [values]))
        self.server.commit(self.scripted.database, *natives)

    def split(self, address, partition_id):
        self.server.split(self.token(address, partition_id))

    def merge(self, address, a, b):
        self.server.merge(self.token(address, a), self.token(address, b))

    def token(self, address, partition_id):
        """Return the service's token for the partition that has the given public id."""
        tokens = [each.token for each in self.server.partitions(self.scripted.database, self.stream(address))]
        (found,) = [token for token in tokens if token in partition_id]
        return found

    def stream(self, address):
        return f"{address.collection}_stream"

    def trim(self, address):
        """Move the clock forward by a day and an hour."""
        self.server.advance(25 * 3600)

    def expire(self, address, key):
        self.server.expire_row(self.scripted.database, address.collection, key)

    def poison(self, address, key):
        self.server.poison(self.scripted.database, self.stream(address), address.collection, key)

    def recreate(self, address):
        name = address.collection
        gone = [f"DROP CHANGE STREAM {name}_stream", f"DROP TABLE {name}"]
        self.server.execute(self.scripted.database, *gone, *self.statements)

    def now(self):
        return self.server.now()

    def open_readers(self):
        return self.server.journal.open_streams

    def troubled(self, script, act):
        """Return a client whose calls are hit by a fault. The fault ends when the client is closed."""
        client = self.connect()
        close = client.close

        def end():
            self.server.troubles.end()
            self.server.habits.children_first = False
            close()

        client.close = end
        self.trouble(script, act)
        return client

    def trouble(self, script, act):
        troubles, habits = self.server.troubles, self.server.habits
        match script:
            case Throttle(retry_after, times):
                troubles.fail(READ, "RESOURCE_EXHAUSTED", times, every=2, retry_after=retry_after)
            case ServerFailure(times, partition_id):
                every = 1 if times is None else 2
                token = None if partition_id is None else self._anywhere(partition_id)
                troubles.fail(READ, "UNAVAILABLE", times, every=every, token=token)
            case DropMidPage(times):
                troubles.fail(READ, "UNAVAILABLE", times, after_rows=1)
            case ExpireIterator(times):
                # The session is lost, so the next call needs a new session.
                troubles.act(self.server.lose_sessions, times, after_rows=None)
            case Slow(seconds):
                troubles.delay(READ, seconds)
            case Silent(from_the_start):
                troubles.hang(None if from_the_start else READ)
            case SplitMidPage() | MergeMidPage() | Trimmed():
                troubles.act(act)
            case ChildrenFirst():
                habits.children_first = True
            case _:
                raise NotImplementedError(script)

    def _anywhere(self, partition_id):
        database = self.server._world.databases[self.scripted.database]
        (found,) = [
            token
            for stream in database.streams.values()
            for token in stream.partitions
            if token in partition_id
        ]
        return found


class NastyHarness(ScriptedHarness):
    """A server that sends values in chunks, sends a record for each mod, and names children awkwardly.

    The server names each child in a separate record, in reverse order, and twice.
    """

    habits = (
        ("chunk_characters", 61), ("rows_per_message", 1), ("mods_per_record", 1), ("sequence_step", 7),
        ("children_per_record", 1), ("repeat_children", 1), ("children_first", True), ("multiplexed", False),
    )  # fmt: skip


class MovesKeysHarness(ScriptedHarness):
    """A server on which each split and merge can move any key to any partition."""

    habits = (("moves_keys", True),)
    can_key_order = False
