"""Tests that Spark can read a table during writes. Each change comes once, and the sink equals the table."""

import random
import threading

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, ResourceAddress, connect, decode_json

from .servers.emulator import HASTY

pytestmark = [pytest.mark.emulator(*HASTY), pytest.mark.xdist_group("jvm")]


def write(table, count, seed):
    """Write creates, updates and deletes, some of them in transactions."""
    dice = random.Random(seed)
    for number in range(count):
        if number % 10 == 0:
            table.put(*([f"k{dice.randrange(40)}x{each}", number, "t"] for each in range(5)))
        elif dice.random() < 0.2:
            table.delete(f"k{dice.randrange(40)}")
        else:
            table.put([f"k{dice.randrange(40)}", number, None])


def run(spark, table, folder, **options):
    options |= {"url": table.emulator.url, "database": table.database.database_id, "collection": table.name}
    read = spark.readStream.format("multiclouddb").options(**options).load()
    to = read.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    to.trigger(availableNow=True).start(str(folder / "rows")).awaitTermination()


def test_runs_hold_what_the_table_holds(spark, items, tmp_path):
    """Bounded and unbounded runs continue where the previous run stopped."""
    write(items, 50, 0)
    writer = threading.Thread(target=write, args=(items, 150, 1))
    writer.start()
    try:
        run(spark, items, tmp_path)
    finally:
        writer.join()
    run(spark, items, tmp_path, maxRecordsPerTrigger="60")
    write(items, 10, 3)
    run(spark, items, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("order_key").collect()
    assert len(rows) > 200
    request = ChangeFeedRequest(ResourceAddress(items.database.database_id, items.name), Beginning())
    with connect(items.emulator.url) as client:
        events = list(client.iterate_changes(request, until_idle=True))
    assert sorted(row.event_id for row in rows) == sorted(event.event_id for event in events)
    last = {row.key: row for row in rows}
    held = [decode_json(row.new_item_state) for row in last.values() if row.type != "DELETE"]
    with items.database.snapshot() as snapshot:
        there = list(snapshot.execute_sql(f"SELECT id, n, text FROM {items.name} ORDER BY id"))
    assert sorted(([each["id"], each["n"], each["text"]] for each in held), key=lambda row: row[0]) == there
