"""Tests the library's client behind a proxy that drops, delays or limits the service's answers."""

import logging

import pytest

from multiclouddb_api import ChangeFeedRequest, Now, connect
from multiclouddb_conformance.proxy import Proxy
from multiclouddb_conformance.slow_link import SlowConsumer, seconds_to_close, seconds_to_stop

from .test_scripted_attacks import feed

RATE = 60_000
REPORT = logging.getLogger(__name__)


@pytest.fixture
def items():
    with feed(initial_partitions=1) as made:
        yield made


@pytest.fixture
def link(items):
    """Provide a proxy in front of the service."""
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
    @pytest.mark.parametrize(
        ("count", "timeout"),
        [
            (60, 0.5),
            pytest.param(600, 2.0, marks=pytest.mark.soak),
            pytest.param(600, 5.0, marks=pytest.mark.soak),
            pytest.param(600, 30.0, marks=pytest.mark.soak),
        ],
    )
    def test_a_backlog_arrives_and_is_sent_once(self, items, link, ours, count, timeout):
        fast = backlog(items, ours, count)
        before, start = link.answered, fast.start
        fast.until(count, at_most=30)
        size = link.answered - before
        consumer = SlowConsumer(ours, items.address, start, timeout=timeout)
        before = link.answered
        link.slow(RATE)
        took = consumer.until(count, at_most=6 * size / RATE + timeout)
        sent = link.answered - before
        REPORT.info(
            "%s events of %s bytes, %s s a call: %.1f s, %.2f times the bytes",
            count, size, timeout, took, sent / size,
        )  # fmt: skip
        assert [event.new_item_state["n"] for event in consumer.events] == list(range(count))
        assert sent < 1.5 * size

    def test_a_trickle_is_given_up_and_the_client_reads_again(self, items, link, ours):
        consumer = backlog(items, ours, 20, timeout=1.0)
        link.slow(1.0)
        consumer.attempt(6.0)
        assert not consumer.events
        link.heal()
        assert consumer.until(20, at_most=20) < 5


class TestEnd:
    """`close` and `stop` end running calls within a second, whatever the service does."""

    @pytest.mark.parametrize("end", ["close", "stop"])
    @pytest.mark.parametrize("moment", ["opening", "reading"])
    @pytest.mark.parametrize("trouble", ["silent", "slow"])
    def test_within_a_second(self, items, link, ours, end, moment, trouble):
        consumer = SlowConsumer(ours, items.address, Now())
        if moment == "reading":
            consumer = backlog(items, ours, 5)
        link.drop() if trouble == "silent" else link.slow(1.0)
        if end == "close":
            assert seconds_to_close(ours, consumer.read) < 1.5
        else:
            assert seconds_to_stop(ours.iterate_changes(ChangeFeedRequest(items.address, consumer.start))) < 1
