"""Tests threads, prefetching, the reader cache, and the limit on buffered bytes."""

import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace

import pytest

from multiclouddb_api import Beginning, ErrorCategory, FromContinuationToken, MulticloudDbError, Now
from multiclouddb_conformance.simulation import (
    ServiceBehaviour,
    SimulationFeed,
    SimulationProvider,
    SimulationReader,
)
from multiclouddb_spi import Deadline, FeedSpec
from multiclouddb_spi.fetching.fetcher import ScanRates
from multiclouddb_spi.fetching.readers import Budget, PartitionReader, ReaderCache
from multiclouddb_spi.observing import Observing

BEGINNING = Beginning()


@pytest.fixture
def threaded(make_bench):
    def make(partitions=1, behaviour=None, **config):
        bench = make_bench(partitions, behaviour=behaviour)
        bench.connect(threads=True, **config)
        return bench

    return make


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
    def test_one_token_read_by_many_threads(self, threaded, ids):
        bench = threaded(4)
        bench.fill(200, keys=40)
        results = together(*[lambda: ids(bench.drain(size=7)[0]) for _ in range(8)])
        assert all(sorted(came) == sorted(bench.written()) for came in results)
        assert not bench.calls.violations

    def test_many_tokens_read_by_many_threads(self, threaded, ids):
        bench = threaded(4)
        bench.fill(200, keys=40)
        starts = [([], BEGINNING)]
        for page in bench.walk(size=13):
            starts.append(([*starts[-1][0], *ids(page)], page.continuation_token))
        starts = starts[:8]
        results = together(*[lambda place=place: ids(bench.drain(place, size=5)[0]) for _, place in starts])
        for (before, _), came in zip(starts, results, strict=True):
            assert sorted(before + came) == sorted(bench.written())

    def test_reading_while_the_log_grows_and_its_partitions_split_and_merge(self, threaded, ids):
        bench = threaded(2, behaviour=ServiceBehaviour.rough(7, silent=0.0, slow=0.0))
        stop = threading.Event()

        def write():
            for number in range(150):
                bench.fill(4, keys=30)
                names = bench.sim.open_partitions
                if number % 10 == 3:
                    bench.sim.split(names[number % len(names)])
                if number % 10 == 8 and len(names) > 2:
                    bench.sim.merge(*names[:2])
                time.sleep(0.001)
            stop.set()

        def read(size):
            came, place = set(), BEGINNING
            for _ in range(20_000):
                try:
                    page = bench.page(place, size, wait=0.05)
                except MulticloudDbError as error:
                    if not error.retryable:
                        raise
                    continue
                came |= set(ids(page))
                place = page.continuation_token
                if page.idle and stop.is_set() and came >= set(bench.written()):
                    return came
            return came

        results = together(write, *[lambda size=size: read(size) for size in (1, 3, 0, 50)])
        assert all(came == set(bench.written()) for came in results[1:])
        assert not bench.calls.violations

    def test_feed_is_opened_once_and_what_was_opened_besides_is_closed(self, threaded, monkeypatch):
        bench = threaded()
        opened, closed = [], []
        provider, open_feed = bench.provider, bench.provider.open_feed

        def slowly(spec, deadline):
            time.sleep(0.05)
            feed = open_feed(spec, deadline)
            opened.append(feed)
            feed.close = lambda: closed.append(feed)
            return feed

        monkeypatch.setattr(provider, "open_feed", slowly)
        together(*[bench.page for _ in range(8)])
        assert len(opened) - len(closed) == 1
        before = len(opened)
        together(*[bench.page for _ in range(8)])
        assert len(opened) == before

    def test_feed_in_use_is_not_closed_by_an_error_of_another_call(self, threaded, ids, monkeypatch):
        """An expired token in one thread must not end the read of another thread."""
        bench = threaded()
        bench.fill(20)
        old = bench.page(size=1).continuation_token
        bench.sim.trim(upto=10)
        closed = []
        monkeypatch.setattr(SimulationFeed, "close", lambda feed: closed.append(feed))
        bench.connect(threads=True)
        bench.sim.hold("p0")
        results = []
        reader = threading.Thread(target=lambda: results.append(bench.page(Now(), wait=25)))
        reader.start()
        assert bench.sim.wait_until_held("p0")
        (feed,) = (opened.feed for opened in bench.engine._feeds._feeds.values())
        bench.engine._feeds.forget(feed)
        assert not closed
        bench.sim.release("p0")
        late = bench.fill_partition("p0")
        reader.join(60)
        assert ids(results[0]) == late
        assert closed == [feed]
        bench.refused(ErrorCategory.CHECKPOINT_EXPIRED, old)

    def test_more_kinds_of_request_than_feeds_are_kept_open(self, threaded, ids, monkeypatch):
        from multiclouddb_api import LogicalPartition

        bench = threaded()
        bench.fill(100, keys=100)
        closed = []
        monkeypatch.setattr(SimulationFeed, "close", lambda feed: closed.append(feed))
        monkeypatch.setattr("multiclouddb_spi.open_feed._MOST_FEEDS", 64)
        for number in range(100):
            scope = LogicalPartition(bench.sim.key(f"k{number}"))
            assert len(bench.page(scope=scope).events) == 1
        assert len(closed) == 100 - 64
        assert bench.calls.open_readers <= 64


