"""The driver that `test_kill.py` and `test_cluster.py` kill. The driver runs one query for each of several
databases.

    python queries_life.py FOLDER MASTER EVENTS MOMENT

`FOLDER/queries` maps the name of each query to its options. A query uses `FOLDER/NAME` for its checkpoint,
its rows, and its earlier deliveries. The program ends when each query has received EVENTS events. At the
given MOMENT, a query creates the file `reached-MOMENT` and waits until the file `FOLDER/go` exists. The
moments are `planning` (before the plan), `planned`, `task`, `sink` (after the sink's commit) and `commit`
(also after the sink's commit; the test then lets the sink return to a JVM that is stopped). The query stops
in the second batch with rows of a run.

The query `followed` merges into a Delta table. The query `followed` never stops at the given MOMENT. When the
file `FOLDER/last` exists, the query reads all remaining changes and ends.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException

from pyspark_multiclouddb import DefaultSource, local_session, merge_into_delta
from pyspark_multiclouddb.readers import settings_of
from pyspark_multiclouddb.stream import ChangeFeedStreamReader

folder, master, events, moment = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
TRIES = 10
queries = json.loads((folder / "queries").read_text())
conf = {
    "spark.master": master,
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
    "spark.executor.memory": "512m",
    "spark.excludeOnFailure.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


class Place:
    """A point in a query's run at which the query's processes can be stopped."""

    def __init__(self, name, moment):
        self.folder, self.moment = folder / name, moment
        self.armed, self.plans = self.folder / "armed", self.folder / "plans"

    def reach(self, moment):
        """Wait here if `moment` is the moment at which the test stops queries.

        The wait ends when the test lets the query continue, or when the driver has ended.
        """
        if moment != self.moment or not self.armed.exists():
            return
        draft = self.folder / f"draft-{os.getpid()}-{threading.get_ident()}"
        draft.write_text(str(os.getpid()))
        try:
            os.link(draft, self.folder / f"reached-{moment}")  # only one task of a query stops
        except FileExistsError:
            return
        parent = os.getppid()
        while os.getppid() == parent and not (self.folder.parent / "go").exists():
            time.sleep(0.01)


class Reader(ChangeFeedStreamReader):
    """The reader of the source, which stops at a given moment."""

    def __init__(self, settings, place):
        super().__init__(settings)
        self.place = place

    def __reduce__(self):
        return type(self), (self._batches.settings, self.place)

    def latestOffset(self, start, limit):  # noqa: N802 - Spark's name
        self.place.plans.touch()
        self.place.reach("planning")
        return super().latestOffset(start, limit)

    def partitions(self, start, end):
        self.place.plans.touch()
        tasks = super().partitions(start, end)
        if tasks:
            self.place.reach("planned")
        return tasks

    def read(self, partition):
        for rows in super().read(partition):
            yield rows
            self.place.reach("task")


def source_of(place):
    """Return the source for one query; its format is named after the query's folder."""

    class Source(DefaultSource):
        @classmethod
        def name(cls):
            return f"multiclouddb_{place.folder.name}"

        def streamReader(self, schema):  # noqa: N802 - Spark's name
            return Reader(settings_of(self.options, schema, is_stream=True), place)

    return Source


class Sink:
    """Keep each batch in a file, and each delivery of the batch in another file.

    A query on the embedded store also merges the batch into a Delta table.
    """

    def __init__(self, place):
        self.place, self.folder = place, place.folder
        for name in ("rows", "deliveries"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def __call__(self, frame, batch_id):
        frame = frame.persist()
        rows = json.dumps(sorted(row.event_id for row in frame.select("event_id").collect()))
        if self.folder.name == "embedded":
            # This size is smaller than a batch, so that a batch takes several commits.
            merge_into_delta(frame, batch_id, self.folder / "table", "embedded", max_bytes=1500)
        frame.unpersist()
        (self.folder / "deliveries" / f"{batch_id}-{os.getpid()}").write_text(rows)
        draft = self.folder / "draft"
        draft.write_text(rows)
        draft.rename(self.folder / "rows" / str(batch_id))
        self.place.reach("sink")
        self.place.reach("commit")
        (self.folder / "returned").write_text(str(batch_id))
        if rows != "[]":
            self.place.armed.touch()

    def count(self):
        return sum(len(json.loads(file.read_text())) for file in (self.folder / "rows").iterdir())


class Query:
    """Run one query; resume from its checkpoint if there is one."""

    sink_of = Sink

    def __init__(self, name, options):
        self.place = Place(name, moment)
        self.place.folder.mkdir(exist_ok=True)
        for left in (self.place.armed, self.place.plans):
            left.unlink(missing_ok=True)
        spark.dataSource.register(source_of(self.place))
        self.sink = self.sink_of(self.place)
        stream = spark.readStream.format(f"multiclouddb_{name}").options(**options).load()
        writer = stream.writeStream.foreachBatch(self.sink)
        self.writer = writer.option("checkpointLocation", str(self.place.folder / "checkpoint"))
        self.tries = TRIES
        self.start()

    def start(self):
        """Start the query, and wait until it has begun to plan.

        Spark waits ten seconds for the process that plans a query. If the machine is too busy for this, Spark
        starts the process again. Therefore the queries start one after another.
        """
        self.running = self.writer.start()
        while not self.place.plans.exists():
            self.wait()

    def wait(self):
        try:
            self.running.awaitTermination(0.05)
        except StreamingQueryException as error:
            self.tries -= 1
            if not self.tries or "Python worker failed to connect back" not in str(error):
                raise
            self.start()

    def is_done(self):
        if self.sink.count() < events:
            self.wait()
            return False
        self.running.processAllAvailable()
        self.running.stop()
        return True


class Followed(Query):
    """Run the query that is killed at an arbitrary point."""

    @staticmethod
    def sink_of(place):
        # This size is smaller than a batch, so that a batch takes several commits.
        return lambda frame, batch_id: merge_into_delta(
            frame, batch_id, place.folder / "table", "followed", max_bytes=1500
        )

    def is_done(self):
        if not (folder / "last").exists():
            self.wait()
            return False
        self.running.processAllAvailable()
        self.running.stop()
        return True


spark = local_session("queries", **conf)
spark.sparkContext.setLogLevel("OFF")
(folder / "jvm").write_text(str(spark.sparkContext._gateway.proc.pid))
running = [(Followed if name == "followed" else Query)(name, given) for name, given in queries.items()]
while running:
    running = [query for query in running if not query.is_done()]
spark.stop()
