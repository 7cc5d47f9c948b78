"""Tests threads, prefetching, what is kept between calls, and the limit on buffered bytes."""

import gc
import threading
import time
import weakref
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from multiclouddb_api import Beginning, MulticloudDbError, Now, Observer, PhysicalPartition
from multiclouddb_conformance.simulation import (
    ServerError,
    SimulationFeed,
    SimulationProvider,
    SimulationReader,
)
from multiclouddb_spi import Deadline, FeedSpec
from multiclouddb_spi.fetching import consumers, fetcher
from multiclouddb_spi.fetching.stream import Budget, Stream
from multiclouddb_spi.observing import Observing

BEGINNING = Beginning()


def together(*calls):
    """Make calls at the same time, each in its own thread; return their results or errors."""
    results = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(index, call):
        barrier.wait()
        try:
            results[index] = call()
        except MulticloudDbError as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


class TestConcurrentCalls:
    def test_feed_is_opened_once_and_what_was_opened_besides_is_forgotten(self, threaded, monkeypatch):
        bench = threaded()
        open_feed = bench.provider.open_feed

        def slowly(spec, deadline):
            time.sleep(0.05)
            return open_feed(spec, deadline)

        monkeypatch.setattr(bench.provider, "open_feed", slowly)
        together(*[bench.page for _ in range(8)])
        before = bench.calls.feeds
        assert before > 1
        together(*[bench.page for _ in range(8)])
        assert bench.calls.feeds == before
        assert len(bench.engine._calls.kept.feeds._open) == 1


class TestReadingAhead:
    def test_not_more_than_one_batch_ahead(self, threaded, eventually):
        bench = threaded(page_records=10)
        bench.fill(100)
        token = bench.page().continuation_token
        bench.page(token)
        eventually(lambda: bench.calls.fetches["p0"] == 3)
        time.sleep(0.05)
        assert bench.calls.fetches["p0"] == 3


class TestStarvation:
    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
    @pytest.mark.parametrize("restart", [False, True], ids=["one engine", "an engine a page"])
    def test_pages_of_one_event_serve_all_partitions(self, make_bench, threads, restart):
        bench = make_bench(20)
        bench.connect(threads=threads)
        for name in bench.sim.open_partitions:
            bench.fill_partition(name, 12)
        place, served = BEGINNING, {}
        for number in range(60):
            if restart:
                bench.engine.close()
                bench.connect(threads=threads)
            page = bench.page(place, size=1)
            place = page.continuation_token
            for event in page.events:
                served.setdefault(event.partition_id, []).append(number)
        assert len(served) == 20
        assert all(turns[0] < 24 for turns in served.values())
        assert all(len(turns) == 3 for turns in served.values())


class TestLive:
    """Tests a partition's reader in races that are rare in tests of the whole engine."""

    @pytest.fixture
    def live(self, make_bench):
        bench = make_bench()
        bench.fill(5)
        provider = SimulationProvider(bench.sim)
        feed = provider.open_feed(FeedSpec(bench.sim.address), Deadline.after(60))
        return Stream(feed, "p0", 0, Budget(10_000), Observing(None))

    def test_fetch_that_ends_while_it_is_discarded_gives_its_bytes_back(self, live):
        class JustDone(Future):
            def done(self):
                if not super().done():
                    live.hold(500)
                    self.set_result(None)
                return True

        live.hold(100)
        live.future = JustDone()
        live.open()
        live.discard()
        assert live.budget.used == 0
        assert live.reader is None
        assert live.feed.calls.open_readers == 0

    @pytest.mark.parametrize(("seconds", "too_long"), [(60, False), (71, True)])
    def test_a_reader_that_hangs_is_given_up(self, live, seconds, too_long):
        live.future, live.asked_at = Future(), time.monotonic() - seconds
        assert live.takes_too_long() is too_long
        live.future.set_result(None)
        assert not live.takes_too_long()

    def test_fetch_in_flight_is_cancelled_and_closed_when_it_ends(self, live):
        future = Future()
        future.set_running_or_notify_cancel()
        live.future = future
        live.hold(100)
        live.open()
        live.discard()
        assert live.feed.calls.cancels == 1
        assert live.feed.calls.open_readers == 1
        future.set_result(None)
        assert live.feed.calls.open_readers == 0
        assert live.budget.used == 0


