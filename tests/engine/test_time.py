"""Tests deadlines, waiting, poll intervals and closing, on real threads and a real clock.

Each time limit is half of the time that a failure would take, so that a busy machine does not break the test.
"""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError, Now, SkipToOldest
from multiclouddb_api.pacing import Outage
from multiclouddb_conformance.simulation import (
    CorruptError,
    ServiceBehaviour,
    SimulationFeed,
    SimulationProvider,
    SimulationReader,
    ThrottledError,
)
from multiclouddb_conformance.waiting import assert_prompt
from multiclouddb_spi import Deadline
from multiclouddb_spi.fetching.fetcher import Fetcher
from multiclouddb_spi.fetching.page_content import PageContent
from multiclouddb_spi.fetching.queue import Queue
from multiclouddb_spi.interrupts import End
from multiclouddb_spi.observing import Observing

pytestmark = pytest.mark.slow

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
    """Run an action that must end within the given number of seconds."""
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


class TestDeadline:
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


class TestSlowPartitions:
    @pytest.fixture(autouse=True)
    def shorter_turns(self, monkeypatch):
        """Shorten the time for which a call waits only for the first partition in the queue."""
        for module in ("reading.filling", "fetching.queue", "fetching.scan_share"):
            monkeypatch.setattr(f"multiclouddb_spi.{module}.TURN_SECONDS", 1.0)

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

    def test_a_place_on_the_page_is_kept_for_the_head_of_the_queue(self, threaded):
        bench = threaded(2)
        slow = bench.fill_partition("p0", 1)
        bench.fill_partition("p1", 20)
        bench.sim.hold("p0")
        release = threading.Timer(0.1, bench.sim.release, ["p0"])
        release.start()
        try:
            page = bench.page(BEGINNING, size=2)
        finally:
            release.join()
        assert slow[0] in [event.event_id for event in page.events]

    def test_a_partition_that_stopped_the_feed_is_waited_for_before_others_are_read(self, threaded):
        bench = threaded(2)
        bench.connect()
        bench.fill_partition("p0", 20)
        bench.sim.fail_next("p1", CorruptError("p1 is broken"), times=FOREVER)
        place = bench.page(BEGINNING, size=50).continuation_token
        bench.fill_partition("p0", 20)
        bench.connect(threads=True)
        bench.sim.hold("p1")
        release = threading.Timer(0.1, bench.sim.release, ["p1"])
        release.start()
        try:
            bench.refused(ErrorCategory.PERMANENT_FAILURE, place, size=5, match="p1 is broken")
        finally:
            release.join()

    def test_a_moved_head_is_not_waited_for(self, threaded, monkeypatch):
        for module in ("reading.filling", "fetching.queue"):
            monkeypatch.setattr(f"multiclouddb_spi.{module}.TURN_SECONDS", 60.0)
        bench, moved = threaded(4), threading.Event()
        survey = SimulationFeed.survey
        place = bench.page(Now()).continuation_token
        for name in ("p0", "p1"):
            bench.fill_partition(name)
            bench.sim.trim(name)
        written = bench.fill_partition("p2", 3)
        bench.sim.hold("p0")
        bench.sim.hold("p3")

        def surveyed(*args, **more):
            found = survey(*args, **more)
            bench.sim.release("p0")  # its answer comes after the loss of p1 has moved it
            moved.set()
            return found

        monkeypatch.setattr(SimulationFeed, "survey", surveyed)
        with within(SOON):
            page = bench.page(place, on_expired=SkipToOldest())
        assert moved.is_set()
        assert [event.event_id for event in page.events] == written

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

    def test_more_hung_partitions_than_are_read_at_once_do_not_block_the_others(self, threaded, ids):
        bench = threaded(5, max_concurrency=2)
        for name in ("p0", "p1"):
            bench.fill_partition(name, 3)
            bench.sim.hold(name)
        events = bench.fill_partition("p4", 3)
        with within(SOON):
            page = bench.page(timeout=20)
        assert ids(page) == events

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
    def test_child_that_starts_while_waiting_is_read(self, threaded, ids):
        bench = threaded(1)
        token = bench.page(Now()).continuation_token
        with aside(lambda: bench.page(token, wait=20)) as outcome, within(SOON):
            time.sleep(0.2)
            child = bench.sim.split("p0")[0]
            events = bench.fill_partition(child)
        assert ids(outcome[0]) == events


