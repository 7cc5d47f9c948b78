"""Tests what is kept between calls, and for how long: readers, their records and feeds."""

import sys
from functools import partial
from linecache import getline
from types import SimpleNamespace

import pytest

from multiclouddb_api import LogicalPartition
from multiclouddb_conformance.simulation import SimulationFeed
from multiclouddb_spi import Deadline, FeedSpec, open_feed
from multiclouddb_spi.fetching import readers
from multiclouddb_spi.fetching.readers import Budget, PartitionReader, ReaderCache


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


def test_the_expected_size_grows_only_with_answers_that_are_larger_than_asked():
    budget = Budget(100)
    budget.learn(asked=10, nbytes=20)
    assert budget.expected == 20
    budget.learn(asked=10, nbytes=10)
    assert budget.expected == 18


class TestReaders:
    @pytest.fixture
    def clock(self, monkeypatch):
        clock = Clock()
        monkeypatch.setattr(readers, "time", clock)
        return clock

    @pytest.fixture
    def budget(self):
        return Budget(100)

    @pytest.fixture
    def cache(self, budget):
        return ReaderCache(budget, 16)

    @pytest.fixture
    def feed(self):
        return SimpleNamespace(without_hints=lambda cursor: cursor)

    def reader(self, feed, budget, nbytes, cursor=1):
        """Make a reader that holds records of the given size and was used by more than one call."""
        reader = PartitionReader(feed, "p0", cursor, budget, None)
        reader.proven = True
        if nbytes:
            reader.batch = object()
            reader.hold(nbytes)
        return reader

    def test_of_two_at_one_position_the_one_that_comes_next_says_what_is_held(
        self, cache, clock, feed, budget
    ):
        empty, full = self.reader(feed, budget, 0), self.reader(feed, budget, 10)
        cache.put(empty)
        cache.put(full)
        assert cache.holds(feed, "p0", 1)
        assert cache.pop(feed, "p0", 1) is full
        assert not cache.holds(feed, "p0", 1)

    def test_records_of_a_consumer_that_rests_for_ten_seconds_make_room(self, cache, clock, feed, budget):
        cache.put(self.reader(feed, budget, 90))
        clock.now += 9.5
        assert not cache.make_room(50, lambda reader: False)
        assert len(cache) == 1
        clock.now += 1.0
        cache.make_room(50, lambda reader: False)
        assert len(cache) == 0

    def test_an_interrupt_at_any_line_of_the_cache_leaves_it_usable(self, feed, budget):
        """Ctrl-C may come between any two lines in which a reader is put into the cache or taken out."""
        line = 1
        while True:
            cache, here = ReaderCache(budget, 16), [self.reader(feed, budget, 0) for _ in range(2)]
            calls = [partial(put_and_pop, cache, feed, reader) for reader in here]
            if not interrupted_at(line, calls):
                break
            for _ in here:
                cache.pop(feed, "p0", 1)
            assert not cache.holds(feed, "p0", 1)
            assert len(cache) == 0
            line += 1
        assert line > 20


def put_and_pop(cache, feed, reader):
    cache.put(reader)
    cache.pop(feed, "p0", 1)


def interrupted_at(line, calls):
    """Make the calls, and interrupt them in a line of the cache; return whether there were as many lines."""
    left = line

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename != readers.__file__:
            return None
        # Python delivers no interrupt between a lock and its `with`.
        if event == "line" and not getline(readers.__file__, frame.f_lineno).strip().startswith("with "):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        for call in calls:
            call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_a_feed_that_nobody_uses_is_closed_also_when_it_is_the_only_one(bench, monkeypatch):
    """The reader belongs to a feed that had to be opened again, so no later call closes the reader."""
    clock, closed = Clock(), []
    monkeypatch.setattr(open_feed, "time", clock)
    monkeypatch.setattr(
        SimulationFeed, "close", lambda self: closed.append(self.spec.scope.key.components["id"])
    )
    cache = bench.engine._feeds

    def acquire(name):
        spec = FeedSpec(bench.sim.address, LogicalPartition(bench.sim.key(name)))
        return cache.acquire(spec, lambda: bench.provider.open_feed(spec, Deadline.after(30)))[0]

    cache.release(acquire("long"))
    clock.now += 601
    other = acquire("other")
    cache.forget(other)
    assert closed == []
    cache.release(other)
    assert sorted(closed) == ["long", "other"]
