"""Tests that both sinks equal a table with many shards that split all the time, while the query dies."""

import json
import os
import random
import signal
import time
from contextlib import ExitStack, closing

import boto3
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from multiclouddb_conformance.sink_harness import Death
from multiclouddb_conformance.waiting import Beside, wait_until
from multiclouddb_dynamo_emulator import Habits, ScriptedStreams
from multiclouddb_postgres import merge_into_postgres
from pyspark_multiclouddb import merge_into_delta
from pyspark_multiclouddb.source_columns import ROW_SCHEMA
from testing.postgres_server import PostgresServer
from testing.seeds import in_soak, seeds
from testing.spark_checkpoint import make_checkpoint, write_offset

from .drivers import SECONDS, credentials, end, start_driver
from .micro_batches import Query

WRITES, LIMIT = 10, 8
SHARDS, KILLS = 300, 20
TABLE, REGION = "items", "us-east-1"
LAST_SECONDS = 3600


class Busy:
    """A table with many open shards, of which one splits at each step, after some writes."""

    def __init__(self, server, shards, seed):
        self.server, self.dice, self.rows, self.splits = server, random.Random(seed), {}, 0
        self.keys, self.parents = 2 * shards, {}
        self.client = boto3.client("dynamodb", REGION, endpoint_url=server.endpoint_url)
        self.client.create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
        )

    def options(self, **more):
        place = {"url": f"dynamo://{REGION}?endpoint_url={self.server.endpoint_url}", "collection": TABLE}
        return {**place, "startingPosition": "beginning", **more}

    def write(self):
        name, number = f"k{self.dice.randrange(self.keys)}", self.dice.randrange(10**6)
        if name in self.rows and self.dice.random() < 0.2:
            self.client.delete_item(TableName=TABLE, Key={"pk": {"S": name}})
            del self.rows[name]
        else:
            self.client.put_item(TableName=TABLE, Item={"pk": {"S": name}, "n": {"N": str(number)}})
            self.rows[name] = number

    def step(self, number=0):
        """Write, and split a shard; return how many seconds later to do so again."""
        del number
        for _ in range(WRITES):
            self.write()
        shard = self.dice.choice(self.server.open_shards(TABLE))
        self.parents.update(dict.fromkeys(self.server.split(shard), shard))
        self.splits += 1
        return 1.0

    def above(self, shard):
        """Return the shards from which a shard descends."""
        while (shard := self.parents.get(shard)) is not None:
            yield shard


@pytest.fixture
def make_busy(monkeypatch):
    """Return a function that makes a table with this number of shards; the seed decides what is written."""
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    with ExitStack() as servers:

        def make(shards, seed):
            server = servers.enter_context(ScriptedStreams(habits=Habits(initial_shards=shards)))
            return Busy(server, shards, seed)

        yield make


@pytest.fixture
def postgres():
    with PostgresServer() as server:
        yield server


def check_tables(busy, path, postgres):
    """Check that both tables have the rows of the source, each key once."""
    found = DeltaTable(path).to_pyarrow_dataset().scanner(use_threads=False).to_table().to_pylist()
    delta = [(row["key"], row["new_item_state"], row["_deleted_at"]) for row in found]
    with closing(psycopg.connect(postgres.dsn)) as connection:
        rows = connection.execute("SELECT key::text, new_item_state::text, _deleted_at FROM items").fetchall()
    for table in (delta, rows):
        keys = [json.loads(key)["pk"] for key, _, _ in table]
        assert len(set(keys)) == len(keys)
        live = {json.loads(key)["pk"]: json.loads(text)["n"] for key, text, gone in table if gone is None}
        assert live == busy.rows


class DyingQuery(Query):
    """A query that dies after a plan, between its two sinks, or before Spark has noted that they are done."""

    def __init__(self, busy, folder, postgres, dice, **options):
        self.folder, self.postgres, self.dice, self.deaths = folder, postgres, dice, 0
        self.checkpoint = make_checkpoint(folder / "query", "query-1")
        super().__init__(busy, **options)

    def die(self, chance=0.15):
        if self.dice.random() < chance:
            self.deaths += 1
            raise Death

    def plan(self, most=None):
        if not super().plan(most):
            return False
        write_offset(self.checkpoint, len(self.log) - 1, **self.log[-1])
        self.die()
        return True

    def deliver(self, number):
        table = pa.Table.from_batches(self.batches(number), schema=ROW_SCHEMA)
        merge_into_delta(table, number, self.folder / "table", "query", checkpoint=self.checkpoint)
        self.die()
        merge_into_postgres(table, number, self.postgres.dsn, "items", "query", checkpoint=self.checkpoint)
        self.die()
        (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")
        return table.to_pylist()

    def live(self):
        try:
            return self.step()
        except Death:
            self.restart()
            return []


@pytest.mark.parametrize("seed", seeds(range(1, 2), 8))
def test_sinks_equal_a_table_whose_shards_split_while_the_query_dies(seed, make_busy, postgres, tmp_path):
    busy, dice = make_busy(12, seed), random.Random(seed)
    query = DyingQuery(busy, tmp_path, postgres, dice, maxRecordsPerTrigger=str(LIMIT))
    left = 8
    while (rows := query.live()) is not None or left:
        shards = {row["partition_id"].rpartition(":")[2] for row in rows or ()}
        assert len(rows or ()) <= LIMIT
        assert not any(shards.intersection(busy.above(shard)) for shard in shards)
        if left:
            busy.step()
            left -= 1
    assert query.deaths
    check_tables(busy, tmp_path / "table", postgres)


def commits(folder):
    return sum(len(list(folder.glob(f"{name}/commits/[0-9]*"))) for name in ("delta", "postgres"))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.xdist_group("jvm apart")
@pytest.mark.parametrize("seed", in_soak(0, 1))
def test_sinks_equal_a_table_with_hundreds_of_shards_while_the_driver_is_killed(
    make_busy, postgres, tmp_path, seed
):
    busy, dice, log = make_busy(SHARDS, seed), random.Random(seed), tmp_path / "log"
    options = busy.options(maxRecordsPerTrigger=str(SHARDS), pollInterval="100 ms")
    given = {"dsn": postgres.dsn, "options": options}
    with Beside(busy.step):
        for _ in range(KILLS):
            wanted = commits(tmp_path) + dice.randint(1, 6)
            process = start_driver("sinks", tmp_path, log, **given)
            try:

                def moved(process=process, wanted=wanted):
                    assert process.poll() is None, log.read_text()[-5000:]
                    return commits(tmp_path) >= wanted

                wait_until(moved, seconds=SECONDS)
                time.sleep(2 * dice.random())
                jvm = int((tmp_path / "jvm").read_text())
                # Both are stopped first, so that neither of them runs after the other is killed.
                for number in (signal.SIGSTOP, signal.SIGKILL):
                    for pid in (process.pid, jvm):
                        os.kill(pid, number)
            finally:
                end(process)
    assert busy.splits >= KILLS
    (tmp_path / "last").touch()
    last = start_driver("sinks", tmp_path, log, **given)
    try:
        assert last.wait(LAST_SECONDS) == 0, log.read_text()[-5000:]
    finally:
        end(last)
    check_tables(busy, tmp_path / "table", postgres)
