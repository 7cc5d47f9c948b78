"""The tests of a provider behind a proxy that drops, delays or limits the service's answers.

A test module imports the classes and defines the fixture `behind`.
"""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import attrs
import pytest

from multiclouddb_api import ChangeFeedRequest, MulticloudDbClient, ResourceAddress, StartPosition
from testing.proxy import Proxy
from testing.slow_link import SlowConsumer, seconds_to_close, seconds_to_stop

__all__ = ["Behind", "TestCut", "TestEnd", "TestSlow"]

_RATE: Final = 60_000
_ITEM_BYTES: Final = 1060
_REPORT: Final = logging.getLogger(__name__)


@attrs.frozen
class Behind:
    """A collection that is read through a proxy.

    Attributes:
        link: The proxy.
        client: The client, which is connected through the proxy.
        address: The collection.
        start: Where a consumer starts.
        write: Writes the given number of items with a text of the given length, past the proxy.
        text: The length of a text with which an answer has about 1,060 bytes for each item.
    """

    link: Proxy
    client: MulticloudDbClient
    address: ResourceAddress
    start: StartPosition
    write: Callable[[int, int], None]
    text: int

    def backlog(self, items: int, text: int | None = None, **settings: Any) -> SlowConsumer:
        """Write items that a consumer has not read yet, over a fast link."""
        consumer = SlowConsumer(self.client, self.address, self.start, **settings).begin()
        consumer.read()
        self.write(items, self.text if text is None else text)
        return consumer


class TestSlow:
    """A slow link delivers, and what arrives late is kept."""

    @pytest.mark.parametrize(
        ("items", "timeout"),
        [
            (100, 0.5),
            pytest.param(1000, 2.0, marks=pytest.mark.soak),
            pytest.param(1000, 5.0, marks=pytest.mark.soak),
            pytest.param(1000, 30.0, marks=pytest.mark.soak),
        ],
    )
    def test_a_backlog_arrives_and_is_sent_once(self, behind: Behind, items: int, timeout: float) -> None:
        consumer, link = behind.backlog(items, timeout=timeout), behind.link
        before, size = link.answered, _ITEM_BYTES * items
        link.slow(_RATE)
        took = consumer.until(items, at_most=4 * size / _RATE + timeout)
        sent = link.answered - before
        _REPORT.info("%s items, %s s a call: %.1f s, %.2f times the bytes", items, timeout, took, sent / size)
        assert len(consumer.events) == items
        assert sent < 1.5 * size

    @pytest.mark.parametrize("rate", [1.0, pytest.param(40.0, marks=pytest.mark.soak)])
    def test_a_trickle_is_given_up_and_the_client_reads_again(self, behind: Behind, rate: float) -> None:
        consumer = behind.backlog(20, timeout=1.0)
        behind.link.slow(rate)
        consumer.attempt(6.0)
        assert not consumer.events
        behind.link.heal()
        assert consumer.until(20, at_most=20) < 5

    def test_silence_is_given_up(self, behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("multiclouddb_spi.time_limits.SILENT_SECONDS", 0.5)
        consumer = behind.backlog(1, text=10, timeout=1.0)
        behind.link.forget()
        assert consumer.until(1, at_most=20) < 5

    def test_an_answer_that_is_late_is_not_used_for_another_position(self, behind: Behind) -> None:
        consumer = behind.backlog(60, timeout=0.3, request={"max_page_size": 20})
        start = consumer.start
        behind.link.slow(_RATE)
        consumer.until(20, at_most=20)
        other = SlowConsumer(behind.client, behind.address, start, timeout=0.3)
        other.until(60, at_most=20)
        consumer.until(60, at_most=20)
        for each in (consumer, other):
            assert len({event.event_id for event in each.events}) == len(each.events) == 60


class TestCut:
    """A connection that is cut within an answer gets smaller answers, and later larger ones."""

    def test_smaller_answers_arrive_and_then_larger_ones(self, behind: Behind) -> None:
        consumer, link = behind.backlog(500, timeout=5.0), behind.link
        link.cut_after = 175_000
        consumer.until(300, at_most=30)
        before = link.connections
        link.heal()
        consumer.until(500, at_most=30)
        assert link.connections - before < 10
        assert len({event.event_id for event in consumer.events}) == len(consumer.events) == 500


class TestEnd:
    """`close` and `stop` end running calls within a second, whatever the service does."""

    @pytest.mark.parametrize("end", ["close", "stop"])
    @pytest.mark.parametrize("moment", ["opening", "reading"])
    @pytest.mark.parametrize("trouble", ["silent", "slow"])
    def test_within_a_second(self, behind: Behind, end: str, moment: str, trouble: str) -> None:
        client, link = behind.client, behind.link
        consumer = SlowConsumer(client, behind.address, behind.start)
        if moment == "reading":
            consumer = behind.backlog(5)
        link.drop() if trouble == "silent" else link.slow(1.0)
        if end == "close":
            assert seconds_to_close(client, consumer.read) < 1
        else:
            request = ChangeFeedRequest(behind.address, consumer.start)
            assert seconds_to_stop(client.iterate_changes(request)) < 1
