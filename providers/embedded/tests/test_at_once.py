"""Tests reads in the thread of the caller: of a quick file, a slow one and a locked one."""

import signal
import sqlite3
import threading
import time
from contextlib import closing

import pytest

import multiclouddb_api as api
from multiclouddb_embedded import EmbeddedStore, Put
from multiclouddb_embedded.reader import EmbeddedReader
from multiclouddb_embedded.store import connection as connections

ADDRESS = api.ResourceAddress("main", "items")
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"

# What would wait for a lock, if it waited for one, would wait for a minute.
SOON = 10


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "store.db"
    with EmbeddedStore(path) as store:
        store.create_collection("items", partitions=3)
        store.batch("items", [Put(number, {"n": number}) for number in range(300)])
    return path


@pytest.fixture
def fetches(monkeypatch):
    """Record each fetch that leaves the thread of the caller."""
    found, fetch = [], EmbeddedReader.fetch

    def recorded(self, *arguments):
        found.append(threading.current_thread().name)
        return fetch(self, *arguments)

    monkeypatch.setattr(EmbeddedReader, "fetch", recorded)
    return found


def numbers(client, token=None, pages=1000, size=50):
    """Read until the feed is idle, or this many pages; return the numbers and the last token."""
    start = api.Beginning() if token is None else api.FromContinuationToken(token)
    found = []
    for _ in range(pages):
        page = client.read_changes(api.ChangeFeedRequest(ADDRESS, start, max_page_size=size))
        found += [event.new_item_state["n"] for event in page.events]
        start = api.FromContinuationToken(page.continuation_token)
        if page.idle:
            break
    return found, page.continuation_token


@pytest.fixture
def quick(monkeypatch):
    """No read takes too long, however busy the machine is."""
    monkeypatch.setattr("multiclouddb_embedded.reader.AT_ONCE_SECONDS", 10.0)


@pytest.mark.usefixtures("quick")
def test_a_store_that_answers_at_once_is_read_in_the_thread_of_the_caller(path, fetches):
    with api.connect(f"embedded://{path}") as client:
        found, token = numbers(client)
        assert numbers(client, token) == ([], token)
        page = client.read_changes(api.ChangeFeedRequest(ADDRESS, api.Beginning()))
        assert page.diagnostics.retries == 0
    assert sorted(found) == list(range(300))
    assert fetches == []


@pytest.mark.usefixtures("quick")
def test_a_page_reads_no_more_partitions_than_it_needs(path, monkeypatch):
    asked, fetch = [], EmbeddedReader.fetch_at_once

    def recorded(self, *arguments):
        asked.append(arguments)
        return fetch(self, *arguments)

    monkeypatch.setattr(EmbeddedReader, "fetch_at_once", recorded)
    with api.connect(f"embedded://{path}") as client:
        for pages in (1, 2, 3):
            numbers(client, pages=1, size=10)
            assert len(asked) == pages


def test_a_slow_file_is_read_by_other_threads_from_then_on(path, fetches, monkeypatch):
    connect, slow = connections.connect, [True]

    def connected(*arguments, **settings):
        made = connect(*arguments, **settings)
        made.set_trace_callback(lambda text: time.sleep(0.06) if slow and "FROM log" in text else None)
        return made

    monkeypatch.setattr(connections, "connect", connected)
    with api.connect(f"embedded://{path}") as client:
        found, token = numbers(client, pages=1)
        assert found
        slow.clear()
        before = len(fetches)
        more, _ = numbers(client, token)
        assert len(fetches) > before
    assert sorted(found + more) == list(range(300))
    assert all(name.startswith("multiclouddb") for name in fetches)


def test_a_locked_file_keeps_neither_a_call_nor_its_deadline_waiting(path, fetches, monkeypatch):
    monkeypatch.setattr(connections, "_READ_BUSY_SECONDS", 60.0)
    with closing(sqlite3.connect(path)) as other:
        other.executescript("PRAGMA locking_mode = EXCLUSIVE; UPDATE store SET id = 1;")
        with api.connect(f"embedded://{path}") as client:
            request = api.ChangeFeedRequest(ADDRESS, api.Beginning())
            began = time.monotonic()
            with pytest.raises(api.MulticloudDbError, check=lambda error: error.retryable):
                client.read_changes(request, api.OperationOptions(timeout_seconds=0.3))
            assert time.monotonic() - began < SOON
            other.close()
            assert sorted(numbers(client)[0]) == list(range(300))


def test_a_file_that_is_locked_when_the_caller_opens_it_is_opened_by_another_thread(
    path, fetches, monkeypatch
):
    connect, busy = connections.connect, []

    def connected(*arguments, **settings):
        if threading.current_thread() is threading.main_thread():
            busy.append(settings["busy_seconds"])
            raise sqlite3.OperationalError("database is locked")
        return connect(*arguments, **settings)

    monkeypatch.setattr(connections, "connect", connected)
    with api.connect(f"embedded://{path}") as client:
        assert sorted(numbers(client)[0]) == list(range(300))
    assert busy[0] == 0  # the caller waits for no lock
    assert fetches


def run(connection, seconds, statement):
    with connections.hurried(connection, time.monotonic() + seconds):
        connection.execute(statement).fetchone()


class TestAHurriedStatement:
    def test_that_takes_too_long_fails(self):
        with closing(sqlite3.connect(":memory:")) as connection:
            began = time.monotonic()
            with pytest.raises(sqlite3.OperationalError, match="interrupted"):
                run(connection, 0.05, ENDLESS)
            assert time.monotonic() - began < SOON
            assert connection.execute("SELECT 1").fetchone() == (1,)

    def test_does_not_swallow_an_interrupt(self):
        """SQLite's wrapper drops what a signal handler raises inside a handler that is written in Python."""

        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with closing(sqlite3.connect(":memory:")) as connection:
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(KeyboardInterrupt):
                    run(connection, 0.2, ENDLESS)
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_waits_for_no_lock(self, path):
        with (
            closing(sqlite3.connect(path)) as other,
            closing(connections.connect(str(path), busy_seconds=60.0)) as connection,
        ):
            other.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                run(connection, 0.05, "BEGIN IMMEDIATE")
            assert time.monotonic() - began < SOON
