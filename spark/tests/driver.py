"""The driver of queries that tests run in a process of its own, and kill.

    python driver.py PART FOLDER

PART is the name of a function below; `FOLDER/given` contains its input as JSON. Each query has its own
folder in FOLDER, with its checkpoint, its rows and its earlier deliveries.
"""

import contextlib
import io
import json
import os
import sys
import threading
import time
from pathlib import Path
from urllib.request import urlopen

from pyspark.errors import StreamingQueryException

from multiclouddb_api import MulticloudDbError
from pyspark_multiclouddb import (
    DefaultSource,
    caught_up,
    error_from_query,
    latest_by_key,
    local_session,
    merge_into_delta,
)
from pyspark_multiclouddb.readers import PlainStreamReader, settings_of

try:
    from pyspark_multiclouddb.stream import ChangeFeedStreamReader
except ImportError:  # Spark 4.0 and 4.1
    ChangeFeedStreamReader = PlainStreamReader

folder = Path(sys.argv[2])
given = json.loads((folder / "given").read_text())
TRIES = 10
# This size is smaller than a batch, so that a batch takes several commits.
PIECE = 1500
# Each task needs its own Python process.
TWO_TASKS = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}


def session(**conf):
    spark = local_session("driver", **conf)
    if "spark.log.level" not in conf:
        spark.sparkContext.setLogLevel("OFF")
    (folder / "jvm").write_text(str(spark.sparkContext._gateway.proc.pid))
    return spark


def rows_in(place):
    return [row for file in (place / "rows").iterdir() for row in json.loads(file.read_text())]


class Sink:
    """Keep each batch in a file, and each delivery of the batch in another file."""

    def __init__(self, place, *, merges=False):
        self.folder, self.merges = place, merges
        for name in ("rows", "deliveries"):
            (place / name).mkdir(parents=True, exist_ok=True)

    def __call__(self, frame, batch_id):
        rows = json.dumps(sorted(row.event_id for row in frame.select("event_id").collect()))
        if self.merges:
            merge_into_delta(frame, batch_id, self.folder / "table", "embedded", max_bytes=PIECE)
        (self.folder / "deliveries" / f"{batch_id}-{os.getpid()}").write_text(rows)
        # Another process reads the files at the same time, so a file must appear only when it is complete.
        draft = self.folder / "draft"
        draft.write_text(rows)
        draft.replace(self.folder / "rows" / str(batch_id))
        return rows


class Place:
    """A point in a query's run at which the query's processes can be stopped."""

    def __init__(self, place, moment):
        self.folder, self.moment = place, moment
        self.armed, self.plans = place / "armed", place / "plans"

    def reach(self, moment):
        """Wait here if `moment` is the moment at which the test stops queries."""
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

    def latestOffset(self, *given):  # noqa: N802 - Spark's name
        self.place.plans.touch()
        self.place.reach("planning")
        return super().latestOffset(*given)

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


class Query:
    def __init__(self, spark, name, options):
        place = self.place = Place(folder / name, given["moment"])
        place.folder.mkdir(exist_ok=True)
        for left in (place.armed, place.plans):
            left.unlink(missing_ok=True)

        class Source(DefaultSource):
            @classmethod
            def name(cls):
                return f"multiclouddb_{name}"

            def streamReader(self, schema):  # noqa: N802 - Spark's name
                return Reader(settings_of(self.options, schema, is_stream=True), place)

        spark.dataSource.register(Source)
        stream = spark.readStream.format(f"multiclouddb_{name}").options(**options).load()
        writer = stream.writeStream.foreachBatch(self.sink())
        self.writer = writer.option("checkpointLocation", str(place.folder / "checkpoint"))
        self.tries = TRIES
        self.start()

    def sink(self):
        place, keep = self.place, Sink(self.place.folder, merges=self.place.folder.name == "embedded")

        def kept(frame, batch_id):
            rows = keep(frame.persist(), batch_id)
            frame.unpersist()
            place.reach("sink")
            place.reach("commit")
            (place.folder / "returned").write_text(str(batch_id))
            if rows != "[]":
                place.armed.touch()

        return kept

    def start(self):
        """Start the query, and wait until it has begun to plan."""
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

    def has_all(self):
        return len(rows_in(self.place.folder)) >= given["events"]

    def is_done(self):
        if not self.has_all():
            self.wait()
            return False
        self.running.processAllAvailable()
        self.running.stop()
        return True


