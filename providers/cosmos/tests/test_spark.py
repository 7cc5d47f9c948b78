"""Tests that Spark can read a container during writes, and that the sink equals the source at the end."""

import random
import threading

import pytest
from azure.cosmos.exceptions import CosmosResourceNotFoundError

from multiclouddb_api import decode_json

from .world import DATABASE, NAME

pytestmark = pytest.mark.xdist_group("jvm")


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


def run(spark, world, folder, **options):
    """Run a query that ends by itself. The query continues where the previous query stopped."""
    url = str(world.config().connection["url"])
    options = {"startingPosition": "now", "database": DATABASE, "collection": NAME, "url": url, **options}
    query = (
        spark.readStream.format("multiclouddb")
        .options(**options)
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
    assert len({row.event_id for row in rows}) == len(rows)
    last = {row.key: row for row in rows}
    held = [decode_json(row.new_item_state) for row in last.values() if row.type != "DELETE"]
    there = [[each["pk"], each["n"], each["seed"]] for each in world.container.read_all_items()]
    assert sorted([each["pk"], each["n"], each["seed"]] for each in held) == sorted(there)
    return rows


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


def test_the_latest_versions_of_merged_ranges(spark, world, tmp_path):
    """An account without backup is read from the beginning; a checkpoint belongs to one mode."""
    world.server.all_versions(False)
    write(world, 60)
    first, second, *_ = (each["id"] for each in world.partitions())
    world.server.merge(DATABASE, NAME, first, second)
    latest = {"startingPosition": "beginning", "connection.mode": "latest"}
    run(spark, world, tmp_path, **latest)
    write(world, 60, 1)
    run(spark, world, tmp_path, **latest, maxRecordsPerTrigger="7")
    rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("order_key").collect()
    last = {row.key: decode_json(row.new_item_state) for row in rows}
    there = {each["pk"]: [each["n"], each["seed"]] for each in world.container.read_all_items()}
    found = {each["pk"]: [each["n"], each["seed"]] for each in last.values()}
    assert {key: found[key] for key in there} == there
    assert {row.type for row in rows} == {"UPDATE"}
    world.server.all_versions(True)
    with pytest.raises(Exception, match="latest"):
        run(spark, world, tmp_path, startingPosition="beginning")
