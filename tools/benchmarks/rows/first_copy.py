"""A first copy of a collection into a table, compared with a program that keeps no position."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import orjson

from benchmarks.mongo import ADDRESS, Backlog, backlog
from benchmarks.row import Bench, Done, Section, Sides, row
from benchmarks.rows.postgres import by_copy
from multiclouddb_api import BackfillDone, ChangeFeedPage, ChangeFeedRequest, Snapshot, connect

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 100_000
_PAGE: Final = 50_000
_SOURCE: Final = (
    "The figure is the time until 100,000 documents of 300 bytes of a MongoDB collection are in a new table: "
    "`iterate_changes` with `Snapshot()`, as in the job *Mirror a table nightly*."
)


def _copied(rows: Backlog, merge: Callable[[ChangeFeedPage], Any]) -> None:
    """Scan the collection, and merge its pages."""
    done = False
    request = ChangeFeedRequest(ADDRESS, Snapshot(), max_page_size=_PAGE)
    with (
        connect(rows.config) as client,
        closing(client.iterate_changes(request, until_idle=True)) as changes,
    ):
        for page in changes.pages():
            merge(page)
            done = done or any(isinstance(notice, BackfillDone) for notice in page.notices)
    if not done:
        raise ValueError("the scan has not ended")


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


@row(
    "copy-delta",
    Section.TABLES,
    title="First copy of 100,000 documents into Delta",
    question="How long does a first copy into Delta take?",
    unit="s",
    goal=12,
    at_most=True,
    pairs=3,
    about=_SOURCE,
    against="PyMongo's `find`, `orjson`, and deltalake's `write_deltalake` of all rows at once: no merge, no"
    " position.",
)
def copy_delta(bench: Bench) -> Iterator[Sides]:
    """Measure the first run of a mirror, which reads and merges every row."""
    from deltalake import DeltaTable, write_deltalake

    from pyspark_multiclouddb import merge_into_delta

    table = bench.folder / "table"
    with backlog(bench.folder / "mongod", bench.size(_ROWS)) as rows:

        def ours() -> int:
            _copied(rows, lambda page: merge_into_delta(page, None, table, None, missing_state="keep"))
            return int(DeltaTable(table).to_pyarrow_dataset().count_rows())

        def bare() -> int:
            write_deltalake(table, _bare_rows(rows))
            return int(DeltaTable(table).to_pyarrow_dataset().count_rows())

        def fresh(copy: Callable[[], int]) -> Done:
            shutil.rmtree(table, ignore_errors=True)
            return _timed(rows.size, copy)

        yield Sides(lambda: fresh(ours), lambda: fresh(bare))


@row(
    "copy-postgres",
    Section.TABLES,
    title="First copy of 100,000 documents into PostgreSQL",
    question="How long does a first copy into PostgreSQL take?",
    unit="s",
    goal=8,
    at_most=True,
    pairs=3,
    about=f"{_SOURCE} The server runs with fsync.",
    against="PyMongo's `find`, `orjson`, and one `COPY` into an empty table with a primary key: no merge, no"
    " position.",
)
def copy_postgres(bench: Bench) -> Iterator[Sides]:
    """Measure the first run of a mirror, which reads and merges every row."""
    import psycopg

    from multiclouddb_postgres import merge_into_postgres
    from testing.postgres_server import PostgresServer

    with (
        backlog(bench.folder / "mongod", bench.size(_ROWS)) as rows,
        PostgresServer("fsync=on", "shared_buffers=256MB") as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):

        def ours() -> int:
            _copied(
                rows,
                lambda page: merge_into_postgres(
                    page, None, server.dsn, "mirror", None, missing_state="keep"
                ),
            )
            return counted("mirror")

        def bare() -> int:
            by_copy(connection, _bare_rows(rows))
            return counted("bare")

        def counted(table: str) -> int:
            found: Any = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            return int(found[0])

        def fresh(copy: Callable[[], int]) -> Done:
            connection.execute("DROP TABLE IF EXISTS bare, mirror")
            return _timed(rows.size, copy)

        yield Sides(lambda: fresh(ours), lambda: fresh(bare))