class Followed(Query):
    """Run the query that is killed at an arbitrary point, until the file `last` exists."""

    def sink(self):
        table = self.place.folder / "table"
        return lambda frame, number: merge_into_delta(frame, number, table, "followed", max_bytes=PIECE)

    def has_all(self):
        return (folder / "last").exists()


def queries():
    """Run one query for each of several databases, until each has received all events."""
    spark = session(
        **{
            "spark.master": given["master"],
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            # Spark refuses its own settings here; executors get them from the driver.
            "spark.executor.extraJavaOptions": " ".join(
                word for word in os.environ["SPARK_SUBMIT_OPTS"].split() if not word.startswith("-Dspark.")
            ),
            "spark.executor.memory": "512m",
            "spark.excludeOnFailure.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
        }
    )
    running = [
        (Followed if name == "followed" else Query)(spark, name, options)
        for name, options in given["queries"].items()
    ]
    while running:
        running = [query for query in running if not query.is_done()]
    spark.stop()


def delta():
    """Copy a collection (all rows, and all changes) into a Delta table, with an interleaved snapshot."""
    checkpoint = str(folder / "checkpoint")

    def merge(frame, batch_id):
        merge_into_delta(frame, batch_id, folder / "table", "life", checkpoint=checkpoint, max_bytes=4000)

    options = {"startingPosition": "snapshot", "snapshotOrder": "interleaved", "maxRecordsPerTrigger": "30"}
    stream = session(**TWO_TASKS).readStream.format("multiclouddb").options(**options, **given).load()
    writer = stream.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


class Life:
    """A query that ends by itself; every run except the first is a clean restart."""

    def __init__(self, spark, name, options):
        self.name, self.options, self.folder, self.spark = name, options, folder / name, spark
        self.sink = Sink(self.folder)
        self.stream = spark.readStream.format("multiclouddb").options(**options).load()

    def run(self):
        checkpoint = str(self.folder / "checkpoint")
        writer = self.stream.writeStream.foreachBatch(self.sink).option("checkpointLocation", checkpoint)
        self.query = writer.queryName(self.name).trigger(availableNow=True).start()
        self.query.awaitTermination()
        return caught_up(self.query)

    def follow(self):
        checkpoint = str(self.folder / "checkpoint")
        writer = self.stream.writeStream.foreachBatch(self.sink).option("checkpointLocation", checkpoint)
        query = writer.start()
        query.processAllAvailable()
        query.stop()

    def run_all(self):
        runs = 1
        while not (self.run() and len(rows_in(self.folder)) >= given["events"]):
            runs += 1
        return runs

    def replay(self):
        """Mark the last batch with rows, and everything after it, as not completed; run it again."""
        batches = {int(file.name): json.loads(file.read_text()) for file in (self.folder / "rows").iterdir()}
        full = max(number for number, rows in batches.items() if rows)
        for kind, first in (("commits", full), ("offsets", full + 1)):
            for file in (self.folder / "checkpoint" / kind).iterdir():
                if int("".join(filter(str.isdigit, file.name)) or -1) >= first:
                    file.unlink()
        (self.folder / "rows" / str(full)).unlink()
        self.run_all()
        again = json.loads((self.folder / "rows" / str(full)).read_text())
        return sorted(again) == sorted(batches[full])

    def batch(self):
        options = {key: value for key, value in self.options.items() if key != "maxRecordsPerTrigger"}
        return self.spark.read.format("multiclouddb").options(**options).load()

    def show(self):
        show(f"{self.name}-explain", printed(lambda: self.stream.explain(True)))
        show(f"{self.name}-explain-query", printed(lambda: self.query.explain(True)))
        show(f"{self.name}-progress", self.query.recentProgress)
        show(f"{self.name}-repr", repr(self.stream) + repr(self.query) + repr(self.query.status))
        if self.options["startingPosition"] != "now":
            batch = self.batch()
            show(f"{self.name}-explain-batch", printed(lambda: batch.explain(True)))
            batch.createOrReplaceTempView(self.name)
            show(f"{self.name}-batch", self.spark.sql(f"SELECT count(*) FROM {self.name}").collect())
        try:
            wrong = {**self.options, "startingPosition": "later"}
            self.spark.read.format("multiclouddb").options(**wrong).load()
        except Exception as error:  # noqa: BLE001 - it is looked into for secrets
            show(f"{self.name}-error", error)


def show(name, text):
    (folder / "shown" / name).write_text(str(text))


def printed(print_it):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_it()
    return out.getvalue()


