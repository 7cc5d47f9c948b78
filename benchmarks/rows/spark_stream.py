"""Micro-batches of the Spark source: reading, planning, and the wait from a commit to `foreachBatch`."""

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
from benchmarks.stores import ADDRESS, fill, small_document, url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_multiclouddb.micro_batches import MicroBatches

_EVENTS: Final = 1_000_000
_TASKS: Final = 2
_SMALL: Final = 100_000
_MANY: Final = 10_000
_COMMITS: Final = 10
_POLLS: Final = 200
_SETTINGS: Final = {
    "spark.master": f"local[{_TASKS}]",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


def options(path: Path, **more: object) -> dict[str, str]:
    """The options of the source."""
    texts = {name: str(value) for name, value in more.items()}
    return {"url": url(path), "collection": str(ADDRESS.collection), **texts}


# -- Reading


class Streams:
    """Queries over one store; each run has a checkpoint of its own."""

    def __init__(self, session: SparkSession, path: Path) -> None:
        self._session, self._path = session, path
        self._runs = itertools.count()

    def run(self, limit: int) -> Done:
        """Read everything in micro-batches of so many rows. The time is that of `addBatch` alone."""
        stream = self._session.readStream.format("multiclouddb")
        stream = stream.options(**options(self._path, maxRecordsPerTrigger=limit))
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
    """Read each second range of the feed, as a task does, and build nothing of it."""
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
    """Processes that stay, as Spark's workers do."""

    def __init__(self, path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pools = [context.Pool(1) for _ in range(_TASKS)]
        self._path = path

    def run(self) -> Done:
        """All of them at once; the time is that of the slowest."""
        waits = [
            pool.apply_async(read_ranges, (str(self._path), which)) for which, pool in enumerate(self._pools)
        ]
        found = [wait.get() for wait in waits]
        return Done(sum(count for count, _ in found), seconds=max(seconds for _, seconds in found))

    def close(self) -> None:
        """End them."""
        for pool in self._pools:
            pool.terminate()
            pool.join()


@row(
    "spark-million",
    title="Spark, a batch of a million rows",
    unit="rows/s",
    goal=0.5,
    about=(
        "One micro-batch of 1,000,000 events of the embedded store with small documents, in two tasks, as "
        "Arrow into Spark's sink that keeps nothing. The session is warm, and the time is that of `addBatch`."
    ),
    against="`read_range` alone, in two processes that stay. It builds neither Arrow nor rows.",
    shown=(read_ranges,),
)
def spark_million(bench: Bench) -> Iterator[Sides]:
    """The way from the provider into Spark."""
    from pyspark_multiclouddb import local_session

    path, events = bench.folder / "store.db", bench.size(_EVENTS)
    fill(path, events, partitions=_TASKS, make=small_document, batch=50_000)
    with ExitStack() as stack:
        readers = Readers(path)
        stack.callback(readers.close)
        streams = Streams(stack.enter_context(local_session("benchmarks", **_SETTINGS)), path)
        yield Sides(partial(streams.run, events), readers.run)


@row(
    "spark-batches",
    title="Spark, batches of 100,000 rows",
    unit="rows/s",
    goal=0.375,
    about="The same million events in micro-batches of 100,000 rows; the time is that of all `addBatch`.",
    against="One micro-batch of all of them.",
)
def spark_batches(bench: Bench) -> Iterator[Sides]:
    """What a micro-batch costs beside its rows."""
    from pyspark_multiclouddb import local_session

    path, events = bench.folder / "store.db", bench.size(_EVENTS)
    fill(path, events, partitions=_TASKS, make=small_document, batch=50_000)
    with local_session("benchmarks", **_SETTINGS) as session:
        streams = Streams(session, path)
        yield Sides(partial(streams.run, bench.size(_SMALL)), partial(streams.run, events))


# -- Planning


class Plans:
    """A stream's planner over a store with so many partitions; it is at the end of the feed."""

    def __init__(self, folder: Path, partitions: int) -> None:
        from multiclouddb_embedded import EmbeddedStore
        from pyspark_multiclouddb.micro_batches import MicroBatches
        from pyspark_multiclouddb.options import parse_options

        path = folder / f"{partitions}.db"
        fill(path, partitions, partitions, make=small_document)
        self.store = EmbeddedStore(path, durable=False)
        settings = parse_options(options(path, pollInterval=0, startingPosition="now")).for_stream()
        self.batches: MicroBatches = MicroBatches(settings)
        self.offset = self.batches.after(self.batches.initial(), None)
        self._number = itertools.count()

    def poll(self, times: int) -> float:
        """The CPU time of `latestOffset` when nothing has changed, in milliseconds."""
        self.batches.after(self.offset, None)
        began = time.process_time()
        for _ in range(times):
            if self.batches.after(self.offset, None) is not self.offset:
                raise ValueError("something has changed")
        return 1000 * (time.process_time() - began) / times

    def change(self, times: int) -> float:
        """The time of `latestOffset` after one row has changed, in milliseconds; it plans one range."""
        spent = 0.0
        for _ in range(times):
            self.store.put(str(ADDRESS.collection), "one", {"n": next(self._number)})
            began = time.perf_counter()
            end = self.batches.after(self.offset, None)
            spent += time.perf_counter() - began
            tasks = self.batches.tasks(self.offset, end)
            if sum(len(task.value.ranges) for task in tasks) != 1:
                raise ValueError("a batch of one row reads more than one range")
            self.offset = end
        return 1000 * spent / times

    def close(self) -> None:
        """Close the store and the connection."""
        from pyspark_multiclouddb.connection import close_connections

        close_connections()
        self.store.close()


@row(
    "spark-idle",
    title="Spark, idle `latestOffset`, 10,000 partitions",
    unit="ms",
    goal=50,
    at_most=True,
    about=(
        "The CPU time of `latestOffset` on an idle stream over the embedded store. Spark calls it about ten "
        "times a second, and the source looks once in `pollInterval`."
    ),
    against="",
)
def spark_idle(bench: Bench) -> Iterator[Sides]:
    """An idle stream costs next to nothing."""
    some, many = bench.size(_MANY // 10, 4), bench.size(_MANY, 4)
    with ExitStack() as stack:
        plans = {size: Plans(bench.folder, size) for size in {some, many}}
        for each in plans.values():
            stack.callback(each.close)

        def ours() -> Done:
            value = plans[many].poll(_POLLS)
            return Done(_POLLS, value=value, notes={f"{some:,} partitions": plans[some].poll(_POLLS)})

        yield Sides(ours)


@row(
    "spark-plan",
    title="Spark, `latestOffset` of one changed row, 10,000 partitions",
    unit="ms",
    goal=12,
    at_most=True,
    same_work=False,
    about="The time of `latestOffset` after one row has changed; its batch reads one range.",
    against="The same with 1,000 partitions.",
)
def spark_plan(bench: Bench) -> Iterator[Sides]:
    """Planning grows with the number of partitions, and no faster."""
    some, many = bench.size(_MANY // 10, 4), bench.size(_MANY, 4)
    with ExitStack() as stack:
        plans = {size: Plans(bench.folder, size) for size in {some, many}}
        for each in plans.values():
            stack.callback(each.close)

        def side(size: int) -> Done:
            return Done(_COMMITS, value=plans[size].change(_COMMITS))

        yield Sides(partial(side, many), partial(side, some))


# -- Waiting


class Arrivals:
    """A stream that runs, and the times at which its batches arrive."""

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
        """The median time from a commit to its batch, in milliseconds."""
        waits = []
        for _ in range(self._commits):
            number = next(self._numbers)
            # Commits come at any moment of the interval at which the source looks.
            time.sleep(0.1 * (number % 10))
            self._arrived.clear()
            self._change(number)
            began = time.perf_counter()
            if not self._arrived.wait(60):
                raise ValueError("no batch came within a minute")
            waits.append(self._when - began)
            self._query.processAllAvailable()
        return Done(self._commits, value=1000 * median(waits))

    def stop(self) -> None:
        """End the query."""
        self._query.stop()


@row(
    "spark-latency",
    title="Spark, from a commit to `foreachBatch`",
    unit="ms",
    goal=3,
    at_most=True,
    same_work=False,
    about=(
        "The median time from a commit to the call of `foreachBatch` on an idle stream over the embedded "
        "store, which looks once a second (`pollInterval`)."
    ),
    against="Spark's own file source: from the appearance of an empty file to its empty batch.",
)
def spark_latency(bench: Bench) -> Iterator[Sides]:
    """An idle stream notices a change soon."""
    from multiclouddb_embedded import EmbeddedStore
    from pyspark_multiclouddb import local_session

    path, files = bench.folder / "store.db", bench.folder / "files"
    fill(path, 10)
    files.mkdir()

    def appear(number: int) -> None:
        draft = bench.folder / "draft"
        draft.touch()
        draft.rename(files / f"{number}.txt")

    with EmbeddedStore(path, durable=False) as store, ExitStack() as stack:
        session = stack.enter_context(local_session("benchmarks", **_SETTINGS))
        session.sparkContext.setLogLevel("OFF")  # a query that is stopped may print an error
        source = session.readStream.format("multiclouddb").options(**options(path))

        def put(number: int) -> None:
            store.put(str(ADDRESS.collection), "one", {"n": number})

        sides: list[Side] = []
        for name, frame, change in (
            ("ours", source.load(), put),
            ("files", session.readStream.text(str(files)), appear),
        ):
            arrivals = Arrivals(frame, bench.folder / f"checkpoint-{name}", change, bench.size(_COMMITS))
            stack.callback(arrivals.stop)
            sides.append(arrivals.run)
        yield Sides(*sides)
