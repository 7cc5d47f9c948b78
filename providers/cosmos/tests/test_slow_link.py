"""Tests the library's client behind a proxy that drops, delays or limits the account's answers."""

import logging

import pytest

from multiclouddb_api import ChangeFeedRequest, ClientConfig, Now, connect
from multiclouddb_conformance.proxy import Proxy
from multiclouddb_conformance.slow_link import SlowConsumer, seconds_to_close, seconds_to_stop

from .world import ADDRESS

RATE = 60_000
REPORT = logging.getLogger(__name__)


@pytest.fixture
def link(world):
    """Provide a proxy in front of the account."""
    with Proxy(world.server.endpoint.split("/")[2]) as made:
        yield made


@pytest.fixture
def ours(link):
    with connect(ClientConfig("cosmos", {"url": f"cosmos://127.0.0.1:{link.port}?tls=false"})) as made:
        yield made


def backlog(world, link, ours, items, size, **settings):
    """Write items that a consumer has not read yet, over a fast link, then make the link slow."""
    consumer = SlowConsumer(ours, ADDRESS, Now(), **settings).begin()
    consumer.read()
    world.put(*(f"k{number}" for number in range(items)), text="x" * size)
    return consumer


class TestSlow:
    @pytest.mark.parametrize(
        ("items", "timeout"),
        [
            (100, 0.5),
            pytest.param(1000, 2.0, marks=pytest.mark.soak),
            pytest.param(1000, 5.0, marks=pytest.mark.soak),
            pytest.param(1000, 30.0, marks=pytest.mark.soak),
        ],
    )
    def test_a_backlog_arrives_and_is_sent_once(self, world, link, ours, items, timeout):
        consumer = backlog(world, link, ours, items, 800, timeout=timeout)
        before, size = link.answered, 1060 * items
        link.slow(RATE)
        took = consumer.until(items, at_most=4 * size / RATE + timeout)
        sent = link.answered - before
        REPORT.info("%s events, %s s a call: %.1f s, %.2f times the bytes", items, timeout, took, sent / size)
        assert sent < 1.5 * size
        assert took < 2 * size / RATE + timeout

    @pytest.mark.soak
    def test_many_ranges_share_a_link(self, make_world):
        """With default settings, sixteen ranges with 2.4 MB each arrive over 8 Mbit/s."""
        world, items = make_world(16), 9600
        with (
            Proxy(world.server.endpoint.split("/")[2], rate=1e9) as link,
            connect(ClientConfig("cosmos", {"url": f"cosmos://127.0.0.1:{link.port}?tls=false"})) as ours,
        ):
            consumer = backlog(world, link, ours, items, 3800)
            before, size = link.answered, 4060 * items
            link.slow(1_000_000)
            took = consumer.until(items, at_most=150)
            sent = link.answered - before
        REPORT.info("%s events of 16 ranges: %.1f s, %.2f times the bytes", items, took, sent / size)
        assert len({event.event_id for event in consumer.events}) == len(consumer.events) == items
        assert sent < 1.5 * size

    @pytest.mark.parametrize("rate", [1.0, 40.0])
    def test_a_trickle_is_given_up_and_the_client_reads_again(self, world, link, ours, rate):
        consumer = backlog(world, link, ours, 20, 800, timeout=1.0)
        link.slow(rate)
        consumer.attempt(6.0)
        assert not consumer.events
        link.heal()
        assert consumer.until(20, at_most=20) < 5

    def test_silence_is_given_up(self, world, link, ours, monkeypatch):
        monkeypatch.setattr("multiclouddb_spi.arrival.SILENT_SECONDS", 0.5)
        consumer = backlog(world, link, ours, 1, 10, timeout=1.0)
        link.forget()
        assert consumer.until(1, at_most=20) < 5

    def test_an_answer_that_is_late_is_not_used_for_another_position(self, world, link, ours):
        consumer = backlog(world, link, ours, 60, 800, timeout=0.3, request={"max_page_size": 20})
        start = consumer.start
        link.slow(RATE)
        consumer.until(20, at_most=20)
        other = SlowConsumer(ours, ADDRESS, start, timeout=0.3)
        other.until(60, at_most=20)
        consumer.until(60, at_most=20)
        for each in (consumer, other):
            assert sorted(event.new_item_state["n"] for event in each.events) == list(range(1, 61))


class TestCut:
    def test_a_connection_that_is_cut_within_an_answer_gets_smaller_answers(self, world, link, ours):
        consumer = backlog(world, link, ours, 1000, 800, timeout=5.0)
        link.cut_after = 350_000
        consumer.until(600, at_most=30)
        before = link.connections
        link.heal()
        consumer.until(1000, at_most=30)
        assert link.connections - before < 10
        assert len({event.event_id for event in consumer.events}) == len(consumer.events) == 1000


class TestEnd:
    """`close` and `stop` end running calls within a second, whatever the account does."""

    @pytest.mark.parametrize("end", ["close", "stop"])
    @pytest.mark.parametrize("moment", ["opening", "reading"])
    @pytest.mark.parametrize("trouble", ["silent", "slow"])
    def test_within_a_second(self, world, link, ours, end, moment, trouble):
        consumer = SlowConsumer(ours, ADDRESS, Now())
        if moment == "reading":
            consumer = backlog(world, link, ours, 5, 800)
        link.drop() if trouble == "silent" else link.slow(1.0)
        if end == "close":
            assert seconds_to_close(ours, consumer.read) < 1
        else:
            assert seconds_to_stop(ours.iterate_changes(ChangeFeedRequest(ADDRESS, consumer.start))) < 1
