"""Tests that an interrupt (Ctrl-C) at any line of a call reaches the caller, and that nothing leaks."""

import sys
from functools import partial
from linecache import getline
from types import SimpleNamespace

import pytest

from multiclouddb_api import Now
from multiclouddb_conformance.simulation import ServiceBehaviour, SimulationMapper, ThrottledError
from multiclouddb_spi.fetching import fetches, readers
from multiclouddb_spi.fetching.readers import Budget, PartitionReader, ReaderCache
from multiclouddb_spi.reading import poll

# A page is read by these functions; the rest of a call holds no reader outside a turn, the hand or the cache.
READING = ("_launch", "launch", "land", "park", "pop", "put")


def interrupted_at(line, module, call, functions=()):
    """Make the call, and interrupt it in a line of the module; return whether there were as many lines."""
    left = line

    def trace(frame, event, argument):
        nonlocal left
        file = frame.f_code.co_filename
        if file not in module or (functions and frame.f_code.co_name not in functions):
            return None
        # Python delivers no interrupt between a lock and its `with`.
        if event == "line" and not getline(file, frame.f_lineno).strip().startswith("with "):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_at_any_line_of_the_cache_it_leaves_the_cache_usable():
    feed, budget, line = SimpleNamespace(without_hints=lambda cursor: cursor), Budget(100), 1

    def reader():
        made = PartitionReader(feed, "p0", 1, budget, None)
        made.proven = True
        return made

    def put_and_pop(cache, here):
        for each in here:
            cache.put(each)
            cache.pop(feed, "p0", 1, [])

    while True:
        cache, here = ReaderCache(budget, 16), [reader(), reader()]
        if not interrupted_at(line, (readers.__file__,), partial(put_and_pop, cache, here)):
            break
        for _ in here:
            cache.pop(feed, "p0", 1, [])
        assert not cache.holds(feed, "p0", 1)
        assert len(cache) == 0
        line += 1
    assert line > 20


def test_at_any_line_of_a_page_it_leaks_no_reader_and_no_byte(make_bench, ids):
    """A reader is between the cache and its partition while the interrupt comes."""
    bench = make_bench(2)
    bench.fill(60)
    line = 1
    while True:
        bench.connect(page_records=5)
        token = bench.page(bench.page(size=3).continuation_token, 3).continuation_token
        modules = (poll.__file__, fetches.__file__, readers.__file__)
        if not interrupted_at(line, modules, lambda token=token: bench.page(token, 3), READING):
            break
        before = ids(bench.page(token, 3))
        assert len(before) == 3
        bench.engine.close()
        assert (bench.engine.buffered_bytes, bench.calls.open_readers) == (0, 0), f"after line {line}"
        line += 1
    assert line > 40


@pytest.mark.parametrize(
    ("at_rest", "busy", "throttled"), [("p0", "p1", False), ("p0", "p1", True), ("p1", "p0", True)]
)
def test_it_costs_no_reader_at_rest(make_bench, monkeypatch, at_rest, busy, throttled):
    """A partition that was just asked, or that must not be asked yet, keeps its reader."""
    bench = make_bench(2, behaviour=ServiceBehaviour(heartbeats=False))
    bench.connect(attempts=1)
    if throttled:
        bench.sim.fail_next(at_rest, ThrottledError("slow", 60.0))
    token = bench.page(Now()).continuation_token
    opens, fetches = bench.calls.opens[at_rest], bench.calls.fetches[at_rest]
    bench.fill_partition(busy)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SimulationMapper, "events", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.page(token)
    assert len(bench.page(token).events) == 1
    assert bench.calls.opens[at_rest] == opens
    if throttled:
        assert bench.calls.fetches[at_rest] == fetches
