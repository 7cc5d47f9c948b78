"""The Spark data source compared with DataFrames that are made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.row import Bench, Done, Section, Sides, row
from benchmarks.stores import ADDRESS, fill, pages, url
from multiclouddb_api import connect, encode_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EVENTS: Final = 50_000
_COLUMNS: Final = (
    "event_id STRING, type STRING, key STRING, timestamp TIMESTAMP, new_item_state STRING, order_key STRING, "
    "partition_id STRING"
)
_SETTINGS: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


def job(frame: DataFrame) -> tuple[int, int]:
    """Do the work for each DataFrame: count the rows, and compute the checksum of their ids."""
    from pyspark.sql import functions

    found = frame.agg(functions.count("*"), functions.sum(functions.crc32("event_id")))
    rows, total = found.collect()[0]
    return rows, total or 0


def by_hand(spark: SparkSession, path: Path) -> Done:
    """Read pages of 1,000 events as dicts, with one DataFrame and one job for each page."""
    count = total = 0
    with connect(url(path)) as client:
        for page in pages(client.read_changes, ADDRESS, max_page_size=1000):
            dicts = [
                {
                    "event_id": event.event_id,
                    "type": event.type.value,
                    "key": encode_json(event.key.components).decode(),
                    "timestamp": event.timestamp,
                    "new_item_state": encode_json(event.new_item_state).decode(),
                    "order_key": event.order_key,
                    "partition_id": event.partition_id,
                }
                for event in page.events
            ]
            if dicts:
                rows, ids = job(spark.createDataFrame(dicts, schema=_COLUMNS))
                count, total = count + rows, total + ids
    return Done(count, total)


def by_data_source(spark: SparkSession, path: Path) -> Done:
    """Read everything with one DataFrame and one job."""
    source = spark.read.format("multiclouddb").option("url", url(path))
    rows, ids = job(source.option("collection", str(ADDRESS.collection)).load())
    return Done(rows, ids)


@row(
    "spark",
    Section.RATES,
    title="Spark data source",
    question="How many rows a second does Spark read?",
    unit="rows/s",
    goal=10,
    pairs=3,
    about=(
        "`spark.read.format('multiclouddb')` reads 50,000 events of the embedded store with "
        "documents of 300 bytes and aggregates them, in a local session."
    ),
    against=(
        "A loop that calls `createDataFrame` with event dicts and a given schema. The loop makes "
        "one DataFrame and one job for each page of 1,000 events."
    ),
)
def spark(bench: Bench) -> Iterator[Sides]:
    """In this row, both sides run the same job over the same events."""
    from pyspark_multiclouddb import local_session

    path = bench.folder / "store.db"
    fill(path, bench.size(_EVENTS))
    with local_session("benchmarks", **_SETTINGS) as session:
        yield Sides(lambda: by_data_source(session, path), lambda: by_hand(session, path))
