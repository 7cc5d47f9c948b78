"""The program that `test_connect.py` runs as a client of Spark Connect, without this project's packages.

    python remote.py ADDRESS FOLDER

The program prints its findings as one line of JSON.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

address, folder = sys.argv[1], Path(sys.argv[2])
table, checkpoint = str(folder / "table"), str(folder / "checkpoint")
options = {"url": "env:STORE", "collection": "orders"}
spark = SparkSession.builder.remote(address).getOrCreate()


def merge(frame, batch_id):
    from pyspark_multiclouddb import merge_into_delta

    def counted(batches):
        """Return the batches unchanged. Each task that reads the source writes a line to a file."""
        with Path(checkpoint).with_name("reads").open("a") as file:
            file.write(f"{batch_id} {TaskContext.get().partitionId()}\n")
        yield from batches

    # The pieces are small, so that a batch takes several commits.
    rows = frame.mapInArrow(counted, frame.schema)
    merge_into_delta(rows, batch_id, table, "remote", checkpoint=checkpoint, max_bytes=1000)


def follow():
    stream = spark.readStream.format("multiclouddb").options(**options, maxRecordsPerTrigger="60").load()
    query = stream.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint)
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def error_of(ask):
    try:
        ask()
    except PySparkException as error:
        return str(error)
    return None


def source(**more):
    return spark.read.format("multiclouddb").options(**{**options, **more}).load()


found = {
    "ours": find_spec("pyspark_multiclouddb") is not None,
    "version": spark.version,
    "batch": [row.event_id for row in source().select("event_id").collect()],
    "wrong": error_of(lambda: source(maxrecords="5").count()),
    "secret": error_of(lambda: source(url="mongodb://me:correct-horse@localhost/?nosuch=1").count()),
    "missing": error_of(lambda: source(collection="none").count()),
}
# On Spark 4.0, a run is one micro-batch, so runs are repeated until no rows are left.
while (progress := follow().lastProgress) is not None and progress["sources"][0]["numInputRows"]:
    pass
options["collection"] = "others"
found["other"] = error_of(follow)
sys.stdout.write(json.dumps(found) + "\n")
