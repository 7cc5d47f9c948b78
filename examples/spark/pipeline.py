"""Follows a collection into a Delta table: python pipeline.py laptop, or spark-submit pipeline.py."""

import os
import sys

from pyspark.sql import SparkSession
from pyspark_multiclouddb import local_session, merge_into_delta

LAPTOP = sys.argv[1:] == ["laptop"]
spark = local_session("orders") if LAPTOP else SparkSession.builder.appName("orders").getOrCreate()
checkpoint = os.environ["CHECKPOINT"]


def merge(batch, batch_id):
    merge_into_delta(batch, batch_id, os.environ["TARGET"], app_id="orders", checkpoint=checkpoint)


reader = spark.readStream.format("multiclouddb").option("url", os.environ["SOURCE"])
if "DATABASE" in os.environ:
    reader = reader.option("database", os.environ["DATABASE"])
changes = (
    reader.option("collection", os.environ["COLLECTION"])
    .option("startingPosition", "snapshot")  # the rows that exist, then every change
    .option("failOnDataLoss", "resnapshot")  # after a long outage: the rows again, which repairs the table
    .option("maxRecordsPerTrigger", 100_000)
    .load()
)
writer = changes.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint)
if LAPTOP:
    writer = writer.trigger(availableNow=True)  # ends when it has caught up
writer.start().awaitTermination()