class TestPacing:
    def test_pace_beyond_the_deadline_ends_at_once_and_is_not_idle(self, threaded):
        bench = threaded(1, behaviour=ServiceBehaviour(poll_after=30))
        token = bench.page(Now()).continuation_token
        with within(SOON):
            page = bench.page(token, timeout=25)
        assert not page.idle
        assert bench.calls.fetches["p0"] == 1


def paced(bench):
    bench.sim.behaviour = ServiceBehaviour(poll_after=20)
    bench.page(bench.token)


def awaiting(bench):
    bench.sim.delay_children("p0", 10**6)
    bench.sim.split("p0")


def silent(bench):
    bench.sim.behaviour = ServiceBehaviour(silent=1.0, faults_in_row=10**6)


def opening(bench):
    bench.connect(threads=True)
    bench.provider.open_feed = lambda *_: time.sleep(3)


STATES = {
    "opening": (opening, 0),
    "held": (lambda bench: bench.sim.hold("p0"), 0),
    "polling": (lambda bench: None, 20),
    "throttled": (lambda bench: bench.sim.fail_next("p0", ThrottledError("slow", 20), times=FOREVER), 0),
    "paced": (paced, 0),
    "awaiting": (awaiting, 20),
    "silent": (silent, 0),
}


class TestClose:
    @pytest.mark.parametrize("state", STATES)
    def test_call_in_flight_ends_within_a_second_and_says_why(self, threaded, state):
        begin, wait = STATES[state]

        def attempt():
            bench = threaded()
            bench.token = bench.page(Now()).continuation_token
            begin(bench)
            with aside(lambda: bench.page(bench.token, wait=wait)) as outcome:
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

    def test_call_that_fails_because_of_closing_says_so(self, bench, monkeypatch):
        """If a vendor's client is closed, it raises its own error text."""

        def start(*_):
            bench.engine._calls.kept.context.closed.set()
            raise CorruptError("cannot use the client after close")

        monkeypatch.setattr(SimulationFeed, "start", start)
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, match="the client was closed")

    def test_read_while_the_process_ends_says_so(self, threaded):
        """The interpreter shuts down every thread pool before it stops daemon threads."""
        bench = threaded()
        bench.engine._calls.kept.context.fetcher.shut_down()
        error = bench.refused(ErrorCategory.TRANSIENT_FAILURE, match="its process ended")
        assert not error.retryable


BRIEF = 0.4


@pytest.fixture
def outlasting(make_bench, monkeypatch):
    """Make a bench with threads; a fetch that takes longer than `longest` is given up when its call ends."""

    def make(partitions=1, longest=60.0, **config):
        monkeypatch.setattr(SimulationReader, "longest_fetch", lambda reader: longest)
        bench = make_bench(partitions)
        bench.connect(threads=True, **config)
        return bench

    return make


@pytest.fixture
def too_long_meanwhile(monkeypatch):
    """Let the running fetch of a partition take too long, but only after the next call has begun to wait.

    Only this fetch: on a busy machine, the one that the next call sends may still run in the call after it.
    """

    def make(bench, name):
        asked = []

        def longest(reader):
            if reader._id != name or (asked and reader is not asked[0]):
                return 60.0
            asked.append(reader)
            if len(asked) == 1:  # the call begins
                return 60.0
            bench.sim.release(name)
            return 0.0

        monkeypatch.setattr(SimulationReader, "longest_fetch", longest)

    return make


