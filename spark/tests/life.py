"""The program that `test_versions.py` runs on each version of Spark, with every kind of query.

    python life.py FOLDER PART

PART is `ended` (a batch of this source and a batch of another source, then streams that end, and a replay),
`killed` (the program dies in a batch of a stream that does not end) or `resumed` (the program resumes after
the death, and ends when all events have arrived).
"""

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException

from pyspark_multiclouddb import caught_up, error_from_query, local_session

folder, part = Path(sys.argv[1]), sys.argv[2]
count = int((folder / "count").read_text())
LIMIT = 60
options = {"url": f"embedded://{folder}/store.db", "collection": "orders", "maxRecordsPerTrigger": str(LIMIT)}


def note(**facts):
    with (folder / "facts").open("a") as file:
        file.write(json.dumps(facts) + "\n")


class Rows:
    """A `foreachBatch` function that keeps each batch in a file."""

    def __init__(self, name, die_in=None):
        self.folder, self.die_in, self.batches = folder / name, die_in, []
        self.folder.mkdir(exist_ok=True)

    def __call__(self, frame, batch_id):
        rows = [row.event_id for row in frame.select("event_id").collect()]
        if batch_id == self.die_in:
            for pid in (spark.sparkContext._gateway.proc.pid, os.getpid()):
                os.kill(pid, signal.SIGKILL)
        self.batches.append(batch_id)
        # Another thread reads the files at the same time, so a file must appear only when it is complete.
        made = self.folder.with_name(f"{self.folder.name}-{batch_id}")
        made.write_text(json.dumps(rows))
        made.replace(self.folder / str(batch_id))

    def all(self):
        return [row for file in self.folder.iterdir() for row in json.loads(file.read_text())]


def writer(rows, **more):
    stream = spark.readStream.format("multiclouddb").options(**options, **more).load()
    checkpoint = folder / f"{rows.folder.name}-checkpoint"
    return stream.writeStream.foreachBatch(rows).option("checkpointLocation", str(checkpoint))


def run_once(rows):
    query = writer(rows).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def run_all(rows):
    """Run the loop from the docs; every run except the first is a clean restart."""
    runs = 1
    while not caught_up(run_once(rows)):
        runs += 1
    return runs


def follow(rows):
    query = writer(rows, pollInterval="20 ms").start()
    while len(rows.all()) < count:
        assert not query.awaitTermination(0.02)
    query.stop()


def ended_runs():
    """Run streams that end, then replay a batch that was planned but not completed."""
    rows = Rows("ended")
    runs = run_all(rows)
    last = max(
        int(path.name) for path in (folder / "ended-checkpoint/commits").iterdir() if path.name.isdigit()
    )
    # The last batch with rows, and everything after it, is marked as not completed.
    full = max(batch for batch in rows.batches if json.loads((rows.folder / str(batch)).read_text()))
    before = (rows.folder / str(full)).read_text()
    for kind, first in (("commits", full), ("offsets", full + 1)):
        for number in range(first, last + 1):
            for name in (f"{number}", f".{number}.crc"):
                (folder / "ended-checkpoint" / kind / name).unlink(missing_ok=True)
    again = Rows("ended")
    run_all(again)
    same = sorted(json.loads(before)) == sorted(json.loads((rows.folder / str(full)).read_text()))
    note(runs=runs, replayed=again.batches[0] == full, same=same, ended=rows.all())


def unknown_position():
    """Record the error in the only configuration in which Spark 4.0 and 4.1 do not pass the checkpoint's
    position."""
    spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true")
    path = folder / "ended-checkpoint/offsets"
    before = sorted(file.name for file in path.iterdir())
    try:
        run_once(Rows("ended"))
        refused = None
    except StreamingQueryException as error:
        refused = [str(error_from_query(error)), str(error)]
    spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "false")
    note(refused=refused, offsets_stay=before == sorted(file.name for file in path.iterdir()))


# Each task needs its own Python process.
spark = local_session("life", **{"spark.master": "local[2]", "spark.sql.shuffle.partitions": 2})
spark.sparkContext.setLogLevel("OFF")
if part == "ended":
    foreign = [row.n for row in spark.read.format("foreign").load().collect()]
    batch = spark.read.format("multiclouddb").options(url=options["url"], collection="orders").load()
    note(version=spark.version, foreign=foreign, batch=[row.event_id for row in batch.collect()])
    ended_runs()
    unknown_position()
else:
    rows = Rows("followed", die_in=1 if part == "killed" else None)
    follow(rows)
    note(followed=rows.all())
spark.stop()
