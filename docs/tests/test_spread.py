"""Runs the worker of the page about several processes: with kills in each step, and on several databases."""

import json
import os
import runpy
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

import multiclouddb_api as api
from multiclouddb_embedded import Delete, EmbeddedStore, Put

from .page import Page, servers

ORDERS = api.ResourceAddress("main", "orders")
CODE = Page("jobs/spread-over-machines.md").programs["worker.py"]
# Runs the worker as a machine that dies at one of its calls to the store, before or after it, or that is
# suspended before it. Each machine writes down what it has saved.
MACHINE = """
import itertools, json, os, runpy, signal, sys
import multiclouddb
at, when, log = int(sys.argv[1]), sys.argv[2], sys.argv[3]
SIGNALS = {"before": signal.SIGKILL, "suspended": signal.SIGSTOP}
calls = itertools.count(1)  # several threads count

class Dying:
    def __init__(self, store):
        self.load, self.real = store.load, store

    def save(self, name, token, expected):
        call = next(calls)
        if call == at and when in SIGNALS:
            os.kill(os.getpid(), SIGNALS[when])
        saved = self.real.save(name, token, expected)
        with open(log, "a") as file:
            file.write(json.dumps([name, int(saved.version.partition("-")[0]), token]) + "\\n")
        if call == at and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return saved

real = multiclouddb.open_checkpoint_store
multiclouddb.open_checkpoint_store = lambda url: Dying(real(url))
sys.argv = ["worker.py", *sys.argv[4:]]
runpy.run_path("worker.py", run_name="__main__")
"""
SECONDS = 120.0


def wait_until(condition, *processes):
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        assert [process.returncode for process in processes if process.poll() not in (None, -9)] == []
        time.sleep(0.05)


def copied(path):
    with closing(sqlite3.connect(path, timeout=60)) as copy:
        if not copy.execute("SELECT name FROM sqlite_master").fetchall():
            return {}
        rows = copy.execute("SELECT id, document FROM copy WHERE document IS NOT NULL")
        return {name: json.loads(document) for name, document in rows}