class TestOutlasts:
    def test_the_next_call_takes_the_answer_that_came_too_late(self, outlasting, ids):
        bench = outlasting()
        bench.fill(3)
        bench.sim.hold("p0")
        for _ in range(5):
            error = bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=BRIEF, match="deadline")
            assert error.retryable
            assert bench.sim.public_id("p0") in error.message
        assert bench.calls.fetches["p0"] == 1
        bench.sim.release("p0")
        assert ids(bench.page()) == bench.written()
        assert (bench.calls.fetches["p0"], bench.calls.opens["p0"]) == (1, 1)
        assert bench.calls.cancels == 0

    def test_one_that_runs_for_too_long_is_given_up_and_asked_for_again(self, outlasting, ids):
        bench = outlasting(longest=0.0)
        bench.fill(3)
        bench.sim.hold("p0")
        for number in (1, 2, 3):
            while bench.calls.opens["p0"] < number:  # tries again if no thread was free in time
                bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=BRIEF)
            assert bench.calls.cancels == bench.calls.opens["p0"] == number
        bench.sim.release("p0")
        assert ids(bench.page()) == bench.written()

    def test_one_that_is_given_up_again_and_again_is_asked_for_in_parts(self, outlasting, monkeypatch):
        """Over a slow link no full answer comes in time, and nobody counts its bytes."""
        bench, asked, fetch = outlasting(longest=0.0), [], SimulationReader.fetch

        def noted(reader, records, *limits):
            asked.append(records)
            return fetch(reader, records, *limits)

        monkeypatch.setattr(SimulationReader, "fetch", noted)
        bench.sim.hold("p0")
        while len(asked) < 4:
            bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=BRIEF)
        bench.sim.release("p0")
        assert asked[:4] == [asked[0], asked[0], asked[0] // 4, asked[0] // 16]

    def test_one_that_has_run_for_too_long_is_asked_for_again(self, outlasting, ids, monkeypatch):
        bench = outlasting()
        bench.fill(3)
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=BRIEF)
        assert (bench.calls.opens["p0"], bench.calls.cancels) == (1, 0)
        monkeypatch.setattr(SimulationReader, "longest_fetch", lambda reader: 0.0)
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=BRIEF)
        assert (bench.calls.opens["p0"], bench.calls.cancels) == (2, 2)
        bench.sim.release("p0")
        assert ids(bench.page()) == bench.written()

    def test_one_of_an_earlier_call_is_given_up_while_a_call_waits(self, outlasting, too_long_meanwhile, ids):
        bench = outlasting()
        bench.fill(3)
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=BRIEF)
        too_long_meanwhile(bench, "p0")
        with within(20):
            assert ids(bench.page(timeout=60)) == bench.written()
        assert (bench.calls.opens["p0"], bench.calls.cancels) == (2, 1)

    def test_one_that_takes_too_long_at_the_deadline_is_reported(self, outlasting, monkeypatch):
        """Given up a moment before, it would be asked for by nobody, and the error would not name it."""
        bench = outlasting()
        bench.fill(3)
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=BRIEF)
        ends = time.monotonic() + BRIEF

        def longest(reader):
            return 60.0 if time.monotonic() < ends else 0.0

        monkeypatch.setattr(SimulationReader, "longest_fetch", longest)
        where = re.escape(bench.sim.public_id("p0"))
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=BRIEF, match=where)
        bench.sim.release("p0")

    def test_the_front_keeps_its_turn_while_it_is_asked_anew(
        self, outlasting, too_long_meanwhile, ids, monkeypatch
    ):
        bench = outlasting(2)
        first, other = bench.fill_partition("p0"), bench.fill_partition("p1")
        for name in ("p0", "p1"):
            bench.sim.hold(name)
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=BRIEF)
        too_long_meanwhile(bench, "p0")
        monkeypatch.setattr("multiclouddb_spi.fetching.queue.TURN_SECONDS", 60.0)
        bench.sim.release("p1")
        page = bench.page(size=1, timeout=30)
        assert ids(page) == first
        assert ids(bench.drain(page.continuation_token)[0]) == other
        assert (bench.calls.opens["p0"], bench.calls.cancels) == (2, 1)

    def test_one_of_this_call_has_until_its_deadline(self, outlasting):
        bench = outlasting(longest=0.0)
        bench.fill(3)
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=5 * BRIEF)
        assert bench.calls.opens["p0"] == 1
        bench.sim.release("p0")

    def test_the_others_are_read_before_it_in_the_next_call(self, outlasting, ids, monkeypatch):
        bench = outlasting(3)
        token = bench.page(Now()).continuation_token
        for name in ("p0", "p1"):
            bench.sim.hold(name)
        late = bench.page(token, timeout=BRIEF)
        assert len(late.diagnostics.partition_errors) == 2
        for module in ("reading.filling", "fetching.queue"):
            monkeypatch.setattr(f"multiclouddb_spi.{module}.TURN_SECONDS", 60.0)
        prompt = bench.fill_partition("p2", 2)
        with within(10):
            assert ids(bench.page(late.continuation_token, timeout=30)) == prompt

    def test_the_others_are_read_meanwhile(self, outlasting, ids):
        bench = outlasting(2)
        bench.fill_partition("p0", 2)
        prompt = bench.fill_partition("p1", 2)
        bench.sim.hold("p0")
        with within(20):
            page = bench.page(timeout=30)
        assert ids(page) == prompt
        assert not page.idle
        late = bench.page(page.continuation_token, timeout=5)
        assert not late.idle
        assert list(late.diagnostics.partition_errors) == [bench.sim.public_id("p0")]
        bench.sim.release("p0")
        events, _ = bench.drain(late.continuation_token)
        assert sorted(ids(page) + ids(events)) == sorted(bench.written())
        assert bench.calls.opens["p0"] == 1


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize(("wait", "timeout"), [(1.0, 1.0), (60, 1.5), (1.2, 1.0)])
def test_a_quiet_feed_is_idle_and_healthy(threaded, partitions, wait, timeout):
    bench = threaded(partitions)
    token = bench.page(Now()).continuation_token
    for _ in range(3):
        page = bench.page(token, wait=wait, timeout=timeout)
        token = page.continuation_token
        assert page.idle
        assert not page.diagnostics.partition_errors


