"""Measures how Spark's driver plans micro-batches of many partitions, beside pages of the same changes.

The servers answer 10 ms late, as over a network. The command of the row `spark-plan-memory` is `python -m
benchmarks.rows.spark_partitions OPTIONS RECORDS`.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Final

import attrs

from benchmarks.cosmos_feed import ADDRESS as ORDERS
from benchmarks.cosmos_feed import Account, account
from benchmarks.driver import Driver, Pages, Planned
from benchmarks.dynamo import Scripted, scripted
from benchmarks.new_process import report_of
from benchmarks.row import Bench, Done, Sides, row
from multiclouddb_api import ResourceAddress
from multiclouddb_conformance.waiting import Beside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROUND_TRIP: Final = 0.010
_SHARDS: Final = 200
_MANY: Final = 1000
_NEWS: Final = 10
_RANGES: Final = 64
_PARTITIONS: Final = 100
_CHANGES: Final = 4000
_LIMIT: Final = 100_000
_BATCH: Final = 1_000_000
_LEAST: Final = 8
_SPLIT: Final = 300
_EACH_SECOND: Final = 20
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


def _calls_a_shard(bench: Bench, shards: int, news: int | None = None) -> Iterator[Sides]:
    with ExitStack() as stack:
        feed = _shards(bench, stack, shards, news)
        driver = feed.driver(feed.ours)
        count = bench.size(shards, _LEAST)
        yield Sides(lambda: Done(1, value=feed.planned(driver, feed.ours).counted / count))


@row(
    "spark-plan-shards",
    title="Spark on DynamoDB, a record in each of 200 shards",
    unit="ms",
    goal=1.2,
    at_most=True,
    about=(
        "The figure is the time until the driver has planned one new record in each of 200 open shards of a "
        f"scripted server. {_LATE}"
    ),
    against=_PAGES,
)
def spark_plan_shards(bench: Bench) -> Iterator[Sides]:
    """This row checks that the driver asks many shards at once, as a page does."""
    yield from _beside_pages(bench, _SHARDS)


@row(
    "spark-plan-shards-calls",
    title="Spark on DynamoDB, calls for each of 200 shards with a record",
    unit="calls",
    goal=2.2,
    at_most=True,
    profiled=False,
    about=(
        "The figure is the number of calls that the driver of `spark-plan-shards` sends for each shard, in "
        "its second plan."
    ),
    against="",
)
def spark_plan_shards_calls(bench: Bench) -> Iterator[Sides]:
    """This row checks that a batch ends where an answer ended, and not where nothing followed."""
    yield from _calls_a_shard(bench, _SHARDS)


@row(
    "spark-plan-quiet",
    title="Spark on DynamoDB, records in 10 of 1,000 shards",
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


@row(
    "spark-plan-quiet-calls",
    title="Spark on DynamoDB, calls for each of 1,000 shards of which 10 have a record",
    unit="calls",
    goal=1.1,
    at_most=True,
    profiled=False,
    about=(
        "The figure is the number of calls that the driver of `spark-plan-quiet` sends for each shard, in "
        "its second plan."
    ),
    against="",
)
def spark_plan_quiet_calls(bench: Bench) -> Iterator[Sides]:
    """This row checks that a shard without records is asked once."""
    yield from _calls_a_shard(bench, _MANY, _NEWS)


@row(
    "spark-plan-skips",
    title="Spark on DynamoDB, with `onPoison=skip` and `failOnDataLoss=false`",
    unit="ms",
    goal=1.5,
    at_most=True,
    about=(
        "The figure is the one of `spark-plan-shards` with `onPoison=skip` and `failOnDataLoss=false`. The "
        "run begins again before each plan, so that it also checks that its positions are not lost."
    ),
    against="The same without these options.",
)
def spark_plan_skips(bench: Bench) -> Iterator[Sides]:
    """This row measures what it costs to look for poison and for losses."""
    with ExitStack() as stack:
        feed = _shards(bench, stack, _SHARDS)
        careful = feed.driver(feed.ours, onPoison="skip", failOnDataLoss="false")
        plain = feed.driver(feed.pages)

        def side(driver: Driver, address: ResourceAddress) -> Done:
            driver.restart()
            return feed.timed(driver, address)

        yield Sides(partial(side, careful, feed.ours), partial(side, plain, feed.pages))


@row(
    "spark-plan-target",
    title="Spark on DynamoDB, the target of `availableNow` in 1,000 shards",
    unit="ms",
    goal=1.2,
    at_most=True,
    pairs=1,
    profiled=False,
    warm_up=False,
    about=(
        "The figure is the time until a new run with `trigger(availableNow=True)` has planned its first "
        "micro-batch. Before it, the run finds the current end of each of 1,000 shards, of which 10 have a "
        f"new record. {_LATE}"
    ),
    against="A new client reads pages until one is idle.",
)
def spark_plan_target(bench: Bench) -> Iterator[Sides]:
    """This row measures how soon a job that runs once an hour begins to read."""
    from pyspark_multiclouddb.connection import close_connections

    with ExitStack() as stack:
        feed = _shards(bench, stack, _MANY, _NEWS)
        driver = feed.driver(feed.ours)
        pages = stack.enter_context(closing(Pages.as_configured(feed.options(feed.pages), feed.pages)))

        def ours() -> Done:
            close_connections()
            driver.restart(ends_by_itself=True)
            return feed.timed(driver, feed.ours)

        def baseline() -> Done:
            pages.reconnect()
            return Done(feed.news, value=1000 * pages.read(feed.write(feed.pages), until_idle=True))

        yield Sides(ours, baseline)


@row(
    "spark-sent",
    title="Spark on DynamoDB, records sent for each row",
    unit="records",
    goal=1.05,
    at_most=True,
    about=(
        "The figure is the number of records that the server sends for each row that the tasks deliver, if "
        "one record is new in each of 200 shards. It counts what the driver and the tasks read."
    ),
    against="",
)
def spark_sent(bench: Bench) -> Iterator[Sides]:
    """This row checks whether a record is read once."""
    with ExitStack() as stack:
        feed = _shards(bench, stack, _SHARDS)
        sent = feed.server.records_sent
        driver = Driver(feed.options(feed.ours), sent)

        def ours() -> Done:
            planned = feed.planned(driver, feed.ours)
            before = sent()
            rows = driver.rows(pickle.loads(pickle.dumps(planned.tasks)))
            if rows != feed.news:
                raise ValueError(f"the tasks delivered {rows:,} of {feed.news:,} rows")
            return Done(rows, value=(planned.counted + sent() - before) / rows)

        yield Sides(ours)


def _limited(
    options: dict[str, str],
    calls: Callable[[], int],
    pages: Pages,
    changes: int,
    fill: Callable[[], object],
    fill_pages: Callable[[], object],
) -> Sides:
    """Measure planning with and without a limit, and reading pages of a feed that is filled equally."""
    limited, free = (Driver(options, calls, limit) for limit in (_LIMIT, None))

    def ours() -> Done:
        fill()
        notes = {"without a limit": 1000 * free.plan(changes).seconds}
        return Done(changes, value=1000 * limited.plan(changes).seconds, notes=notes)

    def baseline() -> Done:
        fill_pages()
        return Done(changes, value=1000 * pages.read(changes))

    return Sides(ours, baseline)


@row(
    "spark-plan-cosmos",
    title="Spark on Cosmos DB, 4,000 changes in 64 ranges, with a limit",
    unit="ms",
    goal=1.2,
    at_most=True,
    about=(
        "The figure is the time until the driver has planned 4,000 changes in 64 ranges of our emulator, "
        f"with `maxRecordsPerTrigger=100000`. {_LATE} The note is the same without a limit."
    ),
    against=_PAGES,
)
def spark_plan_cosmos(bench: Bench) -> Iterator[Sides]:
    """This row measures planning where a limit makes the driver read."""
    from pyspark_multiclouddb.connection import close_connections

    changes = bench.size(_CHANGES, _RANGES)
    with ExitStack() as stack:
        stack.callback(close_connections)
        # An emulator of this row has one container.
        mine, other = (stack.enter_context(account(bench.size(_RANGES, _LEAST))) for _ in range(2))

        def options(of: Account) -> dict[str, str]:
            url = str(of.config().connection["url"])
            return {"url": url, "database": str(ORDERS.database), "collection": str(ORDERS.collection)}

        pages = stack.enter_context(closing(Pages.as_configured(options(other), ORDERS)))
        for each in (mine, other):
            each.ask("delay", _ROUND_TRIP)
        fill = partial(mine.ask, "fill", changes), partial(other.ask, "fill", changes)
        yield _limited(options(mine), lambda: mine.ask("count"), pages, changes, *fill)


@row(
    "spark-plan-spanner",
    title="Spark on Spanner, 4,000 changes in 100 partitions, with a limit",
    unit="ms",
    goal=1.2,
    at_most=True,
    about=(
        "The figure is the time until the driver has planned 4,000 changes in 100 partitions of a scripted "
        f"server, with `maxRecordsPerTrigger=100000`. {_LATE} The note is the same without a limit."
    ),
    against=_PAGES,
)
def spark_plan_spanner(bench: Bench) -> Iterator[Sides]:
    """This row measures planning where a limit makes the driver wait for windows of time."""
    from benchmarks.spanner import scripted as scripted_spanner
    from pyspark_multiclouddb.connection import close_connections

    changes = bench.size(_CHANGES, _PARTITIONS)
    with ExitStack() as stack:
        server = stack.enter_context(scripted_spanner(bench.size(_PARTITIONS, _LEAST)))
        stack.callback(close_connections)
        mine, other = server.create("ours"), server.create("pages")

        def options(address: ResourceAddress) -> dict[str, str]:
            place = {"database": str(address.database), "collection": str(address.collection)}
            return {"url": server.url, **place}

        pages = stack.enter_context(closing(Pages.as_configured(options(other), other)))
        server.delay(_ROUND_TRIP)
        fill = partial(server.fill, mine, changes), partial(server.fill, other, changes)
        yield _limited(options(mine), server.queries, pages, changes, *fill)


@row(
    "spark-lag",
    title="Spark on DynamoDB, lag while shards split",
    unit="s",
    goal=10,
    at_most=True,
    pairs=1,
    warm_up=False,
    profiled=False,
    about=(
        "The figure is the median age of the oldest change of a micro-batch when `foreachBatch` is called, "
        "within a minute. A stream with `maxRecordsPerTrigger=200` follows 300 open shards, of which one "
        "splits each second, and 20 changes come in a second. The service rounds the time of a change "
        "down to a second. "
        f"{_LATE}"
    ),
    against="",
)
def spark_lag(bench: Bench) -> Iterator[Sides]:
    """This row shows how far a stream is behind while its lineage changes all the time."""
    from pyspark_multiclouddb import local_session

    with ExitStack() as stack:
        feed = _shards(bench, stack, _SPLIT)
        # Spark's processes get the credentials, which `options` sets, from the process that starts the JVM.
        options = feed.options(feed.ours, startingPosition="now", maxRecordsPerTrigger="200")
        session = stack.enter_context(local_session("benchmarks"))
        ages, dice = list[float](), random.Random(1)

        def keep(batch: DataFrame, number: int) -> None:
            del number
            oldest = batch.agg({"timestamp": "min"}).collect()[0][0]
            if oldest is not None:
                ages.append(time.time() - oldest.timestamp())

        writer = session.readStream.format("multiclouddb").options(**options).load().writeStream
        query = writer.foreachBatch(keep).option("checkpointLocation", str(bench.folder / "place")).start()
        query.processAllAvailable()

        def change(number: int) -> float:
            shards = feed.server.ask("open_shards", feed.ours.collection)
            for shard in dice.sample(shards, min(_EACH_SECOND, len(shards))):
                feed.server.ask("fill", shard, 1)
            feed.server.ask("split", dice.choice(shards))
            return 1.0

        def ours() -> Done:
            ages.clear()
            with Beside(change):
                time.sleep(bench.size(60, 5))
            query.processAllAvailable()
            return Done(len(ages), value=median(ages))

        yield Sides(ours)
        query.stop()


def plan_all(options: dict[str, str], records: int) -> dict[str, float]:
    """Plan one micro-batch from the beginning, and return how much memory that took, in MiB."""
    from benchmarks.rows.memory import peak_mebibytes

    driver = Driver({**options, "startingPosition": "beginning"}, lambda: 0, records)
    idle = peak_mebibytes()
    found = driver.plan_only(records)
    if found != records:
        raise ValueError(f"the micro-batch has {found:,} of {records:,} records")
    return {"mebibytes": peak_mebibytes() - idle}


@row(
    "spark-plan-memory",
    title="Spark on DynamoDB, memory of the driver's Python",
    unit="MiB",
    goal=60,
    at_most=True,
    pairs=1,
    warm_up=False,
    profiled=False,
    about=(
        "The figure is how much the peak memory of a fresh process grows while it plans a micro-batch of "
        "1,000,000 records in 1,000 shards, with `maxRecordsPerTrigger=1000000`. It does not contain what "
        "the process has before its first plan."
    ),
    against="",
    shown=(plan_all,),
)
def spark_plan_memory(bench: Bench) -> Iterator[Sides]:
    """This row checks that the driver does not keep what it reads."""
    with ExitStack() as stack:
        feed = _shards(bench, stack, _MANY)
        feed.server.ask("troubles.end")
        count = bench.size(_MANY, _LEAST)
        each = bench.size(_BATCH // _MANY)
        feed.server.fill(feed.ours, each)
        options = json.dumps(feed.options(feed.ours))

        def ours() -> Done:
            report = report_of("-m", __name__, options, str(count * each))
            return Done(count * each, value=max(0.001, report["mebibytes"]))

        yield Sides(ours)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(plan_all(json.loads(sys.argv[1]), int(sys.argv[2]))))
