"""The pipeline: a Structured Streaming query that merges each micro-batch into a table.

`python -m demo.pipeline FOLDER` runs the pipeline in a separate process, so that it can be killed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from demo.chart import BUCKET_SECONDS
from demo.places import COLLECTION, Places, append_line, read_lines
from pyspark_multiclouddb import local_session, merge_into_delta

__all__ = ["follow", "run_query"]

_APP: Final = "demo-flights"
_QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1"
_MOST_RECORDS: Final = 60_000
_SEGMENTS: Final = 20
_BATCHES: Final = 10
"""The least number of micro-batches for the whole work, so that the kill comes in the middle."""
_TRIES: Final = 10
_TOO_LATE: Final = "Python worker failed to connect back"
"""Spark waits ten seconds for a new process of Python, which is too short on a busy machine."""


def follow(places: Places, events: int) -> None:
    """Follow the feed until the writer is done and everything has been merged.

    Args:
        places: The files of the run.
        events: The approximate number of events that are expected.
    """
    records = min(_MOST_RECORDS, 1 + events // _BATCHES)
    # A run takes about a minute, which is too short to benefit from the slower, better compiler.
    with local_session("flights", **{"spark.driver.extraJavaOptions": _QUICK_JAVA}) as spark:
        start = partial(_start, spark, places, records)
        run_query(start, partial(_done, places))
        # The writer's last changes are merged by a run that ends by itself.
        run_query(partial(start, availableNow=True), lambda: False)


def run_query(start: Callable[[], StreamingQuery], is_over: Callable[[], bool]) -> None:
    """Run a query until it ends or `is_over`; start it again if Spark did not wait for Python.

    Args:
        start: Starts the query.
        is_over: Says that the query shall be stopped.
    """
    for left in reversed(range(_TRIES)):
        try:
            query = start()
            while query.isActive and not is_over():
                query.awaitTermination(1)
            _stop(query)
        except Exception as error:
            if not left or _TOO_LATE not in str(error):
                raise
        else:
            return


def _start(spark: SparkSession, places: Places, records: int, **trigger: Any) -> StreamingQuery:
    changes = (
        spark.readStream.format("multiclouddb")
        .options(url=places.url, collection=COLLECTION)
        .option("startingPosition", "snapshot")
        .option("snapshotSegments", _SEGMENTS)
        .option("maxRecordsPerTrigger", records)
        .load()
    )

    def merge(batch: DataFrame, batch_id: int) -> None:
        begun = time.time()
        merge_into_delta(batch, batch_id, places.table, _APP)
        at = time.time()
        # A row of the scan is as old as its last write, which says nothing about the pipeline.
        bucket = f.floor(f.unix_micros("timestamp") / f.lit(1e6 * BUCKET_SECONDS))
        changed = f.when(~f.col("backfilled"), bucket).alias("bucket")
        counted = batch.groupBy(changed).agg(f.count(f.lit(1)).alias("events")).toArrow().to_pylist()
        events = sum(row["events"] for row in counted)
        if events:
            changes = [[row["bucket"], row["events"]] for row in counted if row["bucket"] is not None]
            append_line(places.merged, begun=begun, at=at, batch=batch_id, events=events, changes=changes)

    return (
        changes.writeStream.foreachBatch(merge)
        .option("checkpointLocation", str(places.checkpoint))
        .trigger(**(trigger or {"processingTime": "0 seconds"}))
        .start()
    )


def _done(places: Places) -> bool:
    return bool(read_lines(places.written)[-1:] and read_lines(places.written)[-1].get("done"))


def _stop(query: StreamingQuery) -> None:
    """Stop the query between two batches. Spark would have to repeat an interrupted batch."""
    while query.isActive and query.status["isTriggerActive"]:
        time.sleep(0.05)
    query.stop()
    error = query.exception()
    if error is not None:
        raise error


if __name__ == "__main__":
    follow(Places(sys.argv[1]), int(sys.argv[2]))