def test_a_fetch_that_only_waits_at_the_deadline_is_no_failure(threaded, monkeypatch):
    """The service keeps a long poll open for longer than requested."""
    fetch = SimulationReader.fetch
    monkeypatch.setattr(
        SimulationReader,
        "fetch",
        lambda self, records, nbytes, wait, deadline: fetch(
            self, records, nbytes, 30 if wait else 0, deadline
        ),
    )
    bench = threaded(2)
    page = bench.page(Now(), wait=1, timeout=1)
    assert page.idle
    assert not page.diagnostics.partition_errors


@pytest.mark.parametrize("longest", [None, 0.2, 7.0])
def test_one_fetch_waits_as_long_as_the_feed_allows(threaded, monkeypatch, longest):
    """A feed sets the longest wait of a fetch. It is longer for a service whose requests cost money."""
    asked, fetch = [], SimulationReader.fetch

    def recorded(self, records, nbytes, wait, deadline):
        asked.append(wait)
        if len(asked) == 3:
            bench.sim.write("news", {"n": 1})
        return fetch(self, records, nbytes, min(wait, 0.01), deadline)

    bench = threaded(1)
    token = bench.page(Now()).continuation_token
    monkeypatch.setattr(SimulationReader, "fetch", recorded)
    if longest is not None:
        monkeypatch.setattr(SimulationFeed, "longest_wait", lambda self: longest)
    page = bench.page(token, wait=30, timeout=40)
    assert [event.new_item_state for event in page.events] == [{"n": 1}]
    bound = 1.0 if longest is None else longest
    assert bound * 0.9 < max(asked) <= bound


LONG = 1000.0


class Clock:
    """A clock that the test sets."""

    def __init__(self, now=5000.0, step=0.0):
        self.now, self.step = now, step

    def monotonic(self):
        self.now += self.step
        return self.now


