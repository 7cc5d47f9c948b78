"""Tests that parent and child read on after a fork, also if threads of the parent read during the fork."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner
from google.cloud.spanner_v1 import PartialResultSet, Session
from google.protobuf import json_format

from multiclouddb_api import Beginning, PhysicalPartition, Snapshot, connect
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_spanner import forks
from multiclouddb_spanner.client import CancelScope, DatabaseClient
from multiclouddb_spi import Deadline, ProviderFault

from .feeds import feed, once
from .servers.emulator import STILL, shared
from .table import Table

SECONDS = 300
REFUSED = "[INVALID_REQUEST] process: it was forked while other code in its parent had open gRPC calls"

# The program is a process of its own, because the tests' own process uses gRPC.
PROGRAM = """
import json, os, sys, threading, warnings

from multiclouddb_api import (
    Beginning, ChangeFeedRequest, FromContinuationToken, ResourceAddress, Snapshot, connect
)

warnings.simplefilter("ignore")  # Python warns of a fork while threads run
url, host, database, *tasks = sys.argv[1:]
client = connect(url)


def pages(reader=client, start=None, size=0):
    start = start or Beginning()
    while True:
        request = ChangeFeedRequest(ResourceAddress(database, "items"), start, max_page_size=size)
        page = reader.read_changes(request)
        yield [event.new_item_state["n"] for event in page.events]
        if page.idle:
            return
        start = FromContinuationToken(page.continuation_token)


def numbers(reader=client, start=None, size=0):
    return sorted(number for page in pages(reader, start, size) for number in page)


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


def forking(reader=client, start=None):
    "Read pages of one change, and fork after each page. The answer stays open between two pages."
    found, in_children = [], []
    for page in pages(reader, start, 1):
        found += page
        in_children.append(in_child(numbers))
    return sorted(found), in_children


def beside_threads():
    "Fork while four threads read."
    over, started, found = threading.Event(), threading.Barrier(5), []

    def read(size):
        found.append(numbers(size=size))
        started.wait()
        while not over.is_set():
            found.append(numbers(size=size))

    threads = [threading.Thread(target=read, args=(size,)) for size in (0, 1, 2, 3)]
    for thread in threads:
        thread.start()
    started.wait()
    in_children = [in_child(numbers) for _ in range(5)]
    over.set()
    for thread in threads:
        thread.join()
    return found, in_children


def before_the_first_read():
    "Fork while another library uses gRPC, before this library has used gRPC."
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="Thread-7 (channel_spin)")
    thread.start()
    found = in_child(numbers)
    over.set()
    thread.join()
    return found


def beside_other_calls():
    "Fork while a thread runs that has the name of gRPC's own thread."
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="Thread-7 (channel_spin)")
    numbers()
    thread.start()
    found = [in_child(numbers), in_child(lambda: numbers(connect(url))), in_child(lambda: in_child(numbers))]
    over.set()
    thread.join()
    return found, in_child(numbers), numbers()


def attempt(task):
    try:
        return eval(task)
    except Exception as error:
        return str(error)


