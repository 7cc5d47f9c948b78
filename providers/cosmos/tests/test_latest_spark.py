"""Tests that Spark reads the latest versions of a container without backup, whose ranges were merged."""

import pytest

from multiclouddb_api import decode_json

from .world import DATABASE, NAME

pytestmark = pytest.mark.xdist_group("jvm")


def run(spark, world, folder, **options):
    """Run a query that ends by itself. The query continues where the previous query stopped."""
    url = str(world.config().connection["url"])
    options = {
        "startingPosition": "beginning",
        "database": DATABASE,
        "collection": NAME,
        "url": url,
        **options,
    }
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


def test_merged_ranges_are_read_and_a_checkpoint_belongs_to_one_mode(spark, world, tmp_path):
    world.server.all_versions(False)
    world.fill(20)
    world.server.merge(DATABASE, NAME, "0", "1")
    latest = {"connection.mode": "latest"}
    run(spark, world, tmp_path, **latest)
    world.put("k3", "k4", "k3", "new")
    world.split(world.partitions()[0]["id"])
    world.fill(10)
    run(spark, world, tmp_path, **latest, maxRecordsPerTrigger="7")
    rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("order_key").collect()
    last = {row.key: decode_json(row.new_item_state)["n"] for row in rows}
    assert sorted(last.values()) == sorted(each["n"] for each in world.container.read_all_items())
    assert {row.type for row in rows} == {"UPDATE"}
    world.server.all_versions(True)
    with pytest.raises(Exception, match="latest"):
        run(spark, world, tmp_path)
