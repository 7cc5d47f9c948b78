"""Tests how many open feeds are kept, and for how long. Each key of a `LogicalPartition` has its own feed."""

import pytest

from multiclouddb_api import Beginning, LogicalPartition
from multiclouddb_conformance.simulation import SimulationFeed
from multiclouddb_spi import Deadline, FeedSpec, open_feed


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(open_feed, "time", clock)
    return clock


@pytest.fixture
def closed(monkeypatch):
    """Return the keys whose feeds were closed."""
    names = []
    monkeypatch.setattr(
        SimulationFeed, "close", lambda self: names.append(self.spec.scope.key.components["id"])
    )
    return names


class Worker:
    """A worker that reads many keys in turn.

    Args:
        bench: The engine.
        count: The number of keys.
    """

    def __init__(self, bench, count):
        self.bench, self.tokens = bench, dict.fromkeys((f"k{number}" for number in range(count)), Beginning())

    def turn(self, *names):
        """Read a page of some keys, or of every key; return how many feeds were opened."""
        before = self.bench.calls.feeds
        for name in names or self.tokens:
            scope = LogicalPartition(self.bench.sim.key(name))
            page = self.bench.page(self.tokens.get(name, Beginning()), scope=scope)
            self.tokens[name] = page.continuation_token
        return self.bench.calls.feeds - before


def test_a_feed_is_opened_once_for_each_of_many_keys(bench, closed):
    worker = Worker(bench, 500)
    assert [worker.turn() for _ in range(3)] == [500, 0, 0]
    assert closed == []


def test_one_that_nobody_has_used_for_ten_minutes_is_closed(bench, clock, closed):
    worker = Worker(bench, 20)
    worker.turn()
    clock.now += 599
    assert worker.turn("k19") == 0
    assert closed == []
    clock.now += 2
    for _ in range(3):  # each call closes only some of the feeds
        worker.turn("k19")
    assert sorted(closed) == sorted(f"k{number}" for number in range(19))
    assert worker.turn("k19") == 0
    assert worker.turn("k0") == 1


def test_no_call_closes_more_than_some(bench, clock, closed):
    worker = Worker(bench, 30)
    worker.turn()
    clock.now += 601
    worker.turn("k29")
    assert 0 < len(closed) <= 8


def test_more_than_are_kept_do_not_push_each_other_out(bench, clock, closed, monkeypatch):
    monkeypatch.setattr(open_feed, "_MOST_FEEDS", 10)
    worker = Worker(bench, 12)
    assert [worker.turn() for _ in range(3)] == [12, 2, 2]
    assert closed == ["k10", "k11"] * 3


def test_one_that_was_not_used_for_a_minute_gives_its_place(bench, clock, closed, monkeypatch):
    monkeypatch.setattr(open_feed, "_MOST_FEEDS", 10)
    worker = Worker(bench, 10)
    worker.turn()
    clock.now += 61
    worker.turn("k5", "new")
    assert closed == ["k0"]
    assert worker.turn("k5", "new", "k1") == 0


class TestInUse:
    """Tests that a feed in use by a call is not closed before the call ends."""

    @pytest.fixture
    def cache(self, bench):
        return bench.engine._feeds

    def acquire(self, bench, cache, name):
        spec = FeedSpec(bench.sim.address, LogicalPartition(bench.sim.key(name)))
        return cache.acquire(spec, lambda: bench.provider.open_feed(spec, Deadline.after(30)))[0]

    def test_it_does_not_age(self, bench, cache, clock, closed):
        feed = self.acquire(bench, cache, "long")
        clock.now += 601
        cache.release(self.acquire(bench, cache, "other"))
        assert closed == []
        cache.release(feed)
        clock.now += 599
        cache.release(self.acquire(bench, cache, "other"))
        assert closed == []
        clock.now += 2
        cache.release(self.acquire(bench, cache, "other"))
        assert closed == ["long"]

    def test_it_keeps_its_place(self, bench, cache, clock, closed, monkeypatch):
        monkeypatch.setattr(open_feed, "_MOST_FEEDS", 1)
        feed = self.acquire(bench, cache, "long")
        clock.now += 601
        cache.release(self.acquire(bench, cache, "other"))
        assert closed == ["other"]
        assert self.acquire(bench, cache, "long") is feed

    def test_two_calls_that_find_no_place_for_one_key_close_what_they_have_opened(
        self, bench, cache, clock, closed, monkeypatch
    ):
        monkeypatch.setattr(open_feed, "_MOST_FEEDS", 1)
        self.acquire(bench, cache, "long")
        one, other = self.acquire(bench, cache, "k"), self.acquire(bench, cache, "k")
        assert one is not other
        cache.release(one)
        cache.release(other)
        assert closed == ["k", "k"]

    def test_one_that_was_being_opened_while_the_client_closed_is_not_kept(self, bench, cache, closed):
        spec = FeedSpec(bench.sim.address, LogicalPartition(bench.sim.key("late")))

        def open_late():
            feed = bench.provider.open_feed(spec, Deadline.after(30))
            cache.close()
            return feed

        feed, _ = cache.acquire(spec, open_late)
        assert closed == []
        cache.release(feed)
        assert closed == ["late"]
