"""Reads a collection with a stream of the Spark data source, and writes the keys as text.

The first run of the stream is the warm-up. The figures of the second run are taken from the progress that
Spark reports.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.descendants import cpu_of_descendants
from benchmarks.peers.programs.meter import Meter, read_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> None:
    """Run the stream twice."""
    from pyspark_multiclouddb import local_session

    spec = read_spec()
    folder = Path(spec["folder"])
    # The master has one thread for each of the clients' cores; by default, Spark counts all cores.
    with local_session("peers", **{"spark.master": "local[2]"}) as session, Meter(spec) as meter:
        _run(session, spec, folder / "warm-up")
        before = _cpu()
        rows, seconds = _run(session, spec, folder / "measured")
        spent = _cpu() - before
        lines = [file.read_text(encoding="utf-8") for file in (folder / "measured/keys").glob("*.txt")]
        meter.take_all(line for text in lines for line in text.splitlines())
        # Most of the memory belongs to the Java virtual machine, which is a separate process.
        meter.report(events=rows, seconds=seconds, cpu=spent, mebibytes=0.0)


def _cpu() -> float:
    return time.process_time() + cpu_of_descendants()


def _run(session: SparkSession, spec: dict[str, Any], folder: Path) -> tuple[int, float]:
    """Run the stream to its end; return the number of rows, and the seconds of the batches with rows."""
    source = session.readStream.format("multiclouddb").option("url", spec["url"])
    source = source.option("database", spec["database"]).option("collection", spec["collection"])
    start = datetime.fromtimestamp(spec["second"], UTC).isoformat()
    changes = source.option("startingPosition", start).load()
    query = (
        changes.select("key")
        .writeStream.format("text")
        .option("path", str(folder / "keys"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
    rows = sum(batch["numInputRows"] for batch in batches)
    return rows, sum(batch["durationMs"]["triggerExecution"] for batch in batches) / 1000


if __name__ == "__main__":
    main()
