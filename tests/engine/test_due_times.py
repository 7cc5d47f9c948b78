"""A call on a feed of many partitions asks only those that are due, and no change is missed for that."""

from itertools import pairwise

import pytest

import multiclouddb_api as api
from multiclouddb_conformance.simulation import Listing, ServiceBehaviour, ThrottledError
from multiclouddb_spi.continuation.follow import most_looks

PARTITIONS = 8


@pytest.fixture
def resting(make_bench, moved_clock):
    """A feed of which every partition has just been asked, and is worth asking again in ten seconds."""
    bench = make_bench(PARTITIONS, behaviour=ServiceBehaviour(poll_after=10.0))
    bench.connect(max_concurrency=2)
    bench.clock, bench.last = moved_clock, bench.page(api.Now(), ask_all=False)
    assert bench.last.idle
    return bench


def asked(bench):
    return sum(bench.calls.fetches.values())


def step(bench, **settings):
    """Read the next page of a loop that runs for ever; return it with the number of requests."""
    before = asked(bench)
    bench.last = bench.page(bench.last.continuation_token, **{"ask_all": False, **settings})
    return bench.last, asked(bench) - before


def drained(bench, ids):
    """Return the ids of the events up to the first idle page."""
    found = []
    for _ in range(100):
        page, _ = step(bench, ask_all=True)
        found += ids(page)
        if page.idle:
            return found
    raise AssertionError("the feed is not idle")


class TestNothingIsDue:
    def test_the_page_is_not_idle_and_tells_when_to_come_back(self, resting):
        token = resting.last.continuation_token
        assert 9 < resting.last.poll_after_seconds <= 10
        for seconds in (0, 4):
            resting.clock.pause(seconds)
            page, requests = step(resting)
            assert (requests, page.events, page.idle, page.continuation_token) == (0, (), False, token)
            told = page.diagnostics
            assert (told.requests, told.retries, told.native_charge, told.found_late) == (0, 0, None, 0)
            assert 0 <= told.elapsed_seconds < 10
        assert 5 < page.poll_after_seconds <= 6

    def test_the_lag_grows_meanwhile(self, resting):
        before, _ = step(resting)
        resting.clock.pause(4)
        page, _ = step(resting)
        assert page.diagnostics.lag_seconds == pytest.approx(before.diagnostics.lag_seconds + 4, abs=0.5)
        assert page.diagnostics.read_until == before.diagnostics.read_until

    def test_a_call_that_waits_reads_when_the_first_is_due(self, resting, ids):
        resting.fill(5)
        page, requests = step(resting, wait=20)
        assert requests >= 1
        assert page.events
        assert sum(resting.clock.pauses) < 11
        assert len(page.events) + len(drained(resting, ids)) == 5

    def test_a_call_that_waits_reads_again_when_they_are_due_again(self, resting):
        resting.clock.pause(10)
        resting.clock.at_pause = lambda: resting.fill(1) if len(resting.clock.pauses) == 3 else None
        resting.clock.pauses.clear()
        page, requests = step(resting, wait=28)
        assert len(page.events) == 1
        assert requests <= 3 * PARTITIONS
        assert sum(resting.clock.pauses) < 21

    def test_a_consumer_that_keeps_its_token_leaves_out_what_it_has_just_asked(self, resting):
        first = resting.last.continuation_token
        resting.clock.pause(10)
        resting.page(first, ask_all=False)
        before = asked(resting)
        for _ in range(3):
            again = resting.page(first, ask_all=False)
            assert (asked(resting), again.idle, again.events) == (before, False, ())
            assert 9 < again.poll_after_seconds <= 10

    def test_a_call_whose_wait_ends_before_reads_nothing(self, resting):
        resting.fill(5)
        page, requests = step(resting, wait=3)
        assert (requests, page.events) == (0, ())
        assert 6 < page.poll_after_seconds <= 7

    def test_calls_that_ask_all_wait_until_they_are_due(self, resting, ids):
        resting.fill(5)
        assert sorted(drained(resting, ids)) == sorted(resting.written())

    def test_a_token_of_another_process_leaves_nothing_out(self, resting):
        resting.fill(5)
        resting.connect(max_concurrency=2)
        page, requests = step(resting)
        assert (requests, len(page.events)) == (PARTITIONS, 5)

    def test_the_token_is_refused_for_another_scope(self, resting):
        scope = api.PhysicalPartition(resting.partitions()[0])
        resting.refused(api.ErrorCategory.INVALID_REQUEST, resting.last.continuation_token, scope=scope)


