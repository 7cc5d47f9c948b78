"""Tests the library's client behind a proxy that drops, delays or limits the account's answers."""

import logging

import pytest

from multiclouddb_api import ClientConfig, Now, connect
from multiclouddb_conformance.proxy import Proxy
from multiclouddb_conformance.slow_link import Line, SlowConsumer, SlowLinkTests

from .world import ADDRESS

RATE = 60_000
REPORT = logging.getLogger(__name__)


def line_of(world, link, client):
    def write(items, size):
        world.put(*(f"k{number}" for number in range(items)), text="x" * (size + 100))

    return Line(client, link, ADDRESS, Now(), write)


def connected(link):
    return connect(ClientConfig("cosmos", {"url": f"cosmos://127.0.0.1:{link.port}?tls=false"}))


class TestSlowLink(SlowLinkTests):
    @pytest.fixture
    def line(self, world):
        with Proxy(world.server.endpoint.split("/")[2]) as link, connected(link) as client:
            yield line_of(world, link, client)

    @pytest.mark.soak
    def test_many_ranges_share_a_link(self, make_world):
        """With default settings, sixteen ranges with 2.4 MB each arrive over 8 Mbit/s."""
        world, items = make_world(16), 9600
        with Proxy(world.server.endpoint.split("/")[2], rate=1e9) as link, connected(link) as ours:
            consumer = line_of(world, link, ours).backlog(items, 3700)
            before, size = link.answered, 4060 * items
            link.slow(1_000_000)
            took = consumer.until(items, at_most=150)
            sent = link.answered - before
        REPORT.info("%s events of 16 ranges: %.1f s, %.2f times the bytes", items, took, sent / size)
        assert len({event.event_id for event in consumer.events}) == len(consumer.events) == items
        assert sent < 1.5 * size

    def test_an_answer_that_is_late_is_not_used_for_another_position(self, line):
        consumer = line.backlog(60, timeout=0.3, request={"max_page_size": 20})
        start = consumer.start
        line.link.slow(RATE)
        consumer.until(20, at_most=20)
        other = SlowConsumer(line.client, ADDRESS, start, timeout=0.3)
        other.until(60, at_most=20)
        consumer.until(60, at_most=20)
        for each in (consumer, other):
            assert sorted(event.new_item_state["n"] for event in each.events) == list(range(1, 61))
