"""Measures the planner of the Spark source, without Spark."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.row import Bench, Done, Sides, row
from benchmarks.stores import ADDRESS, fill, small_document, url

if TYPE_CHECKING:
    from pyspark_multiclouddb.micro_batches import MicroBatches

_MANY: Final = 10_000
_COMMITS: Final = 10


def options(path: Path, **more: object) -> dict[str, str]:
    """Return the options of the source."""
    texts = {name: str(value) for name, value in more.items()}
    return {"url": url(path), "collection": str(ADDRESS.collection), **texts}


class Plans:
    """Plans micro-batches at the end of a feed, on a store with the given number of partitions."""

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
        self._numbers = itertools.count()

    def poll(self, times: int) -> float:
        """Return the CPU time of `latestOffset` in milliseconds, if nothing has changed."""
        self.batches.after(self.offset, None)
        began = time.process_time()
        for _ in range(times):
            if self.batches.after(self.offset, None) is not self.offset:
                raise ValueError("something has changed")
        return 1000 * (time.process_time() - began) / times

    def change(self, times: int) -> float:
        """Return the time of `latestOffset` after one row has changed, in milliseconds."""
        spent = 0.0
        for _ in range(times):
            self.store.put(str(ADDRESS.collection), "one", {"n": next(self._numbers)})
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


@contextmanager
def _plans(bench: Bench) -> Iterator[tuple[Plans, Plans, int]]:
    """Provide two planners.

    Yields:
        A planner for 10,000 partitions, a planner for a tenth of this number, and the number of
        partitions of the second planner.
    """
    some, many = bench.size(_MANY // 10, 4), bench.size(_MANY, 4)
    with ExitStack() as stack:
        plans = {size: Plans(bench.folder, size) for size in {some, many}}
        for each in plans.values():
            stack.callback(each.close)
        yield plans[many], plans[some], some


@row(
    "spark-plan",
    title="Spark, `latestOffset` of one changed row, 10,000 partitions",
    question="Does Spark's plan grow with the number of partitions?",
    unit="ms",
    goal=12,
    at_most=True,
    same_work=False,
    about=(
        "The figure is the time of `latestOffset` after one row has changed. The batch of this row reads one "
        "range."
    ),
    against="The same with 1,000 partitions.",
)
def spark_plan(bench: Bench) -> Iterator[Sides]:
    """This row checks that the time of planning grows at most linearly with the number of partitions."""
    with _plans(bench) as (many, some, _):

        def side(plans: Plans) -> Done:
            return Done(_COMMITS, value=plans.change(_COMMITS))

        yield Sides(partial(side, many), partial(side, some))
