"""Starts Google's Cloud Spanner emulator and our scripted server for the rows, and describes its changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import attrs

from benchmarks.processes import on_server_core, served
from multiclouddb_api import ChangeFeedRequest, ClientConfig, Now, ResourceAddress, connect
from testing.provider_servers import server_module

__all__ = ["COLUMNS", "STREAM", "Backlog", "Scripted", "backlog", "scripted"]

STREAM: Final = "items_stream"
COLUMNS: Final = ("id", "number", *(f"field{index}" for index in range(7)))


def _row(number: int) -> list[Any]:
    """Make a row of about 300 bytes of JSON in nine columns."""
    return [f"key-{number:07}", number, *("x" * 24 for _ in range(7))]


@attrs.frozen
class Backlog:
    """A table whose changes have not been read.

    Attributes:
        url: The connection string.
        address: The table.
        size: The number of changes.
        token: The position before the first change, as this project's token.
        start: The time that stands for the position of `token`.
        database: The library's database object.
    """

    url: str
    address: ResourceAddress
    size: int
    token: str
    start: Any
    database: Any
    fields: list[str] = attrs.field(factory=list)

    @property
    def config(self) -> ClientConfig:
        """The configuration for `connect`."""
        return ClientConfig("spanner", {"url": self.url})

    def write(self, first: int, count: int) -> None:
        """Write a transaction that inserts or updates `count` rows."""
        with self.database.batch() as batch:
            batch.insert_or_update("items", COLUMNS, [_row(first + number) for number in range(count)])

    def partitions(self) -> list[str]:
        """Return the tokens that the library's own query returns."""
        return [child[0] for record in self.query(None) for part in record[2] for child in part[2]]

    def query(self, token: str | None, start: Any = None, end: Any = None) -> Iterator[Any]:
        """Run the library's change stream query for one partition's records or for the list of partitions."""
        from google.cloud.spanner_v1 import param_types

        sql = (
            f"SELECT ChangeRecord FROM READ_{STREAM}(start_timestamp => @s, end_timestamp => @e, "
            "partition_token => @t, heartbeat_milliseconds => 10000)"
        )
        values = {"s": start or self.start, "e": end, "t": token}
        kinds = {"s": param_types.TIMESTAMP, "e": param_types.TIMESTAMP, "t": param_types.STRING}
        with self.database.snapshot() as snapshot:
            rows = snapshot.execute_sql(sql, params=values, param_types=kinds)
            for row in rows:
                if not self.fields:
                    self.fields.extend(_names_of(rows.fields[0].type_))
                yield from row[0]

    def now(self) -> Any:
        """Return the time of the service's clock."""
        with self.database.snapshot() as snapshot:
            ((moment,),) = snapshot.execute_sql("SELECT CURRENT_TIMESTAMP()")
        return moment


def _names_of(change_record: Any) -> list[str]:
    """Return the names of the fields of a data change record.

    The type of the query's column contains these names.
    """
    data = change_record.array_element_type.struct_type.fields[0].type_
    return [field.name for field in data.array_element_type.struct_type.fields]


@contextmanager
def backlog(size: int, at_once: int) -> Iterator[Backlog]:
    """Start an emulator on its own core, with the given number of inserts in a table.

    Args:
        size: The number of inserts.
        at_once: The number of inserts in each transaction.
    """
    module = server_module("spanner", "emulator")
    with on_server_core():
        server = module.Emulator(module.STILL)
    try:
        columns = ", ".join(f"{name} {'INT64' if name == 'number' else 'STRING(MAX)'}" for name in COLUMNS)
        database = server.database(
            f"CREATE TABLE items ({columns}) PRIMARY KEY (id)",
            f"CREATE CHANGE STREAM {STREAM} FOR items OPTIONS (value_capture_type = 'NEW_ROW')",
        )
        address = ResourceAddress(database.database_id, "items")
        made = Backlog(server.url, address, size, "", None, database)
        start = made.now()
        with connect(made.config) as client:
            token = client.read_changes(ChangeFeedRequest(address, Now())).continuation_token
        made = attrs.evolve(made, token=token, start=start)
        for first in range(0, size, at_once):
            made.write(first, min(at_once, size - first))
        yield made
    finally:
        server.stop()


# -- The scripted server


@attrs.frozen
class Scripted:
    """A scripted server in another process, with one database.

    Attributes:
        url: The connection string.
    """

    url: str
    _host: str
    _pipe: Connection

    def create(self, table: str) -> ResourceAddress:
        """Create an empty table with a change stream."""
        self._ask("create", table)
        return ResourceAddress("shop", table)

    def database(self) -> Any:
        """Return the database as an object of the vendor's library."""
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import spanner

        anybody: Any = AnonymousCredentials
        client: Any = spanner.Client(
            project="tests",
            credentials=anybody(),
            client_options={"api_endpoint": self._host},
            disable_builtin_metrics=True,
        )
        return client.instance("tests").database("shop")

    def queries(self) -> int:
        """Return the number of queries of change streams."""
        return int(self._ask("queries"))

    def _ask(self, method: str, *arguments: Any) -> Any:
        self._pipe.send((method, arguments))
        return self._pipe.recv()


def _serve(pipe: Connection, partitions: int) -> None:
    from multiclouddb_spanner_emulator import Habits, ScriptedSpanner

    database = "projects/tests/instances/tests/databases/shop"
    with ScriptedSpanner(Habits(initial_partitions=partitions)) as server:
        server.create(database)

        def create(table: str) -> None:
            server.execute(
                database,
                f"CREATE TABLE {table} (id STRING(MAX) NOT NULL, text STRING(MAX)) PRIMARY KEY (id)",
                f"CREATE CHANGE STREAM {table}_stream FOR {table} OPTIONS (value_capture_type = 'NEW_ROW')",
            )

        pipe.send(server.host)
        with suppress(EOFError):
            while True:
                name, arguments = pipe.recv()
                if name == "create":
                    create(*arguments)
                pipe.send(len(server.journal.queries()))


@contextmanager
def scripted(partitions: int) -> Iterator[Scripted]:
    """Start a scripted server.

    Args:
        partitions: The number of partitions of each change stream.
    """
    with served(_serve, partitions) as (host, pipe):
        yield Scripted(f"spanner://tests/tests?emulator_host={host}", host, pipe)
