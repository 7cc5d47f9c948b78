"""Tests which failure is raised if several partitions have failed."""

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedIterator,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
)
from multiclouddb_conformance.simulation import ThrottledError


def test_a_throttle_is_raised_before_an_answer_that_is_late(make_bench):
    """An error of a throttled call is more informative than one of a late answer: it contains the time to
    wait.
    """
    bench = make_bench(2)
    bench.connect(threads=True, attempts=1)
    bench.fill(10)
    bench.sim.hold("p0")
    bench.sim.fail_next("p1", ThrottledError("too fast", 7.0), None)
    with pytest.raises(MulticloudDbError) as caught:
        bench.page(Beginning(), timeout=0.5)
    assert caught.value.category == ErrorCategory.THROTTLED


class TestRetryAfter:
    """A partition that is throttled is not asked before the service wants it, also not by the next page."""

    @pytest.fixture
    def throttled(self, make_bench):
        """Read a page that delivers one partition, while another is throttled for two seconds."""
        bench = make_bench(2)
        bench.connect(attempts=1)
        bench.fill_partition("p0", 20)
        bench.fill_partition("p1", 5)
        bench.sim.fail_next("p1", ThrottledError("too fast", 2.0))
        page = bench.page(Beginning(), 5)
        assert len(page.events) == 5
        assert bench.calls.fetches["p1"] == 1
        return bench, page.continuation_token

    def test_later_pages_deliver_others_and_name_it(self, throttled):
        bench, token = throttled
        for _ in range(3):
            page = bench.page(token, 5)
            token = page.continuation_token
            assert list(page.diagnostics.partition_errors) == [bench.sim.public_id("p1")]
            assert len(page.events) == 5
        page = bench.page(token, 5)
        assert (page.events, page.idle) == ((), False)
        assert bench.calls.fetches["p1"] == 1

    def test_it_is_asked_when_the_time_has_passed(self, throttled, eventually):
        bench, token = throttled
        events = []

        def has_all():
            nonlocal token
            page = bench.page(token)
            token = page.continuation_token
            events.extend(page.events)
            return len(events) == 20

        eventually(has_all)
        assert bench.calls.fetches["p1"] in (2, 3)

    def test_a_call_that_waits_for_news_does_not_ask_it(self, throttled):
        bench, token = throttled
        _, token = bench.page(token, 15), bench.page(token, 15).continuation_token
        bench.page(token, wait=0.3)
        assert bench.calls.fetches["p1"] == 1

    def test_alone_it_raises_at_once(self, make_bench):
        bench = make_bench(1)
        bench.connect(attempts=1)
        bench.fill(5)
        bench.sim.fail_next("p0", ThrottledError("too fast", 60.0))
        for _ in range(3):
            error = bench.refused(ErrorCategory.THROTTLED, Beginning())
            assert error.detail.retry_after_seconds == 60.0
        assert bench.calls.fetches["p0"] == 1

    def test_an_iterator_delivers_others_and_asks_it_in_time(self, throttled):
        """The iterator reads a page at once after each page with events."""
        bench, token = throttled
        request = ChangeFeedRequest(bench.sim.address, FromContinuationToken(token), max_page_size=5)
        with ChangeFeedIterator(bench.engine, request, until_idle=True, wait_seconds=0.5) as changes:
            events = iter(changes)
            first = [next(events) for _ in range(15)]
            assert bench.calls.fetches["p1"] == 1
            assert len([*first, *events]) == 20
