"""Tests that Spark can read a container during writes, and that the sink equals the source at the end."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from azure.cosmos.exceptions import CosmosResourceNotFoundError
from pyspark.errors import StreamingQueryException

from multiclouddb_api import decode_json

from .world import DATABASE, NAME


def write(world, count, seed=0):
    """Write creates, updates and deletes, and split a partition."""
    dice = random.Random(seed)
    for number in range(count):
        key = f"k{dice.randrange(40)}"
        if dice.random() < 0.2:
            try:
                world.container.delete_item("1", key)
            except CosmosResourceNotFoundError:
                continue
        else:
            world.container.upsert_item({"id": "1", "pk": key, "n": number, "seed": seed})
        if number == count // 2:
            world.split(world.partitions()[0]["id"])


def options_of(world, **options):
    url = world.config().connection["url"]
    return {"startingPosition": "now", **options, "url": str(url), "database": DATABASE, "collection": NAME}


def run(spark, world, folder, **options):
    """Run a query that ends by itself. The query continues where the previous query stopped."""
    query = (
        spark.readStream.format("multiclouddb")
        .options(**options_of(world, **options))
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def check(spark, world, folder):
    """Check that the sink contains each change once, and that each key's last change equals the item."""
    rows = spark.read.parquet(str(folder / "rows")).orderBy("order_key").collect()
    check_rows(world, rows)
    return rows


def check_rows(world, rows):
    """Make the checks of `check` for rows that are already in order."""
    assert len({row.event_id for row in rows}) == len(rows)
    last = {row.key: row for row in rows}
    held = [decode_json(row.new_item_state) for row in last.values() if row.type != "DELETE"]
    there = [[each["pk"], each["n"], each["seed"]] for each in world.container.read_all_items()]
    assert sorted([each["pk"], each["n"], each["seed"]] for each in held) == sorted(there)


def test_runs_hold_what_the_container_holds(spark, world, tmp_path):
    """Bounded and unbounded runs continue where the previous run stopped, even through splits."""
    run(spark, world, tmp_path)
    write(world, 60)
    writer = threading.Thread(target=write, args=(world, 100, 1))
    writer.start()
    try:
        run(spark, world, tmp_path)
    finally:
        writer.join()
    run(spark, world, tmp_path, maxRecordsPerTrigger="60")
    write(world, 10, 3)
    run(spark, world, tmp_path)
    assert len(check(spark, world, tmp_path)) > 100


def test_a_snapshot_is_followed_by_the_changes(spark, world, tmp_path):
    """The existing items come first, then every change, even through a split."""
    write(world, 40)
    run(spark, world, tmp_path, startingPosition="snapshot")
    assert {row.backfilled for row in check(spark, world, tmp_path)} == {True}
    write(world, 60, 1)
    run(spark, world, tmp_path, startingPosition="snapshot")
    assert {row.backfilled for row in check(spark, world, tmp_path)} == {True, False}


LIFE = """
import sys
from pyspark_multiclouddb import local_session
url, database, collection, folder = sys.argv[1:]
spark = local_session("killed", **{"spark.master": "local[2]"})
query = (
    spark.readStream.format("multiclouddb")
    .options(url=url, database=database, collection=collection, maxRecordsPerTrigger="20",
             startingPosition="now").load()
    .writeStream.format("parquet").option("path", folder + "/rows")
    .option("checkpointLocation", folder + "/checkpoint").start()
)
query.awaitTermination()
"""


def test_the_next_query_finishes_the_work_of_a_query_that_was_killed(spark, world, tmp_path):
    run(spark, world, tmp_path)
    write(world, 100)
    options = options_of(world)
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
    write(world, 30, 2)
    run(spark, world, tmp_path)
    check(spark, world, tmp_path)


def test_a_batch_that_was_not_done_comes_again_with_the_same_rows(spark, world, tmp_path):
    came, broken = {}, []

    def firsts():
        rows = [row for first, *_ in came.values() for row in first]
        return sorted(rows, key=lambda row: row.order_key)

    def keep(frame, batch_id):
        came.setdefault(batch_id, []).append(frame.orderBy("order_key").collect())
        if not broken and len(firsts()) > 30:
            broken.append(batch_id)
            raise RuntimeError("the sink breaks")

    def follow():
        stream = spark.readStream.format("multiclouddb")
        writer = stream.options(**options_of(world, maxRecordsPerTrigger="20")).load().writeStream
        writer = writer.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    follow()
    write(world, 100)
    with pytest.raises(StreamingQueryException, match="the sink breaks"):
        follow()
    write(world, 30, 2)
    follow()
    (batch_id,) = broken
    first, again = came.pop(batch_id)
    assert again == first
    assert all(len(times) == 1 for times in came.values())
    came[batch_id] = [first]
    check_rows(world, firsts())
