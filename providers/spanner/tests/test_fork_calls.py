"""Tests that a fork during any call is not visible in the parent: no error, no loss, nothing twice."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    FromContinuationToken,
    PhysicalPartition,
    Snapshot,
    connect,
)
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_spanner import forks
from multiclouddb_spanner.client import CancelScope, DatabaseClient
from multiclouddb_spi import Deadline

from .test_forks import SECONDS, FakeTransport
from .test_heads import planned
from .test_scripted_attacks import feed, once

METHODS = ("CreateSession", "ExecuteStreamingSql", "StreamingRead", "PartitionRead")
MOST_PAGES = 200
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


def drained(items, client, start, size=0):
    events = []
    for _ in range(MOST_PAGES):
        page = client.read_changes(ChangeFeedRequest(items.address, start, max_page_size=size))
        events += page.events
        if page.idle:
            return events
        start = FromContinuationToken(page.continuation_token)
    pytest.fail("never idle")


@pytest.mark.parametrize("first", range(EVERY))
class TestEachCall:
    @pytest.mark.parametrize("size", [0, 1])
    def test_a_drain(self, size, first):
        with feed(mods_per_record=1) as items:
            token = items.token()
            items.fill(5)
            with forking(items, first=first) as client:
                once(drained(items, client, FromContinuationToken(token), size), 5)

    @pytest.mark.parametrize("count", [20, 1500])
    def test_a_snapshot(self, count, first):
        with feed(rows_per_message=200) as items:
            items.put(*((f"k{number}", number) for number in range(count)))
            with forking(items, first=first) as client:
                once(drained(items, client, Snapshot()), count)

    def test_a_bounded_read(self, first):
        with feed() as items:
            items.fill(5)
            with forking(items, first=first):
                _, ids, _ = planned(items)
            assert len({each for found in ids.values() for each in found}) == 5

    @pytest.mark.parametrize("told", [True, False], ids=["told", "searched"])
    def test_a_start_at_a_partition_that_begins_later(self, told, first):
        with feed(initial_partitions=2, names_lifetime=told, names_horizon=told) as items:
            items.fill(6)
            items.server.split(items.open_partitions()[0])
            items.fill(6, start=6)
            with forking(items, first=first) as client:
                found = [
                    len(
                        client.read_changes(
                            ChangeFeedRequest(items.address, Beginning(), PhysicalPartition(name))
                        ).events
                    )
                    for name in client.list_physical_partitions(items.address)
                ]
            assert len(found) == 3
            assert 6 <= sum(found) <= 12


def one_column():
    """Return a client of a transport without a server, and its transport."""
    transport = FakeTransport()
    return DatabaseClient("d", transport, ours=False), transport


def test_a_fork_that_begins_while_a_call_is_being_started_interrupts_that_call(monkeypatch):
    client, transport = one_column()
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
