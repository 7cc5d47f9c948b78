"""A first copy of a collection into a table, compared with a program that keeps no position."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import orjson

from benchmarks.mongo import ADDRESS, Backlog, backlog
from benchmarks.row import Bench, Done, Section, Sides, row
from benchmarks.rows.postgres import by_copy
from multiclouddb_api import connect
from multiclouddb_mirror import mirror

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 1_000_000
_SOURCE: Final = (
    "The figure is the time until 1,000,000 documents of 300 bytes of a MongoDB collection are in a new "
    "table, by the first run of `mirror`."
)
_BARE_DELTA: Final = (
    "PyMongo's `find`, `orjson`, and deltalake's `write_deltalake` of all rows at once, without a merge and "
    "without a position."
)


def _mirrored(rows: Backlog, target: str, **settings: Any) -> None:
    """Copy the collection into a table, by the first run of a mirror."""
    with connect(rows.config) as client:
        report = mirror(client, ADDRESS, target, **settings)
    if report.began != "snapshot" or not report.caught_up:
        raise ValueError("the table was not copied to its end")


def _bare_rows(rows: Backlog) -> pa.Table:
    """Read the same rows with PyMongo: the key, and the document as JSON text."""
    import pyarrow as pa

    with rows.client() as client:
        found = list(client[ADDRESS.database][ADDRESS.collection].find())
    keys = [f'{{"_id":"{each["_id"]}"}}' for each in found]
    empty = pa.array([None] * len(keys), pa.timestamp("us", "UTC"))
    documents = [orjson.dumps(each).decode() for each in found]
    return pa.table(
        {
            "key": keys,
            "timestamp": empty,
            "new_item_state": documents,
            "order_key": pa.array([""] * len(keys), pa.string()),
        }
    )


def _timed(count: int, copy: Callable[[], int]) -> Done:
    began = time.perf_counter()
    written = copy()
    seconds = time.perf_counter() - began
    if written != count:
        raise ValueError(f"the table has {written:,} of {count:,} rows")
    return Done(count, value=seconds, seconds=seconds)


def _into_delta(bench: Bench, rows: Backlog, **settings: Any) -> Sides:
    from deltalake import DeltaTable, write_deltalake

    table = bench.folder / "table"

    def fresh(write: Callable[[], object]) -> Done:
        shutil.rmtree(table, ignore_errors=True)

        def copy() -> int:
            write()
            return int(DeltaTable(table).to_pyarrow_dataset().count_rows())

        return _timed(rows.size, copy)

    return Sides(
        lambda: fresh(lambda: _mirrored(rows, f"delta:{table}", **settings)),
        lambda: fresh(lambda: write_deltalake(table, _bare_rows(rows))),
    )


@row(
    "copy-delta",
    Section.TABLES,
    title="First copy of 1,000,000 documents into Delta",
    question="How long does a first copy into Delta take?",
    unit="s",
    goal=12,
    at_most=True,
    pairs=1,
    warm_up=False,
    about=_SOURCE,
    against=_BARE_DELTA,
)
def copy_delta(bench: Bench) -> Iterator[Sides]:
    """Measure the first run of a mirror, which reads and merges every row."""
    with backlog(bench.folder / "mongod", bench.size(_ROWS)) as rows:
        yield _into_delta(bench, rows)


@row(
    "copy-spark",
    Section.TABLES,
    title="First copy of 1,000,000 documents into Delta by Spark",
    question="How long does a first copy take with `--spark`?",
    unit="s",
    goal=12,
    at_most=True,
    pairs=1,
    warm_up=False,
    about=f"{_SOURCE} Spark reads, on the same two cores; its session runs already.",
    against=_BARE_DELTA,
)
def copy_spark(bench: Bench) -> Iterator[Sides]:
    """Measure the first run of a mirror whose collection is read by Spark."""
    from pyspark_multiclouddb import local_session

    with (
        backlog(bench.folder / "mongod", bench.size(_ROWS)) as rows,
        local_session("benchmarks") as session,
    ):
        session.range(1).count()
        yield _into_delta(bench, rows, spark=session)


@row(
    "copy-postgres",
    Section.TABLES,
    title="First copy of 1,000,000 documents into PostgreSQL",
    question="How long does a first copy into PostgreSQL take?",
    unit="s",
    goal=8,
    at_most=True,
    pairs=1,
    warm_up=False,
    about=f"{_SOURCE} The server runs with fsync.",
    against="PyMongo's `find`, `orjson`, and one `COPY` into an empty table with a primary key: no merge, no"
    " position.",
)
def copy_postgres(bench: Bench) -> Iterator[Sides]:
    """Measure the first run of a mirror, which reads and merges every row."""
    import psycopg

    from testing.postgres_server import PostgresServer

    with (
        backlog(bench.folder / "mongod", bench.size(_ROWS)) as rows,
        PostgresServer("fsync=on", "shared_buffers=256MB") as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):

        def fresh(table: str, write: Callable[[], object]) -> Done:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")

            def copy() -> int:
                write()
                found: Any = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
                return int(found[0])

            return _timed(rows.size, copy)

        yield Sides(
            lambda: fresh("mirror", lambda: _mirrored(rows, f"postgres:{server.dsn}#mirror")),
            lambda: fresh("bare", lambda: by_copy(connection, _bare_rows(rows))),
        )
