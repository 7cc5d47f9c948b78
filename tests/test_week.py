"""A week of a feed with many partitions, on clocks that run fast: nothing is lost, and nothing grows.

Each round is a part of the week: changes are written, partitions split and merge, the service fails for a
while, the reader starts again from its checkpoint, and clocks jump. Pages and the iterator take turns. The
reader's memory, handles, threads, token, checkpoint files and log stay as they were in the second quarter.
"""

import json
import logging
import os
import threading
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import attrs
import boto3
import pytest

import multiclouddb_api as api
from multiclouddb_dynamo_emulator import Habits as DynamoHabits
from multiclouddb_dynamo_emulator import ScriptedStreams
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_spanner_emulator import Habits as SpannerHabits
from multiclouddb_spanner_emulator import ScriptedSpanner, Write

WEEK = 7 * 24 * 3600.0
CHANGES = 30
DATABASE = "projects/tests/instances/main/databases/shop"
ANY = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "eu-west-1"}


class Embedded:
    """The embedded store, whose clock also goes back."""

    def __init__(self, stack, folder, partitions):
        self._now = datetime.now(UTC)
        clock = lambda: self._now  # noqa: E731
        path = folder / "shop.db"
        self._store = stack.enter_context(EmbeddedStore(path, clock=clock, durable=False))
        self._store.create_collection("orders", partitions=partitions, retention=timedelta(hours=24))
        self.source, self.address = f"embedded://{path}", api.ResourceAddress("main", "orders")

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
        self.address = api.ResourceAddress(None, "orders")

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
        self.address = api.ResourceAddress("shop", "orders")

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


@attrs.frozen
class Sample:
    """What the reader holds after a round; every number is to stay flat."""

    memory: int
    handles: int
    threads: int
    token: int
    files: int
    log: int

    @classmethod
    def taken(cls, token, folder, log):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE"),
            len(os.listdir("/proc/self/fd")),
            threading.active_count(),
            len(token),
            sum(each.stat().st_size for each in folder.iterdir()),
            log.taken(),
        )


# What each number may grow by, beside a tenth: the allocator's and the pools' own play.
SLACK = Sample(memory=24 << 20, handles=8, threads=8, token=4_000, files=5_000, log=20_000)


class LogVolume(logging.Handler):
    """Counts the characters that the library logs in a round."""

    def __init__(self):
        super().__init__(logging.INFO)
        self._count = 0

    def emit(self, record):
        self._count += len(record.getMessage())

    def taken(self):
        count, self._count = self._count, 0
        return count


class Reader:
    """A reader that keeps its position in a file, and can be started again at any time."""

    def __init__(self, world, folder):
        self._world = world
        self._store = api.FileCheckpointStore(folder)
        self.found, self.count = {}, 0
        self._client = None

    def restart(self):
        if self._client is not None:
            self._client.close()
        self._client = api.connect(self._world.source)

    def handle(self, event):
        # Repeats come after a restart; within a key, changes come in order.
        self.found[str(event.key["id"])] = event.new_item_state["number"]
        self.count += 1

    def read(self, by_pages):
        """Read until the feed is idle; return the token."""
        request = api.ChangeFeedRequest(self._world.address, api.Beginning())
        changes = self._client.iterate_changes(
            request, until_idle=True, checkpoint_store=self._store, checkpoint_name="orders"
        )
        with changes:
            if by_pages:
                for page in changes.pages():
                    for event in page.events:
                        self.handle(event)
            else:
                for event in changes:
                    self.handle(event)
        return self._store.load("orders").token

    def close(self):
        self._client.close()


def later(samples, name, start, end):
    part = samples[len(samples) * start // 12 : len(samples) * end // 12]
    return sorted(getattr(each, name) for each in part)[len(part) // 2]


@pytest.mark.soak
@pytest.mark.parametrize(("partitions", "rounds"), [(100, 36), (1000, 1008)], ids=["short", "week"])
@pytest.mark.parametrize("kind", [Embedded, Dynamo, Spanner], ids=lambda kind: kind.__name__.lower())
def test_a_week_loses_nothing_and_nothing_grows(kind, partitions, rounds, tmp_path, monkeypatch, capsys):
    for name, value in ANY.items():
        monkeypatch.setenv(name, value)
    draw, written, samples, log = Random(41), {}, [], LogVolume()
    logging.getLogger("multiclouddb").addHandler(log)
    with ExitStack() as stack:
        stack.callback(logging.getLogger("multiclouddb").removeHandler, log)
        world = kind(stack, tmp_path, partitions)
        positions = tmp_path / "positions"
        reader = stack.enter_context(closing(Reader(world, positions)))
        reader.restart()
        for number in range(rounds):
            for each in range(CHANGES):
                key = f"o-{draw.randrange(500)}"
                written[key] = number * CHANGES + each
                world.write(key, written[key])
            if number % 3 == 0:
                world.change_partitions(draw)
            if number % 5 == 1:
                world.fail()
            if number % 7 == 2:
                reader.restart()
            if number % 11 == 3:
                world.step_clock()
            # The last changes may not be visible at once.
            for _ in range(20):
                token = reader.read(by_pages=number % 2 == 0)
                if {key: int(value) for key, value in reader.found.items()} == written:
                    break
                world.advance(10.0)
            assert {key: int(value) for key, value in reader.found.items()} == written, number
            samples.append(Sample.taken(token, positions, log))
            world.advance(WEEK / rounds)
    curve = [attrs.asdict(samples[len(samples) * part // 12]) for part in range(12)]
    with capsys.disabled():
        print(f"\n{kind.__name__}, {partitions} partitions, {rounds} rounds, {reader.count} changes")  # noqa: T201
        for each in curve:
            print(json.dumps(each))  # noqa: T201
    for field in attrs.fields(Sample):
        before, after = later(samples, field.name, 3, 6), later(samples, field.name, 9, 12)
        assert after <= before * 1.1 + getattr(SLACK, field.name), (field.name, curve)
