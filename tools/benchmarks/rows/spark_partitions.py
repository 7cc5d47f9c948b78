"""Measures how Spark's driver plans micro-batches of many partitions, beside pages of the same changes.

The servers answer 10 ms late, as over a network. The command of the row `spark-plan-memory` is `python -m
benchmarks.rows.spark_partitions OPTIONS RECORDS`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from benchmarks.driver import Driver, Pages, Planned
from benchmarks.dynamo import Scripted, scripted
from benchmarks.row import Bench, Done, Sides, row
from multiclouddb_api import ResourceAddress

if TYPE_CHECKING:
    pass

_ROUND_TRIP: Final = 0.010
_SHARDS: Final = 200
_MANY: Final = 1000
_NEWS: Final = 10
_RANGES: Final = 64
_PARTITIONS: Final = 100
_CHANGES: Final = 4000
_BATCH: Final = 1_000_000
_LEAST: Final = 8
_WIDTH: Final = 32
_CALLS: Final = ("GetRecords", "GetShardIterator", "DescribeStream")

_PAGES: Final = "The same changes are read in pages of a client, which stays open between two runs."
_LATE: Final = "The server answers each call 10 ms late."


@attrs.frozen
class Shards:
    """A scripted DynamoDB with many open shards, and two tables: one for each side.

    Attributes:
        server: The server.
        ours: The table that the driver follows.
        pages: The table that the client reads in pages.
        news: The number of shards of each table that get a record in each run.
    """

    server: Scripted
    ours: ResourceAddress
    pages: ResourceAddress
    news: int

    def options(self, address: ResourceAddress, **more: str) -> dict[str, str]:
        """Return the options of the source for a table."""
        os.environ.update(AWS_ACCESS_KEY_ID="any", AWS_SECRET_ACCESS_KEY="any")
        endpoint = self.server.config.connection["endpoint_url"]
        url = f"dynamo://us-east-1?endpoint_url={endpoint}"
        return {"url": url, "collection": str(address.collection), **more}

    def write(self, address: ResourceAddress) -> int:
        """Write one record into each shard that gets news; return the number of records."""
        shards = self.server.ask("open_shards", address.collection)
        chosen = shards[:: len(shards) // self.news][: self.news]
        for shard in chosen:
            self.server.ask("fill", shard, 1)
        return len(chosen)

    def calls(self) -> int:
        """Return the number of calls that the server has received."""
        return self.server.calls(*_CALLS)

    def driver(self, address: ResourceAddress, **more: str) -> Driver:
        """Return a driver that follows a table."""
        return Driver(self.options(address, **more), self.calls)

    def planned(self, driver: Driver, address: ResourceAddress) -> Planned:
        """Write, and plan what was written."""
        return driver.plan(self.write(address))

    def timed(self, driver: Driver, address: ResourceAddress) -> Done:
        """Write, and return the time of planning what was written."""
        planned = self.planned(driver, address)
        return Done(self.news, value=1000 * planned.seconds)

    def read(self, pages: Pages) -> Done:
        """Write, and return the time of reading in pages what was written."""
        return Done(self.news, value=1000 * pages.read(self.write(self.pages)))


def _shards(bench: Bench, stack: ExitStack, shards: int, news: int | None = None) -> Shards:
    from pyspark_multiclouddb.connection import close_connections

    count = bench.size(shards, _LEAST)
    some = count if news is None else bench.size(news, 2)
    server = stack.enter_context(scripted(_WIDTH, initial_shards=count))
    made = Shards(server, server.create("ours"), server.create("pages"), some)
    server.ask("troubles.delay", None, _ROUND_TRIP)
    stack.callback(close_connections)
    return made


def _beside_pages(bench: Bench, shards: int, news: int | None = None) -> Iterator[Sides]:
    with ExitStack() as stack:
        feed = _shards(bench, stack, shards, news)
        driver = feed.driver(feed.ours)
        pages = stack.enter_context(closing(Pages.as_configured(feed.options(feed.pages), feed.pages)))
        yield Sides(partial(feed.timed, driver, feed.ours), partial(feed.read, pages))


@row(
    "spark-plan-quiet",
    title="Spark on DynamoDB, records in 10 of 1,000 shards",
    question="How long does Spark plan if few of 1,000 shards have changes?",
    unit="ms",
    goal=1.2,
    at_most=True,
    profiled=False,
    about=(
        "The figure is the time until the driver has planned one new record in each of 10 shards, while 990 "
        f"other shards have none. {_LATE}"
    ),
    against=_PAGES,
)
def spark_plan_quiet(bench: Bench) -> Iterator[Sides]:
    """This row represents a large table of which little changes at a time."""
    yield from _beside_pages(bench, _MANY, _NEWS)


def plan_all(options: dict[str, str], records: int) -> dict[str, float]:
    """Plan one micro-batch from the beginning, and return how much memory that took, in MiB."""
    from benchmarks.rows.memory import peak_mebibytes

    driver = Driver({**options, "startingPosition": "beginning"}, lambda: 0, records)
    idle = peak_mebibytes()
    found = driver.plan_only(records)
    if found != records:
        raise ValueError(f"the micro-batch has {found:,} of {records:,} records")
    return {"mebibytes": peak_mebibytes() - idle}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(plan_all(json.loads(sys.argv[1]), int(sys.argv[2]))))
