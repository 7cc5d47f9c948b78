"""Tests threads, prefetching, the reader cache, and the limit on buffered bytes."""

import gc
import threading
import time
import weakref
from concurrent.futures import Future
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
from multiclouddb_spi import Deadline, FeedSpec, engine
from multiclouddb_spi.fetching import readers
from multiclouddb_spi.fetching.readers import Budget, PartitionReader, ReaderCache
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
        assert len(bench.engine._feeds._open) == 1


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
        return PartitionReader(feed, "p0", 0, Budget(10_000), Observing(None))

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
        assert live._budget.used == 0
        assert live.reader is None
        assert live.feed.calls.open_readers == 0

    def test_one_that_is_put_back_after_the_client_has_closed_is_closed(self, live):
        cache = ReaderCache(Budget(100), 16)
        live.open()
        cache.close()
        cache.put(live)
        assert (live.feed.calls.open_readers, len(cache)) == (0, 0)

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
        assert live._budget.used == 0


class TestCache:
    """Tests which readers the cache keeps; each is known by its position."""

    @pytest.fixture
    def make_reader(self, bench):
        feed = SimulationProvider(bench.sim).open_feed(FeedSpec(bench.sim.address), Deadline.after(60))
        self.feed, self.budget = feed, Budget(100)

        def make(position, name="p0", nbytes=0, **settings):
            reader = PartitionReader(feed, name, position, self.budget, Observing(None), **settings)
            if nbytes:
                reader.future = Future()
                reader.future.set_result(None)
                reader.hold(nbytes - 10, 10)
            return reader

        return make

    def left_in(self, cache, positions, name="p0"):
        return [each for each in positions if cache.pop(self.feed, name.format(each), each, [])]

    def test_new_consumers_take_the_place_of_the_oldest(self, make_reader):
        cache = ReaderCache(Budget(100), 1000, most_of_one=8)
        for position in range(60):
            cache.put(make_reader(position, proven=position < 8))
        assert self.left_in(cache, range(8)) == list(range(1, 8))
        assert len(cache) == 1

    @pytest.mark.parametrize(("capacity", "new"), [(16, 1), (64, 2)])
    def test_a_full_cache_keeps_its_old_readers(self, make_reader, capacity, new):
        cache = ReaderCache(Budget(100), capacity)
        for number in range(100):
            cache.put(make_reader(number, f"p{number}"))
        old = list(range(capacity - new))
        assert self.left_in(cache, range(100), "p{}") == old + list(range(100 - new, 100))

    def test_a_reader_used_again_replaces_the_oldest(self, make_reader):
        cache = ReaderCache(Budget(100), 16)
        for number in range(40):
            cache.put(make_reader(number, f"p{number}", proven=number == 20))
        assert self.left_in(cache, range(40), "p{}") == [*range(1, 15), 20, 39]

    def test_records_over_the_bound_go_after_a_call(self, make_reader):
        cache = ReaderCache(self.budget, 16)
        for position in (1, 2, 3, 4):
            reader = make_reader(position, nbytes=40)
            cache.put(reader)
            reader.used_at -= 11
        cache.tidy(lambda reader: reader.cursor == 1)
        assert self.budget.used == 80
        assert self.left_in(cache, (1, 2, 3, 4)) == [1, 4]


def test_the_expected_size_grows_only_with_answers_that_are_larger_than_asked():
    budget = Budget(100)
    budget.learn(asked=10, nbytes=20)
    assert budget.expected == 20
    budget.learn(asked=10, nbytes=10)
    assert budget.expected == 18


def opened(bench):
    """Return the number of readers opened so far."""
    return sum(bench.calls.opens.values())


def consumers(bench, count):
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
    assert turns(bench, consumers(bench, count), rounds=5) == 0


@pytest.mark.parametrize(("count", "bound"), [(17, 16), (65, 64), (80, 64)])
def test_one_consumer_too_many_does_not_cost_the_others_theirs(bench, count, bound):
    bench.connect(max_readers_per_partition=bound)
    tokens = consumers(bench, count)
    turns(bench, tokens, rounds=10)
    assert turns(bench, tokens, rounds=10) <= 10 * 0.4 * count
    assert bench.calls.open_readers <= bound


def test_a_page_that_is_read_again_and_again_leaves_one_reader(bench):
    bench.fill(50)
    for _ in range(30):
        bench.page(Beginning(), 5)
    assert bench.calls.open_readers == 1


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
    monkeypatch.setattr(readers, "time", SimpleNamespace(monotonic=lambda: later))
    bench.page(token, 5)
    assert bench.calls.open_readers == left


class TestMorePartitionsThanReaders:
    """A round reads each partition once, so it next needs the reader that was unused for the longest time."""

    ROOM = 64

    @pytest.fixture(autouse=True)
    def room(self, monkeypatch):
        monkeypatch.setattr(engine, "_MOST_READERS", self.ROOM)

    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
    def test_a_full_cache_is_used_in_each_round(self, make_bench, threads):
        bench = make_bench(400)
        bench.connect(threads=threads, max_concurrency=2)
        token = bench.drain(Now())[1]
        for _ in range(4):
            fetches, before = bench.calls.total_fetches, opened(bench)
            token = bench.drain(token)[1]
            again = (bench.calls.total_fetches - fetches) - (opened(bench) - before)
            assert again >= self.ROOM * 15_000 // 16_384
        assert bench.calls.open_readers <= self.ROOM

    def test_what_is_fetched_stays_in_a_full_cache_before_what_is_not(self, make_bench):
        bench = make_bench(2)
        for _ in range(self.ROOM // 2):
            bench.fill(10)
            bench.page(Now())
        assert bench.calls.open_readers == self.ROOM
        token = bench.page(size=1).continuation_token
        before = opened(bench)
        assert len(bench.page(token, size=1).events) == 1
        assert opened(bench) == before


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
            page = bench.page(places[turn % 2], size=20 + turn % 2)  # the two are never at the same position
            places[turn % 2] = page.continuation_token
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
        monkeypatch.setattr(readers, "time", SimpleNamespace(monotonic=lambda: later))
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
