"""Tests that Spark reads a table during writes: each change comes once, and the sink equals the table."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, ResourceAddress, connect, decode_json

from .servers.emulator import HASTY

pytestmark = pytest.mark.emulator(*HASTY)

BOUND = {"maxRecordsPerTrigger": "60"}


def write(table, count, seed=0):
    """Write creates, updates and deletes, some of them in transactions."""
    dice = random.Random(seed)
    for number in range(count):
        if number % 10 == 0:
            table.put(*([f"k{dice.randrange(40)}x{each}", number, "t"] for each in range(5)))
        elif dice.random() < 0.2:
            table.delete(f"k{dice.randrange(40)}")
        else:
            table.put([f"k{dice.randrange(40)}", number, None])


def options_of(table, **options):
    return options | {
        "url": table.emulator.url, "database": table.database.database_id, "collection": table.name,
    }  # fmt: skip


def run(spark, table, folder, **options):
    """Run a query that ends by itself. The next query continues where the previous query stopped."""
    query = (
        spark.readStream.format("multiclouddb")
        .options(**options_of(table, **options))
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def check(spark, table, folder):
    """Check that the sink contains each change once, and that each key's last change equals its row."""
    rows = spark.read.parquet(str(folder / "rows")).orderBy("order_key").collect()
    here = ResourceAddress(table.database.database_id, table.name)
    with connect(table.emulator.url) as client:
        events = list(client.iterate_changes(ChangeFeedRequest(here, Beginning()), until_idle=True))
    assert sorted(row.event_id for row in rows) == sorted(event.event_id for event in events)
    last = {row.key: row for row in rows}
    held = [decode_json(row.new_item_state) for row in last.values() if row.type != "DELETE"]
    with table.database.snapshot() as snapshot:
        there = list(snapshot.execute_sql(f"SELECT id, n, text FROM {table.name} ORDER BY id"))
    assert sorted(([each["id"], each["n"], each["text"]] for each in held), key=lambda row: row[0]) == there
    return rows


def test_runs_hold_what_the_table_holds(spark, items, tmp_path):
    """Bounded and unbounded runs continue where the previous run stopped."""
    write(items, 50)
    writer = threading.Thread(target=write, args=(items, 150, 1))
    writer.start()
    try:
        run(spark, items, tmp_path)
    finally:
        writer.join()
    run(spark, items, tmp_path, **BOUND)
    write(items, 10, 3)
    run(spark, items, tmp_path)
    assert len(check(spark, items, tmp_path)) > 200


def test_a_batch_holds_what_was_written(spark, items):
    write(items, 50)
    rows = spark.read.format("multiclouddb").options(**options_of(items)).load().collect()
    here = ResourceAddress(items.database.database_id, items.name)
    with connect(items.emulator.url) as client:
        events = list(client.iterate_changes(ChangeFeedRequest(here, Beginning()), until_idle=True))
    assert sorted(row.event_id for row in rows) == sorted(event.event_id for event in events)


LIFE = """
import sys
from pyspark_multiclouddb import local_session
url, database, collection, folder = sys.argv[1:]
spark = local_session("killed", **{"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
query = (
    spark.readStream.format("multiclouddb")
    .options(url=url, database=database, collection=collection, maxRecordsPerTrigger="20").load()
    .writeStream.format("parquet").option("path", folder + "/rows")
    .option("checkpointLocation", folder + "/checkpoint").start()
)
query.awaitTermination()
"""


def test_a_query_that_is_killed_is_made_good_by_the_next(spark, items, tmp_path):
    write(items, 100)
    options = options_of(items)
    command = [sys.executable, "-c", LIFE, *(options[name] for name in ("url", "database", "collection"))]
    life = subprocess.Popen(
        [*command, str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 120
    while len(list((tmp_path / "rows").glob("*.parquet"))) < 2:
        assert time.monotonic() < until
        assert life.poll() is None
        time.sleep(0.05)
    os.killpg(life.pid, signal.SIGKILL)
    life.wait()
    write(items, 30, 2)
    run(spark, items, tmp_path)
    check(spark, items, tmp_path)