def test_the_expected_size_grows_only_with_answers_that_are_larger_than_asked():
    budget = Budget(100)
    budget.learn(asked=10, nbytes=20)
    assert budget.expected == 20
    budget.learn(asked=10, nbytes=10)
    assert budget.expected == 18


def opened(bench):
    """Return the number of readers opened so far."""
    return sum(bench.calls.opens.values())


def tokens_of(bench, count):
    """Return the positions of the given number of consumers of one feed."""
    bench.fill(count * 60)
    return [bench.page(size=7 * number + 1).continuation_token for number in range(count)]


def turns(bench, tokens, rounds=1):
    """Let each consumer read a page in turn; return how many readers were opened."""
    before = opened(bench)
    for _ in range(rounds):
        for number, token in enumerate(tokens):
            page = bench.page(token, 5)
            assert page.events
            tokens[number] = page.continuation_token
    return opened(bench) - before


@pytest.mark.parametrize("count", [17, 64])
def test_so_many_consumers_open_no_reader_a_page(bench, count):
    assert turns(bench, tokens_of(bench, count), rounds=5) == 0


@pytest.mark.parametrize("size", [1, 5])
def test_a_consumer_that_keeps_its_token_until_events_come_opens_no_reader(make_bench, size):
    bench = make_bench(3)
    token = bench.page(Now()).continuation_token
    before = opened(bench)
    for _ in range(20):
        assert not bench.page(token, size).events
    assert opened(bench) == before
    bench.fill(9)
    assert len(bench.drain(token, size=size)[0]) == 9
    assert opened(bench) == before


def test_two_calls_with_one_token_at_once_are_both_right(threaded, ids):
    bench = threaded(2)
    bench.fill(40)
    token = bench.page(size=5).continuation_token
    rest = sorted(event.event_id for event in bench.drain(token, engine=bench.connect(threads=True))[0])
    for _ in range(5):
        for page in together(partial(bench.page, token, 7), partial(bench.page, token, 7)):
            after = bench.drain(page.continuation_token)[0]
            assert sorted([*ids(page), *(event.event_id for event in after)]) == rest


def test_positions_that_differ_in_hints_share_a_reader(make_bench, monkeypatch):
    """Nothing changes in this partition, so its positions differ only in how far it was read."""
    monkeypatch.setattr(SimulationFeed, "without_hints", lambda feed, cursor: "here")
    bench = make_bench(2)
    scope = PhysicalPartition(bench.sim.public_id("p0"))
    token = bench.page(Now(), scope=scope).continuation_token
    bench.fill_partition("p1")
    assert bench.page(token, scope=scope).continuation_token != token
    assert bench.page(token, scope=scope).idle
    assert (bench.calls.fetches["p0"], bench.calls.opens["p0"]) == (3, 1)


@pytest.mark.parametrize(("seconds", "left"), [(59, 2), (61, 1)])
def test_a_reader_that_nobody_has_used_for_a_minute_is_closed(bench, monkeypatch, seconds, left):
    bench.fill(50)
    token, _ = (bench.page(size=size).continuation_token for size in (5, 7))
    assert bench.calls.open_readers == 2
    later = time.monotonic() + seconds
    monkeypatch.setattr(consumers, "time", SimpleNamespace(monotonic=lambda: later))
    bench.page(token, 5)
    assert bench.calls.open_readers == left


class TestMorePartitionsThanReaders:
    """A round reads each partition once, so it next needs the reader that was unused for the longest time."""

    ROOM = 64

    @pytest.fixture(autouse=True)
    def room(self, monkeypatch):
        monkeypatch.setattr(fetcher, "_MOST_READERS", self.ROOM)

    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
    def test_the_readers_that_are_kept_are_used_in_each_round(self, make_bench, threads):
        bench = make_bench(400)
        bench.connect(threads=threads, max_concurrency=2)
        token = bench.drain(Now())[1]
        for _ in range(4):
            fetches, before = bench.calls.total_fetches, opened(bench)
            token = bench.drain(token)[1]
            again = (bench.calls.total_fetches - fetches) - (opened(bench) - before)
            assert again >= self.ROOM
        assert bench.calls.open_readers <= self.ROOM


