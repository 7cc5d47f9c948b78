"""Follows the orders into a Delta table: python pipeline.py laptop, or spark-submit pipeline.py."""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark_multiclouddb import local_session, merge_into_delta

LAPTOP = sys.argv[1:] == ["laptop"]
spark = local_session("orders") if LAPTOP else SparkSession.builder.appName("orders").getOrCreate()


def merge(batch, batch_id):
    merge_into_delta(batch, batch_id, os.environ["ORDERS_TARGET"], app_id="orders")


changes = (
    spark.readStream.format("multiclouddb")
    .option("url", os.environ["ORDERS_URL"])
    .option("collection", "orders")
    .option("startingPosition", "snapshot")  # the rows that exist, then every change
    .option("maxRecordsPerTrigger", 100_000)
    .load()
)
not_tests = F.coalesce(F.get_json_object("new_item_state", "$.customer"), F.lit("")) != "test"
query = (
    changes.where(not_tests)
    .writeStream.foreachBatch(merge)
    .option("checkpointLocation", os.environ["ORDERS_CHECKPOINT"])
    .trigger(availableNow=True)  # leave it out to run for ever
    .start()
)
query.awaitTermination()
spark.stop()
