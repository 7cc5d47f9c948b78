"""Measures micro-batches of the Spark source: reading, and the wait from a commit to `foreachBatch`."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.descendants import cpu_of_descendants
from benchmarks.row import Bench, Done, Side, Sides, row
from benchmarks.rows.spark_planner import options
from benchmarks.stores import ADDRESS, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EVENTS: Final = 1_000_000
_TASKS: Final = 2
_COMMITS: Final = 10
_SECONDS: Final = 60
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
    question="How long until a change is in foreachBatch?",
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