BOUND = 65_536
MOST_OVERHEAD = 1.2


class Sent:
    """A counter of the records that the service has sent, and of the bytes that the client has kept."""

    def __init__(self, monkeypatch):
        self.records = self.largest = self.last = self.held = 0
        self.engine = None
        lock, fetch = threading.Lock(), SimulationReader.fetch

        def whatever_is_asked(reader, max_records, max_bytes, wait, deadline):
            batch = fetch(reader, max_records, 2**40, wait, deadline)
            with lock:
                self.records += len(batch)
                self.last, self.largest = batch.nbytes, max(self.largest, batch.nbytes)
                if self.engine is not None:
                    self.held = max(self.held, self.engine.buffered_bytes)
            return batch

        monkeypatch.setattr(SimulationReader, "fetch", whatever_is_asked)


@pytest.fixture
def sent(monkeypatch):
    return Sent(monkeypatch)


@pytest.fixture
def backlog(make_bench, sent):
    """Make partitions with the same number of records, in answers of about 16 KB."""

    def make(partitions, records=60, *, threads=False, **config):
        bench = make_bench(partitions)
        for name in bench.sim.open_partitions:
            key = bench.key_in(name)
            for number in range(records):
                bench.sim.write(key, {"n": number, "text": "x" * 800})
        bench.connect(threads=threads, max_buffered_bytes=BOUND, **config)
        sent.engine = bench.engine
        return bench

    return make


class TestOneConsumer:
    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
    @pytest.mark.parametrize(("partitions", "size"), [(16, 7), (64, 20), (16, 50)])
    def test_nothing_is_fetched_twice(self, backlog, sent, partitions, size, threads):
        bench = backlog(partitions, threads=threads)
        came = bench.drain(size=size)[0]
        assert len(came) == 60 * partitions
        assert sent.records <= MOST_OVERHEAD * len(came)
        assert sum(bench.calls.opens.values()) == partitions

    @pytest.mark.parametrize(("partitions", "size"), [(16, 10), (64, 20)])
    def test_what_is_held_stays_bounded(self, backlog, sent, partitions, size):
        """The buffered bytes stay within a bound, except after the first answers, whose sizes are unknown in
        advance.
        """
        bench = backlog(partitions)
        pages = bench.walk(size=size)
        for _ in range(partitions):
            page = next(pages)
        sent.held = 0
        pages.close()
        bench.drain(page.continuation_token, size=size)
        assert sent.held <= BOUND

    def test_what_is_fetched_ahead_counts_with_its_size(self, backlog, sent):
        bench = backlog(1, page_records=5)
        token = bench.page(size=5).continuation_token
        assert bench.engine.buffered_bytes == 0
        bench.page(token, size=5)
        assert sent.records == 15
        assert bench.engine.buffered_bytes == sent.last

    def test_an_answer_that_fills_the_bound_lets_nothing_be_fetched_ahead(self, backlog, sent):
        bench = backlog(1, records=600, page_records=60)
        assert len(bench.drain(size=60)[0]) == 600
        assert BOUND / 2 < sent.largest <= sent.held <= BOUND

    def test_what_may_not_fit_is_not_fetched_ahead(self, make_bench, sent):
        """An answer is larger than what was asked for, and a quiet partition is asked before."""
        bench = make_bench(2)
        key = bench.key_in("p1")
        for number in range(200):
            bench.sim.write(key, {"n": number, "text": "x" * 800})
        sent.engine = bench.connect(max_buffered_bytes=BOUND, page_records=38)
        assert len(bench.drain(size=38)[0]) == 200
        assert BOUND / 2 < sent.largest <= sent.held <= BOUND

    def test_small_pages_are_read_from_larger_answers(self, bench):
        bench.fill(100)
        assert len(bench.drain(size=1)[0]) == 100
        assert bench.calls.fetches["p0"] < 20


