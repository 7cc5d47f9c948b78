"""Measures the planner of the Spark source, without Spark."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.row import Bench, Done, Section, Side, Sides, row
from benchmarks.stores import ADDRESS, fill, small_document, url

_COMMITS = 10


@row(
    "spark-plan",
    Section.ENGINE,
    title="Spark, `latestOffset` of one changed row, 1,000 partitions",
    question="Does Spark's plan grow with the number of partitions?",
    unit="ms",
    goal=12,
    at_most=True,
    same_work=False,
    about=(
        "The figure is the CPU time of `latestOffset` after one row of the embedded store has changed. The "
        "batch of this row reads one range."
    ),
    against="The same with 100 partitions.",
)
def spark_plan(bench: Bench) -> Iterator[Sides]:
    """This row checks that the time of planning grows at most linearly with the number of partitions."""
    with ExitStack() as stack:
        yield Sides(_plans(bench, stack, bench.size(1000, 40)), _plans(bench, stack, bench.size(100, 4)))


def _plans(bench: Bench, stack: ExitStack, partitions: int) -> Side:
    """Return a side that plans micro-batches at the end of a feed of so many partitions."""
    from multiclouddb_embedded import EmbeddedStore
    from pyspark_multiclouddb.connection import close_connections
    from pyspark_multiclouddb.micro_batches import MicroBatches
    from pyspark_multiclouddb.options import parse_options

    path, collection = bench.folder / f"{partitions}.db", str(ADDRESS.collection)
    fill(path, partitions, partitions, make=small_document)
    store = stack.enter_context(EmbeddedStore(path, durable=False))
    stack.callback(close_connections)
    options = {"url": url(path), "collection": collection, "pollInterval": "0", "startingPosition": "now"}
    batches = MicroBatches(parse_options(options).for_stream())
    offset = batches.after(batches.initial(), None)
    numbers = itertools.count()

    def run() -> Done:
        nonlocal offset
        spent = 0.0
        for _ in range(_COMMITS):
            store.put(collection, "one", {"number": next(numbers)})
            began = time.process_time()
            end = batches.after(offset, None)
            spent += time.process_time() - began
            tasks = batches.tasks(offset, end)
            if sum(len(task.value.ranges) for task in tasks) != 1:
                raise ValueError("a batch of one row reads more than one range")
            offset = end
        return Done(_COMMITS, value=1000 * spent / _COMMITS)

    return run
