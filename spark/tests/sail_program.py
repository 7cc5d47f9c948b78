"""Merges batches into a real table on Sail, and compares it with the table of `merge_into_delta`.

    python sail_program.py PORT FOLDER delta|iceberg

`test_table_places.py` runs it.
"""

import os
import random
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    ResourceAddress,
    connect,
    decode_json,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import applied, drawn, rows
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_tables.layout import state_of
from pyspark_multiclouddb import (
    DefaultSource,
    TableTarget,
    drop_tombstones,
    merge_into_delta,
    merge_into_table,
)

PORT, FOLDER, KIND = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
COLUMNS = ["event_id", "key", "type", "order_key", "timestamp", "new_item_state", "backfilled"]
COLUMNS += ["partition_id", "database", "collection"]
BATCHES = 6


def opened():
    made = []

    def answers():
        try:
            made.append(SparkSession.builder.remote(f"sc://127.0.0.1:{PORT}").getOrCreate())
            return made[-1].range(1).count() == 1
        except Exception:  # noqa: BLE001 - the client raises several kinds
            return False

    wait_until(answers, seconds=120)
    made[-1].conf.set("spark.sql.session.timeZone", "UTC")
    return made[-1]


def check_source(spark):
    """The source reads the same events as the client."""
    with EmbeddedStore(FOLDER / "shop.db", durable=False) as store:
        store.create_collection("orders", partitions=2)
        for number in range(50):
            store.put("orders", f"k{number % 20}", {"n": number})
        spark.dataSource.register(DefaultSource)
        read = spark.read.format("multiclouddb").option("url", f"embedded://{store.path}")
        found = read.option("collection", "orders").load().select("event_id").toPandas()["event_id"]
        request = ChangeFeedRequest(ResourceAddress("main", "orders"), Beginning())
        with connect(f"embedded://{store.path}") as client:
            events = [event.event_id for event in client.iterate_changes(request, until_idle=True)]
    assert sorted(found) == sorted(events)
    assert len(events) == 50


def check_empty_partition(spark):
    """Delta stores null for an empty text by which a table is partitioned, so it is refused."""
    columns = "key STRING, order_key STRING, timestamp TIMESTAMP, new_item_state STRING, "
    columns += "_deleted_at TIMESTAMP, country STRING"
    place = f"LOCATION 'file://{FOLDER / 'parts'}'"
    spark.sql(f"CREATE TABLE parts ({columns}) USING {KIND} PARTITIONED BY (country) {place}")
    batch = rows(("a", 1, {}), ("b", 1, {})).select(COLUMNS).append_column("country", pa.array(["DE", ""]))
    merge = partial(merge_into_table, spark.createDataFrame(batch), 0, "parts")
    if KIND == "delta":
        refusal(ErrorCategory.INVALID_REQUEST, merge, "column country: has an empty text")
    else:
        assert merge()
        assert {row[0] for row in spark.sql("SELECT country FROM parts").collect()} == {"DE", ""}


def check_times(spark):
    """Times inside of a value are read as instants, in a zone that has an hour twice too."""
    late = datetime(2026, 11, 1, 6, 30, tzinfo=UTC)
    columns = "key STRING, order_key STRING, timestamp TIMESTAMP, new_item_state STRING, "
    columns += "_deleted_at TIMESTAMP, times ARRAY<TIMESTAMP>, by_name MAP<STRING, STRUCT<at: TIMESTAMP>>"
    spark.sql(f"CREATE TABLE times ({columns}) USING {KIND} LOCATION 'file://{FOLDER / 'times'}'")
    value = f"TIMESTAMP'{late.isoformat()}'"
    by_name = f"map('a', named_struct('at', {value}), 'b', CAST(NULL AS STRUCT<at: TIMESTAMP>))"
    spark.sql(f"INSERT INTO times VALUES ('k', '1', NULL, '{{}}', NULL, array({value}, NULL), {by_name})")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    wanted = {"times": [late, None], "by_name": {"a": {"at": late}, "b": None}}
    target = TableTarget(spark, "times")
    [found] = [row for part in target.rows(own=wanted) for row in part.to_pylist()]
    assert decode_json(found["state"]) == decode_json(state_of(wanted, target.columns())), found


def state(table):
    """Return what a table contains, but for the times of deletes."""
    return {
        (row["key"], row["order_key"], row["new_item_state"], row["_deleted_at"] is not None)
        for row in table.to_pylist()
    }


def main():
    spark = opened()
    place = FOLDER / "table"
    columns = (
        "key STRING, order_key STRING, timestamp TIMESTAMP, new_item_state STRING, _deleted_at TIMESTAMP"
    )
    spark.sql(f"CREATE TABLE orders ({columns}) USING {KIND} LOCATION 'file://{place}'")
    dice, changes = random.Random(1), []
    for number in range(BATCHES):
        found = drawn(dice, number * 200, 200, keys=100)
        changes += found
        dice.shuffle(found)
        batch = rows(*found).select(COLUMNS)
        merge_into_delta(batch, None, FOLDER / "ours", None)
        for _ in range(2):
            assert merge_into_table(spark.createDataFrame(batch), number, "orders")
    older = rows(*((f"k{number}", 0, {"old": True}) for number in range(100))).select(COLUMNS)
    merge_into_table(spark.createDataFrame(older), BATCHES, "orders")
    ours = state(DeltaTable(FOLDER / "ours").to_pyarrow_dataset().scanner(use_threads=False).to_table())
    assert len([row for row in ours if not row[3]]) == len(applied(changes)[0])

    def theirs():
        if KIND == "delta":
            return DeltaTable(place).to_pyarrow_dataset().scanner(use_threads=False).to_table()
        return pa.Table.from_pandas(spark.table("orders").toPandas())

    assert state(theirs()) == ours
    assert drop_tombstones("orders", timedelta(0), spark=spark) == len([row for row in ours if row[3]])
    assert state(theirs()) == {row for row in ours if not row[3]}
    check_source(spark)
    check_empty_partition(spark)
    check_times(spark)


if __name__ == "__main__":
    main()
