"""Tests that Spark reads the latest versions of a container without backup, whose ranges were merged."""

import psycopg
import pytest

from multiclouddb_api import decode_json
from multiclouddb_postgres import merge_into_postgres
from pyspark_multiclouddb import merge_into_table
from testing.postgres_server import PostgresServer

from .world import DATABASE, NAME

pytestmark = pytest.mark.xdist_group("jvm")


def run(spark, world, folder, **options):
    """Run a query that ends by itself. The query continues where the previous query stopped."""
    url = str(world.config().connection["url"])
    named = {"startingPosition": "beginning", "database": DATABASE, "collection": NAME, "url": url}
    stream = spark.readStream.format("multiclouddb").options(**named, **options).load().writeStream
    folders = {"path": str(folder / "rows"), "checkpointLocation": str(folder / "checkpoint")}
    stream.format("parquet").options(**folders).trigger(availableNow=True).start().awaitTermination()


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


@pytest.mark.soak
def test_soft_deletes_are_tombstones_in_a_table_of_spark_and_in_postgres(spark, world, tmp_path):
    """One query merges each batch into both tables."""
    world.server.all_versions(False)
    spark.conf.set("spark.sql.catalog.latest", "multiclouddb.test.Catalog")
    spark.conf.set("spark.sql.catalog.latest.root", str(tmp_path / "lake"))
    checkpoint, table = str(tmp_path / "checkpoint"), "latest.shop.orders"
    url = f"{world.config().connection['url']}&mode=latest&delete_marker=/deleted"
    stream = (
        spark.readStream.format("multiclouddb").option("url", url).option("startingPosition", "beginning")
    )
    stream = stream.option("database", DATABASE).option("collection", NAME)
    with PostgresServer() as server:

        def merge(batch, number):
            merge_into_table(batch, number, table, checkpoint=checkpoint, create_using="files")
            merge_into_postgres(batch, number, server.dsn, "orders", "app", checkpoint=checkpoint)

        def follow():
            query = stream.load().writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint)
            query.trigger(availableNow=True).start().awaitTermination()
            query = "SELECT key, _deleted_at IS NULL FROM {}"
            by_spark = {row[0]: row[1] for row in spark.sql(query.format(table)).collect()}
            with psycopg.connect(server.dsn) as connection:
                assert dict(connection.execute(query.format("orders")).fetchall()) == by_spark
            return {decode_json(key)["id"] for key, is_live in by_spark.items() if is_live}

        world.put("a", "b", "c")
        assert follow() == {"a", "b", "c"}
        world.put("b", deleted=True)
        world.put("c", deleted=False)
        world.put("d", deleted=True)
        assert follow() == {"a", "c"}
        world.put("b", deleted=False)
        assert follow() == {"a", "b", "c"}
