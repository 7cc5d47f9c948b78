"""A program for `test_bounded.py`: one micro-batch of any size, and a driver that accepts little data.

    python bounded.py FOLDER RESULT_SIZE

`RESULT_SIZE` is Spark's limit on the results that a driver collects at a time: `spark.driver.maxResultSize`.
"""

import sys
from pathlib import Path

from pyspark_multiclouddb import local_session, merge_into_delta

folder, size = Path(sys.argv[1]), sys.argv[2]
settings = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": 2,
    "spark.driver.maxResultSize": size,
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
spark = local_session("bounded", **settings)
(folder / "jvm").write_text(str(spark.sparkContext._gateway.proc.pid))


def merge(frame, batch_id):
    merge_into_delta(frame, batch_id, folder / "table", "bounded")


stream = spark.readStream.format("multiclouddb")
stream = stream.options(url=f"embedded://{folder}/store.db", collection="orders").load()
writer = stream.writeStream.foreachBatch(merge).option("checkpointLocation", str(folder / "checkpoint"))
writer.trigger(availableNow=True).start().awaitTermination()
spark.stop()
