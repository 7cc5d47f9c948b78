"""Tests that an interrupt (Ctrl-C) at any line of a call reaches the caller, and that nothing leaks."""

import sys
import threading
from contextlib import suppress

import pytest

from multiclouddb_api import Beginning, ErrorCategory
from multiclouddb_spi import ProviderFault
from multiclouddb_spi.fetching.daemon_pool import DaemonPool
from multiclouddb_spi.fetching.fetcher import Fetcher
from tests.engine.interrupt import interrupted_at

BEGINNING = Beginning()


def break_off(bench, place):
    """A call fails after it has read, so that the next one takes over what it has left."""

    def fails(*_):
        raise ProviderFault.of(ErrorCategory.TRANSIENT_FAILURE, "no page", retryable=True)

    pages = bench.engine._pages
    pages.reading = fails
    bench.refused(ErrorCategory.TRANSIENT_FAILURE, place, size=3)
    del pages.reading


@pytest.mark.parametrize("failed", [True, False], ids=["after a failure", "at once"])
@pytest.mark.parametrize("from_token", [True, False], ids=["token", "start"])
def test_at_any_line_of_a_call_it_leaks_no_reader_and_no_byte(make_bench, ids, from_token, failed):
    """The interrupted call discards what it has used, and the next one with the same token is right."""
    bench = make_bench(2)
    bench.fill(60)
    line = 1
    while True:
        bench.connect(page_records=5)
        place = BEGINNING
        if from_token:
            place = bench.page(bench.page(size=3).continuation_token, 3).continuation_token
        if failed:
            break_off(bench, place)
        if not interrupted_at(line, lambda place=place: bench.page(place, 3)):
            break
        first = bench.engine
        counts = first._consumers._open, first._consumers._partitions
        kept = {id(each): each for each in first._consumers._kept.values()}.values()
        assert counts == (sum(each.open_streams for each in kept), sum(len(each.state) for each in kept)), (
            line
        )
        again = ids(bench.page(place, 3))
        assert again == ids(bench.page(place, 3, engine=bench.connect(page_records=5))), f"after line {line}"
        for each in (first, bench.engine):
            each.close()
            left = each.buffered_bytes, each.provider.calls.open_readers
            assert left == (0, 0), f"after line {line}"
        line += 1
    assert line > 150


class Struck:
    """Interrupts a call in a function of the standard library, when it is called or when it returns."""

    def __init__(self, event, function, caller, before=lambda: None):
        self.event, self.codes, self.held = event, (function.__code__, caller.__code__), []
        self.before = before

    def __call__(self, frame, event, argument):
        if (frame.f_code, frame.f_back and frame.f_back.f_code) != self.codes:
            return None
        if event == self.event and not self.held:
            self.held.append(frame.f_locals["self"])
            self.before()
            raise KeyboardInterrupt
        return self

    def strike(self, call):
        sys.settrace(self)
        try:
            with pytest.raises(KeyboardInterrupt):
                call()
        finally:
            sys.settrace(None)
        return self.held[0]


CONDITION, SEMAPHORE = threading.Condition, threading.Semaphore


@pytest.mark.parametrize("calls", ["read_changes", "list_physical_partitions"])
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(("return", CONDITION.__enter__, SEMAPHORE.acquire), id="its lock is never unlocked"),
        pytest.param(("call", CONDITION._acquire_restore, CONDITION.wait), id="its lock is unlocked twice"),
    ],
)
def test_within_the_thread_pool_it_does_not_block_the_next_call(threaded, ids, calls, place):
    bench = threaded(2)
    bench.fill(6)
    lock = Struck(*place).strike(
        (lambda: bench.page(Beginning())) if calls == "read_changes" else bench.partitions
    )
    found = []
    other = threading.Thread(target=lambda: found.extend(ids(bench.page(Beginning()))), daemon=True)
    other.start()
    other.join(20)
    with suppress(RuntimeError):
        lock.release()  # so that the old threads end
    assert sorted(found) == sorted(bench.written())


def test_of_a_fetch_that_has_begun_nothing_stays(threaded):
    """The interrupt comes before the engine knows the future of the fetch."""
    bench = threaded(1)
    token = bench.page(Beginning()).continuation_token
    bench.fill(6)
    bench.sim.hold("p0")
    submit = DaemonPool.submit, Fetcher.submit
    held = []
    strike = Struck("return", *submit, lambda: held.append(bench.sim.wait_until_held("p0")))
    pool = strike.strike(lambda: bench.page(token))
    assert held == [True]
    bench.sim.release("p0")
    pool.shutdown()
    assert (bench.engine.buffered_bytes, bench.calls.open_readers) == (0, 0)