class TestReadingAhead:
    def test_first_page_reads_nothing_ahead_and_the_second_does(self, threaded, eventually):
        bench = threaded(page_records=10)
        bench.fill(100)
        token = bench.page().continuation_token
        time.sleep(0.05)
        assert bench.calls.fetches["p0"] == 1
        bench.page(token)
        eventually(lambda: bench.calls.fetches["p0"] == 3)

    def test_not_more_than_one_batch_ahead(self, threaded, eventually):
        bench = threaded(page_records=10)
        bench.fill(100)
        token = bench.page().continuation_token
        bench.page(token)
        eventually(lambda: bench.calls.fetches["p0"] == 3)
        time.sleep(0.05)
        assert bench.calls.fetches["p0"] == 3

    def test_what_was_read_ahead_is_used(self, threaded, eventually):
        bench = threaded(page_records=10)
        bench.fill(100)
        pages = list(bench.walk())
        assert len(pages) == 11
        assert bench.calls.fetches["p0"] <= 12

    def test_caught_up_partition_is_not_read_ahead(self, threaded):
        bench = threaded(page_records=10)
        bench.fill(10)
        token = bench.page().continuation_token
        for _ in range(5):
            bench.fill(3)
            page = bench.page(token)
            assert len(page.events) == 3
            token = page.continuation_token
        assert bench.calls.fetches["p0"] == 6


class TestReaders:
    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
    def test_readers_live_on_from_page_to_page(self, make_bench, threads):
        bench = make_bench(4)
        bench.connect(threads=threads)
        place = BEGINNING
        for _ in range(1000):
            bench.fill(2, keys=40)
            place = bench.page(place, size=3).continuation_token
        assert sum(bench.calls.opens.values()) <= 2 * 4
        assert bench.calls.most_open_readers <= 4

    def test_readers_of_ended_partitions_are_closed(self, make_bench):
        bench = make_bench(1)
        bench.connect()
        place = BEGINNING
        for _ in range(200):
            bench.fill(2)
            bench.sim.roll(bench.sim.open_partitions[0])
            place = bench.page(place).continuation_token
        bench.drain(place)
        assert bench.calls.open_readers <= 1
        assert bench.calls.most_open_readers <= 2

    def test_everything_is_closed_with_the_engine(self, threaded, eventually):
        bench = threaded(10)
        bench.fill(300, keys=100)
        bench.page(size=5)
        bench.engine.close()
        eventually(lambda: bench.calls.open_readers == 0)
        assert bench.calls.closes == sum(bench.calls.opens.values())

    def test_abandoned_readers_are_closed_by_and_by(self, make_bench, monkeypatch):
        """A consumer that goes back to an old token leaves readers at positions that are never used again."""
        from multiclouddb_spi.fetching import readers

        monkeypatch.setattr(readers, "_IDLE_SECONDS", 0.05)
        bench = make_bench(1)
        bench.connect()
        bench.fill(100)
        tokens = [page.continuation_token for page in bench.walk(size=1)]
        for token in tokens[:50]:
            bench.page(token, size=1)
        time.sleep(0.1)
        bench.page(tokens[-1])
        assert bench.calls.open_readers <= 2

    def test_cache_has_a_capacity(self, make_bench, monkeypatch):
        from multiclouddb_spi import engine

        monkeypatch.setattr(engine, "_MOST_READERS", 8)
        bench = make_bench(20)
        bench.connect()
        bench.fill(100, keys=100)
        assert sorted(event.event_id for event in bench.drain(size=3)[0]) == sorted(bench.written())
        assert bench.calls.open_readers <= 8


