"""Reads a feed over a slow or failing network, as an application does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs
import pytest

from multiclouddb_api import (
    ChangeEvent,
    ChangeFeedIterator,
    ChangeFeedPage,
    ChangeFeedRequest,
    FromContinuationToken,
    MulticloudDbClient,
    MulticloudDbError,
    OperationOptions,
    ResourceAddress,
    StartPosition,
)
from multiclouddb_conformance.proxy import Proxy

__all__ = ["Line", "SlowConsumer", "SlowLinkTests", "seconds_to_close", "seconds_to_stop"]

_RATE = 60_000
_REPORT = logging.getLogger(__name__)


def seconds_to_close(client: MulticloudDbClient, read: Callable[[], object], after: float = 0.3) -> float:
    """Close a client while a thread reads; return how long it takes until both have ended.

    Args:
        client: The client.
        read: The function that the thread calls; it may raise any error of the library.
        after: How many seconds after the beginning of the read the client is closed.
    """
    return _seconds_to_end(read, client.close, after)


def seconds_to_stop(changes: ChangeFeedIterator, after: float = 0.3) -> float:
    """Stop an iterator while a thread iterates; return how long it takes until the iteration has ended.

    Args:
        changes: The iterator.
        after: How many seconds after the beginning of the iteration it is stopped.
    """
    return _seconds_to_end(lambda: list(changes), changes.stop, after)


def _seconds_to_end(run: Callable[[], object], end: Callable[[], object], after: float) -> float:
    def running() -> None:
        with suppress(MulticloudDbError):
            run()

    thread = threading.Thread(target=running)
    thread.start()
    thread.join(after)
    assert thread.is_alive(), "the read has ended by itself"
    began = time.monotonic()
    end()
    thread.join()
    return time.monotonic() - began


@attrs.define
class SlowConsumer:
    """Reads page after page, and reads again after each failure that is retryable.

    Attributes:
        client: The client, which is connected through a proxy.
        address: The collection.
        start: The position of the next read.
        timeout: The time limit of a call, in seconds.
        wait: How long a call waits for a first event, in seconds.
        request: Further fields of every request.
        events: The events that were returned so far.
        calls: The number of calls.
    """

    client: MulticloudDbClient
    address: ResourceAddress
    start: StartPosition
    timeout: float = 30.0
    wait: float = 0.0
    request: dict[str, Any] = attrs.field(factory=dict)
    events: list[ChangeEvent] = attrs.field(factory=list)
    calls: int = 0

    def begin(self) -> SlowConsumer:
        """Resolve the start position without a time limit, and forget the events of this call."""
        self._take(self._page(OperationOptions()))
        self.events.clear()
        return self

    def read(self) -> ChangeFeedPage | None:
        """Read one page; return None after a failure that is retryable.

        Raises:
            MulticloudDbError: Any other failure.
        """
        self.calls += 1
        try:
            page = self._page(OperationOptions(self.timeout, self.wait))
        except MulticloudDbError as error:
            if error.retryable:
                return None
            raise
        return self._take(page)

    def until(self, count: int, at_most: float) -> float:
        """Read until there are `count` events; return how many seconds this took.

        Raises:
            TimeoutError: Raised if it takes longer than `at_most` seconds.
        """
        began = time.monotonic()
        while len(self.events) < count:
            self.read()
            if time.monotonic() - began > at_most:
                raise TimeoutError(f"{len(self.events)} of {count} events after {at_most:g} s")
        return time.monotonic() - began

    def attempt(self, seconds: float) -> None:
        """Read for some seconds, whatever fails."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(MulticloudDbError):
                self.read()

    def _page(self, options: OperationOptions) -> ChangeFeedPage:
        return self.client.read_changes(ChangeFeedRequest(self.address, self.start, **self.request), options)

    def _take(self, page: ChangeFeedPage) -> ChangeFeedPage:
        self.start = FromContinuationToken(page.continuation_token)
        self.events += page.events
        return page


