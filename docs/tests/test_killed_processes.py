"""Kills the programs of two pages while the application writes and partitions split: no change is lost."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from multiclouddb_embedded import Delete, EmbeddedStore, Put
from pyspark_multiclouddb import live_rows

from .page import Page
from .test_blocks import JVM, SMALLER

SECONDS = 120.0
MERGE = "    merge_into_delta("


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def documents(store):
    return {key.components["id"]: document for key, document in store.scan("orders")}


def copied():
    """Return the documents of the copy that the workers fill."""
    if not Path("copy.db").exists():
        return {}
    with closing(sqlite3.connect("copy.db", timeout=60)) as copy:
        if not copy.execute("SELECT name FROM sqlite_master").fetchall():
            return {}
        rows = copy.execute("SELECT id, document FROM copy WHERE document IS NOT NULL")
        return {name: json.loads(document) for name, document in rows}


def wait_until(condition):
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_of_three_workers_that_share_a_feed_two_are_killed():
    Path("worker.py").write_text(Page("jobs/spread-over-machines.md").programs["worker.py"])
    with EmbeddedStore("orders.db", durable=False) as store:
        store.create_collection("orders", partitions=4)
        store.batch("orders", [Put(f"o-{number}", {"status": "new"}) for number in range(1000)])
        source, positions = f"embedded://{store.path}", f"sqlite://{Path.cwd()}/positions.db"
        command = [sys.executable, "worker.py", source, "main/orders", positions, "copy.db", "2"]
        workers = [subprocess.Popen(command) for _ in range(3)]
        try:
            wait_until(lambda: len(copied()) > 100)  # they are at work
            for worker in workers[:2]:
                worker.kill()
                worker.wait()
            store.split("orders", "p0")  # into p4 and p5
            store.split("orders", "p5")
            store.batch("orders", [Put(f"o-{number}", {"status": "paid"}) for number in range(1000)])
            store.merge("orders", "p1", "p2")
            store.batch("orders", [Delete(f"o-{number}") for number in range(100)])
            wait_until(lambda: copied() == documents(store))
            workers[2].terminate()
            assert workers[2].wait() == 0
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


@JVM
@pytest.mark.parametrize("rows", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_a_query_of_a_large_table_is_killed_twice(rows):
    code = Page("jobs/big-table.md").programs["follow.py"]
    if rows == 2_000:
        for many, few in SMALLER.items():
            code = code.replace(many, few)
    # The program tells after each merge that it is at work.
    assert code.count(MERGE) == 1
    code = code.replace(MERGE, "    print(batch_id, flush=True) if " + MERGE.strip()).replace(
        'checkpoint="checkpoint")\n', 'checkpoint="checkpoint") else None\n'
    )
    Path("follow.py").write_text(code)
    with EmbeddedStore("orders.db", durable=False) as store:
        store.create_collection("orders", partitions=4)
        store.batch("orders", [Put(f"o-{number}", {"status": "new"}) for number in range(rows)])
        days = iter(range(50))

        def work():
            day = next(days)
            paid = [Put(f"o-{number}", {"status": f"day {day}"}) for number in range(day, rows, 100)]
            gone = [Delete(f"o-{number}") for number in range(50 + day, rows, 100)]
            more = [Put(f"day-{day}-{number}", {"status": "new"}) for number in range(100)]
            store.batch("orders", [*paid, *gone, *more])

        command = [sys.executable, "follow.py"]
        for _ in range(2):
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, start_new_session=True
            ) as process:
                for _ in range(2):
                    assert process.stdout.readline().strip().isdigit()
                    work()
                os.killpg(process.pid, signal.SIGKILL)
            work()
            store.split("orders", store.partitions("orders")[-1].partition_id)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = live_rows("delta").read_all()
        keys, states = found["key"].to_pylist(), found["new_item_state"].to_pylist()
        table = {json.loads(key)["id"]: json.loads(state) for key, state in zip(keys, states, strict=True)}
        assert len(keys) == len(table)
        assert table == documents(store)