print(json.dumps({task: attempt(task) for task in tasks}))
client.close()
"""


ALL = [0, 1, 2, 3, 4]
# The first task is done before the process has read.
TASKS = (
    "[in_child(numbers), in_child(lambda: in_child(numbers)), numbers()]",
    "[numbers(), in_child(numbers), in_child(lambda: numbers(connect(url))), numbers()]",
    "forking(start=Beginning())",
    "forking(start=Snapshot())",
    "beside_threads()",
    "beside_other_calls()",
    "before_the_first_read()",
)


@pytest.mark.emulator(*STILL)
def test_parent_and_child_read_on_or_the_child_refuses():
    emulator = shared(STILL)
    table = Table(emulator)
    table.put(*([f"k{number}", number, "x"] for number in ALL))
    values = [emulator.url, emulator.host, table.database.database_id, TASKS[-1], *TASKS[:-1]]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *values], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    table.drop()
    found = json.loads(done.stdout)
    assert found[TASKS[0]] == [ALL] * 3
    assert found[TASKS[1]] == [ALL] * 4
    for task in TASKS[2:4]:  # a fork in the middle of an answer
        numbers, in_children = found[task]
        assert numbers == ALL, task
        assert len(in_children) >= 5
        assert all(each == ALL for each in in_children), task
    in_parent, in_children = found[TASKS[4]]
    assert in_children == [ALL] * 5
    assert all(each == ALL for each in in_parent)
    refusals, later, in_parent = found[TASKS[5]]
    assert all(REFUSED in message and "'spawn' or 'forkserver'" in message for message in refusals)
    assert later == in_parent == ALL
    assert REFUSED in found[TASKS[6]]


class Cancelled(grpc.RpcError):
    def code(self):
        return grpc.StatusCode.CANCELLED

    def details(self):
        return "Locally cancelled by application!"


class FakeCall:
    """A call that answers at once, or waits until it is cancelled."""

    def __init__(self, answer):
        self.answer = answer
        self.cancelled = threading.Event()
        self.waiting = threading.Event()

    def __iter__(self):
        return self

    def __next__(self):
        if self.answer:
            return self.answer.pop()
        if self.answer is None:
            self.wait()
            raise Cancelled
        raise StopIteration

    def result(self):
        if self.answer is None:
            self.wait()
            raise grpc.FutureCancelledError
        return self.answer.pop()

    def wait(self):
        self.waiting.set()
        assert self.cancelled.wait(SECONDS)

    def cancel(self):
        self.cancelled.set()


class FakeMethod:
    """A method of gRPC whose first call waits until it is cancelled."""

    def __init__(self, answer):
        self.first, self.calls = FakeCall(None), 0
        self.answer = answer
        self.future = self

    def __call__(self, request, timeout, metadata):
        self.calls += 1
        return self.first if self.calls == 1 else FakeCall([self.answer])


class FakeTransport:
    def __init__(self):
        self.create_session = FakeMethod(Session(name="s", multiplexed=True))
        message = json_format.Parse('{"values": ["x"]}', PartialResultSet.pb()())
        self.execute_streaming_sql = FakeMethod(PartialResultSet.wrap(message))
        self.methods = (self.create_session, self.execute_streaming_sql)


def test_calls_that_a_fork_cancels_are_made_again_without_an_error():
    transport = FakeTransport()
    client = DatabaseClient("d", transport, ours=False)
    with ThreadPoolExecutor(1) as pool:
        rows = pool.submit(client.rows, "SELECT 'x'", 1, CancelScope(Deadline.after(SECONDS)))
        for method in transport.methods:
            assert method.first.waiting.wait(SECONDS)
            forks._before_fork()
            forks._after_fork_in_parent()
        assert rows.result(SECONDS) == [["x"]]
    assert [method.calls for method in transport.methods] == [2, 2]


def test_a_call_that_the_caller_cancels_is_not_made_again():
    transport = FakeTransport()
    client, scope = DatabaseClient("d", transport, ours=False), CancelScope(Deadline.after(SECONDS))
    with ThreadPoolExecutor(1) as pool:
        rows = pool.submit(client.rows, "SELECT 'x'", 1, scope)
        assert transport.create_session.first.waiting.wait(SECONDS)
        scope.cancel()
        with pytest.raises(ProviderFault, match="cancelled"):
            rows.result(SECONDS)
    assert transport.create_session.calls == 1


def test_a_call_starts_before_a_fork_or_after_it():
    entered = threading.Event()

    def call():
        with forks.calling():
            entered.set()

    forks._before_fork()
    thread = threading.Thread(target=call)
    thread.start()
    assert not entered.wait(0.2)
    forks._after_fork_in_parent()
    assert entered.wait(SECONDS)
    thread.join()


METHODS = ("CreateSession", "ExecuteStreamingSql", "StreamingRead", "PartitionRead")
# If each call caused a fork that interrupts several calls, the reading would never end.
EVERY, MOST_CALLS = 4, 40


class Forks:
    """Fork during every fourth call. A call that is interrupted is then made again.

    The hooks of a fork run, but not the fork itself, because the server is in the same process.
    """

    def __init__(self, items, first):
        self.turns, self.lock = (
            iter([number % EVERY == first for number in range(MOST_CALLS)]),
            threading.Lock(),
        )
        self.count = 0
        for method in METHODS:
            items.server.troubles.act(self, None, method=method, after_rows=None)

    def __call__(self):
        with self.lock:
            forks_now = next(self.turns, False)
            self.count += forks_now
        if forks_now:
            forks._before_fork()
            forks._after_fork_in_parent()


def native(items):
    """Return the vendor's client. The library does not retry calls of an application's own client."""
    options = {"api_endpoint": items.server.host}
    return spanner.Client(
        "tests", AnonymousCredentials(), client_options=options, disable_builtin_metrics=True
    )


@contextmanager
def forking(items, *, first):
    """Provide a client whose calls are interrupted by forks."""
    with connect(items.scripted.url, native_client=native(items)) as client:
        made = Forks(items, first)
        yield client
        items.server.troubles.end()
    assert made.count


@pytest.mark.parametrize("first", range(EVERY))
class TestEachCall:
    @pytest.mark.parametrize(("count", "size"), [(5, 0), (5, 1)])
    def test_a_drain(self, count, size, first):
        with feed(mods_per_record=1) as items:
            token = items.token()
            items.fill(count)
            with forking(items, first=first) as client:
                once(items.drain(token, size, client=client), count)

    def test_a_snapshot(self, first):
        with feed(rows_per_message=200) as items:
            items.put(*((f"k{number}", number) for number in range(1500)))
            with forking(items, first=first) as client:
                once(items.drain(Snapshot(), client=client), 1500)

    def test_a_start_at_a_partition_that_begins_later(self, first):
        told = first % 2 == 0
        with feed(initial_partitions=2, names_lifetime=told, names_horizon=told) as items:
            items.fill(6)
            items.server.split(items.open_partitions()[0])
            items.fill(6, start=6)
            with forking(items, first=first) as client:
                scopes = map(PhysicalPartition, client.list_physical_partitions(items.address))
                found = [len(items.page(Beginning(), client=client, scope=scope).events) for scope in scopes]
            assert len(found) == 3
            assert 6 <= sum(found) <= 12


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
    forks._before_fork()
    forks._after_fork_in_parent()
    assert not forks._process.disturbed


def entered():
    with forks.calling():
        return True


def test_a_fork_that_begins_while_a_call_is_being_started_interrupts_that_call(monkeypatch):
    transport = FakeTransport()
    client = DatabaseClient("d", transport, ours=False)
    threads, real = [], forks.calling

    def fork():
        forks._before_fork()
        forks._after_fork_in_parent()

    @contextmanager
    def calling():
        with real() as value:
            before = forks.count()
            threads.append(threading.Thread(target=fork))
            if len(threads) in {1, 3}:  # the first call of each method
                threads[-1].start()
                wait_until(lambda: forks.count() > before)
            yield value

    monkeypatch.setattr(forks, "calling", calling)
    rows = client.rows("SELECT 'x'", 1, CancelScope(Deadline.after(SECONDS)))
    assert rows == [["x"]]
    assert [method.calls for method in transport.methods] == [2, 2]
