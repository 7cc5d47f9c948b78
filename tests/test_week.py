"""A week of a feed with many partitions, on clocks that run fast: nothing is lost, and nothing grows.

Each round is a part of the week: changes are written, partitions split and merge, the service fails for a
while, a reader starts again from its position, and clocks jump. Pages, the iterator and Spark take turns,
each as a process of its own. Its memory, handles, threads, token or offset, checkpoint files and log stay as
they were in the second quarter.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import boto3
import pytest

from multiclouddb_dynamo_emulator import Habits as DynamoHabits
from multiclouddb_dynamo_emulator import ScriptedStreams
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_spanner_emulator import Habits as SpannerHabits
from multiclouddb_spanner_emulator import ScriptedSpanner, Write
from testing.seeds import tonight

WEEK_HOURS = 7 * 24
WEEK = WEEK_HOURS * 3600.0
CHANGES = 30
DATABASE = "projects/tests/instances/main/databases/shop"
READER = Path(__file__).with_name("week_reader.py")
ANY = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "eu-west-1"}


class Embedded:
    """The embedded store, whose clock also goes back."""

    hours_between_reads = 1

    def __init__(self, stack, folder, partitions):
        self._now = datetime.now(UTC)
        clock = lambda: self._now  # noqa: E731
        path = folder / "shop.db"
        self._store = stack.enter_context(EmbeddedStore(path, clock=clock, durable=False))
        self._store.create_collection("orders", partitions=partitions, retention=timedelta(hours=24))
        self.source, self.collection = f"embedded://{path}", "main/orders"

    def write(self, key, number):
        self._store.put("orders", key, {"number": number})

    def change_partitions(self, draw):
        there = self._store.partitions("orders")
        place = draw.randrange(len(there) - 1)
        self._store.merge("orders", there[place].partition_id, there[place + 1].partition_id)
        self._store.split("orders", there[place - 1 if place else -1].partition_id)

    def fail(self):
        pass  # a file has no outage; the restarts stand for it

    def advance(self, seconds):
        self._now += timedelta(seconds=seconds)

    def step_clock(self):
        self._now -= timedelta(seconds=90)


class Dynamo:
    """The scripted DynamoDB, whose shards roll over; the service's clock cannot go back."""

    # An ended shard stays in a position until its watch is over or, for who reads seldom, for a day or two.
    hours_between_reads = 1

    def __init__(self, stack, folder, partitions):
        del folder
        self._server = stack.enter_context(ScriptedStreams(habits=DynamoHabits(initial_shards=partitions)))
        self._tables = stack.enter_context(
            closing(boto3.client("dynamodb", endpoint_url=self._server.endpoint_url))
        )
        self._tables.create_table(
            TableName="orders",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
        )
        self._stream, self._age = self._server.stream_arn("orders"), 0.0
        self.source = f"dynamo://eu-west-1?endpoint_url={self._server.endpoint_url}"
        self.collection = "orders"

    def write(self, key, number):
        self._tables.put_item(TableName="orders", Item={"id": {"S": key}, "number": {"N": str(number)}})

    def change_partitions(self, draw):
        for shard in draw.sample(self._server.open_shards(self._stream), 3):
            self._server.roll_over(shard)

    def fail(self):
        self._server.troubles.fail("GetRecords", "InternalServerError", 5)

    def advance(self, seconds):
        # The service closes every shard after about four hours.
        self._age += seconds
        if self._age >= 4 * 3600.0:
            self._age = 0.0
            self._server.roll_over_all(self._stream)
        self._server.advance(seconds)

    def step_clock(self):
        self._server.advance(3600.0)


class Spanner:
    """The scripted Spanner, whose streams break off."""

    # A read of a thousand partitions takes a minute.
    hours_between_reads = 5

    def __init__(self, stack, folder, partitions):
        del folder
        self._server = stack.enter_context(ScriptedSpanner(SpannerHabits(initial_partitions=partitions)))
        self._server.create(
            DATABASE,
            "CREATE TABLE orders (id STRING(MAX) NOT NULL, number INT64) PRIMARY KEY (id)",
            "CREATE CHANGE STREAM orders_stream FOR orders OPTIONS (value_capture_type = 'NEW_ROW')",
        )
        os.environ["SPANNER_EMULATOR_HOST"] = self._server.host
        stack.callback(os.environ.pop, "SPANNER_EMULATOR_HOST")
        self.source = "spanner://tests/main"
        self.collection = "shop/orders"

    def write(self, key, number):
        self._server.commit(
            DATABASE, Write("insert_or_update", "orders", ("id", "number"), [[key, str(number)]])
        )

    def change_partitions(self, draw):
        there = self._server.open_partitions(DATABASE, "orders_stream")
        one, two, three = draw.sample(there, 3)
        self._server.merge(one, two)
        self._server.split(three)

    def fail(self):
        self._server.troubles.fail("ChangeStream", "UNAVAILABLE", 5)

    def advance(self, seconds):
        self._server.advance(seconds)

    def step_clock(self):
        self._server.lose_sessions()


