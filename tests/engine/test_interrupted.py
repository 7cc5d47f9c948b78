"""Tests that Ctrl-C in any line of a call throws away what is kept, and the next call goes on at its token.

Usually each line is tried once, when it first runs; the soak tries it each time that it runs.
"""

import gc
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError, Observer, Snapshot, SnapshotOrder
from multiclouddb_api.daemon_pool import DaemonPool
from multiclouddb_conformance.interrupting import interrupted_at, lines_of
from multiclouddb_spi import ProviderFault, interrupts
from multiclouddb_spi.batch import resume_collector
from multiclouddb_spi.calls import Calls
from multiclouddb_spi.fetching.consumers import Consumers
from multiclouddb_spi.fetching.fetcher import Fetcher

from .conftest import eventually_true
from .planted import kept_after_an_interrupt


class Interrupted:
    """A call of a client that has lived for a while; each of its lines is interrupted in a new client."""

    size, varies = 3, False

    def __init__(self, bench):
        self.bench = bench
        bench.fill(60)

    def connect(self):
        return self.bench.connect(page_records=5)

    def live(self):
        """Make a client, and return its next call's place."""
        self.connect()
        place = Beginning()
        for _ in range(2):
            place = self.bench.page(place, self.size).continuation_token
        return place

    def page(self, place):
        return self.bench.page(place, self.size)

    def found(self, place, engine=None):
        return [event.event_id for event in self.bench.page(place, self.size, engine=engine).events]

    def lines(self, each_time):
        """Return where to interrupt it: in each line when it first runs, or each time that it runs."""
        place = self.live()
        ran = lines_of(lambda: self.page(place))
        return range(1, len(ran) + 1) if each_time else [first(line) for line in dict.fromkeys(ran)]

    def check_all(self, lines):
        for line in lines:
            self.check(line)

    def check(self, line):
        place = self.live()
        client = self.bench.engine
        assert interrupted_at(line, lambda: self.page(place)) or self.varies
        assert client.provider.calls.open_readers == sum(
            each.open_streams for each in client._calls.kept.consumers._kept.values()
        )
        assert not client._calls.kept.consumers._used
        assert gc.isenabled()
        assert self.found(place, client) == self.found(place, self.connect())
        for each in (client, self.bench.engine):
            each.close()
            assert (each.buffered_bytes, each.provider.calls.open_readers) == (0, 0)


class AtAStart(Interrupted):
    def live(self):
        self.connect()
        return Beginning()


class AfterAFailure(Interrupted):
    """The call before has failed after it had read, so the next one takes over what it has left."""

    def live(self):
        place = super().live()
        pages = self.bench.engine._calls.kept.pages

        def fails(*_):
            raise ProviderFault.of(ErrorCategory.TRANSIENT_FAILURE, "no page", retryable=True)

        pages.reading = fails
        self.bench.refused(ErrorCategory.TRANSIENT_FAILURE, place, size=self.size)
        del pages.reading
        return place


class OfAScan(Interrupted):
    """Rows and changes are read beside each other."""

    def live(self):
        self.connect()
        place = Snapshot(SnapshotOrder.INTERLEAVED)
        for _ in range(2):
            place = self.bench.page(place, self.size).continuation_token
        return place


class OnThreads(Interrupted):
    """What the threads do meanwhile differs from call to call, and so do the lines that run."""

    varies = True

    def connect(self):
        return self.bench.connect(threads=True, page_records=5)

    def found(self, place, engine=None):
        """Return which events there are; a page takes what comes first."""
        events, _ = self.bench.drain(place, engine=engine)
        return sorted(event.event_id for event in events)

    def check(self, line):
        before = threading.active_count()
        place, client = self.live(), self.bench.engine
        interrupted_at(line, lambda: self.page(place))
        eventually_true(lambda: client.provider.calls.open_readers <= 2)
        assert self.found(place, client) == self.found(place, self.connect())
        for each in (client, self.bench.engine):
            each.close()
            eventually_true(lambda each=each: each.provider.calls.open_readers == each.buffered_bytes == 0)
        eventually_true(lambda: threading.active_count() <= before)