@contextmanager
def machine(folder, *words, program=("worker.py",)):
    """Run a worker in a folder of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "worker.py").write_text(CODE)
    process = subprocess.Popen([sys.executable, *program, *map(str, words)], cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def store(tmp_path):
    with EmbeddedStore(tmp_path / "orders.db", durable=False) as store:
        yield store


@pytest.mark.parametrize("kept", [True, False])
def test_an_older_change_that_comes_late_changes_nothing(store, tmp_path, kept):
    """A worker that was only slow writes its page after another has claimed the partition."""
    store.create_collection("orders", partitions=1)
    store.batch("orders", [Put(f"o-{number}", {}) for number in range(40)])
    store.batch("orders", [Delete(f"o-{number}") for number in range(20)])
    (tmp_path / "worker.py").write_text(CODE)
    worker = runpy.run_path(str(tmp_path / "worker.py"))
    upsert = worker["UPSERT"] if kept else worker["UPSERT"].partition(" WHERE ")[0]
    with api.connect(f"embedded://{store.path}") as client:
        changes = client.iterate_changes(api.ChangeFeedRequest(ORDERS, api.Beginning()), until_idle=True)
        with changes:
            events = list(changes)
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        copy.execute(worker["TABLE"])
        copy.executemany(upsert, map(worker["row"], [*events, *events[:40]]))
        rows = copy.execute("SELECT id FROM copy WHERE document IS NOT NULL").fetchall()
    assert ({name for (name,) in rows} == {f"o-{number}" for number in range(20, 40)}) is kept


def test_a_follower_that_fails_ends_its_process(store, tmp_path):
    """The process ends even if the other followers never end."""
    store.create_collection("orders", partitions=3)
    source, positions = f"embedded://{store.path}", tmp_path / "positions"
    with machine(tmp_path / "one", source, "main/orders", f"file://{positions}", "copy.db", "1") as worker:
        wait_until(lambda: len(list(positions.glob("*.json"))) == 4, worker)
        damaged = next(each for each in positions.glob("*.json") if "plan" not in each.name)

        def ended():
            damaged.write_text("{")  # each time: a save that has begun replaces it
            return worker.poll() is not None

        wait_until(ended)
        assert worker.returncode == 1


def test_three_processes_two_killed_on_mongodb(tmp_path):
    """The only partition moves to a process that is alive; 0 changes are lost."""
    mongod = servers("mongo")("mongod")
    with mongod.ReplicaSet(tmp_path / "mongod") as made:
        collection = made.client()["shop"]["orders"]
        collection.insert_many([{"_id": f"o-{number}", "status": "new"} for number in range(300)])
        source = f"mongodb://{made.members[0]}/?replicaSet={mongod.NAME}"
        words = (source, "shop/orders", f"sqlite://{tmp_path}/positions.db", tmp_path / "copy.db", "1")
        with (
            machine(tmp_path / "one", *words) as one,
            machine(tmp_path / "two", *words) as two,
            machine(tmp_path / "three", *words) as three,
        ):
            alive = [one, two, three]
            for round_number in range(2):
                wait_until(lambda: len(copied(tmp_path / "copy.db")) >= 100, *alive)
                collection.insert_one({"_id": f"r-{round_number}", "status": "new"})
                wait_until(lambda: f"r-{round_number}" in copied(tmp_path / "copy.db"), *alive)  # noqa: B023
                # The process that follows the partition is the one with more than one thread of its own.
                busy = max(alive, key=lambda each: len(os.listdir(f"/proc/{each.pid}/task")))
                os.kill(busy.pid, signal.SIGKILL)
                alive.remove(busy)
                collection.update_many(
                    {"_id": {"$regex": "^o-"}}, {"$set": {"status": f"paid {round_number}"}}
                )
                collection.delete_many({"_id": {"$in": [f"o-{round_number}{n}" for n in range(10)]}})

            def equal():
                found = copied(tmp_path / "copy.db")
                return set(found) == {each["_id"] for each in collection.find()}

            wait_until(equal, *alive)


def drill(store, tmp_path, positions, kills):
    """Kill a machine at each of its calls to the store; return what all machines have saved."""
    log, copy, source = tmp_path / "saved", tmp_path / "copy.db", f"embedded://{store.path}"
    log.touch()
    store.create_collection("orders", partitions=3)
    words = (log, source, "main/orders", positions, copy, "0.4")
    for number, (at, when) in enumerate(kills):
        store.batch("orders", [Put(f"o-{number}-{each}", {"at": number}) for each in range(30)])
        if number % 4 == 1:
            newest = store.partitions("orders")[-1].partition_id
            store.split("orders", newest)
        folder = tmp_path / f"machine-{number % 2}"
        with machine(folder, at, when, *words, program=("-c", MACHINE)) as dying:
            dying.wait(SECONDS)
            assert dying.returncode == -signal.SIGKILL
    there = {key.components["id"] for key, _ in store.scan("orders")}
    with machine(tmp_path / "machine-0", 0, "never", *words, program=("-c", MACHINE)) as last:
        wait_until(lambda: set(copied(copy)) == there, last)
    return [json.loads(line) for line in log.read_text().splitlines()]


KILLS = [(at, when) for at in range(1, 9) for when in ("before", "after")]


@pytest.mark.parametrize(
    ("scheme", "kills"),
    [
        ("sqlite", KILLS[1::3]),
        ("s3", KILLS[::3]),
        pytest.param(
            "s3", [(at, when) for at in range(1, 40) for when in ("before", "after")], marks=pytest.mark.soak
        ),
    ],
)
def test_a_kill_in_each_step_loses_nothing_and_never_goes_back(store, tmp_path, monkeypatch, scheme, kills):
    """Two machines with folders of their own share one store; each dies in another step."""
    if scheme == "sqlite":
        saved = drill(store, tmp_path, f"sqlite://{tmp_path}/positions.db", kills)
    else:
        with checkpoint_service(scheme) as service:
            for name, value in service.environment().items():
                monkeypatch.setenv(name, value)
            saved = drill(store, tmp_path, service.url("drill"), kills)
    check_positions(saved)


def check_positions(saved):
    """Check that nothing was overwritten, and that no position comes back after a later one."""
    for name in {name for name, _, _ in saved}:
        # Two machines write the same file, so its order says nothing about theirs.
        versions = {version: token for each, version, token in saved if each == name}
        assert len(versions) == sum(each == name for each, _, _ in saved), name
        tokens = [token for _, token in sorted(versions.items())]
        changes = [token for before, token in zip([None, *tokens], tokens, strict=False) if token != before]
        assert len(changes) == len(set(changes)), name


@pytest.mark.parametrize("at", [3, 4])
def test_a_machine_that_was_suspended_for_long_leaves_the_partition_to_the_other(
    store, tmp_path, monkeypatch, at
):
    """The positions are in a service, because a process that is suspended keeps its locks of files."""
    store.create_collection("orders", partitions=1)
    log, copy = tmp_path / "saved", tmp_path / "copy.db"
    log.touch()

    def change(number, *alive):
        store.batch("orders", [Put(f"o-{number}-{each}", {"at": number}) for each in range(30)])
        there = {key.components["id"] for key, _ in store.scan("orders")}
        wait_until(lambda: set(copied(copy)) == there, *alive)

    with ExitStack() as stack:
        service = stack.enter_context(checkpoint_service("s3"))
        for name, value in service.environment().items():
            monkeypatch.setenv(name, value)
        words = (log, f"embedded://{store.path}", "main/orders", service.url(f"suspended-{at}"), copy, "0.5")
        one = stack.enter_context(machine(tmp_path / "one", at, "suspended", *words, program=("-c", MACHINE)))
        store.batch("orders", [Put(f"first-{each}", {}) for each in range(30)])
        wait_until(lambda: Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        two = stack.enter_context(machine(tmp_path / "two", 0, "never", *words, program=("-c", MACHINE)))
        change(1, two)
        before = len(log.read_text().splitlines())
        os.kill(one.pid, signal.SIGCONT)
        for number in range(2, 6):
            change(number, one, two)
        wait_until(lambda: len(log.read_text().splitlines()) > before + 5, one, two)
    check_positions([json.loads(line) for line in log.read_text().splitlines()])


def checkpoint_service(scheme):
    return servers("checkpoints")("servers").service(scheme)


def test_a_worker_that_ends_by_sigterm_hands_its_partitions_over_at_once(store, tmp_path):
    """Long before its checkpoints have stood still for SECONDS, and from where it stopped."""
    store.create_collection("orders", partitions=3)
    store.batch("orders", [Put(f"o-{number}", {"n": 0}) for number in range(30)])
    positions = f"sqlite://{tmp_path}/positions.db"
    words = (f"embedded://{store.path}", "main/orders", positions, tmp_path / "copy.db", "10000")
    with machine(tmp_path / "one", *words) as one:
        checkpoints = api.open_checkpoint_store(positions)
        wait_until(lambda: (tmp_path / "copy.db").exists() and len(copied(tmp_path / "copy.db")) == 30, one)
        with machine(tmp_path / "two", *words) as two:
            names = json.loads(checkpoints.load("plan").token)
            one.terminate()
            assert one.wait(SECONDS) == 0
            store.batch("orders", [Put(f"o-{number}", {"n": 1}) for number in range(30)])
            wait_until(lambda: {each["n"] for each in copied(tmp_path / "copy.db").values()} == {1}, two)
            two.terminate()
            assert two.wait(SECONDS) == 0
            left = [checkpoints.load(name).token for name in names]
            assert [text.partition(" ")[0] for text in left] == ["free"] * 3
