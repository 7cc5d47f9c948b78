"""Provides the scripted server for this provider's tests, with a database and with network failures."""

import base64
import itertools
import json
from decimal import Decimal

from multiclouddb_api import ClientConfig, EntireDatabase
from multiclouddb_certify.spanner import COLUMNS, SpannerHarness
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
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.values import VALUES
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spanner_emulator import Habits, ScriptedSpanner, Write

PROJECT, INSTANCE = "tests", "tests"
READ = "ChangeStream"
COUNTER = itertools.count()
POSTGRES = {
    "STRING(MAX)": "varchar", "INT64": "bigint", "FLOAT64": "double precision", "BOOL": "boolean",
    "BYTES(MAX)": "bytea", "NUMERIC": "numeric", "JSON": "jsonb",
}  # fmt: skip


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
    """A scripted server with one database."""

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
        return open_client(PLUGIN, ClientConfig("spanner", {"url": self.url}))

    def close(self):
        self.server.stop()


class ScriptedHarness(SpannerHarness):
    """A harness with one server for each test.

    The server's clock defines the time, and faults happen on the network.
    """

    can_several = can_split = can_merge = can_trim = can_poison = can_expire = True
    can_read_past_trim = False  # a position before the earliest timestamp is always refused
    can_late_children = can_audit = False  # a partition ends only when its children are named
    can_fork = False  # a gRPC server in the same process does not survive a fork
    value_types = frozenset(VALUES) - {"integer over 64 bit", "datetime", "uuid", "set"}
    habits = ()
    postgres = False

    def open(self):
        self.scripted = Scripted(habits=Habits(**dict(self.habits)), postgres=self.postgres)
        self.server = self.scripted.server

    def close(self):
        self.scripted.close()

    def config(self):
        return ClientConfig("spanner", {"url": self.scripted.url})

    def run(self, statements):
        self.server.execute(self.scripted.database, *statements)
        return self.scripted.name

    def create(self, name, kind, partitions):
        self.server.habits.initial_partitions = partitions
        return super().create(name, kind, partitions)

    def write(self, address, writes):
        natives = []
        for write in writes:
            if write.document is None:
                natives.append(Write("delete", address.collection, (), [[wire("id", write.key)]]))
            else:
                row = self.document(write.key, write.document)
                values = [wire(name, value) for name, value in row.items()]
                natives.append(Write("insert_or_update", address.collection, list(row), [values]))
        self.server.commit(self.scripted.database, *natives)

    def split(self, address, partition_id):
        self.server.split(self.token(partition_id))

    def merge(self, address, a, b):
        self.server.merge(self.token(a), self.token(b))

    def token(self, partition_id):
        """Return the service's token for the partition that has the given public id."""
        streams = self.server._world.databases[self.scripted.database].streams.values()
        (found,) = [token for each in streams for token in each.partitions if token in partition_id]
        return found

    def trim(self, address):
        self.server.advance(25 * 3600)

    def advance(self, seconds):
        self.server.advance(seconds)

    def expire(self, address, key):
        self.server.expire_row(self.scripted.database, address.collection, key)

    def poison(self, address, key):
        stream = self.stream(address.collection)
        self.server.poison(self.scripted.database, stream, address.collection, key)

    def now(self):
        return self.server.now()

    def open_readers(self):
        return self.server.journal.open_streams

    def troubled(self, script, act):
        """Return a client whose calls are hit by a fault. The fault ends when the client is closed."""
        troubles, habits = self.server.troubles, self.server.habits

        def end():
            troubles.end()
            habits.children_first = False

        client = self.connect_until(end)
        match script:
            case Throttle(retry_after, times):
                troubles.fail(READ, "RESOURCE_EXHAUSTED", times, every=2, retry_after=retry_after)
            case ServerFailure(times, partition_id):
                every = 1 if times is None else 2
                token = None if partition_id is None else self.token(partition_id)
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
        return client


class NastyHarness(ScriptedHarness):
    """A server that sends values in chunks, sends a record for each mod, and names children awkwardly.

    The server names each child in a separate record, in reverse order, and twice.
    """

    habits = (
        ("chunk_characters", 61), ("rows_per_message", 1), ("mods_per_record", 1), ("sequence_step", 7),
        ("children_per_record", 1), ("repeat_children", 1), ("children_first", True), ("multiplexed", False),
    )  # fmt: skip


class DatabaseHarness(ScriptedHarness):
    """A harness whose tests read every table of their database from one change stream."""

    scope = EntireDatabase()
    for_all = True
    can_alone = False


class PostgresDatabaseHarness(DatabaseHarness):
    """The same, in the PostgreSQL dialect."""

    postgres = True

    def ddl(self, name, key, watched, options):
        columns = ", ".join(f"{column} {POSTGRES[form]}" for column, form in COLUMNS.items())
        return (
            f"CREATE TABLE {name} (id {POSTGRES[key]} NOT NULL, {columns}, PRIMARY KEY (id))",
            f"CREATE CHANGE STREAM {self.stream(name)} FOR {watched} WITH ({options})",
        )


class MovesKeysHarness(ScriptedHarness):
    """A server on which each split and merge can move any key to any partition."""

    habits = (("moves_keys", True),)
    can_key_order = False