class TestRounds:
    @pytest.mark.parametrize(("partitions", "waits"), [(2, True), (3, False)])
    def test_fetches_wait_if_all_run_at_once(self, make_bench, moved_clock, monkeypatch, partitions, waits):
        bench = make_bench(partitions)
        bench.connect(max_concurrency=2)
        token = bench.page(Now()).continuation_token
        asked, fetch = [], SimulationReader.fetch

        def noted(self, records, nbytes, wait, deadline):
            asked.append(wait)
            return fetch(self, records, nbytes, 0.0, deadline)

        monkeypatch.setattr(SimulationReader, "fetch", noted)
        assert bench.page(token, wait=1.0).idle
        assert (max(asked) > 0) is waits

    @pytest.mark.parametrize(
        ("partitions", "at_service", "first"), [(1, True, 1.0), (1, False, 0.0), (2, True, 0.0)]
    )
    def test_a_partition_that_is_alone_gets_one_request_that_waits_if_the_service_does(
        self, make_bench, moved_clock, monkeypatch, partitions, at_service, first
    ):
        """A request that does not wait before each that does would double the requests of an idle feed."""
        monkeypatch.setattr(SimulationFeed, "waits_at_service", at_service)
        bench, asked = make_bench(partitions=partitions), []
        token = bench.page(Now()).continuation_token

        def noted(self, records, nbytes, wait, deadline):
            asked.append(wait)
            moved_clock.moved += wait
            return fetch(self, records, nbytes, 0, deadline)

        fetch = SimulationReader.fetch
        monkeypatch.setattr(SimulationReader, "fetch", noted)
        assert bench.page(token, wait=1.0).idle
        assert asked[0] == pytest.approx(first, abs=0.01)
        assert not at_service or partitions > 1 or len(asked) == 1

    def test_a_wait_ends_a_second_before_the_deadline(self, bench, moved_clock, monkeypatch):
        token, fetch = bench.page(Now()).continuation_token, SimulationReader.fetch

        def at_once(self, records, nbytes, wait, deadline):
            return fetch(self, records, nbytes, 0.0, deadline)

        monkeypatch.setattr(SimulationReader, "fetch", at_once)
        assert bench.page(token, wait=40, timeout=40).idle
        assert 38 < sum(moved_clock.pauses) < 39.1

    def test_an_unwanted_read_ends_in_its_pause_and_its_readers_stay_open(self, bench, ids):
        token, opened = bench.page(Now()).continuation_token, bench.calls.opens.copy()
        outage = Outage(bench.sim.address, None, time.monotonic, stopped=lambda: True)
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, token, wait=2.0, progress=outage, match="ended by")
        written = bench.fill_partition("p0", 1)
        assert ids(bench.page(token)) == written
        assert bench.calls.opens == opened

    def test_a_quiet_service_that_answers_at_once_is_not_asked_without_a_pause(self, make_bench, monkeypatch):
        bench = make_bench(2)
        token = bench.page(Now()).continuation_token
        clock, fetch, pauses = Clock(), SimulationReader.fetch, []

        def at_once(self, records, nbytes, wait, deadline):
            clock.now += 0.001
            return fetch(self, records, nbytes, 0.0, deadline)

        def pause(seconds):
            clock.now += seconds
            pauses.append(seconds)

        monkeypatch.setattr(time, "monotonic", clock.monotonic)
        monkeypatch.setattr(SimulationReader, "fetch", at_once)
        monkeypatch.setattr(bench.engine._calls.kept.context.closed, "wait", pause)
        before = bench.calls.total_fetches
        assert bench.page(token, wait=10.0).idle
        assert 20 < bench.calls.total_fetches - before < 120
        assert clock.now < 5010.1
        assert max(pauses) == 0.25  # an iterator that is stopped need not wait for the whole pause

    def test_a_partition_that_waits_for_news_does_not_keep_others_from_being_asked(
        self, make_bench, ids, monkeypatch
    ):
        """The service keeps the poll of `p0` open for the whole call, but the engine does not treat `p0` as
        slow.
        """
        for module in ("reading.filling", "fetching.queue"):
            monkeypatch.setattr(f"multiclouddb_spi.{module}.TURN_SECONDS", LONG)
        bench = make_bench(2)
        bench.connect(threads=True)
        token = bench.page(Now()).continuation_token
        fetch, news, asked = SimulationReader.fetch, [], []

        def patient(self, records, nbytes, wait, deadline):
            if self._id == "p1":
                asked.append(wait)
                if len(asked) == 3:
                    news.extend(bench.fill_partition("p1"))
                wait = 0.0
            return fetch(self, records, nbytes, LONG if wait else 0.0, deadline)

        monkeypatch.setattr(SimulationReader, "fetch", patient)
        page = bench.page(token, wait=20, timeout=30)
        assert ids(page) == news
        assert len(news) == 1


def test_not_more_than_the_width_are_asked_at_a_time(make_bench, monkeypatch):
    width, fetch = 2, SimulationReader.fetch
    running, most, changed = [0], [0], threading.Condition()

    def watched(self, *args):
        with changed:
            running[0] += 1
            most[0] = max(most[0], running[0])
            changed.notify_all()
            # Each read blocks until too many reads run, or long enough for too many reads to start.
            changed.wait_for(lambda: running[0] > width, 0.05)
        try:
            return fetch(self, *args)
        finally:
            with changed:
                running[0] -= 1

    monkeypatch.setattr(SimulationReader, "fetch", watched)
    bench = make_bench(partitions=10)
    bench.connect(threads=True, max_concurrency=width)
    bench.fill(100, keys=50)
    assert len(bench.drain()[0]) == 100
    assert most[0] == width


def test_a_control_call_sleeps_while_it_waits_for_its_answer(bench, monkeypatch):
    looks = []
    monkeypatch.setattr("multiclouddb_spi.fetching.fetcher.still_waiting", lambda *told: looks.append(told))
    with ThreadPoolExecutor(1) as threads:
        fetcher = Fetcher(SimulationProvider(bench.sim), threads, Observing(None), End())
        assert fetcher.call(lambda: threading.Event().wait(0.3), Deadline.after(60)) is False
    assert 0 < len(looks) < 100


@pytest.mark.parametrize(("timeout", "seconds"), [(1, 0.5), (3600, 2)])
def test_the_first_partition_has_at_most_half_of_the_time(bench, timeout, seconds):
    context, content = bench.engine._calls.kept.context, PageContent(1, 1)
    queue = Queue(context, None, None, None, content, 1, Deadline.after(timeout))
    assert queue.turn == pytest.approx(seconds, abs=0.1)


def test_a_part_of_a_call_can_be_ended_like_the_call():
    outage = Outage("orders", None, time.monotonic)
    assert Deadline(5.0, outage).sooner(1.0).progress is outage