@attrs.frozen
class Line:
    """A collection, and a client that is connected to it through a proxy.

    Attributes:
        client: The client.
        link: The proxy.
        address: The collection.
        start: Where a consumer starts.
        write: Writes the given number of documents, each with a text of the given length.
        record_bytes: The size of a change whose document has a text of 700 characters, as it is sent.
    """

    client: MulticloudDbClient
    link: Proxy
    address: ResourceAddress
    start: StartPosition
    write: Callable[[int, int], None]
    record_bytes: int = 1060

    def backlog(self, items: int, size: int = 700, **settings: Any) -> SlowConsumer:
        """Return a consumer that has not read yet what was written after its start."""
        consumer = SlowConsumer(self.client, self.address, self.start, **settings).begin()
        consumer.read()
        self.write(items, size)
        return consumer


class SlowLinkTests:
    """Tests of a feed over a link that is slow, silent or cut. A subclass has the fixture `line`."""

    @pytest.mark.parametrize(
        ("items", "timeout"),
        [
            (100, 0.5),
            pytest.param(1000, 2.0, marks=pytest.mark.soak),
            pytest.param(1000, 5.0, marks=pytest.mark.soak),
            pytest.param(1000, 30.0, marks=pytest.mark.soak),
        ],
    )
    def test_a_backlog_arrives_and_is_sent_once(self, line: Line, items: int, timeout: float) -> None:
        """An answer takes longer than a call: what arrives is kept, and nothing is sent twice."""
        consumer = line.backlog(items, timeout=timeout)
        before, size = line.link.answered, line.record_bytes * items
        line.link.slow(_RATE)
        took = consumer.until(items, at_most=4 * size / _RATE + timeout)
        sent = line.link.answered - before
        _REPORT.info(
            "%s events, %s s a call: %.1f s, %.2f times the bytes", items, timeout, took, sent / size
        )
        assert len(consumer.events) == items
        assert sent < 1.5 * size

    @pytest.mark.parametrize("rate", [1.0, 40.0])
    def test_a_trickle_is_given_up_and_the_client_reads_again(self, line: Line, rate: float) -> None:
        """The time limit is that of the whole answer, not of each byte."""
        consumer = line.backlog(20, timeout=1.0)
        line.link.slow(rate)
        consumer.attempt(6.0)
        assert not consumer.events
        line.link.heal()
        assert consumer.until(20, at_most=20) < 5

    def test_silence_is_given_up(self, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
        """A connection that is dropped in silence is not used for ever."""
        monkeypatch.setattr("multiclouddb_spi.arrival.SILENT_SECONDS", 0.5)
        consumer = line.backlog(1, 10, timeout=1.0)
        line.link.forget()
        assert consumer.until(1, at_most=20) < 5

    def test_a_connection_that_is_cut_within_an_answer_gets_smaller_answers(self, line: Line) -> None:
        """Each connection carries less than one full answer."""
        consumer = line.backlog(1000, timeout=5.0)
        line.link.cut_after = 350_000
        consumer.until(600, at_most=30)
        before = line.link.connections
        line.link.heal()
        consumer.until(1000, at_most=30)
        assert line.link.connections - before < 10
        assert len({event.event_id for event in consumer.events}) == len(consumer.events) == 1000

    @pytest.mark.parametrize("end", ["close", "stop"])
    @pytest.mark.parametrize("moment", ["opening", "reading"])
    @pytest.mark.parametrize("trouble", ["silent", "slow"])
    def test_close_and_stop_end_within_a_second(
        self, line: Line, end: str, moment: str, trouble: str
    ) -> None:
        """Running calls end, whatever the service does."""
        consumer = SlowConsumer(line.client, line.address, line.start)
        if moment == "reading":
            consumer = line.backlog(5)
        line.link.drop() if trouble == "silent" else line.link.slow(1.0)
        if end == "close":
            assert seconds_to_close(line.client, consumer.read) < 1
        else:
            changes = line.client.iterate_changes(ChangeFeedRequest(line.address, consumer.start))
            assert seconds_to_stop(changes) < 1