class TestSeveralConsumers:
    def test_two_take_nothing_from_each_other(self, backlog, sent):
        bench = backlog(16)
        places, came = [Beginning(), Beginning()], 0
        for turn in range(1000):
            one = 0 if turn < 10 else turn % 2  # one is ahead, so that the two never have the same token
            page = bench.page(places[one], size=20)
            places[one] = page.continuation_token
            came += len(page.events)
            if came == 2 * 16 * 60:
                break
        assert came == 2 * 16 * 60
        assert sent.records <= MOST_OVERHEAD * came

    @pytest.mark.parametrize(("seconds", "evicted"), [(11, True), (5, False)])
    def test_what_a_consumer_has_left_behind_makes_room(self, backlog, sent, monkeypatch, seconds, evicted):
        """A consumer that starts again never requests the records of its old position."""

        bench = backlog(16)
        page = bench.page(size=7)
        for _ in range(10):
            page = bench.page(page.continuation_token, size=7)
        assert sent.held > BOUND / 2
        assert bench.calls.closes == 0
        later = time.monotonic() + seconds
        monkeypatch.setattr(consumers, "time", SimpleNamespace(monotonic=lambda: later))
        assert len(bench.drain(size=20)[0]) == 16 * 60
        assert (bench.calls.closes > 0) is evicted


class TestBytes:
    @pytest.mark.parametrize(("bound", "most"), [(65_536, 65_536 // 4), (2**30, 2**23)])
    def test_all_that_is_asked_for_at_once_fits_into_the_bound(self, make_bench, monkeypatch, bound, most):
        asked, fetch = [], SimulationReader.fetch

        def noted(self, most, nbytes, *rest):
            asked.append(nbytes)
            return fetch(self, most, nbytes, *rest)

        monkeypatch.setattr(SimulationReader, "fetch", noted)
        bench = make_bench(partitions=4)
        bench.connect(max_buffered_bytes=bound)
        bench.fill(40)
        bench.drain()
        assert asked
        assert max(asked) <= most


@pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
def test_a_page_that_nobody_holds_is_free_without_the_garbage_collector(make_bench, threads):
    """If a call left a reference cycle, every event would stay in memory until the collector runs."""
    bench = make_bench(2)
    bench.connect(threads=threads)
    bench.fill(60)
    bench.page()
    gc.collect()
    gc.disable()
    try:
        place, dead = BEGINNING, []
        for _ in range(3):
            page = bench.page(place, size=10)
            place = page.continuation_token
            dead += [weakref.ref(event) for event in page.events]
            del page
        assert len(dead) == 30
        assert [ref() for ref in dead if ref() is not None] == []
    finally:
        gc.enable()


def test_a_reader_is_not_opened_by_the_caller(threaded, monkeypatch):
    opened_by, open_reader = [], SimulationFeed.open

    def noted(*args):
        opened_by.append(threading.current_thread())
        return open_reader(*args)

    monkeypatch.setattr(SimulationFeed, "open", noted)
    threaded(2).page()
    assert len(opened_by) == 2
    assert threading.current_thread() not in opened_by


def test_a_fetch_that_was_cancelled_is_not_tried_again(make_bench, monkeypatch):
    began, cancelled = threading.Event(), threading.Event()

    def fetch(self, *_):
        began.set()
        cancelled.wait(30)
        raise ServerError("the answer was cut off")

    monkeypatch.setattr(SimulationReader, "fetch", fetch)
    monkeypatch.setattr(SimulationReader, "cancel", lambda self: cancelled.set())
    observer = Mock(spec=Observer)
    bench = make_bench(1)
    bench.connect(threads=True, observer=observer)

    def end():
        began.wait(30)
        bench.engine.close()

    page, _ = together(bench.page, end)
    assert "the client was closed" in str(page)
    assert observer.retry.call_args_list == []
