"""The sink for tables that Spark merges, compared with the bare statement."""

from __future__ import annotations

import os
import random
import runpy
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.row import Bench, Done, Section, Side, Sides, row
from benchmarks.rows.delta import changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS: Final = 100_000
_KEYS: Final = 200_000
_CATALOG: Final = Path(__file__).parents[3] / "spark" / "tests" / "scala_catalog.py"


def by_sink(spark: SparkSession, batch: DataFrame, latest: DataFrame, table: str) -> None:
    """Merge the batch with the sink."""
    del spark, latest
    from pyspark_multiclouddb import merge_into_table

    merge_into_table(batch, 0, table)


def by_statement(spark: SparkSession, batch: DataFrame, latest: DataFrame, table: str) -> None:
    """Merge the last changes, which have been found before, with one statement."""
    del batch
    latest.createOrReplaceTempView("changes")
    spark.sql(f"""
        MERGE INTO {table} AS t USING changes AS s ON t.key = s.key
        WHEN MATCHED AND s.order_key > t.order_key THEN UPDATE SET *
        WHEN NOT MATCHED THEN INSERT *
    """)


@row(
    "table-merge",
    Section.TABLES,
    title="Merge by Spark into a table of 200,000 rows",
    question="How fast do changes get into a table that Spark merges?",
    unit="rows/s",
    goal=0.4,
    pairs=3,
    about="`merge_into_table` merges 100,000 changes into a table with 200,000 rows, in a local session. The"
    " changes belong to 95,000 keys, one change in ten is a delete, and documents have 300 bytes."
    " The table is one of the tests' catalog, which rewrites all rows.",
    against="One `MERGE INTO` of the last change of each key, which was found before the measurement.",
)
def table_merge(bench: Bench) -> Iterator[Sides]:
    """In this row, both sides merge the same rows into copies of one table."""
    os.environ["SPARK_DIST_CLASSPATH"] = str(runpy.run_path(str(_CATALOG))["catalog_jar"]())
    from pyspark_multiclouddb import latest_by_key, local_session, merge_into_table

    size, keys = bench.size(_ROWS), bench.size(_KEYS)
    settings = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.catalog.lake": "multiclouddb.test.Catalog",
        "spark.sql.catalog.lake.root": str(bench.folder),
    }
    with local_session("benchmarks", **settings) as session:
        merge_into_table(
            session.createDataFrame(changes(list(range(keys)), 0)), 0, "lake.shop.first", create_using="files"
        )
        numbers = random.Random(1).sample(range(keys), round(size * 0.95))
        made = changes([*numbers, *numbers[: size - len(numbers)]], 1_000_000)
        batch = session.createDataFrame(made).cache()
        deleted = "CASE WHEN type = 'DELETE' THEN current_timestamp() END AS _deleted_at"
        latest = latest_by_key(batch).selectExpr("key", "timestamp", "new_item_state", "order_key", deleted)
        latest = latest.cache()
        batch.count()
        latest.count()
        copies = 0

        def side(merge: Callable[..., None]) -> Side:
            def run() -> Done:
                nonlocal copies
                copies += 1
                table = f"lake.shop.copy{copies}"
                folder = bench.folder / "shop"
                shutil.copytree(folder / "first", folder / f"copy{copies}")
                began = time.perf_counter()
                merge(session, batch, latest, table)
                return Done(size, seconds=time.perf_counter() - began)

            return run

        yield Sides(side(by_sink), side(by_statement))