# A thousand partitions take a minute for a round of Spanner.
WEEKS = [
    pytest.param(kind, *size, id=f"{kind.__name__.lower()}-{name}")
    for kind in (Embedded, Dynamo, Spanner)
    for name, size in {"hundred": (100, 168), "thousand": (1000, 72)}.items()
]

# What each number may grow by, beside a tenth: the allocator's and the pools' own play. The client's
# pool begins a thread whenever none is free, up to 64.
SLACK = {"memory": 12 << 20, "handles": 8, "threads": 64, "position": 4_000, "files": 5_000, "log": 20_000}


class Reader:
    """A process that reads pages or micro-batches."""

    def __init__(self, way, world, folder):
        words = [sys.executable, READER, way, world.source, world.collection, folder]
        # With an arena for each thread, what the allocator holds grows for days, though the reader's objects
        # do not.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.samples = []

    def ask(self, word):
        """Return what the reader has found."""
        print(word, file=self._process.stdin, flush=True)
        found, self.last = json.loads(self._process.stdout.readline())
        return found

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait() == 0


def middle(samples, name, start, end):
    part = samples[len(samples) * start // 12 : len(samples) * end // 12]
    return sorted(each[name] for each in part)[len(part) // 2]


@pytest.mark.soak
@pytest.mark.timeout(5400)  # a thousand shards of DynamoDB take an hour
@pytest.mark.parametrize(("kind", "partitions", "rounds"), tonight(WEEKS, 3))
def test_a_week_loses_nothing_and_nothing_grows(kind, partitions, rounds, tmp_path, monkeypatch, capsys):
    for name, value in ANY.items():
        monkeypatch.setenv(name, value)
    draw, written, began = Random(41), {}, time.monotonic()
    with ExitStack() as stack:
        world = kind(stack, tmp_path, partitions)
        readers = {
            way: stack.enter_context(closing(Reader(way, world, tmp_path / "positions")))
            for way in ("pages", "spark")
        }

        def pass_time(seconds):
            world.advance(seconds)
            for each in readers.values():
                each.ask(f"advance {seconds}")

        for number in range(rounds):
            for each in range(CHANGES):
                key = f"o-{draw.randrange(500)}"
                written[key] = number * CHANGES + each
                world.write(key, written[key])
            if number % 3 == 0:
                world.change_partitions(draw)
            if number % 5 == 1:
                world.fail()
            if number % 11 == 3:
                world.step_clock()
                for each in readers.values():
                    each.ask(f"step {draw.choice((-90, 90))}")
            turn, rest = divmod(number, max(round(world.hours_between_reads * rounds / WEEK_HOURS), 1))
            if rest == 0:
                # Two turns of pages and events, then one of Spark, which may start again before its turn, and
                # reads long before the services remove what it has not read.
                reader = readers["spark" if turn % 3 == 2 else "pages"]
                if turn % 7 in (2, 3):
                    reader.ask("restart")
                # The last changes may not be visible at once.
                for _ in range(20):
                    if (found := reader.ask("read")) == written:
                        break
                    pass_time(10.0)
                assert found == written, number
                reader.samples.append(reader.last)
            pass_time(WEEK / rounds)
            if number * 12 // rounds != (number + 1) * 12 // rounds:
                with capsys.disabled():
                    told = {way: each.last for way, each in readers.items()}
                    print(number + 1, round(time.monotonic() - began), json.dumps(told), flush=True)  # noqa: T201
    for way, reader in readers.items():
        for name, slack in SLACK.items():
            before, after = middle(reader.samples, name, 3, 6), middle(reader.samples, name, 9, 12)
            assert after <= before * 1.1 + slack, (way, name, before, after)
