"""Tests that an iterator reports an outage soon, repeats the report, and reports the end of the outage."""

import logging
import threading
from contextlib import suppress

import pytest

from multiclouddb_api import (
    ChangeFeedIterator,
    ChangeFeedPage,
    ChangeFeedRequest,
    ErrorCategory,
    ErrorDetail,
    MulticloudDbError,
    Now,
    Observer,
    ResourceAddress,
    connect,
)
from multiclouddb_api.pacing import Outage, Timer, answered, still_waiting
from multiclouddb_conformance.waiting import SOON, wait_until
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_spi.contract import Provider

ADDRESS = ResourceAddress("shop", "orders")
PAGE = ChangeFeedPage((), "token", idle=True)


def failure(text="refused", *, retryable=True):
    detail = ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=retryable)
    return MulticloudDbError(text, detail)


class Told(Observer):
    def __init__(self):
        self.outages, self.ends = [], []

    def outage(self, address, seconds, reason):
        self.outages.append((seconds, reason))

    def outage_ended(self, address, seconds):
        self.ends.append(seconds)


class Clock(Timer):
    """A clock that moves only when the iterator waits."""

    time = 100.0

    def now(self):
        return self.time

    def wait(self, seconds):
        self.time += max(0.0, seconds)
        return not self.stopped


class Client:
    """A client that answers each read, after some seconds, with the next page or error from a list."""

    def __init__(self, clock, *answers):
        self.clock, self.answers, self.observer = clock, list(answers), Told()

    def read_changes(self, request, options=None):
        answer = self.answers.pop(0) if self.answers else PAGE
        if callable(answer):
            answer = answer(self.clock)
        if isinstance(answer, MulticloudDbError):
            raise answer
        return answer


def run(*answers, **settings):
    """Return the observer of an iterator that has read until the feed was idle."""
    clock = Clock()
    client = Client(clock, *answers)
    changes = ChangeFeedIterator(client, ChangeFeedRequest(ADDRESS, Now()), until_idle=True, **settings)
    changes._timer = clock
    for _ in changes.pages():
        pass
    return client.observer


def waits(seconds, reason=None, then=PAGE):
    """Return the answer of a read during which the engine reports every 0.2 s that it is still waiting."""

    def answer(clock):
        until = clock.time + seconds
        while clock.time < until:
            clock.time += 0.2
            still_waiting(lambda: reason)
        return then

    return answer


class TestFailedReads:
    def test_the_first_is_reported_at_once_and_the_end_too(self, caplog):
        caplog.set_level(logging.INFO, "multiclouddb.iterator")
        told = run(failure())
        assert told.outages == [(0.0, "refused")]
        assert len(told.ends) == 1
        first, last = caplog.records
        assert (first.levelname, last.levelname) == ("WARNING", "INFO")
        assert "shop/orders" in first.getMessage()
        assert "refused" in first.getMessage()

    def test_then_every_thirty_seconds_also_between_two_reads(self, monkeypatch):
        monkeypatch.setattr("random.uniform", lambda low, high: high)
        told = run(*(failure() for _ in range(9)))
        assert [seconds for seconds, _ in told.outages] == [0, 30, 60, 90, 120]
        assert {reason for _, reason in told.outages} == {"refused"}

    def test_a_failure_that_ends_the_iteration_is_only_raised(self):
        clock = Clock()
        client = Client(clock, failure(retryable=False))
        changes = ChangeFeedIterator(client, ChangeFeedRequest(ADDRESS, Now()))
        with pytest.raises(MulticloudDbError):
            next(changes.pages())
        assert client.observer.outages == []

    def test_an_observer_that_raises_ends_nothing(self, caplog):
        class Broken(Told):
            def outage(self, address, seconds, reason):
                raise ValueError("broken")

        clock = Clock()
        client = Client(clock, failure())
        client.observer = Broken()
        changes = ChangeFeedIterator(client, ChangeFeedRequest(ADDRESS, Now()), until_idle=True)
        changes._timer = clock
        assert list(changes.pages()) == [PAGE]
        assert "outage failed" in caplog.text


class TestARunningRead:
    def test_that_is_tried_again_is_reported_within_two_seconds(self):
        ((seconds, reason),) = run(waits(6, "no host")).outages
        assert seconds < 2
        assert reason == "no host"

    def test_without_any_answer_is_reported_within_two_seconds(self):
        ((seconds, reason),) = run(waits(6)).outages
        assert seconds < 2
        assert "not answered" in reason

    def test_a_reason_that_comes_later_is_told_too(self):
        told = run(waits(3, then=failure("no host")))
        assert [reason for _, reason in told.outages][1:] == ["no host"]

    def test_that_fails_for_a_moment_is_not(self):
        told = run(waits(0.3, "busy"))
        assert (told.outages, told.ends) == ([], [])

    def test_that_waits_for_news_is_not(self):
        def quiet(clock):
            answered()
            return waits(4)(clock)

        event = ChangeFeedPage((), "t")
        clock = Clock()
        client = Client(clock, event, quiet)
        request = ChangeFeedRequest(ADDRESS, Now())
        changes = ChangeFeedIterator(client, request, until_idle=True, wait_seconds=5)
        changes._timer = clock
        assert len(list(changes.pages())) == 2
        assert client.observer.outages == []

    def test_of_a_slow_service_does_not_fill_the_log(self):
        busy = ChangeFeedPage((), "t")
        told = run(*(waits(2, then=busy) for _ in range(20)))
        assert len(told.outages) == 2

    def test_outside_of_an_iterator_nobody_is_told(self):
        still_waiting(lambda: "no host")
        answered()

    def test_ends_where_it_was_held(self):
        outage = Outage(ADDRESS, told := Told(), Clock().now)
        with outage.watching(0.0):
            pass
        still_waiting(lambda: "no host")
        assert told.outages == []


class TestEngine:
    """Tests that the report comes while the first read is still being retried."""

    @pytest.fixture
    def dead(self, monkeypatch):
        """Provide an embedded store whose host does not answer until it is released."""
        released = threading.Event()
        from multiclouddb_embedded.provider import EmbeddedProvider

        def open_feed(self, spec, deadline):
            del self, spec
            released.wait(deadline.remaining())
            raise OSError("gone")

        assert issubclass(EmbeddedProvider, Provider)
        monkeypatch.setattr(EmbeddedProvider, "open_feed", open_feed)
        yield
        released.set()

    def test_silence_of_a_control_call_is_reported(self, tmp_path, dead):
        with EmbeddedStore(tmp_path / "s.db", durable=False) as store:
            store.create_collection("orders")
        with connect(f"embedded://{tmp_path}/s.db", observer=(told := Told())) as client:
            request = ChangeFeedRequest(ResourceAddress(collection="orders"), Now())
            changes = client.iterate_changes(request)

            def read():
                with suppress(MulticloudDbError):
                    list(changes)

            reading = threading.Thread(target=read)
            reading.start()
            wait_until(lambda: told.outages)
            changes.stop()
            client.close()
            reading.join(SOON)
        seconds, reason = told.outages[0]
        assert seconds < 2
        assert "not answered" in reason
