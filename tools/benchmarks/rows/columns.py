"""The sinks with ten declared columns compared with the same sinks with JSON text."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from benchmarks.row import Bench, Done, Section, Side, Sides, row

if TYPE_CHECKING:
    from multiclouddb_api import ChangeFeedPage
    from multiclouddb_tables import Columns

_ROWS: Final = 10_000
_COLUMNS: Final[Mapping[str, Any]] = {
    "customer": "string",
    "status": "string",
    "city": {"path": ["address", "city"], "type": "string"},
    "total": "decimal(12,2)",
    "number": "int64",
    "weight": "double",
    "is_paid": "boolean",
    "at": "timestamp",
    "day": "date",
    "tags": "json",
}
_FIRST: Final = datetime(2026, 1, 1, tzinfo=UTC)

_Sink = Callable[..., object]


def document(number: int) -> dict[str, Any]:
    """Return a document with a value for each column."""
    return {
        "customer": f"customer {number % 997}",
        "status": "open" if number % 3 else "sent",
        "address": {"city": f"city {number % 50}", "street": f"street {number}"},
        "total": Decimal(number) / 100,
        "number": number,
        "weight": number / 3,
        "is_paid": number % 2 == 0,
        "at": _FIRST + timedelta(seconds=number),
        "day": "2026-01-31",
        "tags": ["new", {"since": number}],
    }


def page_of(count: int) -> ChangeFeedPage:
    """Return a page with one change of each of the keys."""
    from multiclouddb_api import ChangeEvent, ChangeFeedPage, ChangeType, MulticloudDbKey, ResourceAddress
    from multiclouddb_spi import encode_partition_id

    address = ResourceAddress("bench", "orders")
    partition = encode_partition_id("embedded", address, None, "p0")
    events = (
        ChangeEvent(
            f"e{number}", MulticloudDbKey({"id": f"k{number}"}), ChangeType.UPDATE, _FIRST,
            document(number), None, f"{number:020d}", None, False, address, partition,
        )
        for number in range(count)
    )  # fmt: skip
    return ChangeFeedPage(tuple(events), "")


@row(
    "declared-columns",
    Section.TABLES,
    title="A page of 10,000 documents into ten declared columns",
    question="What do columns with types cost?",
    unit="rows/s",
    goal=0.5,
    about="A page of 10,000 documents is merged into new tables of SQLite, Delta and PostgreSQL, one after "
    "the other, with `columns=` of ten columns. The documents are stored too.",
    against="The same sinks with the same page, without `columns=`.",
)
def declared_columns(bench: Bench) -> Iterator[Sides]:
    """This row merges one page into three tables."""
    from multiclouddb_postgres import merge_into_postgres
    from multiclouddb_tables import Columns
    from multiclouddb_tables.sqlite import merge_into_sqlite
    from pyspark_multiclouddb import merge_into_delta
    from testing.postgres_server import PostgresServer

    page, folder = page_of(bench.size(_ROWS)), bench.folder / "tables"
    with PostgresServer() as server:
        sinks: dict[str, _Sink] = {
            "SQLite": lambda name, **more: merge_into_sqlite(
                page, None, folder / "shop.db", name, None, source=_SOURCE, **more
            ),
            "Delta": lambda name, **more: merge_into_delta(
                page, None, folder / name, None, source=_SOURCE, **more
            ),
            "PostgreSQL": lambda name, **more: merge_into_postgres(
                page, None, server.dsn, name, None, source=_SOURCE, **more
            ),
        }
        declared = Columns(_COLUMNS)
        yield Sides(
            _timed(bench, sinks, len(page.events), declared),
            _timed(bench, sinks, len(page.events), None),
        )


_SOURCE: Final = "embedded:bench/orders"


def _timed(bench: Bench, sinks: Mapping[str, _Sink], count: int, columns: Columns | None) -> Side:
    """Merge into a new table of each kind; what is there is removed before the time begins."""
    runs = iter(range(1_000_000))

    def run() -> Done:
        folder, name = bench.folder / "tables", f"{'text' if columns is None else 'columns'}_{next(runs)}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        notes, spent = dict[str, float](), 0.0
        for kind, merge in sinks.items():
            began = time.perf_counter()
            merge(name, **({} if columns is None else {"columns": columns}))
            seconds = time.perf_counter() - began
            notes[f"{kind} rows/s"] = count / seconds
            spent += seconds
        return Done(count * len(sinks), seconds=spent, notes=notes)

    return run
