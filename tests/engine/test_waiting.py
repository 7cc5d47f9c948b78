"""Tests that a call can wait until its timeout ends, and that it succeeds with or without events.

All tests run on real threads, and no test limits the time.
"""

import threading

import pytest

from multiclouddb_api import ChangeFeedIterator, ChangeFeedRequest, ErrorCategory, Now
from multiclouddb_conformance.simulation import (
    ServerError,
    ServiceBehaviour,
    SimulationFeed,
    SimulationReader,
)

FOREVER = None


@pytest.fixture
def threaded(make_bench):
    def make(partitions=1, behaviour=None, **config):
        bench = make_bench(partitions, behaviour=behaviour)
        bench.connect(threads=True, **config)
        return bench

    return make


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize(("wait", "timeout"), [(0.5, 0.5), (60, 0.8), (0.3, 0.25)])
def test_a_quiet_feed_is_idle_and_healthy(threaded, partitions, wait, timeout):
    bench = threaded(partitions)
    token = bench.page(Now()).continuation_token
    for _ in range(4):
        page = bench.page(token, wait=wait, timeout=timeout)
        token = page.continuation_token
        assert page.idle
        assert not page.diagnostics.partition_errors


def test_a_fetch_that_only_waits_at_the_deadline_is_no_failure(threaded, monkeypatch):
    """The service keeps a long poll open for longer than requested."""
    fetch = SimulationReader.fetch
    monkeypatch.setattr(
        SimulationReader,
        "fetch",
        lambda self, records, nbytes, wait, deadline: fetch(
            self, records, nbytes, 30 if wait else 0, deadline
        ),
    )
    bench = threaded(2)
    page = bench.page(Now(), wait=1, timeout=1)
    assert page.idle
    assert not page.diagnostics.partition_errors


@pytest.mark.parametrize("longest", [None, 0.2, 7.0])
def test_one_fetch_waits_as_long_as_the_feed_allows(threaded, monkeypatch, longest):
    """A feed sets the longest wait of a fetch. It is longer for a service whose requests cost money."""
    asked, fetch = [], SimulationReader.fetch

    def recorded(self, records, nbytes, wait, deadline):
        asked.append(wait)
        if len(asked) == 3:
            bench.sim.write("news", {"n": 1})
        return fetch(self, records, nbytes, min(wait, 0.01), deadline)

    bench = threaded(1)
    token = bench.page(Now()).continuation_token
    monkeypatch.setattr(SimulationReader, "fetch", recorded)
    if longest is not None:
        monkeypatch.setattr(SimulationFeed, "longest_wait", lambda self: longest)
    page = bench.page(token, wait=30, timeout=40)
    assert [event.new_item_state for event in page.events] == [{"n": 1}]
    bound = 1.0 if longest is None else longest
    assert bound * 0.9 < max(asked) <= bound


def test_a_partition_that_fails_while_it_is_waited_for_is_named(threaded, monkeypatch):
    fetch = SimulationReader.fetch

    def broken(self, records, nbytes, wait, deadline):
        if wait:
            raise ServerError("503")
        return fetch(self, records, nbytes, wait, deadline)

    monkeypatch.setattr(SimulationReader, "fetch", broken)
    bench = threaded(2)
    page = bench.page(Now(), wait=2, timeout=2)
    assert not page.idle
    assert page.diagnostics.partition_errors


def test_a_partition_that_never_answers_is_named(threaded):
    bench = threaded(2)
    token = bench.page(Now()).continuation_token
    bench.connect(threads=True)
    bench.sim.hold("p1")
    page = bench.page(token, wait=1, timeout=1)
    assert not page.idle
    assert list(page.diagnostics.partition_errors) == [bench.sim.public_id("p1")]
    bench.sim.hold("p0")
    bench.connect(threads=True)
    bench.refused(ErrorCategory.TRANSIENT_FAILURE, token, wait=1, timeout=1)


def test_a_pause_that_the_service_asks_for_is_no_failure(threaded):
    bench = threaded(1, behaviour=ServiceBehaviour(poll_after=1.0))
    token = bench.page(Now()).continuation_token
    idle = 0
    for _ in range(8):
        page = bench.page(token, wait=0.5, timeout=0.5)
        token = page.continuation_token
        assert not page.diagnostics.partition_errors
        idle += page.idle
    assert idle


def test_an_iterator_lives_through_a_quiet_time(threaded):
    bench = threaded(2)
    pages = 0
    with ChangeFeedIterator(
        _Client(bench),
        ChangeFeedRequest(bench.sim.address, Now()),
        timeout_seconds=0.4,
        wait_seconds=0.4,
        max_outage_seconds=0.5,
        max_idle_backoff_seconds=0.1,
    ) as changes:
        for page in changes.pages():
            assert page.idle
            pages += 1
            if pages == 5:
                changes.stop()
    assert pages == 5


class _Client:
    """The client through which an iterator reads."""

    def __init__(self, bench):
        self._bench = bench

    def read_changes(self, request, options=None):
        return self._bench.engine.read_changes(request, options)


class TestNewsBesideOthers:
    """Tests that a partition that does not answer, or waits for events, does not delay the events of other
    partitions.
    """

    @pytest.fixture
    def reading(self, threaded):
        """In another thread, start a call that waits for events.

        Return when the call has requested events of `p1`.
        """
        bench = threaded(2)
        token = bench.page(Now()).continuation_token
        pages = []

        def begin(token):
            before = bench.calls.fetches["p1"]
            call = threading.Thread(target=lambda: pages.append(bench.page(token, wait=300, timeout=300)))
            call.start()
            while bench.calls.fetches["p1"] == before:
                call.join(0.01)
            return call

        yield bench, token, begin, pages
        bench.sim.release("p0")

    def test_of_a_partition_that_never_answers(self, reading, ids, monkeypatch):
        for module in ("reading.poll", "scan.scanning"):
            monkeypatch.setattr(f"multiclouddb_spi.{module}.HEAD_SECONDS", 0.2)
        bench, token, begin, pages = reading
        bench.connect(threads=True)
        bench.sim.hold("p0")
        call = begin(token)
        call.join(1)  # the call has requested events of both partitions and is waiting
        news = bench.fill_partition("p1", 1)
        call.join(60)
        assert [ids(page) for page in pages] == [news]

    def test_of_a_long_poll_that_an_earlier_call_has_left(self, reading, ids, monkeypatch):
        """The service keeps the poll of one partition open until there are new records."""
        fetch = SimulationReader.fetch

        def patient(self, records, nbytes, wait, deadline):
            wait = 300 if wait and self._id == "p0" else wait
            return fetch(self, records, nbytes, wait, deadline)

        monkeypatch.setattr(SimulationReader, "fetch", patient)
        bench, token, begin, pages = reading
        for _ in range(2):
            call = begin(token)
            call.join(1)
            news = bench.fill_partition("p1", 1)
            call.join(60)
            assert [ids(page) for page in pages] == [news]
            token = pages.pop().continuation_token