class TestBuffers:
    @pytest.mark.parametrize("size", [1, 7, 0])
    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
    def test_small_documents_stay_within_the_bound(self, make_bench, monkeypatch, size, threads):
        bench = make_bench(60)
        bound = 65_536
        bench.connect(threads=threads, max_buffered_bytes=bound, max_concurrency=8)
        bench.fill(2000, keys=400)
        most = watch_bytes(bench, monkeypatch)
        came = bench.drain(size=size)[0]
        assert len(came) == 2000
        assert max(most) <= bound + 4096

    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
    def test_documents_larger_than_the_bound_are_read_one_at_a_time_or_nearly(
        self, make_bench, monkeypatch, threads
    ):
        """A service always returns at least one record, so one record may exceed the bound.

        The size of records is known only after the first ones have arrived, at most one for each thread.
        """
        bench = make_bench(20)
        bound, document = 65_536, 30_000
        bench.connect(threads=threads, max_buffered_bytes=bound, max_concurrency=8)
        for number in range(200):
            bench.sim.write(f"k{number}", {"text": "x" * document})
        most = watch_bytes(bench, monkeypatch)
        came = bench.drain(size=1)[0]
        assert len(came) == 200
        assert len(most) > 100
        assert max(most[50 + 8 :]) <= bound + 3 * document

    def test_bytes_are_given_back_when_the_feed_is_read(self, threaded, eventually):
        bench = threaded(5)
        bench.fill(300, keys=50)
        bench.drain(size=7)
        eventually(lambda: bench.engine.buffered_bytes == 0)

    def test_bytes_of_a_fetch_that_was_given_up_are_given_back(self, threaded, monkeypatch, eventually):
        monkeypatch.setattr(SimulationReader, "longest_fetch", lambda reader: 0.0)
        bench = threaded(5)
        bench.fill(50, keys=50)
        bench.sim.hold()
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=0.3)
        bench.sim.release()
        eventually(lambda: bench.engine.buffered_bytes == 0)


def watch_bytes(bench, monkeypatch):
    """Record the bytes that the engine holds at each read."""
    held, fetch, engine = [0] * 51, SimulationReader.fetch, bench.engine

    def watched(self, *args):
        batch = fetch(self, *args)
        held.append(engine.buffered_bytes)
        return batch

    monkeypatch.setattr(SimulationReader, "fetch", watched)
    return held


class TestStarvation:
    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
    @pytest.mark.parametrize("restart", [False, True], ids=["one engine", "an engine a page"])
    def test_pages_of_one_event_serve_50_full_partitions(self, make_bench, threads, restart):
        bench = make_bench(50)
        bench.connect(threads=threads)
        for name in bench.sim.open_partitions:
            bench.fill_partition(name, 12)
        place, served = BEGINNING, {}
        for number in range(150):
            if restart:
                bench.engine.close()
                bench.connect(threads=threads)
            page = bench.page(place, size=1)
            place = page.continuation_token
            for event in page.events:
                served.setdefault(event.partition_id, []).append(number)
        assert len(served) == 50
        assert all(turns[0] < 60 for turns in served.values())
        assert all(len(turns) == 3 for turns in served.values())

    def test_partition_with_one_event_among_busy_ones_is_served(self, threaded, ids):
        bench = threaded(20)
        lonely = bench.fill_partition("p13")
        place = BEGINNING
        for _ in range(40):
            for name in bench.sim.open_partitions:
                if name != "p13":
                    bench.fill_partition(name, 3)
            page = bench.page(place, size=2)
            if ids(page)[0] in lonely or ids(page)[-1] in lonely:
                return
            place = page.continuation_token
        pytest.fail("it never came")

    def test_child_of_a_split_gets_its_turn_among_busy_ones(self, threaded, ids):
        bench = threaded(10)
        for name in bench.sim.open_partitions:
            bench.fill_partition(name, 40 if name != "p3" else 5)
        child = bench.sim.split("p3")[0]
        wanted = bench.fill_partition(child)
        came, place = [], BEGINNING
        for _ in range(10 * 8):
            page = bench.page(place, size=1)
            came += ids(page)
            place = page.continuation_token
        assert set(wanted) < set(came)


