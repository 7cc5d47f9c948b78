"""Tests that parent and child read on after a fork, also if threads of the parent read during the fork."""

import itertools
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner

from multiclouddb_api import Beginning, PhysicalPartition, Snapshot, connect
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_spanner import forks
from multiclouddb_spanner.client import DatabaseClient

from .feeds import feed, once
from .servers.emulator import STILL, shared
from .table import Table

SECONDS = 300
REFUSED = "[INVALID_REQUEST] process: it was forked while other code in its parent had open gRPC calls"

# The program is a process of its own, because the tests' own process uses gRPC.
PROGRAM = """
import json, os, sys, threading, warnings
from multiclouddb_api import *

warnings.simplefilter("ignore")  # Python warns of a fork while threads run
url, database = sys.argv[1:]
client = connect(url)

def events(reader, start=Beginning()):
    request = ChangeFeedRequest(ResourceAddress(database, "items"), start, max_page_size=1)
    return reader.iterate_changes(request, until_idle=True)

def numbers(reader=client):
    return sorted(event.new_item_state["n"] for event in events(reader))

def in_child(function):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            found = function()
        except BaseException as error:
            found = str(error)
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = json.load(pipe)
    os.waitpid(child, 0)
    return found

def beside_grpc(*functions):
    "Run functions in children while a thread runs that has the name of gRPC's own thread."
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="Thread-7 (channel_spin)")
    thread.start()
    found = [in_child(function) for function in functions]
    over.set()
    thread.join()
    return found

read, refused = [], []
refused += beside_grpc(numbers)  # before this library has used gRPC
read += [in_child(numbers), in_child(lambda: in_child(numbers)), numbers()]
for start in (Beginning(), Snapshot()):  # forks in the middle of an answer
    found = []
    for event in events(client, start):
        found.append(event.new_item_state["n"])
        read.append(in_child(numbers))
    read.append(sorted(found))
refused += beside_grpc(numbers, lambda: numbers(connect(url)), lambda: in_child(numbers))
read += [in_child(numbers), numbers()]
client.close()
print(json.dumps([read, refused]))
"""


@pytest.mark.emulator(*STILL)
def test_parent_and_child_read_on_or_the_child_refuses():
    emulator = shared(STILL)
    table = Table(emulator)
    table.put(*([f"k{number}", number, "x"] for number in range(5)))
    command = [sys.executable, "-c", PROGRAM, emulator.url, table.database.database_id]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    table.drop()
    read, refused = json.loads(done.stdout)
    assert len(read) >= 3 + 2 * 5 + 2
    assert all(each == [0, 1, 2, 3, 4] for each in read), read
    assert len(refused) == 4
    assert all(REFUSED in message for message in refused), refused


def fork():
    """Run the hooks of a fork, without a fork."""
    forks._before_fork()
    forks._after_fork_in_parent()


def entered():
    with forks.calling():
        return True


def test_a_call_starts_before_a_fork_or_after_it():
    forks._before_fork()
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(entered)
        with pytest.raises(TimeoutError):
            started.result(0.2)
        forks._after_fork_in_parent()
        assert started.result(SECONDS)


def test_no_call_waits_forever_for_a_fork(monkeypatch):
    """Another hook may wait during the fork for a lock that the caller holds."""
    monkeypatch.setattr(forks, "_HELD_SECONDS", 0.05)
    forks._before_fork()
    try:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(entered).result(SECONDS)
        assert entered()  # in the thread that forks
        assert forks._process.disturbed
    finally:
        forks._after_fork_in_parent()
    fork()
    assert not forks._process.disturbed


@contextmanager
def client_of(items):
    """Provide a client whose calls the library does not retry, because the application made it."""
    options = {"api_endpoint": items.server.host}
    native = spanner.Client(
        "tests", AnonymousCredentials(), client_options=options, disable_builtin_metrics=True
    )
    with connect(items.scripted.url, native_client=native) as client:
        yield client


def test_a_fork_that_begins_while_a_call_is_being_started_interrupts_that_call(monkeypatch):
    calls, started, cancelled = itertools.count(), [], []
    real, interrupt = forks.calling, DatabaseClient.interrupt

    def interrupted(client):
        cancelled.append(interrupt(client))
        return []

    def fork_while(held):
        fork()
        held.end()

    with feed(initial_partitions=1) as items, client_of(items) as client:

        @contextmanager
        def calling():
            forks_now, before = next(calls) in range(0, 20, 3), len(cancelled)
            with real() as value:
                count = forks.count()
                if forks_now:
                    # The server holds the answer, so the call cannot end before the fork gets its turn.
                    held = items.server.troubles.hang(None)
                    started.append(threading.Thread(target=fork_while, args=(held,)))
                    started[-1].start()
                    wait_until(lambda: forks.count() > count)
                yield value
            if forks_now:
                wait_until(lambda: len(cancelled) > before)

        items.fill(3)
        monkeypatch.setattr(DatabaseClient, "interrupt", interrupted)
        monkeypatch.setattr(forks, "calling", calling)
        once(items.drain(Beginning(), client=client), 3)
        monkeypatch.undo()
    for thread in started:
        thread.join(SECONDS)
    assert len(started) >= 2
    assert sum(map(bool, cancelled)) == len(started)


# If each call caused a fork that interrupts several calls, the reading would never end.
EVERY, MOST_CALLS = 4, 40


@contextmanager
def forking(items, *, first):
    """Provide a client whose every fourth call a fork interrupts, so that the call is made again."""
    turns, lock, count = iter(range(MOST_CALLS)), threading.Lock(), itertools.count()

    def interrupt():
        with lock:
            forks_now = next(turns, first + 1) % EVERY == first
        if forks_now:
            next(count)
            fork()

    with client_of(items) as client:
        for method in ("CreateSession", "ExecuteStreamingSql", "StreamingRead", "PartitionRead"):
            items.server.troubles.act(interrupt, None, method=method, after_rows=None)
        yield client
        items.server.troubles.end()
    assert next(count)


@pytest.mark.parametrize("first", range(EVERY))
def test_any_call_of_a_read_may_be_interrupted(first):
    told = first % 2 == 0
    with feed(mods_per_record=1, names_lifetime=told, names_horizon=told, rows_per_message=200) as items:
        token = items.token()
        items.fill(6)
        for size in (0, 1):
            with forking(items, first=first) as client:
                once(items.drain(token, size, client=client), 6)
        items.server.split(items.open_partitions()[0])
        with forking(items, first=first) as client:  # a start at partitions that began later
            scopes = map(PhysicalPartition, client.list_physical_partitions(items.address))
            assert len([items.page(Beginning(), client=client, scope=scope) for scope in scopes]) == 3
        items.put(*((f"r{number}", number) for number in range(1200)))
        with forking(items, first=first) as client:
            once([event for event in items.drain(Snapshot(), client=client) if event.backfilled], 1206)
