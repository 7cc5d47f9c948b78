"""Tests deadlines, waiting, poll intervals and closing, on real threads and a real clock.

Each time limit is half of the time that a failure would take, so that a busy machine does not break the test.
"""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError, Now, SkipToOldest
from multiclouddb_conformance.simulation import (
    CorruptError,
    ServerError,
    ServiceBehaviour,
    SimulationFeed,
    SimulationProvider,
    SimulationReader,
    ThrottledError,
)
from multiclouddb_conformance.waiting import assert_prompt
from multiclouddb_spi.continuation.token import decode_token

BEGINNING = Beginning()
FOREVER = None
# The number of seconds that an action may take; a defect would make it take 20 or more.
SOON = 10


@contextmanager
def within(seconds):
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds, f"it took {took:.2f} s"


def prompt(seconds, attempt):
    """Run an action that must end within the given number of seconds.

    Without a timeout, the action would take 20 seconds or more.
    """
    assert_prompt(seconds, attempt, at_most=SOON)


@contextmanager
def aside(call):
    """Run a call in another thread; yield a list that receives the call's result or error."""
    outcome = []

    def run():
        try:
            outcome.append(call())
        except MulticloudDbError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield outcome
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def threaded(make_bench):
    def make(partitions=1, behaviour=None, **config):
        bench = make_bench(partitions, behaviour=behaviour)
        bench.connect(threads=True, **config)
        return bench

    return make


@pytest.fixture
def slow(monkeypatch):
    """Make reads of some partitions take the given number of seconds."""
    seconds = {}
    fetch = SimulationReader.fetch

    def slowly(self, max_records, max_bytes, wait, deadline):
        time.sleep(seconds.get(self._id, 0))
        return fetch(self, max_records, max_bytes, wait, deadline)

    monkeypatch.setattr(SimulationReader, "fetch", slowly)
    return seconds


