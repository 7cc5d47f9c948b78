"""Tests the library's client behind a proxy that drops, delays, cuts or limits the service's answers."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.spanner_v1 import Session

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    MulticloudDbError,
    MulticloudDbKey,
    Now,
    ResourceAddress,
    Snapshot,
    connect,
)
from multiclouddb_conformance.waiting import assert_prompt, wait_until
from multiclouddb_spanner import config
from multiclouddb_spanner.client import CancelScope, Clock, DatabaseClient
from multiclouddb_spanner.config import ALIVE, SpannerConfig
from multiclouddb_spanner.reader import SpannerReader
from multiclouddb_spi import Deadline, ProviderFault
from testing.proxy import Proxy
from testing.slow_link import SlowConsumer

from .feeds import Opened, feed, once
from .test_slow_link import SOON


@pytest.fixture
def items():
    with feed(initial_partitions=1) as made:
        yield made


@pytest.fixture
def link(items):
    with Proxy(items.server.host, rate=1e9) as made:
        yield made


@pytest.fixture
def ours(link):
    with connect(f"spanner://tests/tests?emulator_host=127.0.0.1:{link.port}") as made:
        yield made


class TestCut:
    """A connection that is cut within a message gets smaller answers, and later larger ones."""

    def test_the_rows_of_a_snapshot_arrive(self, items, link, ours):
        items.put(*((f"k{number}-" + "x" * 700, number) for number in range(400)))
        consumer = SlowConsumer(ours, items.address, Snapshot(), timeout=5.0)
        consumer.begin()
        link.cut_after = 60_000
        consumer.until(200, at_most=30)
        link.heal()
        consumer.until(400, at_most=30)
        assert sorted(event.new_item_state["n"] for event in consumer.events) == list(range(400))

    def test_a_planner_finds_that_there_are_records(self, items, link):
        with Opened(items, f"127.0.0.1:{link.port}") as made:
            starts = made.starts(Now())
            items.put(*((f"k{number}-" + "x" * 700, number) for number in range(400)))
            link.cut_after = 60_000
            heads = made.feed.heads(starts, None, made.soon())
            assert [head.records for head in heads.values()] == [None]


class TestOutage:
    def test_a_client_connects_again_within_a_bounded_time(self, items, link, monkeypatch):
        """gRPC would double its waits up to two minutes: 10 tries would take more than a minute."""
        monkeypatch.setattr(config, "ALIVE", SOON)
        with connect(f"spanner://tests/tests?emulator_host=127.0.0.1:{link.port}") as ours:
            token = items.page(Now(), client=ours).continuation_token
            link.cut()
            wanted = link.connections + 10

            def tried():
                with suppress(MulticloudDbError):
                    items.page(token, client=ours, timeout=0.2)
                return link.connections >= wanted

            wait_until(tried, seconds=20)
            link.heal()
            items.put(("k", 1))
            assert_prompt(2.0, lambda: seconds_until_read(items, ours, token), at_most=10)

    def test_a_client_does_not_wait_because_another_one_failed(self, items, link, ours):
        """Clients of one process would share a connection, and with it the wait after a failure."""
        url = f"spanner://tests/tests?emulator_host=127.0.0.1:{link.port}"
        items.page(Now(), client=ours)
        known = link.connections
        with connect(url) as another:
            items.page(Now(), client=another)
        assert link.connections > known


def seconds_until_read(items, client, token):
    began = time.monotonic()

    def read():
        try:
            return items.page(token, client=client, timeout=2.0).events
        except MulticloudDbError:
            return None

    wait_until(read)
    return time.monotonic() - began


@pytest.mark.parametrize("trouble", ["killed", "silent"])
def test_a_server_that_is_gone_is_told_by_the_deadline_with_little_work(items, link, ours, trouble):
    token = items.page(Now(), client=ours).continuation_token
    link.drop() if trouble == "silent" else link.close()
    shares = []

    def attempt():
        began, worked = time.monotonic(), time.process_time()
        with pytest.raises(MulticloudDbError) as caught:
            items.page(token, client=ours, timeout=2.0)
        assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE
        assert caught.value.retryable
        took = time.monotonic() - began
        shares.append((time.process_time() - worked) / took)
        return took

    assert_prompt(4.0, attempt, at_most=30)
    assert min(shares) < 0.2


def test_a_wait_in_which_the_server_is_lost_is_not_idle(items, link, ours, monkeypatch):
    fetch = SpannerReader.fetch

    def fetch_and_cut(reader, *args):
        batch = fetch(reader, *args)
        link.close()
        return batch

    token = items.page(Now(), client=ours).continuation_token
    monkeypatch.setattr(SpannerReader, "fetch", fetch_and_cut)
    page = items.page(token, client=ours, timeout=4.0, wait=3.0)
    assert (page.events, page.idle) == ((), False)
    assert page.diagnostics.partition_errors


class TestSilence:
    """A connection that a firewall or proxy has dropped in silence: later calls must use another one."""

    def test_a_client_reads_on_over_a_slow_link(self, items, link, monkeypatch):
        """On a slow network, the answer to a ping would come after all data that is on its way."""
        monkeypatch.setattr(config, "ALIVE", SOON)
        with connect(f"spanner://tests/tests?emulator_host=127.0.0.1:{link.port}") as ours:
            consumer = SlowConsumer(ours, items.address, Now(), timeout=1.0).begin()
            for number in range(4):
                items.put((f"k{number}", number, "x" * 30_000), names=("id", "n", "text"))
            link.slow(60_000)
            consumer.until(4, at_most=15)

    def test_a_channel_to_the_service_has_the_same_settings(self, monkeypatch):
        seen = []

        def create_channel(*args, options=(), **settings):
            seen.append(dict(options))
            return grpc.insecure_channel("localhost:1")

        monkeypatch.setattr(config.SpannerGrpcTransport, "create_channel", create_channel)
        monkeypatch.delenv("SPANNER_EMULATOR_HOST", raising=False)
        instance = SimpleNamespace(emulator_host=None)
        client = SimpleNamespace(credentials=AnonymousCredentials(), instance=lambda name: instance)
        SpannerConfig("my-project", "my-instance").transport(client).close()
        assert [{**found, **dict(ALIVE)} == found for found in seen] == [True]
        assert seen[0]["grpc.max_receive_message_length"] == 64 << 20  # the vendor's channels have no bound


def test_a_session_that_opens_while_the_client_closes_is_deleted():
    deleted = []

    def opened():
        client.close()
        return Session.pb()(name="late")

    class Call:
        def __init__(self, answer):
            self.answer = answer

        def __iter__(self):
            return iter(self.answer())

        def result(self, timeout=None):
            return self.answer()

        def cancel(self):
            """Do nothing, as for a call that has already ended."""

    transport = SimpleNamespace(
        create_session=SimpleNamespace(future=lambda request, **_: Call(opened)),
        delete_session=SimpleNamespace(
            future=lambda request, **_: Call(partial(deleted.append, request.name))
        ),
        execute_streaming_sql=lambda request, **_: Call(list),
    )
    client = DatabaseClient("projects/p/instances/i/databases/d", transport, ours=False)
    client.rows("SELECT 1", 1, CancelScope())
    assert deleted == ["late"]


def test_a_call_that_shares_a_request_of_the_time_ends_at_its_own_deadline():
    asked, waits, over = threading.Event(), threading.Event(), threading.Event()

    def ask(scope):
        asked.set()
        return int(over.wait(60))

    class Waiting(CancelScope):
        check = staticmethod(waits.set)  # called while it waits for the running request

    clock, long = Clock(ask), Deadline.after(60)
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(clock.now, CancelScope(long))]
        assert asked.wait(60)
        found.append(pool.submit(clock.now, Waiting(long)))
        assert waits.wait(60)
        shares = pool.submit(clock.now, CancelScope(Deadline.after(0.2)))
        with pytest.raises(ProviderFault):
            shares.result(30)
        over.set()
        assert [each.result(60) for each in found] == [1, 1]


def test_a_call_that_shares_a_request_of_the_time_that_is_interrupted_may_be_tried_again():
    asked, follows, over = threading.Event(), threading.Event(), threading.Event()

    def ask(scope):
        asked.set()
        return int(over.wait(60))

    class Leading(CancelScope):
        def check(self):  # called while it waits for the running request
            assert follows.wait(60)
            raise KeyboardInterrupt

    class Following(CancelScope):
        check = staticmethod(follows.set)

    clock, long = Clock(ask), Deadline.after(60)
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(clock.now, CancelScope(long))
        assert asked.wait(60)
        leading = pool.submit(clock.now, Leading(long))
        wait_until(lambda: clock._waiting is not None)
        following = pool.submit(clock.now, Following(long))
        assert isinstance(leading.exception(60), KeyboardInterrupt)
        assert following.exception(60).fault.retryable
        over.set()
        assert running.result(60) == 1


def test_a_lost_call_holds_up_no_later_one():
    """gRPC loses a call whose connection ends just when it begins to receive."""
    over, asked = threading.Event(), []

    def ask(scope):
        asked.append(scope)
        return 2 if len(asked) > 1 else int(over.wait(60))

    clock = Clock(ask)
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(clock.now, CancelScope(Deadline.after(0.1)))
        wait_until(lambda: asked)
        try:
            assert clock.now(CancelScope(Deadline.after(30))) == 2
        finally:
            over.set()
        assert lost.result(60) == 1
    assert clock.passed() == 2


def test_a_call_that_begins_while_its_read_is_cancelled_ends_too():
    scope, call = CancelScope(Deadline.after(60)), Mock()
    scope.cancel()
    scope.take(call)
    call.cancel.assert_called_once()


@pytest.mark.parametrize("role", [None, "orders_reader"])
def test_every_session_has_the_database_role(role):
    with feed() as items:
        url = items.scripted.url + ("" if role is None else f"&database_role={role}")
        with connect(url) as client:
            once(items.drain(items.page(Beginning(), client=client).continuation_token, client=client), 0)
            client.lookup(items.address, [MulticloudDbKey({"id": "a"})])
            items.server.lose_sessions()
            items.page(Beginning(), client=client)
            sessions = items.server._world.sessions.values()
            assert {session.creator_role for session in sessions} == {role or ""}
            missing = ResourceAddress(items.scripted.name, "missing")
            with pytest.raises(MulticloudDbError) as caught:
                client.read_changes(ChangeFeedRequest(missing, Beginning()))
            assert ("the database role 'orders_reader'" in caught.value.message) == (role is not None)
