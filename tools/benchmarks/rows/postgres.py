"""The PostgreSQL sink compared with a bare COPY of the same rows."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from benchmarks.row import Bench, Done, Section, Sides, row
from benchmarks.rows.delta import changes

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

_ROWS: Final = 100_000
_KEYS: Final = 200_000


def by_copy(connection: psycopg.Connection, rows: pa.Table) -> None:
    """Copy the rows of keys into an empty table, as CSV that Arrow has written."""
    import pyarrow as pa
    from pyarrow import csv

    with connection.transaction():
        connection.execute(
            'CREATE TABLE bare (key text COLLATE "C" PRIMARY KEY, timestamp timestamptz, '
            "new_item_state json, order_key text)"
        )
        options = csv.WriteOptions(include_header=False, quoting_style="needed")
        with connection.cursor().copy("COPY bare FROM STDIN (FORMAT csv)") as copy:
            for batch in rows.to_batches(max_chunksize=8192):
                sink = pa.BufferOutputStream()
                csv.write_csv(batch, sink, options)
                copy.write(sink.getvalue().to_pybytes())


@row(
    "postgres-merge",
    Section.TABLES,
    title="Merge into a PostgreSQL table of 200,000 rows",
    question="How fast do changes get into a table of PostgreSQL?",
    unit="rows/s",
    goal=0.1,
    pairs=3,
    about="`merge_into_postgres` merges 100,000 changes into a table with 200,000 rows. The changes belong to"
    " 95,000 keys, one change in ten is a delete, and documents have 300 bytes. The server runs with fsync.",
    against="A bare COPY of the same last changes into an empty table with a primary key: no merge, no old"
    " rows.",
)
def postgres_merge(bench: Bench) -> Iterator[Sides]:
    """This row merges many scattered changes."""
    import psycopg
    import pyarrow as pa

    from multiclouddb_postgres import merge_into_postgres
    from pyspark_multiclouddb import latest_by_key
    from testing.postgres_server import PostgresServer

    def documents(table: pa.Table) -> pa.Table:
        at = table.column_names.index("new_item_state")
        quoted = [
            None if each is None else f'{{"x":"{each}"}}' for each in table["new_item_state"].to_pylist()
        ]
        return table.set_column(at, "new_item_state", pa.array(quoted, pa.string()))

    size, keys = bench.size(_ROWS), bench.size(_KEYS)
    with (
        PostgresServer("fsync=on", "shared_buffers=256MB") as server,
        psycopg.connect(server.dsn) as connection,
    ):
        first = documents(changes(list(range(keys)), 0))
        merge_into_postgres(first, None, server.dsn, "first", None)
        numbers = random.Random(1).sample(range(keys), round(size * 0.95))
        batch = documents(changes([*numbers, *numbers[: size - len(numbers)]], 1_000_000))
        latest = latest_by_key(batch).select(["key", "timestamp", "new_item_state", "order_key"])

        def ours() -> Done:
            with connection.transaction():
                connection.execute("DROP TABLE IF EXISTS orders")
                connection.execute("CREATE TABLE orders (LIKE first INCLUDING ALL)")
                connection.execute("INSERT INTO orders SELECT * FROM first")
            began, cpu, server_cpu = time.perf_counter(), time.process_time(), server.cpu_seconds()
            merge_into_postgres(batch, 0, server.dsn, "orders", "bench")
            seconds, client = time.perf_counter() - began, time.process_time() - cpu
            spent = server.cpu_seconds() - server_cpu
            again = server.cpu_seconds()
            merge_into_postgres(batch, None, server.dsn, "orders", None)
            notes = {"client CPU s": client, "server CPU s": spent}
            notes["server CPU s of a replay"] = server.cpu_seconds() - again
            return Done(size, seconds=seconds, notes=notes)

        def bare() -> Done:
            connection.execute("DROP TABLE IF EXISTS bare")
            connection.commit()
            began = time.perf_counter()
            by_copy(connection, latest)
            return Done(size, seconds=time.perf_counter() - began)

        yield Sides(ours, bare)