class TestDeadline:
    def test_silent_server_ends_the_call_in_time(self, threaded):
        bench = threaded(behaviour=ServiceBehaviour(silent=1.0, faults_in_row=10**6))
        bench.fill(3)

        def attempt():
            began = time.monotonic()
            error = bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=0.5, match="deadline")
            took = time.monotonic() - began
            assert error.retryable
            assert bench.sim.public_id("p0") in error.message
            assert took >= 0.5
            return took

        prompt(1.5, attempt)

    def test_silent_server_that_comes_back_is_read(self, threaded, ids):
        bench = threaded(behaviour=ServiceBehaviour(silent=1.0, faults_in_row=10**6))
        bench.fill(3)
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=0.3)
        bench.sim.behaviour = ServiceBehaviour()
        assert ids(bench.page()) == bench.written()

    @pytest.mark.parametrize(
        ("owner", "method"),
        [(SimulationProvider, "open_feed"), (SimulationFeed, "start"), (SimulationFeed, "survey")],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_call_that_hangs_whatever_its_deadline_is_not_waited_for(
        self, threaded, monkeypatch, owner, method
    ):
        bench = threaded()
        place = BEGINNING
        if method == "survey":
            place = bench.page(place).continuation_token
        bench.sim.delay_children("p0", 10**6)
        bench.sim.split("p0")
        if method == "survey":
            place = bench.page(place).continuation_token
        stuck = threading.Event()
        monkeypatch.setattr(owner, method, lambda *args, **named: stuck.wait(20))
        try:
            with within(SOON):
                bench.refused(ErrorCategory.TRANSIENT_FAILURE, place, timeout=0.5, match="deadline")
        finally:
            stuck.set()

    def test_clock_that_hangs_does_not_hold_up_a_page(self, threaded, monkeypatch, ids):
        bench = threaded()
        bench.fill(30)
        stuck = threading.Event()
        monkeypatch.setattr(SimulationFeed, "clock", lambda *args, **named: stuck.wait(20))
        try:
            with within(SOON):
                came = [name for page in bench.walk(size=1) for name in ids(page)]
        finally:
            stuck.set()
        assert came == bench.written()

    def test_deadline_with_progress_returns_the_page(self, threaded, ids):
        bench = threaded(2)
        events = bench.fill_partition("p1", 3)
        bench.sim.hold("p0")
        with within(SOON):
            page = bench.page(timeout=30)
        assert ids(page) == events
        assert not page.idle

    def test_partition_that_gave_no_answer_is_named(self, threaded):
        bench = threaded(2)
        bench.sim.hold("p1")
        page = bench.page(timeout=5)
        assert not page.idle
        assert list(page.diagnostics.partition_errors) == [bench.sim.public_id("p1")]

    def test_retries_end_at_the_deadline(self, threaded):
        bench = threaded()
        bench.sim.fail_next("p0", ThrottledError("slow down", retry_after=1.6), times=FOREVER)
        with within(SOON):
            bench.refused(ErrorCategory.THROTTLED, timeout=4)
        assert bench.calls.fetches["p0"] <= 3

    def test_answer_that_failed_between_two_calls_is_asked_for_again(self, make_bench, monkeypatch, ids):
        """A prefetch has failed, perhaps at the deadline of the earlier call.

        The new call must make the request again.
        """
        bench = make_bench()
        bench.connect(attempts=1)
        bench.fill(100)
        fetch, fetches = SimulationReader.fetch, []

        def third_time_unlucky(self, *args):
            fetches.append(self)
            if len(fetches) == 3:
                bench.sim.fail_next("p0", ServerError("too late"))
            return fetch(self, *args)

        monkeypatch.setattr(SimulationReader, "fetch", third_time_unlucky)
        pages = list(bench.walk(size=20))
        assert len(fetches) > 3
        assert [name for page in pages for name in ids(page)] == bench.written()
        assert all(page.events for page in pages[:5])
        assert not any(page.diagnostics.partition_errors for page in pages)


class TestSlowPartitions:
    @pytest.fixture(autouse=True)
    def shorter_turns(self, monkeypatch):
        """Shorten the time for which a call waits only for the first partition in the queue."""
        for module in ("reading.poll", "scan.scanning"):
            monkeypatch.setattr(f"multiclouddb_spi.{module}.HEAD_SECONDS", 1.0)

    def test_slow_head_of_the_queue_holds_up_the_others_once(self, threaded, ids):
        bench = threaded(3)
        late = bench.fill_partition("p0", 3)
        bench.fill_partition("p1", 200)
        bench.sim.hold("p0")
        place = BEGINNING
        with within(SOON):  # 20 or more if the slow partition delayed every page
            for _ in range(40):
                page = bench.page(place, size=5)
                assert len(page.events) == 5
                place = page.continuation_token
        bench.sim.release("p0")
        came = [name for page in bench.walk(place, size=10) for name in ids(page)]
        assert set(late) <= set(came)

    def test_slow_head_of_the_queue_goes_to_its_back(self, threaded):
        """Each page has a new engine without open readers, so only the token keeps the order."""
        bench = threaded(3)
        bench.fill_partition("p1", 200)
        bench.fill_partition("p2", 200)
        bench.sim.hold("p0")

        def slow_ones():
            place, slow = BEGINNING, 0
            for _ in range(6):
                bench.connect(threads=True)
                began = time.monotonic()
                place = bench.page(place, size=10, timeout=20).continuation_token
                slow += time.monotonic() - began > 0.9  # waited for the slow partition until its turn ended
            return slow

        # A busy machine can make a page slow as well, but not in every attempt.
        assert any(slow_ones() <= 3 for _ in range(5))

    def test_partition_slower_than_all_others_is_served_by_small_pages(self, threaded, slow):
        bench = threaded(4)
        for name in ("p0", "p1", "p2", "p3"):
            bench.fill_partition(name, 60)
        slow["p2"] = 0.1
        served, place = set(), BEGINNING
        for _ in range(12):
            bench.connect(threads=True)
            page = bench.page(place, size=1)
            served |= {event.partition_id for event in page.events}
            place = page.continuation_token
        assert served == {bench.sim.public_id(name) for name in ("p0", "p1", "p2", "p3")}

    def test_more_hung_partitions_than_are_read_at_once_do_not_block_the_others(self, threaded, ids):
        bench = threaded(5, max_concurrency=2)
        for name in ("p0", "p1"):
            bench.fill_partition(name, 3)
            bench.sim.hold(name)
        events = bench.fill_partition("p4", 3)
        with within(SOON):
            page = bench.page(timeout=20)
        assert ids(page) == events

    def test_suspect_that_hangs_does_not_block_the_others(self, threaded, ids):
        bench = threaded(3)
        first = bench.fill_partition("p0", 3)
        bench.sim.fail_next("p2", CorruptError("broken"), times=1)
        page = bench.page(size=50)
        assert ids(page) == first
        more = bench.fill_partition("p0", 3)
        bench.sim.hold("p2")
        with within(SOON):
            page = bench.page(page.continuation_token, timeout=20)
        assert ids(page) == more

    def test_two_suspects_are_read_and_nothing_leaks(self, threaded, slow, ids):
        """One suspect answers at once; the other answers while the remaining partitions are read. The fixture
        counts the readers.
        """
        bench = threaded(4)
        bench.fill(40, keys=40)
        bench.connect(attempts=1)
        bench.sim.fail_next("p1", CorruptError("broken"), times=1)
        first = bench.page(size=50)
        bench.fill_partition("p0", 5)
        bench.connect(attempts=1)
        bench.sim.fail_next("p1", ServerError("503"), times=1)
        bench.sim.fail_next("p0", CorruptError("broken"), times=1)
        second = bench.page(first.continuation_token, size=50)
        state = decode_token(second.continuation_token).state["p"]
        assert {entry[0] for entry in state if entry[2:] == [2]} == {"p0", "p1"}
        slow["p0"] = 0.05
        bench.connect(threads=True)
        rest = [name for page in bench.walk(second.continuation_token, size=3) for name in ids(page)]
        assert sorted(ids(first) + ids(second) + rest) == sorted(bench.written())

    def test_long_polls_of_others_do_not_keep_a_call_waiting(self, threaded, ids):
        bench = threaded(8, max_concurrency=8)
        token = bench.page(Now()).continuation_token

        def poll():
            with suppress(MulticloudDbError):
                bench.page(token, wait=20)

        polls = [threading.Thread(target=poll) for _ in range(3)]
        for thread in polls:
            thread.start()
        time.sleep(0.3)
        with within(SOON):
            assert not bench.page(Now()).events
        bench.engine.close()
        for thread in polls:
            thread.join()


class TestWait:
    def test_wait_ends_with_the_deadline(self, threaded):
        bench = threaded(2)

        def attempt():
            began = time.monotonic()
            assert not bench.page(Now(), wait=60, timeout=0.8).events
            return time.monotonic() - began

        prompt(2.5, attempt)

    def test_waiting_is_no_busy_loop(self, threaded):
        bench = threaded(2)
        bench.page(Now(), wait=2)
        assert bench.calls.total_fetches <= 14

    def test_child_that_starts_while_waiting_is_read(self, threaded, ids):
        bench = threaded(1)
        token = bench.page(Now()).continuation_token
        with aside(lambda: bench.page(token, wait=20)) as outcome, within(SOON):
            time.sleep(0.2)
            child = bench.sim.split("p0")[0]
            events = bench.fill_partition(child)
        assert ids(outcome[0]) == events

    def test_children_named_late_are_found_while_waiting(self, threaded, ids):
        bench = threaded(1)
        token = bench.page(Now()).continuation_token
        bench.sim.delay_children("p0", 4)
        child = bench.sim.split("p0")[0]
        events = bench.fill_partition(child)
        with within(SOON):
            assert ids(bench.page(token, wait=20)) == events

    def test_partition_that_recovers_while_waiting_is_read(self, threaded, ids):
        bench = threaded(2, attempts=1)
        token = bench.page(Now()).continuation_token
        events = bench.fill_partition("p1")
        bench.sim.fail_next("p1", ServerError("503"), times=3)
        with within(SOON):
            assert ids(bench.page(token, wait=20)) == events


class TestPacing:
    def test_partition_is_not_asked_again_before_its_time(self, threaded):
        bench = threaded(2, behaviour=ServiceBehaviour(poll_after=0.4))
        token = bench.page(Now()).continuation_token
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            token = bench.page(token).continuation_token
        assert bench.calls.fetches["p0"] <= 6
        assert bench.calls.fetches["p1"] <= 6

    def test_wait_is_not_overrun_for_a_partition_that_may_not_be_asked_yet(self, threaded):
        bench = threaded(1, behaviour=ServiceBehaviour(poll_after=20))
        with within(SOON):
            page = bench.page(Now(), wait=0.5)
        assert page.idle

    def test_pace_beyond_the_deadline_ends_at_once_and_is_not_idle(self, threaded):
        bench = threaded(1, behaviour=ServiceBehaviour(poll_after=30))
        token = bench.page(Now()).continuation_token
        with within(SOON):
            page = bench.page(token, timeout=25)
        assert not page.idle
        assert bench.calls.fetches["p0"] == 1

    def test_records_are_read_on_without_a_pause(self, threaded, ids):
        bench = threaded(1, behaviour=ServiceBehaviour(poll_after=20, page_limit=10))
        bench.fill(95)
        with within(SOON):
            came = []
            place = BEGINNING
            while len(came) < 95:
                page = bench.page(place, size=10)
                came += ids(page)
                place = page.continuation_token
        assert came == bench.written()


def _held(bench):
    bench.sim.hold("p0")
    return {}


def _polling(bench):
    return {"wait": 20}


def _throttled(bench):
    bench.sim.fail_next("p0", ThrottledError("slow down", retry_after=20), times=FOREVER)
    return {}


def _paced(bench):
    bench.sim.behaviour = ServiceBehaviour(poll_after=20)
    bench.page(bench.token)
    return {}


def _awaiting(bench):
    bench.sim.delay_children("p0", 10**6)
    bench.sim.split("p0")
    return {"wait": 20}


def _silent(bench):
    bench.sim.behaviour = ServiceBehaviour(silent=1.0, faults_in_row=10**6)
    return {}


class TestClose:
    @pytest.mark.parametrize(
        ("state", "attempts"),
        [(state, 6) for state in (_held, _polling, _throttled, _paced, _awaiting, _silent)]
        + [(state, 1) for state in (_held, _polling, _silent)],
    )
    def test_call_in_flight_ends_within_a_second_and_says_why(self, threaded, state, attempts):
        def attempt():
            bench = threaded(attempts=attempts)
            bench.token = bench.page(Now()).continuation_token
            settings = state(bench)
            with aside(lambda: bench.page(bench.token, **settings)) as outcome:
                time.sleep(0.4)
                assert not outcome
                closed_at = time.monotonic()
                bench.engine.close()
            took = time.monotonic() - closed_at
            (error,) = outcome
            assert isinstance(error, MulticloudDbError)
            assert error.category == ErrorCategory.TRANSIENT_FAILURE
            assert "closed" in error.message
            return took

        prompt(1, attempt)

    def test_control_call_in_flight_ends_too(self, threaded, monkeypatch):
        stuck = threading.Event()
        monkeypatch.setattr(SimulationFeed, "start", lambda *args, **named: stuck.wait(20))

        def attempt():
            bench = threaded()
            with aside(bench.page) as outcome:
                time.sleep(0.3)
                closed_at = time.monotonic()
                bench.engine.close()
            took = time.monotonic() - closed_at
            assert "closed" in outcome[0].message
            return took

        try:
            prompt(1, attempt)
        finally:
            stuck.set()

    def test_many_calls_in_flight_end(self, threaded):
        def attempt():
            bench = threaded(4)
            token = bench.page(Now()).continuation_token
            outcomes = []

            def read():
                try:
                    outcomes.append(bench.page(token, wait=20))
                except MulticloudDbError as error:
                    outcomes.append(error)

            threads = [threading.Thread(target=read) for _ in range(6)]
            for thread in threads:
                thread.start()
            time.sleep(0.3)
            closed_at = time.monotonic()
            bench.engine.close()
            for thread in threads:
                thread.join()
            assert [type(outcome) for outcome in outcomes] == [MulticloudDbError] * 6
            return time.monotonic() - closed_at

        prompt(2, attempt)

    def test_closing_twice_and_from_two_threads_is_fine(self, threaded):
        bench = threaded()
        bench.page()
        with aside(bench.engine.close):
            bench.engine.close()
        bench.engine.close()

    def test_read_after_close_is_refused_in_words(self, threaded):
        bench = threaded()
        bench.page()
        bench.engine.close()
        assert "closed" in bench.refused(ErrorCategory.TRANSIENT_FAILURE).message

    def test_call_that_fails_because_of_closing_says_so(self, bench, monkeypatch):
        """If a vendor's client is closed, it raises its own error text."""

        def start(*_):
            bench.engine._closed.set()
            raise CorruptError("cannot use the client after close")

        monkeypatch.setattr(SimulationFeed, "start", start)
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, match="the client was closed")

    def test_read_while_the_process_ends_says_so(self, threaded):
        """The interpreter shuts down every thread pool before it stops daemon threads."""
        bench = threaded()
        bench.engine._executor.shutdown()
        error = bench.refused(ErrorCategory.TRANSIENT_FAILURE, match="its process ended")
        assert not error.retryable

    def test_call_that_ends_while_the_client_closes_leaves_no_reader(self, threaded, monkeypatch):
        """A call returns its readers to the cache after the client has closed all other readers.

        The fixture counts the readers.
        """
        bench = threaded(2)
        bench.fill(100)
        first = bench.page(size=5)
        from multiclouddb_spi.fetching.readers import ReaderCache

        forget, reached, go = ReaderCache.forget, threading.Event(), threading.Event()

        def late(self, feed=None):
            forget(self, feed)
            reached.set()
            go.wait(30)

        with monkeypatch.context() as patch:
            patch.setattr(ReaderCache, "forget", late)
            with aside(bench.engine.close):
                assert reached.wait(30)
                with suppress(MulticloudDbError):
                    bench.page(first.continuation_token, size=5)
                go.set()


