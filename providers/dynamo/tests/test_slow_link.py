"""Tests the library's client behind a proxy that drops, delays or limits the service's answers."""

import logging

import attrs
import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, connect
from multiclouddb_conformance.proxy import Proxy
from multiclouddb_conformance.slow_link import SlowConsumer, seconds_to_close, seconds_to_stop

from .world import ADDRESS, TABLE, World

RATE = 60_000
REPORT = logging.getLogger(__name__)


@pytest.fixture
def world():
    with World() as made:
        yield made


@pytest.fixture
def link(world):
    """Provide a proxy in front of the service."""
    with Proxy(world.script.endpoint_url.split("/")[2]) as made:
        yield made


@pytest.fixture
def ours(world, link):
    config = world.config()
    there = config.connection | {"endpoint_url": f"http://127.0.0.1:{link.port}"}
    with connect(attrs.evolve(config, connection=there)) as made:
        yield made


def backlog(world, ours, items, size, **settings):
    """Write items that a consumer has not read yet."""
    consumer = SlowConsumer(ours, ADDRESS, Beginning(), **settings)
    consumer.begin()
    for number in range(items):
        item = {"id": {"S": f"k{number}"}, "n": {"N": str(number)}, "text": {"S": "x" * size}}
        world.server.client().put_item(TableName=TABLE, Item=item)
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
        consumer = backlog(world, ours, items, 700, timeout=timeout)
        before, size = link.answered, 1060 * items
        link.slow(RATE)
        took = consumer.until(items, at_most=4 * size / RATE + timeout)
        sent = link.answered - before
        REPORT.info("%s events, %s s a call: %.1f s, %.2f times the bytes", items, timeout, took, sent / size)
        assert len(consumer.events) == items
        assert sent < 1.5 * size

    @pytest.mark.parametrize("rate", [1.0, 40.0])
    def test_a_trickle_is_given_up_and_the_client_reads_again(self, world, link, ours, rate):
        consumer = backlog(world, ours, 20, 700, timeout=1.0)
        link.slow(rate)
        consumer.attempt(6.0)
        assert not consumer.events
        link.heal()
        assert consumer.until(20, at_most=20) < 5

    def test_silence_is_given_up(self, world, link, ours, monkeypatch):
        monkeypatch.setattr("multiclouddb_spi.arrival.SILENT_SECONDS", 0.5)
        consumer = backlog(world, ours, 1, 10, timeout=1.0)
        link.forget()
        assert consumer.until(1, at_most=20) < 5


class TestCut:
    def test_a_connection_that_is_cut_within_an_answer_gets_smaller_answers(self, world, link, ours):
        consumer = backlog(world, ours, 1000, 700, timeout=5.0)
        link.cut_after = 350_000
        consumer.until(600, at_most=30)
        before = link.connections
        link.heal()
        consumer.until(1000, at_most=30)
        assert link.connections - before < 10
        assert len({event.event_id for event in consumer.events}) == len(consumer.events) == 1000


class TestEnd:
    """`close` and `stop` end running calls within a second, whatever the service does."""

    @pytest.mark.parametrize("end", ["close", "stop"])
    @pytest.mark.parametrize("moment", ["opening", "reading"])
    @pytest.mark.parametrize("trouble", ["silent", "slow"])
    def test_within_a_second(self, world, link, ours, end, moment, trouble):
        consumer = SlowConsumer(ours, ADDRESS, Beginning())
        if moment == "reading":
            consumer = backlog(world, ours, 5, 700)
        link.drop() if trouble == "silent" else link.slow(1.0)
        if end == "close":
            assert seconds_to_close(ours, consumer.read) < 1
        else:
            assert seconds_to_stop(ours.iterate_changes(ChangeFeedRequest(ADDRESS, consumer.start))) < 1