def first(line):
    return lambda place: place == line


KINDS = [Interrupted, AtAStart, AfterAFailure, OfAScan]


@pytest.mark.parametrize("kind", [*KINDS, OnThreads])
@pytest.mark.parametrize("each_time", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_at_any_line_of_a_call_nothing_is_left_and_the_next_one_goes_on(make_bench, kind, each_time):
    interrupted = kind(make_bench(2))
    lines = interrupted.lines(each_time)
    assert len(lines) > 300
    interrupted.check_all(lines)


def end_nothing(monkeypatch):
    """What the interrupted call used stays as it is, and is not used again."""
    monkeypatch.setattr(Calls, "end", lambda calls: None)


def keep_what_is_used(monkeypatch):
    """Only what no call uses is freed."""
    monkeypatch.setattr(Consumers, "close", Consumers.forget)


def leave_the_collector(monkeypatch):
    monkeypatch.setattr(interrupts, "resume_collector", lambda: None)


@pytest.mark.parametrize(
    "plant", [kept_after_an_interrupt, end_nothing, keep_what_is_used, leave_the_collector]
)
def test_a_planted_defect_is_found(make_bench, monkeypatch, plant):
    bench = make_bench(2)
    interrupted = AfterAFailure(bench)
    lines = interrupted.lines(each_time=False)
    plant(monkeypatch)
    monkeypatch.setattr(Consumers, "checks", False)
    with pytest.raises((AssertionError, MulticloudDbError)):
        interrupted.check_all(lines)
    monkeypatch.undo()
    resume_collector()
    bench.opened.clear()


def test_calls_of_other_threads_end_with_an_error_that_may_pass(threaded, ids):
    bench = threaded(1)
    token = bench.page(Beginning()).continuation_token
    bench.fill(6)
    bench.sim.hold("p0")
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(bench.page, token)
        bench.sim.wait_until_held("p0")
        with pytest.raises(KeyboardInterrupt):
            bench.engine._calls.use(interrupt)
        error = other.exception(30)
        bench.sim.release("p0")
    assert (error.category, error.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)
    assert "another call of this client was interrupted" in error.message
    assert ids(bench.page(token)) == bench.written()


def test_a_fetch_that_it_ends_is_not_tried_again(make_bench):
    """Its call may be made again, but that is for the caller to do."""
    bench, observer = make_bench(1), Retries()
    bench.connect(threads=True, observer=observer)
    token = bench.page(Beginning()).continuation_token
    client = bench.engine
    bench.sim.hold("p0")
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(bench.page, token)
        bench.sim.wait_until_held("p0")
        with pytest.raises(KeyboardInterrupt):
            client._calls.use(interrupt)
        assert other.exception(30).retryable
        eventually_true(lambda: client.provider.calls.open_readers == 0)
    assert observer.reasons == []


class Retries(Observer):
    def __init__(self):
        self.reasons = []

    def retry(self, address, partition_id, attempt, seconds, reason):
        self.reasons.append(reason)


def test_an_interrupt_that_the_caller_is_handling_is_not_one_of_the_call(bench):
    kept = bench.engine._calls.kept
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        bench.refused(ErrorCategory.INVALID_REQUEST, "no token")
    assert bench.engine._calls.kept is kept


def test_after_the_client_is_closed_nothing_is_made_again(bench):
    bench.engine.close()
    with pytest.raises(KeyboardInterrupt):
        bench.engine._calls.use(interrupt)
    assert bench.engine._calls.kept.closed.is_set()


def interrupt(_):
    raise KeyboardInterrupt


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


CONDITION = threading.Condition


@pytest.mark.parametrize("calls", ["read_changes", "list_physical_partitions"])
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(("return", CONDITION.__enter__, Future.done), id="its lock is never unlocked"),
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
    other = threading.Thread(target=lambda: found.extend(ids(bench.drain()[0])), daemon=True)
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