INTERRUPTED = """
    import signal, sys, time
    from multiclouddb_api import *
    from multiclouddb_conformance.simulation import *
    from multiclouddb_spi import Engine

    # A shell's background jobs ignore it, and whatever they start does too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    state = sys.argv[1]
    sim = Simulation(partitions=3)
    engine = Engine(SimulationProvider(sim), ClientConfig("simulation"))
    request = ChangeFeedRequest(sim.address, Now())
    page = engine.read_changes(request, OperationOptions())
    request = ChangeFeedRequest(sim.address, FromContinuationToken(page.continuation_token))
    wait = 0
    match state:
        case "held":
            sim.hold("p1")
        case "polling":
            wait = 30
        case "throttled":
            sim.fail_next(None, ThrottledError("slow down", retry_after=20), times=None)
        case "silent":
            sim.behaviour = ServiceBehaviour(silent=1.0, faults_in_row=10**6)
    try:
        print("ready", flush=True)
        engine.read_changes(request, OperationOptions(60, wait))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    finally:
        engine.close()
    print("closed", flush=True)
"""


@pytest.mark.parametrize("state", ["held", "polling", "throttled", "silent"])
def test_ctrl_c_ends_a_call_and_the_process(state):
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), state]

    def attempt():
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.5)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == "interrupted\nclosed\n"
            assert process.wait(60) == 0
            return time.monotonic() - began

    prompt(2, attempt)


def test_expired_partitions_by_the_dozen_are_skipped_within_the_deadline(threaded, ids):
    bench = threaded(40)
    bench.fill(80, keys=80)
    first = bench.page(size=1)
    bench.sim.trim(upto=40)
    bench.connect(threads=True)
    with within(25):
        pages = bench.walk(first.continuation_token, on_expired=SkipToOldest())
        came = [name for page in pages for name in ids(page)]
    assert set(came) == set(bench.written(40)) - set(ids(first))
