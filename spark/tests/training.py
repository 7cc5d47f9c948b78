"""Uses most of the features of Spark that tests use, so that the JVM loads their classes for
`jvm_settings.py`.

    python training.py FOLDER

FOLDER is an empty folder.
"""

import sys
from contextlib import suppress
from pathlib import Path

from pyspark.errors import PySparkException

from multiclouddb_embedded import EmbeddedStore
from pyspark_multiclouddb import local_session, merge_into_delta

folder = Path(sys.argv[1])
options = {"url": f"embedded://{folder}/store.db", "collection": "items"}
with EmbeddedStore(folder / "store.db", durable=False) as store:
    store.create_collection("items")
    for number in range(20):
        store.put("items", f"k{number}", {"n": number})


def merge(frame, batch_id):
    merge_into_delta(frame, batch_id, folder / "table", "training")


def follow(name, writer):
    writer = writer.option("checkpointLocation", str(folder / name))
    writer.trigger(availableNow=True).start().awaitTermination()


spark = local_session("training", **{"spark.sql.shuffle.partitions": 1})
spark.sparkContext.setLogLevel("OFF")
jvm = spark.sparkContext._gateway.proc
# If a busy machine is too slow for a step, the archive does not contain the classes of that step.
with suppress(PySparkException):
    spark.read.format("multiclouddb").options(**options).load().orderBy("order_key").collect()
    stream = spark.readStream.format("multiclouddb").options(**options).load()
    follow("merging", stream.writeStream.foreachBatch(merge))
    follow("writing", stream.writeStream.format("parquet").option("path", str(folder / "rows")))
    spark.read.parquet(str(folder / "rows")).count()
spark.stop()
# The JVM writes the archive when it exits.
jvm.stdin.close()
jvm.wait()
