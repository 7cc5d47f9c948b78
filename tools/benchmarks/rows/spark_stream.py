"""Measures micro-batches of the Spark source: reading, and the wait from a commit to `foreachBatch`."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.descendants import cpu_of_descendants
from benchmarks.row import Bench, Done, Side, Sides, row
from benchmarks.rows.spark_planner import options
from benchmarks.stores import ADDRESS, fill, small_document

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EVENTS: Final = 1_000_000
_SMALL: Final = 100_000
_TASKS: Final = 2
_WARM_UPS: Final = 4
_COMMITS: Final = 10
_SECONDS: Final = 60
_IDLE_SECONDS: Final = 10
_SETTINGS: Final = {
    "spark.master": f"local[{_TASKS}]",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


class Streams:
    """Runs queries over one store. Each run has its own checkpoint."""

    def __init__(self, session: SparkSession, path: Path) -> None:
        self._session, self._path = session, path
        self._runs = itertools.count()

    def run(self, limit: int) -> Done:
        """Read everything in micro-batches of at most `limit` rows.

        The result contains only the time of `addBatch`.
        """
        stream = self._session.readStream.format("multiclouddb")
        stream = stream.options(
            **options(self._path, startingPosition="beginning", maxRecordsPerTrigger=limit)
        )
        writer = stream.load().writeStream.format("noop")
        checkpoint = self._path.parent / f"checkpoint-{next(self._runs)}"
        began = cpu_of_descendants()
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [each for each in query.recentProgress if each["numInputRows"]]
        seconds = sum(each["durationMs"]["addBatch"] for each in batches) / 1000
        rows = sum(each["numInputRows"] for each in batches)
        return Done(rows, seconds=seconds, cpu=cpu_of_descendants() - began)


def read_ranges(path: str, which: int) -> tuple[int, float]:
    """Read each second range of the feed, as a task does, but make no Arrow of the records."""
    from multiclouddb_spi import read_range
    from pyspark_multiclouddb.connection import connection_for
    from pyspark_multiclouddb.options import parse_options

    settings = parse_options(options(Path(path))).for_batch()
    connection = connection_for(settings)
    start = connection.start(settings.start)
    steps = connection.plan("plan", lambda planner, deadline: list(planner.steps(start, deadline)))
    parts = [part for step in steps for part in step.ranges()][which::_TASKS]
    began, count = time.perf_counter(), 0
    for part in parts:
        for batch in read_range(connection.provider, connection.feed, part):
            count += len(batch)
    return count, time.perf_counter() - began


class Readers:
    """Processes that read ranges.

    These processes stay alive between two runs, like Spark's workers.
    """

    def __init__(self, path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pools = [context.Pool(1) for _ in range(_TASKS)]
        self._path = path

    def run(self) -> Done:
        """Read in all processes at once. The slowest process determines the time of the run."""
        began = cpu_of_descendants()
        waits = [
            pool.apply_async(read_ranges, (str(self._path), which)) for which, pool in enumerate(self._pools)
        ]
        found = [wait.get() for wait in waits]
        seconds = max(seconds for _, seconds in found)
        return Done(sum(count for count, _ in found), seconds=seconds, cpu=cpu_of_descendants() - began)

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools:
            pool.terminate()
            pool.join()


@row(
    "spark-million",
    title="Spark, a batch of a million rows",
    profiled=False,
    unit="rows/s",
    goal=0.5,
    about=(
        "One micro-batch reads 1,000,000 events of the embedded store with small documents. Two tasks "
        "pass the events as Arrow to Spark's sink `noop`, which discards them. The session has run five such "
        "batches before, because a stream runs for days and the JVM compiles for the first million rows. The "
        "figure counts only the time of `addBatch`."
    ),
    against="`read_range` alone, in two processes that stay alive. They make neither Arrow nor rows.",
    reason=(
        "Measured by hand: Python takes 1.2 s of CPU time and the JVM 1.3 s for a million rows, on "
        "the same two cores. The JVM turns the Arrow batches into its own rows. Batches of 1,000 to "
        "50,000 rows change little; thirteen columns take three times as long as one."
    ),
    shown=(read_ranges,),
)
def spark_million(bench: Bench) -> Iterator[Sides]:
    """This row measures the rate at which Spark receives events from the provider."""
    from pyspark_multiclouddb import local_session

    path, events = bench.folder / "store.db", bench.size(_EVENTS)
    fill(path, events, partitions=_TASKS, make=small_document, batch=50_000)
    with ExitStack() as stack:
        readers = Readers(path)
        stack.callback(readers.close)
        streams = Streams(stack.enter_context(local_session("benchmarks", **_SETTINGS)), path)
        for _ in range(_WARM_UPS):
            streams.run(events)
        yield Sides(partial(streams.run, events), readers.run)


@row(
    "spark-batches",
    title="Spark, batches of 100,000 rows",
    profiled=False,
    unit="rows/s",
    goal=0.375,
    about=(
        "Micro-batches of 100,000 rows read the same million events. The figure counts the time of every "
        "`addBatch`."
    ),
    against="One micro-batch reads the million events.",
)
def spark_batches(bench: Bench) -> Iterator[Sides]:
    """This row measures the fixed cost of a micro-batch, apart from the cost of its rows."""
    from pyspark_multiclouddb import local_session

    path, events = bench.folder / "store.db", bench.size(_EVENTS)
    fill(path, events, partitions=_TASKS, make=small_document, batch=50_000)
    with local_session("benchmarks", **_SETTINGS) as session:
        streams = Streams(session, path)
        yield Sides(partial(streams.run, bench.size(_SMALL)), partial(streams.run, events))


class Arrivals:
    """A running stream that records when its batches arrive."""

    def __init__(
        self, frame: DataFrame, checkpoint: Path, change: Callable[[int], Any], commits: int
    ) -> None:
        self._commits = commits
        self._change, self._arrived = change, threading.Event()
        self._numbers = itertools.count()
        self._when = 0.0
        writer = frame.writeStream.foreachBatch(self._keep)
        self._query = writer.option("checkpointLocation", str(checkpoint)).start()
        self._query.processAllAvailable()

    def _keep(self, batch: DataFrame, number: int) -> None:
        del batch, number
        self._when = time.perf_counter()
        self._arrived.set()

    def run(self) -> Done:
        """Return the median time from a commit to its batch, in milliseconds."""
        waits = []
        for _ in range(self._commits):
            number = next(self._numbers)
            # A source that polls looks once per interval. The commits come at different moments of it.
            time.sleep(0.1 * (number % 10))
            self._arrived.clear()
            self._change(number)
            began = time.perf_counter()
            if not self._arrived.wait(_SECONDS):
                raise ValueError("no batch came within a minute")
            waits.append(self._when - began)
            self._query.processAllAvailable()
        return Done(self._commits, value=1000 * median(waits))

    def stop(self) -> None:
        """End the query."""
        self._query.stop()


_FILES: Final = (
    "Spark's own file source. The time starts when an empty file appears, and ends at its empty batch."
)


@row(
    "spark-latency",
    title="Spark, from a commit to `foreachBatch`",
    unit="ms",
    goal=0.8,
    at_most=True,
    same_work=False,
    about=(
        "The figure is the median time from a commit to the call of `foreachBatch`. The stream over the "
        "embedded store is idle before the commit, and asks the store every 40 ms whether it has changed."
    ),
    against=_FILES,
)
def spark_latency(bench: Bench) -> Iterator[Sides]:
    """This row measures how soon an idle stream notices a change."""
    from multiclouddb_embedded import EmbeddedStore

    path = bench.folder / "store.db"
    fill(path, 10)
    with EmbeddedStore(path, durable=False) as store, ExitStack() as stack:

        def put(number: int) -> None:
            store.put(str(ADDRESS.collection), "one", {"n": number})

        yield _beside_files(bench, stack, options(path), put)


@row(
    "spark-idle-python",
    title="Spark, Python processes of an idle stream",
    unit="% of a core",
    goal=2,
    at_most=True,
    profiled=False,
    about=(
        "The figure is the CPU time of the Python processes below Spark, while a stream over the embedded "
        "store is idle for ten seconds. Its source asks the store every 40 ms whether it has changed."
    ),
    against="",
    reason=(
        "Measured by hand: asking 25 times a second takes 1 % of a core, of which the sleep alone takes 0.1. "
        "The rest is Spark, which asks the source ten times a second. The row took 1.8 % in the same hour."
    ),
)
def spark_idle_python(bench: Bench) -> Iterator[Sides]:
    """This row measures what the watch for changes costs."""
    from pyspark_multiclouddb import local_session

    path, seconds = bench.folder / "store.db", bench.size(_IDLE_SECONDS)
    fill(path, 10)
    with local_session("benchmarks", **_SETTINGS) as session:
        stream = session.readStream.format("multiclouddb").options(**options(path)).load()
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(bench.folder / "place"))
        query = writer.start()
        query.processAllAvailable()

        def ours() -> Done:
            began = cpu_of_descendants("python")
            time.sleep(seconds)
            cpu = cpu_of_descendants("python") - began
            return Done(1, value=max(0.001, 100 * cpu / seconds), cpu=cpu)

        yield Sides(ours)
        query.stop()


@row(
    "spark-latency-mongo",
    title="MongoDB, Spark, from a commit to `foreachBatch`",
    unit="ms",
    goal=1.5,
    at_most=True,
    same_work=False,
    about=(
        "The figure is the median time from a write to the call of `foreachBatch`. The stream is idle before "
        "the write, and a thread of the source waits for the server's next change."
    ),
    against=_FILES,
)
def spark_latency_mongo(bench: Bench) -> Iterator[Sides]:
    """This row measures how soon an idle stream notices a change of a server."""
    from benchmarks.servers import server_module

    with ExitStack() as stack:
        server = server_module("mongo", "mongod").ReplicaSet(bench.folder / "mongo")
        stack.callback(server.close)
        items = server.client()["shop"]["items"]
        items.database.create_collection("items")
        place = {"url": server.uri(), "database": "shop", "collection": "items"}

        def put(number: int) -> None:
            items.replace_one({"_id": 1}, {"n": number}, upsert=True)

        yield _beside_files(bench, stack, place, put)


def _beside_files(bench: Bench, stack: ExitStack, place: dict[str, str], put: Callable[[int], Any]) -> Sides:
    """Start a stream of ours, and one of files, which stand idle in one session."""
    from pyspark_multiclouddb import local_session

    files = bench.folder / "files"
    files.mkdir()

    def appear(number: int) -> None:
        draft = bench.folder / "draft"
        draft.touch()
        draft.rename(files / f"{number}.txt")

    session = stack.enter_context(local_session("benchmarks", **_SETTINGS))
    session.sparkContext.setLogLevel("OFF")  # a query that is stopped may print an error
    source = session.readStream.format("multiclouddb").options(**place)
    sides: list[Side] = []
    for name, frame, change in (
        ("ours", source.load(), put),
        ("files", session.readStream.text(str(files)), appear),
    ):
        arrivals = Arrivals(frame, bench.folder / f"checkpoint-{name}", change, bench.size(_COMMITS))
        stack.callback(arrivals.stop)
        sides.append(arrivals.run)
    return Sides(*sides)