class TestSomeAreDue:
    def test_only_they_are_asked(self, resting):
        """A partition that may have more records is due at once."""
        resting.clock.pause(10)
        resting.fill_partition("p3", 3)
        page, requests = step(resting, size=1)
        assert len(page.events) == 1
        while len(page.events):
            page, requests = step(resting, size=1)
        page, requests = step(resting)
        assert (page.idle, requests) == (False, 0)

    def test_each_is_asked_once_in_its_time(self, resting):
        for _ in range(60):
            step(resting)
            resting.clock.pause(1)
        counts = resting.calls.fetches.values()
        assert len(counts) == PARTITIONS
        assert max(counts) <= 7 <= 1 + min(counts)

    def test_every_event_comes_once_and_in_order(self, resting, ids):
        seen = []
        for number in range(60):
            resting.fill(3, keys=20)
            seen += ids(step(resting, size=1 + number % 5)[0])
            resting.clock.pause(number % 7)
        seen += drained(resting, ids)
        assert sorted(seen) == sorted(resting.written())
        places = {item.event_id: (item.commit, item.index) for item in resting.sim.truth}
        by_partition = {}
        for item in resting.sim.truth:
            by_partition.setdefault(item.partition_id, set()).add(item.event_id)
        for mine in by_partition.values():
            order = [places[name] for name in seen if name in mine]
            assert all(one < other for one, other in pairwise(order))

    def test_children_are_read_at_once(self, resting):
        children = resting.sim.split("p0")
        events = resting.fill_partition(children[0], 3)
        resting.clock.pause(10)
        page, _ = step(resting)
        assert [event.event_id for event in page.events] == events

    def test_a_failure_of_one_is_reported_and_the_others_rest(self, resting):
        resting.clock.pause(10)
        name = resting.sim.public_id("p2")
        resting.sim.fail_next("p2", ThrottledError("slow", 60), times=100)
        page, _ = step(resting)
        assert list(page.diagnostics.partition_errors) == [name]
        page, requests = step(resting)
        assert (list(page.diagnostics.partition_errors), requests) == ([name], 0)
        assert 0 < page.poll_after_seconds <= 0.1

    def test_a_read_from_an_older_token_is_right(self, resting, ids):
        """The times of a token hold for its positions, however often it is used."""
        first = resting.last.continuation_token
        resting.clock.pause(10)
        resting.fill(20, keys=20)
        for _ in range(2):
            resting.last = resting.page(first, ask_all=False)
            seen = [*ids(resting.last), *drained(resting, ids)]
            assert sorted(seen) == sorted(resting.written())


class TestPace:
    """A loop that waits as long as each page says does not spin while nothing is written."""

    @pytest.mark.parametrize("form", Listing)
    @pytest.mark.parametrize("late", [0, 2])
    def test_of_a_quiet_feed(self, make_bench, moved_clock, form, late):
        behaviour = ServiceBehaviour(
            poll_after=10.0, listing=form, late_siblings=late, proves_children=not late
        )
        bench = make_bench(PARTITIONS, behaviour=behaviour)
        bench.connect(max_concurrency=2)
        bench.last = bench.page(api.Now(), ask_all=False)
        children = bench.sim.split("p0")
        events = [name for child in children for name in bench.fill_partition(child, 2)]
        seen, calls, began = [], 0, moved_clock.moved
        while moved_clock.moved < began + 900:
            page, _ = step(bench)
            calls += 1
            assert calls < 2500
            seen += [event.event_id for event in page.events]
            moved_clock.pause(0.5 if page.idle else page.poll_after_seconds)
        assert sorted(seen) == sorted(events)

    def test_of_a_feed_that_is_searched_although_its_partitions_rest_for_long(self, make_bench, moved_clock):
        behaviour = ServiceBehaviour(poll_after=3600.0, proves_children=False)
        bench = make_bench(PARTITIONS, behaviour=behaviour)
        bench.connect(max_concurrency=2)
        page = bench.page(api.Now(), ask_all=False)
        assert page.idle
        assert 4 < page.poll_after_seconds <= 5

    def test_of_a_feed_that_looks_for_more_children(self, make_bench, moved_clock):
        behaviour = ServiceBehaviour(poll_after=3600.0, late_siblings=100, proves_children=False)
        bench = make_bench(PARTITIONS, behaviour=behaviour)
        bench.connect(max_concurrency=2)
        bench.last = bench.page(api.Now(), ask_all=False)
        bench.sim.split("p0")
        moved_clock.pause(3600)
        pages = [step(bench)[0] for _ in range(3)]
        assert [page.idle for page in pages] == [True, False, False]
        assert all(0.9 < page.poll_after_seconds <= 1 for page in pages)

    def test_of_a_feed_that_looks_for_more_children_of_a_partition_that_is_gone(
        self, make_bench, moved_clock
    ):
        """Only a listing tells them: each look asks for one, and no other call does."""
        bench = make_bench(behaviour=ServiceBehaviour(proves_children=False))
        bench.connect(child_watch_seconds=600.0)
        bench.sim.split("p0")
        *_, page = bench.walk()
        bench.sim.trim()
        for calls in range(150):
            page = bench.page(page.continuation_token)
            moved_clock.pause(120 * (calls % 5 == 0))
        assert page.diagnostics.open_watches == 0
        looks = most_looks(600.0) + 1
        assert bench.calls.surveys <= 1 + 2 * looks  # the first look does not count, and lists nothing


class TestOthers:
    def test_a_feed_that_one_call_can_read_is_asked_whole(self, make_bench, moved_clock):
        bench = make_bench(2, behaviour=ServiceBehaviour(poll_after=10.0))
        bench.connect(max_concurrency=2)
        bench.last = bench.page(api.Now(), ask_all=False)
        page, requests = step(bench)
        assert (page.idle, requests, page.poll_after_seconds) == (True, 2, 0)

    def test_partitions_that_are_always_worth_asking_are_asked(self, make_bench):
        bench = make_bench(PARTITIONS)
        bench.connect(max_concurrency=2)
        bench.last = bench.page(api.Now(), ask_all=False)
        for _ in range(3):
            page, requests = step(bench)
            assert (page.idle, requests, page.poll_after_seconds) == (True, PARTITIONS, 0)