def unknown_position(spark, life):
    """Return the error in the only configuration in which Spark 4.0 and 4.1 do not pass the checkpoint's
    position."""
    spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true")
    path = life.folder / "checkpoint" / "offsets"
    before, refused = sorted(file.name for file in path.iterdir()), None
    try:
        life.run()
    except StreamingQueryException as error:
        refused = [str(error_from_query(error)), str(error)]
    spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "false")
    assert before == sorted(file.name for file in path.iterdir())
    return refused


def replaced(spark):
    """Return what becomes of changes when the user's own function is named like one of Spark's."""
    frame = spark.createDataFrame([("a", "1"), ("a", "2")], "key string, order_key string")
    spark.udf.register("coalesce", lambda order, *_: str(9 - int(order)), "string")
    try:
        return [row.order_key for row in latest_by_key(frame).collect()]
    except MulticloudDbError as error:
        return [error.category, str(error)]


def ended():
    """Run queries that end by themselves, and replay their last batches; also read another data source."""
    shows = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(folder / "events"),
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        # This program's standard error also contains the output of the workers.
        "spark.log.level": "INFO",
    }
    for name in ("shown", "events"):
        (folder / name).mkdir()
    spark = session(**TWO_TASKS, **(shows if given["shows"] else {}))
    facts = {"version": spark.version, "foreign": spark.read.format("foreign").load().first().n}
    lives = [Life(spark, *each) for each in given["queries"].items()]
    for life in lives:
        life.run()
    (folder / "pinned").touch()
    while not (folder / "written").exists():
        time.sleep(0.02)
    facts["runs"] = [life.run_all() for life in lives]
    facts["replayed"] = [life.replay() for life in lives] if given["replays"] else []
    for life in lives if given["shows"] else ():
        life.show()
    if given["shows"]:
        show_pages(spark)
    else:
        facts["batch"] = [row.event_id for row in lives[0].batch().collect()]
        facts["refused"] = unknown_position(spark, lives[0])
        facts["replaced"] = replaced(spark)
    (folder / "facts").write_text(json.dumps(facts))
    spark.stop()


def show_pages(spark):
    pages = ["jobs", "stages", "storage", "environment", "executors", "SQL", "StreamingQuery"]
    pages += [f"SQL/execution/?id={number}" for number in range(4)]
    api = f"api/v1/applications/{spark.sparkContext.applicationId}"
    pages += [f"{api}/sql?details=true", f"{api}/environment", f"{api}/jobs"]
    for number, page in enumerate(pages):
        end = "" if "?" in page or "api" in page else "/"
        with urlopen(f"{spark.sparkContext.uiWebUrl}/{page}{end}") as answer:
            show(f"page-{number}", answer.read().decode())


def sinks():
    """Follow a collection with two queries, one for each kind of sink, until this program is killed.

    If the file `last` exists, read what is left, and end.
    """
    from multiclouddb_postgres import merge_into_postgres

    def to_delta(frame, batch_id):
        merge_into_delta(frame, batch_id, folder / "table", "delta", checkpoint=folder / "delta")

    def to_postgres(frame, batch_id):
        checkpoint = folder / "postgres"
        merge_into_postgres(frame, batch_id, given["dsn"], "items", "postgres", checkpoint=checkpoint)

    spark, is_last = session(**TWO_TASKS), (folder / "last").exists()
    stream = spark.readStream.format("multiclouddb").options(**given["options"]).load()

    def start(name, merge):
        writer = stream.writeStream.foreachBatch(merge).option("checkpointLocation", str(folder / name))
        return (writer.trigger(availableNow=True) if is_last else writer).start()

    running, tries = {each: start(*each) for each in (("delta", to_delta), ("postgres", to_postgres))}, TRIES
    while running:
        for each, query in list(running.items()):
            try:
                if query.awaitTermination(0.2):
                    del running[each]
            except StreamingQueryException as error:
                tries -= 1
                if not tries or "Python worker failed to connect back" not in str(error):
                    raise
                running[each] = start(*each)
    spark.stop()


def backlogs():
    """Read backlogs, with queries that end by themselves or not, while Spark writes its event log."""
    (folder / "events").mkdir()
    writes = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(folder / "events")}
    spark = session(**TWO_TASKS, **writes, **{"spark.log.level": "WARN"})
    facts = {"version": spark.version, "runs": {}}
    for name, options in given["queries"].items():
        life = Life(spark, name, options)
        facts["runs"][name] = life.run_all() if given["ends"] else life.follow()
    (folder / "facts").write_text(json.dumps(facts))
    spark.stop()


parts = {"backlogs": backlogs, "delta": delta, "ended": ended, "queries": queries, "sinks": sinks}
parts[sys.argv[1]]()