class TestLive:
    """Tests a partition's reader in races that are rare in tests of the whole engine."""

    @pytest.fixture
    def live(self, make_bench):
        bench = make_bench()
        bench.fill(5)
        provider = SimulationProvider(bench.sim)
        feed = provider.open_feed(FeedSpec(bench.sim.address), Deadline.after(60))
        return PartitionReader(feed, "p0", 0, Budget(10_000), Observing(None))

    def test_bytes_add_up_when_two_threads_account_at_once(self, live):
        def account():
            for number in range(3000):
                live.hold(number % 7)

        together(*[account for _ in range(4)])
        live.hold(0)
        assert live._budget.used == 0

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

    def test_discarded_twice_is_fine(self, live):
        live.hold(100)
        live.open()
        live.discard()
        live.discard()
        assert live._budget.used == 0
        assert live.feed.calls.closes == 1

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

    def test_fetch_that_was_discarded_while_its_reader_was_opened_does_not_read(
        self, threaded, monkeypatch, eventually
    ):
        """Nothing cancels such a reader, so a read would block until the service answers."""
        monkeypatch.setattr("multiclouddb_spi.fetching.readers.ANSWER_SECONDS", -60.0)
        bench = threaded()
        bench.page()
        bench.fill(1)
        opening, go = threading.Event(), threading.Event()
        open_reader = SimulationFeed.open

        def slowly(self, *args):
            opening.set()
            go.wait(30)
            return open_reader(self, *args)

        monkeypatch.setattr(SimulationFeed, "open", slowly)
        fetches = bench.calls.total_fetches
        while not opening.is_set():  # tries again if no thread was free in time
            bench.refused(ErrorCategory.TRANSIENT_FAILURE, Now(), timeout=1)
        go.set()
        eventually(lambda: bench.engine.buffered_bytes == 0)
        assert bench.calls.total_fetches == fetches

    def test_closed_cache_keeps_nothing(self, live):
        cache = ReaderCache(live._budget, 10)
        live.open()
        cache.close()
        cache.put(live)
        assert len(cache) == 0
        assert live.feed.calls.open_readers == 0

    def test_second_reader_at_one_position_replaces_the_first(self, live):
        cache = ReaderCache(live._budget, 10)
        twin = PartitionReader(live.feed, "p0", 0, live._budget, Observing(None))
        live.open()
        twin.open()
        cache.put(live)
        cache.put(twin)
        assert len(cache) == 1
        assert cache.pop(live.feed, "p0", 0) is twin
        assert live.reader is None
        twin.discard()

    def test_popped_is_nobody_elses(self, live):
        cache = ReaderCache(live._budget, 10)
        cache.put(live)
        found = together(*[lambda: cache.pop(live.feed, "p0", 0) for _ in range(8)])
        assert [item for item in found if item is not None] == [live]


def test_calls_that_share_a_scan_add_up_their_cost(monkeypatch):
    rates, meeting = ScanRates(), threading.Barrier(2)
    rates.spend("scan", 10.0)
    soonest, monotonic = rates.not_before("scan"), time.monotonic

    def meet():
        """Let both calls read the earlier cost before one of them adds its own cost, if that is possible."""
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)
        return monotonic()

    with monkeypatch.context() as patched:
        patched.setattr("multiclouddb_spi.fetching.fetcher.time", SimpleNamespace(monotonic=meet))
        calls = [threading.Thread(target=rates.spend, args=("scan", 1.0)) for _ in range(2)]
        for call in calls:
            call.start()
        for call in calls:
            call.join(60)
    assert rates.not_before("scan") == pytest.approx(soonest + 2.0)


def test_token_of_one_engine_is_good_for_another_while_both_read(make_bench, ids):
    bench = make_bench(3)
    bench.fill(60, keys=30)
    engines = [bench.connect(threads=True) for _ in range(2)]
    place, came = BEGINNING, []
    for number in range(200):
        page = bench.page(place, size=3, engine=engines[number % 2])
        came += ids(page)
        place = FromContinuationToken(page.continuation_token)
        if page.idle:
            break
    assert sorted(came) == sorted(bench.written())
