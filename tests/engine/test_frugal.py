"""Tests the cost of reading in bytes, requests and readers."""

import gc
import threading
import weakref

import pytest

from multiclouddb_api import (
    Beginning,
    Capability,
    CapabilityNote,
    CapabilitySet,
    ErrorCategory,
    MulticloudDbError,
    Support,
)
from multiclouddb_conformance.simulation import (
    ALL_CAPABILITIES,
    ServerError,
    ServiceBehaviour,
    SimulationFeed,
    SimulationProvider,
)
from multiclouddb_conformance.simulation.reader import SimulationReader

BEGINNING = Beginning()


class TestBytes:
    def test_all_that_is_asked_for_at_once_fits_into_the_bound(self, make_bench, monkeypatch):
        bound, asked, fetch = 65_536, [], SimulationReader.fetch

        def noted(self, most, nbytes, *rest):
            asked.append(nbytes)
            return fetch(self, most, nbytes, *rest)

        monkeypatch.setattr(SimulationReader, "fetch", noted)
        bench = make_bench(partitions=4)
        bench.connect(max_buffered_bytes=bound)
        bench.fill(40)
        bench.drain()
        assert asked
        assert max(asked) * 4 <= bound

    def test_what_another_feed_has_buffered_makes_room(self, make_bench):
        bench = make_bench(partitions=1)
        bench.connect(max_buffered_bytes=65_536, page_records=40)
        for number in range(40):
            bench.sim.write("k", {"n": number, "text": "x" * 1400})
        places = [bench.page(size=1).continuation_token]
        for _ in range(10):
            places.append(bench.page(places[-1], 1).continuation_token)
            assert bench.engine.buffered_bytes <= 2 * 65_536


class TestRequests:
    def test_small_pages_need_few_requests(self, bench):
        bench.fill(200)
        events, _ = bench.drain(size=1)
        assert len(events) == 200
        assert bench.calls.fetches["p0"] <= 60


class TestReaders:
    def test_readers_of_a_collection_that_is_gone_are_closed(self, bench):
        bench.fill(10)
        token, _ = (bench.page(size=size).continuation_token for size in (1, 3))
        assert bench.calls.open_readers == 2
        bench.sim.drop()
        bench.refused(ErrorCategory.NOT_FOUND, token)
        assert bench.calls.open_readers == 0

    def test_a_few_are_kept_however_long_one_consumer_has_read(self, bench):
        bench.fill(100)
        bench.connect(max_readers_per_partition=16)
        place = BEGINNING
        for _ in range(60):
            place = bench.page(place, 1).continuation_token
        for size in range(1, 41):
            bench.page(size=size)
        assert bench.calls.open_readers <= 16


class TestClock:
    def test_a_clock_that_takes_a_moment_is_waited_for(self, make_bench, monkeypatch):
        clock = SimulationFeed.clock

        def slow(self, deadline):
            threading.Event().wait(0.1)
            return clock(self, deadline)

        monkeypatch.setattr(SimulationFeed, "clock", slow)
        bench = make_bench(behaviour=ServiceBehaviour(page_limit=2))
        bench.connect(threads=True)
        bench.fill(10)
        page = bench.page(size=2)
        assert not page.idle
        assert page.diagnostics.lag_seconds is not None


class Emulating(SimulationProvider):
    def capabilities(self):
        note = CapabilityNote(Support.EMULATED, "not here")
        return CapabilitySet({**ALL_CAPABILITIES.notes, Capability.RUN_COMMAND: note})


def test_a_command_that_is_only_emulated_is_refused(make_bench):
    bench = make_bench()
    engine = bench.connect(provider=Emulating(bench.sim))
    with pytest.raises(MulticloudDbError) as caught:
        engine.run_command("main", {"ping": 1}, {})
    assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY


def test_a_partition_that_only_ends_is_progress(make_bench):
    """If one partition ends and the other one fails, the page is returned: the end moves the position."""
    bench = make_bench(partitions=2)
    bench.connect()
    bench.sim.delay_children("p0", 10**6)
    bench.sim.roll("p0")
    bench.sim.fail_next("p1", ServerError("p1 is down"), times=10**6)
    page = bench.page()
    assert not page.idle
    assert page.diagnostics.partition_errors == {bench.sim.public_id("p1"): "p1 is down"}


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
