"""The program that `test_kill.py` kills: it follows the feed into a Delta table until it is told to end.

    python follower.py FOLDER [DIE_AT]

DIE_AT is `before-sink:N` or `after-sink:N`: the program kills itself and its JVM at that point of batch N.
"""

import os
import signal
import sys
from pathlib import Path

from pyspark_multiclouddb import local_session, merge_into_delta

folder, die_at = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
spark = local_session("follower", **{"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
jvm = spark.sparkContext._gateway.proc.pid
(folder / "jvm").write_text(str(jvm))


def die(place, batch_id):
    if die_at == f"{place}:{batch_id}":
        os.kill(jvm, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def merge(frame, batch_id):
    die("before-sink", batch_id)
    # Smaller than a batch, so that a batch takes several commits.
    merge_into_delta(frame, batch_id, folder / "table", "follower", max_bytes=1500)
    die("after-sink", batch_id)


options = {
    "url": f"embedded://{folder}/store.db",
    "collection": "orders",
    "maxRecordsPerTrigger": "30",
    "pollInterval": "50 ms",
}
stream = spark.readStream.format("multiclouddb").options(**options).load()
query = (
    stream.writeStream.foreachBatch(merge)
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
