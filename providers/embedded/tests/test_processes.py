"""Tests several processes that use one file, and processes that are killed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import multiclouddb_api as api
from multiclouddb_embedded import Put

pytestmark = pytest.mark.slow

ADDRESS = api.ResourceAddress("main", "items")
WRITERS, BATCHES, KEYS = 2, 30, 5

WRITER = f"""
import sys
from multiclouddb_embedded import EmbeddedStore, Put
path, writer = sys.argv[1:]
with EmbeddedStore(path, durable=False) as store:
    for n in range({BATCHES}):
        store.batch("items", [Put(f"{{writer}}-{{k}}", {{"n": n, "writer": writer}}) for k in range({KEYS})])
"""

RESHAPER = """
import random, sys
from multiclouddb_embedded import EmbeddedStore
chance = random.Random(7)
with EmbeddedStore(sys.argv[1], durable=False) as store:
    for n in range(30):
        parts = store.partitions("items")
        index = chance.randrange(len(parts))
        if len(parts) > 3 and index + 1 < len(parts):
            store.merge("items", parts[index].partition_id, parts[index + 1].partition_id)
        else:
            store.split("items", parts[index].partition_id)
"""

HANGS_IN_MID_TRANSACTION = """
import sys, time
from multiclouddb_embedded import EmbeddedStore, Put
from multiclouddb_embedded.store.log import LogWriter
whole = LogWriter.write
def write(self, change):
    if b"half" in change.identity:
        print("in the middle", flush=True)
        time.sleep(600)
    return whole(self, change)
LogWriter.write = write
with EmbeddedStore(sys.argv[1]) as store:
    text = "x" * 100_000
    store.batch("items", [*(Put(n, {"t": text}) for n in range(400)), Put("half", {}), Put("rest", {})])
"""


def start(script, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def follow(path, done):
    """Read every event of the collection during writes, until `done` is set and no event is left."""
    events, position = [], api.Beginning()
    with api.connect(f"embedded://{path}") as client:
        while True:
            over = done()
            page = client.read_changes(
                api.ChangeFeedRequest(ADDRESS, position), api.OperationOptions(wait_seconds=0.05)
            )
            events += page.events
            position = api.FromContinuationToken(page.continuation_token)
            if over and page.idle:
                return events


def sql(path, statement):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def test_writers_lose_nothing_and_agree_on_one_order(store):
    store.create_collection("items", partitions=2)
    processes = [start(WRITER, store.path, f"w{n}") for n in range(WRITERS)]
    processes.append(start(RESHAPER, store.path))
    events = follow(store.path, lambda: all(process.poll() is not None for process in processes))
    for process in processes:
        process.communicate()
        assert process.returncode == 0

    total = WRITERS * BATCHES * KEYS
    assert len(events) == len({event.event_id for event in events}) == total
    by_key = {}
    for event in events:
        by_key.setdefault(event.key.components["id"], []).append(event)
    assert len(by_key) == WRITERS * KEYS
    for changes in by_key.values():
        assert [event.new_item_state["n"] for event in changes] == list(range(BATCHES))
        assert [event.order_key for event in changes] == sorted(event.order_key for event in changes)
    assert len(sql(store.path, "SELECT 1 FROM partitions")) > 10

    # Sequence numbers follow the order of commits, and the changes of a batch stay together. A split or merge
    # has a number too.
    log = sql(store.path, "SELECT seq, ts, doc FROM log ORDER BY seq")
    reshapes = sql(store.path, "SELECT DISTINCT end_seq FROM partitions WHERE end_seq IS NOT NULL")
    numbers = [seq for seq, _, _ in log] + [seq for (seq,) in reshapes]
    assert sorted(numbers) == list(range(1, total + len(reshapes) + 1))
    assert [ts for _, ts, _ in log] == sorted(ts for _, ts, _ in log)
    batches = [
        {(ts, json.loads(doc)["writer"]) for _, ts, doc in log[n : n + KEYS]} for n in range(0, total, KEYS)
    ]
    assert all(len(batch) == 1 for batch in batches)


def test_a_writer_killed_in_mid_transaction_leaves_no_half_batch(store):
    store.create_collection("items")
    store.put("items", "before", {})
    victim = start(HANGS_IN_MID_TRANSACTION, store.path)
    assert victim.stdout.readline() == "in the middle\n"
    # The transaction is larger than the cache, so parts of it are already in the file.
    assert Path(f"{store.path}-wal").stat().st_size > 20_000_000
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL

    assert [event.key.components["id"] for event in follow(store.path, lambda: True)] == ["before"]
    assert len(list(store.scan("items"))) == 1
    store.batch("items", [Put("half", {}), Put("after", {})])
    assert sql(store.path, "SELECT seq FROM log ORDER BY seq") == [(1,), (2,), (3,)]
    assert len(follow(store.path, lambda: True)) == 3
    assert sql(store.path, "PRAGMA integrity_check") == [("ok",)]
