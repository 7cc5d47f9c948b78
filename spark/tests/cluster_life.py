"""The driver that `test_cluster.py` kills: a stream over the embedded store on a cluster.

    python cluster_life.py FOLDER MASTER

The program ends when all rows have arrived. A task of batch 1 waits until the file `go` exists.
"""

import json
import os
import sys
import time
from pathlib import Path

from pyspark_multiclouddb import caught_up, local_session

folder, master = Path(sys.argv[1]), sys.argv[2]
(folder / "rows").mkdir(exist_ok=True)
conf = {
    "spark.master": master,
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.python.worker.reuse": "true",
    "spark.excludeOnFailure.enabled": "false",
}
spark = local_session("cluster", **conf)
spark.sparkContext.setLogLevel("OFF")
(folder / "driver").write_text(f"{os.getpid()} {spark.sparkContext._gateway.proc.pid}")


def gate(batches):
    """Wait for the file in a task, after the source was read."""
    for batch in batches:
        (folder / "in-task").write_text(str(os.getppid()))
        while not (folder / "go").exists():
            time.sleep(0.01)
        yield batch


def keep(frame, batch_id):
    frame = frame.select("event_id")
    if batch_id == 1:
        frame = frame.mapInArrow(gate, frame.schema)
    rows = [row.event_id for row in frame.collect()]
    draft = folder / f"draft-{batch_id}"
    draft.write_text(json.dumps(rows))
    draft.rename(folder / "rows" / str(batch_id))


options = {"url": f"embedded://{folder}/store.db", "collection": "orders", "maxRecordsPerTrigger": "20"}
query = (
    spark.readStream.format("multiclouddb")
    .options(**options)
    .load()
    .writeStream.foreachBatch(keep)
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
assert caught_up(query)
spark.stop()
