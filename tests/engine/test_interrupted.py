"""Tests that an interrupt (Ctrl-C) at any line of a call reaches the caller, and that nothing leaks."""

import sys
import threading

import pytest

from multiclouddb_api import Beginning, ErrorCategory
from multiclouddb_spi import ProviderFault
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
        again = ids(bench.page(place, 3))
        first = bench.engine
        assert again == ids(bench.page(place, 3, engine=bench.connect(page_records=5))), f"after line {line}"
        for each in (first, bench.engine):
            each.close()
            left = each.buffered_bytes, each.provider.calls.open_readers
            assert left == (0, 0), f"after line {line}"
        line += 1
    assert line > 150


@pytest.mark.parametrize("calls", ["read_changes", "list_physical_partitions"])
def test_within_the_thread_pool_it_does_not_block_the_next_call(threaded, ids, calls):
    """The pool's semaphore was locked when the interrupt came, and nobody unlocks it."""
    bench = threaded(2)
    call = (lambda: bench.page(Beginning())) if calls == "read_changes" else bench.partitions
    bench.fill(6)
    held = []

    def trace(frame, event, argument):
        enters = threading.Condition.__enter__.__code__, threading.Semaphore.acquire.__code__
        if (frame.f_code, frame.f_back and frame.f_back.f_code) != enters:
            return None
        if event == "return":
            held.append(frame.f_locals["self"])
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        sys.settrace(None)
    found = []
    other = threading.Thread(target=lambda: found.extend(ids(bench.page(Beginning()))), daemon=True)
    other.start()
    other.join(20)
    for condition in held:
        condition.release()  # so that the old threads end
    assert sorted(found) == sorted(bench.written())
