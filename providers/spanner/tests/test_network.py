"""Tests the library's client behind a proxy that drops, delays, cuts or limits the service's answers."""

import time
from types import SimpleNamespace

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials

from multiclouddb_api import ChangeFeedRequest, ErrorCategory, MulticloudDbError, Now, Snapshot, connect
from multiclouddb_conformance.proxy import Proxy
from multiclouddb_conformance.slow_link import SlowConsumer, seconds_to_close, seconds_to_stop
from multiclouddb_conformance.waiting import assert_prompt
from multiclouddb_spanner import config
from multiclouddb_spanner.config import ALIVE, SpannerConfig
from multiclouddb_spanner.reader import SpannerReader

from .feeds import Opened, feed

RATE = 60_000
SOON = tuple((name, value // 20 if name.endswith("_ms") else value) for name, value in ALIVE)


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


def backlog(items, ours, count, **settings):
    """Write rows that a consumer has not read yet; return the consumer and their number of bytes."""
    consumer = SlowConsumer(ours, items.address, Now(), **settings).begin()
    for number in range(count):
        items.put((f"k{number}-" + "x" * 700, number))
    return consumer


class TestSlow:
    SOAK = (pytest.param(600, timeout, marks=pytest.mark.soak) for timeout in (2.0, 5.0, 30.0))

    @pytest.mark.parametrize(("count", "timeout"), [(60, 0.5), *SOAK])
    def test_a_backlog_arrives_and_is_sent_once(self, items, link, ours, count, timeout):
        fast = backlog(items, ours, count)
        before, start = link.answered, fast.start
        fast.until(count, at_most=30)
        size = link.answered - before
        consumer = SlowConsumer(ours, items.address, start, timeout=timeout)
        before = link.answered
        link.slow(RATE)
        consumer.until(count, at_most=6 * size / RATE + timeout)
        assert [event.new_item_state["n"] for event in consumer.events] == list(range(count))
        assert link.answered - before < 1.5 * size

    def test_a_trickle_is_given_up_and_the_client_reads_again(self, items, link, ours):
        consumer = backlog(items, ours, 20, timeout=1.0)
        link.slow(1.0)
        consumer.attempt(6.0)
        assert not consumer.events
        link.heal()
        assert consumer.until(20, at_most=20) < 5


class TestCut:
    """A connection that is cut within a message gets smaller answers, and later larger ones."""

    def test_a_backlog_arrives_and_later_a_quiet_hour_is_read_at_once(self, items, link, ours):
        consumer = backlog(items, ours, 200, timeout=5.0)
        link.cut_after = 60_000
        consumer.until(100, at_most=30)
        link.heal()
        items.server.advance(3600)
        items.put(("last", 200))
        consumer.until(201, at_most=30)
        assert [event.new_item_state["n"] for event in consumer.events] == list(range(201))

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


@pytest.mark.parametrize("moment", ["opening", "reading"])
@pytest.mark.parametrize("trouble", ["silent", "slow"])
def test_close_and_stop_end_a_call_within_a_second(items, link, ours, moment, trouble):
    consumer = SlowConsumer(ours, items.address, Now())
    if moment == "reading":
        consumer = backlog(items, ours, 5)
    link.drop() if trouble == "silent" else link.slow(1.0)
    assert seconds_to_stop(ours.iterate_changes(ChangeFeedRequest(items.address, consumer.start))) < 1
    assert seconds_to_close(ours, consumer.read) < 1.5


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

    @pytest.mark.parametrize("trouble", ["silent", "slow"])
    def test_a_client_reads_on(self, items, link, monkeypatch, trouble):
        """On a slow network, the answer to a ping would come after all data that is on its way."""
        monkeypatch.setattr(config, "ALIVE", SOON)
        with connect(f"spanner://tests/tests?emulator_host=127.0.0.1:{link.port}") as ours:
            consumer = SlowConsumer(ours, items.address, Now(), timeout=1.0).begin()
            for number in range(4):
                items.put((f"k{number}", number, "x" * 30_000), names=("id", "n", "text"))
            link.forget() if trouble == "silent" else link.slow(RATE)
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
        assert seen[0]["grpc.max_receive_message_length"] == -1
