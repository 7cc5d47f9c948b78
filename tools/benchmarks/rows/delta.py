"""The Delta sink compared with deltalake's own merge."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.row import Bench, Done, Section, Side, Sides, row

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 100_000
_KEYS: Final = 200_000
_ABOUT: Final = (
    "`merge_into_delta` merges 100,000 changes into a table with 200,000 rows. The changes belong to"
    " 95,000 keys, one change in ten is a delete, and documents have 300 bytes. The time for "
    "copying the table before each run is not counted."
)
_COSTS: Final = (
    "Measured by hand: the baseline's rows have unique keys, and it merges them as they are. The sink "
    "looks for the last change of each key and copies the rows that count, with kernels of Arrow that run on "
    "one core. Another search was tried, and the ratio did not change."
)
_AGAINST: Final = (
    "deltalake's own merge of the last change of each key. The last changes are found before the "
    "measurement starts. The merge is an upsert without a condition and without tombstones."
)


def changes(numbers: list[int], order: int) -> pa.Table:
    """Return one change for each of the given keys."""
    import pyarrow as pa

    from multiclouddb_api import ResourceAddress
    from multiclouddb_api.arrow import EVENT_SCHEMA
    from multiclouddb_spi import encode_partition_id

    count = len(numbers)
    types = ["DELETE" if place % 10 == 9 and order else "UPDATE" for place in range(count)]
    values = {
        "event_id": [f"e{order + place}" for place in range(count)],
        "type": types,
        "key": [f'{{"id":"k{number:09d}"}}' for number in numbers],
        "timestamp": [1_700_000_000_000_000] * count,
        "new_item_state": [None if kind == "DELETE" else "x" * 300 for kind in types],
        "order_key": [f"{order + place:020d}" for place in range(count)],
        "backfilled": [False] * count,
        "database": ["bench"] * count,
        "collection": ["orders"] * count,
        "partition_id": [encode_partition_id("embedded", ResourceAddress("bench", "orders"), None, "p0")]
        * count,
    }
    return pa.table(
        [pa.array(values.get(field.name, [None] * count), field.type) for field in EVENT_SCHEMA],
        schema=EVENT_SCHEMA,
    )


def by_sink(path: Path, batch: pa.Table) -> None:
    """Merge with the library's sink."""
    from pyspark_multiclouddb import merge_into_delta

    merge_into_delta(batch, 0, path, "bench")


def by_deltalake(path: Path, latest: pa.Table) -> None:
    """Upsert rows without duplicates with deltalake's own merge."""
    from deltalake import DeltaTable

    merger = DeltaTable(path).merge(latest, "s.key = t.key", source_alias="s", target_alias="t")
    columns = {name: f"s.{name}" for name in latest.column_names}
    merger.when_matched_update(columns).when_not_matched_insert(columns).execute()


@row(
    "delta-merge",
    Section.TABLES,
    title="Merge into a Delta table of 200,000 rows",
    question="How fast do changes get into a Delta table?",
    unit="rows/s",
    goal=0.95,
    about=_ABOUT,
    against=_AGAINST,
    reason=_COSTS,
)
def delta_merge(bench: Bench) -> Iterator[Sides]:
    """This row merges many changes into a small table."""
    from pyspark_multiclouddb import latest_by_key, merge_into_delta

    table, size, keys = bench.folder / "table", bench.size(_ROWS), bench.size(_KEYS)
    merge_into_delta(changes(list(range(keys)), 0), None, table, None)
    dice = random.Random(1)
    numbers = dice.sample(range(keys), round(size * 0.95))
    batch = changes([*numbers, *dice.sample(numbers, size - len(numbers))], 1_000_000)
    latest = latest_by_key(batch).select(["key", "timestamp", "new_item_state", "order_key"])
    yield Sides(
        _timed(bench, table, size, lambda path: by_sink(path, batch)),
        _timed(bench, table, size, lambda path: by_deltalake(path, latest)),
    )


def _timed(bench: Bench, table: Path, size: int, merge: Callable[[Path], Any]) -> Side:
    """Merge into a fresh copy of the table; copying is not timed."""

    def run() -> Done:
        copy = bench.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(table, copy)
        began = time.perf_counter()
        merge(copy)
        return Done(size, seconds=time.perf_counter() - began)

    return run
