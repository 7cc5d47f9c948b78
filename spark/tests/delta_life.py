"""A query that copies a collection into a Delta table (all rows, and all changes), for tests that kill it.

    python delta_life.py FOLDER OPTIONS

OPTIONS contains the options of the source, as JSON. The query begins with an interleaved snapshot, and ends
by itself when it has read everything.
"""

import json
import sys
from pathlib import Path

from pyspark_multiclouddb import local_session, merge_into_delta

folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
# Each task needs its own Python process.
spark = local_session("delta", **{"spark.master": "local[2]", "spark.sql.shuffle.partitions": 2})
(folder / "jvm").write_text(str(spark.sparkContext._gateway.proc.pid))
checkpoint = folder / "checkpoint"


def merge(frame, batch_id):
    # This size is smaller than a batch, so that a batch takes several commits.
    merge_into_delta(frame, batch_id, folder / "table", "life", checkpoint=checkpoint, max_bytes=4000)


given = {"startingPosition": "snapshot", "snapshotOrder": "interleaved", "maxRecordsPerTrigger": "30"}
stream = spark.readStream.format("multiclouddb").options(**given, **options).load()
writer = stream.writeStream.foreachBatch(merge).option("checkpointLocation", str(checkpoint))
writer.trigger(availableNow=True).start().awaitTermination()
