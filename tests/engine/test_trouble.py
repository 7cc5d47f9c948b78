"""Tests that faults are retried, reported, tolerated or raised, and never lose an event."""

import sys
import threading
import time
from contextlib import nullcontext, suppress
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import multiclouddb_api as api
from multiclouddb_conformance.simulation import (
    CorruptError,
    DeniedError,
    Listing,
    ServerError,
    ServiceBehaviour,
    SimulationFeed,
    SimulationMapper,
    SimulationProvider,
    SimulationReader,
    ThrottledError,
    TrimmedError,
)
from multiclouddb_spi import Batch, Deadline, Fault, Survey
from multiclouddb_spi.errors import fault_of, user_errors
from multiclouddb_spi.open_feed import OpenFeed
from multiclouddb_spi.request_check import spec_of
from multiclouddb_spi.retry import ATTEMPTS, Tries
from multiclouddb_spi.time_limits import AnswerSize, Arrival, Counting, TooSlow, current
from tests.event_loop import no_thread_left

BEGINNING = api.Beginning()
FOREVER = None


def stopped(bench, pages, *, restart):
    """Read small pages and write to every partition, until an error occurs."""
    place = BEGINNING
    for _ in range(pages):
        bench.fill(80, keys=80)
        if restart:
            bench.connect()
        try:
            place = bench.page(place, size=3).continuation_token
        except api.MulticloudDbError as error:
            return error
    pytest.fail(f"no error within {pages} pages")


class TestRetry:
    def test_no_pause_goes_beyond_the_deadline(self, bench):
        pauses = []
        bench.connect(pause=pauses.append)
        bench.sim.fail_next("p0", ThrottledError("slow down", retry_after=60), times=FOREVER)
        error = bench.refused(api.ErrorCategory.THROTTLED, timeout=5)
        assert error.retryable
        assert error.detail.retry_after_seconds == 60
        assert pauses == []
        assert bench.calls.fetches["p0"] == 1

    @pytest.mark.parametrize("operation", ["fetch", "start", "open_feed"])
    def test_try_that_hangs_until_the_deadline_does_not_hide_why_it_was_made(self, make_bench, operation):
        bench = make_bench(1)
        over = threading.Event()
        bench.connect(threads=True, pause=lambda _: over.wait(20))
        bench.sim.fail_next(
            "p0" if operation == "fetch" else None, ThrottledError("slow"), operation=operation
        )
        try:
            error = bench.refused(api.ErrorCategory.THROTTLED, timeout=1)
            assert error.retryable
        finally:
            over.set()

    def test_system_without_a_thread_left_is_not_told_as_a_closed_client(self, make_bench, monkeypatch):
        bench = make_bench(1)
        bench.connect(threads=True)

        def start(thread):
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            bench.refused(api.ErrorCategory.PERMANENT_FAILURE, match="can't start new thread")

    @pytest.mark.parametrize("partitions", [1, 3])
    def test_failure_is_not_retried_while_waiting(self, make_bench, moved_clock, partitions):
        bench = make_bench(partitions=partitions)
        token = bench.page(api.Now()).continuation_token
        bench.sim.fail_next("p0", ServerError("503", vendor_retried=True), times=FOREVER)
        before = bench.calls.fetches["p0"]
        if partitions == 1:
            bench.refused(api.ErrorCategory.TRANSIENT_FAILURE, token, wait=20.0)
            assert sum(moved_clock.pauses) < 1  # nothing is left to wait for
        else:
            page = bench.page(token, wait=0.3)
            assert (page.idle, len(page.diagnostics.partition_errors)) == (False, 1)
            assert bench.calls.fetches["p1"] > 2  # the call waits for the other partitions
        assert bench.calls.fetches["p0"] - before == 1

    @pytest.mark.parametrize("operation", ["open_feed", "start", "survey"])
    def test_calls_on_the_feed_are_retried_too(self, bench, ids, operation):
        bench.fill(3)
        bench.sim.split("p0")
        bench.sim.delay_children("p0", 1)
        bench.sim.fail_next(None, ServerError("503"), times=3, operation=operation)
        assert ids(bench.drain()[0]) == bench.written()

    @pytest.mark.parametrize("operation", ["open_feed", "start", "survey"])
    def test_call_on_the_feed_that_fails_for_good_is_raised(self, bench, operation):
        bench.sim.fail_next(None, DeniedError("not yours"), times=FOREVER, operation=operation)
        with pytest.raises(api.MulticloudDbError, match="not yours") as caught:
            bench.partitions() if operation == "survey" else bench.page()
        assert caught.value.category == api.ErrorCategory.AUTHORIZATION_FAILED

    def test_a_look_for_children_that_finds_none_does_not_hide_a_failure(self, make_bench):
        bench = make_bench(partitions=2, behaviour=ServiceBehaviour(proves_children=False))
        token = bench.page(api.Now()).continuation_token
        bench.sim.delay_children("p0", 10**6)
        bench.sim.split("p0")
        token = bench.page(token).continuation_token
        bench.sim.fail_next("p1", ThrottledError("slow down"), times=FOREVER)
        bench.refused(api.ErrorCategory.THROTTLED, token)

    def test_failures_lose_no_look_that_finds_children(self, make_bench):
        bench = make_bench(partitions=2)
        token = bench.page(api.Now()).continuation_token
        bench.sim.delay_children("p0", 1)
        bench.sim.split("p0")
        token = bench.page(token).continuation_token
        bench.sim.fail_next(None, ThrottledError("slow down"), times=FOREVER)
        page = bench.page(token)
        assert len(page.diagnostics.partition_errors) == 3
        assert len(bench.plan(page.continuation_token)) == 3

    def test_a_read_ahead_that_fails_repeats_nothing(self, bench, ids):
        bench.fill(60)
        place, seen = BEGINNING, []
        while len(seen) < 60:
            page = bench.page(place, size=4)
            place, seen = page.continuation_token, seen + ids(page)
            bench.sim.fail_next("p0", ServerError("503"))
        assert seen == bench.written()


class TestPartialTrouble:
    def test_failure_of_a_call_for_children_does_not_fail_the_page(self, make_bench, ids):
        bench = make_bench(partitions=2)
        token = bench.page(api.Now()).continuation_token
        bench.sim.delay_children("p0", 1)
        bench.sim.split("p0")
        token = bench.page(token).continuation_token
        late = bench.fill_partition("p1", 2)
        bench.sim.fail_next(None, ServerError("503"), times=FOREVER, operation="survey")
        page = bench.page(token)
        assert ids(page) == late
        assert bench.sim.public_id("p0") in page.diagnostics.partition_errors
        bench.sim.forgive()
        assert bench.drain(page.continuation_token)[0] == []

    def test_partition_that_recovers_while_the_call_waits_is_no_longer_an_error(self, make_bench):
        bench = make_bench(partitions=2)
        bench.connect(attempts=1)
        token = bench.page(api.Now()).continuation_token
        bench.sim.fail_next("p1", ServerError("503"), times=1)
        page = bench.page(token, wait=0.1)
        assert page.idle
        assert page.diagnostics.partition_errors == {}

    def test_permanent_failure_comes_behind_what_others_have(self, make_bench, ids):
        bench = make_bench(partitions=2)
        bench.fill(10)
        others = [item.event_id for item in bench.sim.truth if item.partition_id == "p0"]
        bench.sim.fail_next("p1", CorruptError("p1 is broken"), times=FOREVER)
        page = bench.page(size=50)
        assert ids(page) == others
        assert not page.idle
        error = bench.refused(
            api.ErrorCategory.PERMANENT_FAILURE, page.continuation_token, match="p1 is broken"
        )
        assert bench.sim.public_id("p1") in error.message
        assert not error.retryable

    def test_a_partition_that_stopped_the_feed_comes_first_when_it_is_mended(self, make_bench, ids):
        bench = make_bench(partitions=2)
        bench.fill_partition("p0", 10)
        mended = bench.fill_partition("p1", 1)
        bench.sim.fail_next("p1", CorruptError("p1 is broken"))
        page = bench.page(size=50)
        assert len(page.events) == 10
        bench.fill_partition("p0", 10)
        assert ids(bench.page(page.continuation_token, size=1)) == mended

    def test_children_are_read_in_the_call_that_finds_them_beside_it(self, make_bench, ids):
        bench = make_bench(partitions=2)
        token = bench.page(api.Now()).continuation_token
        bench.fill_partition("p0", 1)
        bench.sim.delay_children("p0", 100)
        children = bench.sim.split("p0")
        bench.sim.fail_next("p1", CorruptError("p1 is broken"))
        page = bench.page(token)
        assert len(page.events) == 1
        bench.sim.delay_children("p0", 0)
        written = [event for child in children for event in bench.fill_partition(child)]
        assert ids(bench.page(page.continuation_token)) == written

    def test_children_that_are_found_beside_it_are_asked_after_it(self, make_bench, ids, monkeypatch):
        bench = make_bench(partitions=2)
        token = bench.page(api.Now()).continuation_token
        bench.fill_partition("p0", 1)
        bench.sim.delay_children("p0", 100)
        children = bench.sim.split("p0")
        bench.sim.fail_next("p1", CorruptError("p1 is broken"))
        token = bench.page(token).continuation_token
        bench.sim.delay_children("p0", 0)
        asked, fetch = [], SimulationReader.fetch

        def noted(reader, *limits):
            asked.append(reader._id)
            return fetch(reader, *limits)

        monkeypatch.setattr(SimulationReader, "fetch", noted)
        bench.page(token)
        assert asked == ["p1", *children]

    @pytest.mark.parametrize("restart", [False, True], ids=["one engine", "an engine a page"])
    def test_permanent_failure_is_raised_though_others_are_always_busy(self, make_bench, restart):
        bench = make_bench(partitions=8)
        bench.sim.fail_next("p5", CorruptError("broken"), times=FOREVER)
        error = stopped(bench, pages=20, restart=restart)
        assert "broken" in error.message

    @pytest.mark.parametrize("kind", [CorruptError, ServerError], ids=["lasting", "retryable"])
    def test_failure_that_takes_longer_than_a_page_is_told_though_others_are_busy(
        self, threaded, eventually, kind
    ):
        bench = threaded(2)
        bench.connect(threads=True, attempts=1)
        bench.fill_partition("p0", 20)
        bench.sim.fail_next("p1", kind("broken"), times=FOREVER)
        bench.sim.hold("p1")
        place = BEGINNING
        for _ in range(3):  # the first fetch is too short, because nothing waits for it
            page = bench.page(place, size=1)
            assert (len(page.events), page.diagnostics.partition_errors) == (1, {})
            place = page.continuation_token
            assert bench.sim.wait_until_held("p1")
            bench.sim.release("p1")
            eventually(lambda: bench.calls.open_readers == 1)
            bench.sim.hold("p1")
        try:
            told = list(bench.page(place, size=1).diagnostics.partition_errors.values())
        except api.MulticloudDbError as error:
            told = [error.message]
        assert len(told) == 1
        assert "broken" in told[0]

    def test_notices_are_handed_out_before_what_stops_the_feed(self, make_bench):
        bench = make_bench(partitions=2)
        bench.sim.announce("p0", api.Renamed("a", "b"))
        bench.sim.fail_next("p1", CorruptError("broken"), times=FOREVER)
        page = bench.page()
        assert page.notices == (api.Renamed("a", "b"),)
        bench.refused(api.ErrorCategory.PERMANENT_FAILURE, page.continuation_token)


@pytest.fixture(params=[False, True], ids=["found when mapped", "found when fetched"])
def poisoned(request, make_bench):
    """Make a bench whose provider fails at a poison record, either when it fetches the record or when it maps
    it.
    """

    def make(partitions=1, **settings):
        return make_bench(partitions, behaviour=ServiceBehaviour(poison_at_fetch=request.param), **settings)

    return make


class TestPoison:
    def test_one_directly_behind_another_needs_two_skips(self, poisoned, ids):
        bench = poisoned()
        for number in range(3):
            bench.sim.write(f"bad-{number}", {"n": 0}, poison=True)
        bench.fill(2)
        place, positions = BEGINNING, []
        for _ in range(3):
            error = bench.refused(api.ErrorCategory.PROVIDER_ERROR, place)
            page = bench.page(error.detail.skip_token)
            place = page.continuation_token
            positions += [notice.position for notice in page.notices]
            assert positions[-1] in error.message
        assert len(set(positions)) == 3
        assert ids(bench.page(place)) == bench.written()[3:]

    def test_a_plan_from_a_skip_names_the_record(self, bench):
        bench.sim.write("bad", {"n": 0}, poison=True)
        bench.fill(2)
        error = bench.refused(api.ErrorCategory.PROVIDER_ERROR)
        ((name, token),) = bench.plan(error.detail.skip_token)
        page = bench.page(token, scope=api.PhysicalPartition(name))
        assert [type(notice) for notice in page.notices] == [api.RecordSkipped]

    def test_a_skip_keeps_the_watermark(self, bench, monkeypatch):
        bench.fill(5)
        first = bench.page()
        bench.sim.write("bad", {"n": 0}, poison=True)
        error = bench.refused(api.ErrorCategory.PROVIDER_ERROR, first.continuation_token)
        monkeypatch.setattr(type(bench.sim), "commit_time", lambda self, number: None)
        bench.sim.behaviour = ServiceBehaviour(watermarks=False)
        bench.connect()
        page = bench.page(error.detail.skip_token)
        assert page.diagnostics.watermark == first.diagnostics.watermark is not None


class TestExpiry:
    def test_skipping_names_the_gap_to_the_observer(self, make_bench):
        bench, told = make_bench(), Mock(api.Observer)
        bench.fill(40, keys=40)
        token = bench.page(size=1).continuation_token
        bench.sim.trim(upto=20)
        bench.connect(observer=told)
        page = bench.page(token, on_expired=api.SkipToOldest())
        told.gap.assert_called_once_with(bench.sim.address, page.notices[0])

    def test_partitions_that_expire_together_are_told_once_each(self, make_bench):
        """The first refusal moves all of them; what was asked at their old positions no longer counts."""
        bench = make_bench(partitions=3)
        bench.fill(40, keys=40)
        token = bench.page(size=1).continuation_token
        bench.sim.trim(upto=20)
        bench.connect()
        pages = bench.walk(token, on_expired=api.SkipToOldest())
        told = [notice.partition_id for page in pages for notice in page.notices]
        assert sorted(told) == sorted(bench.partitions())

    def test_a_call_moves_to_the_oldest_three_times(self, bench, monkeypatch, caplog):
        """Each oldest record expires before it is read. A later call tells the whole gap once."""
        bench.fill(40, keys=40)
        token = bench.page(size=1).continuation_token
        bench.connect()
        bench.sim.trim(upto=10)
        surveys, survey = [], SimulationFeed.survey

        def trimmed(feed, asked, deadline, **rest):
            found = survey(feed, asked, deadline, **rest)
            surveys.append(found)
            bench.sim.trim(upto=10 + 5 * len(surveys))
            return found

        with monkeypatch.context() as patch:
            patch.setattr(SimulationFeed, "survey", trimmed)
            bench.refused(api.ErrorCategory.CHECKPOINT_EXPIRED, token, on_expired=api.SkipToOldest())
        assert caplog.text.count("gap in") == 3
        (gap,) = bench.page(token, on_expired=api.SkipToOldest()).notices
        assert gap.lost_from == "commit 1"

    def test_everything_lost_is_the_end(self, bench, ended, monkeypatch):
        bench.fill(5)
        token = bench.page(size=1).continuation_token
        bench.sim.trim()
        gone = Survey(gone={"p0": None})
        monkeypatch.setattr(SimulationFeed, "survey", lambda *_, **__: gone)
        page = bench.page(token, on_expired=api.SkipToOldest())
        assert "lost" in ended(page)
        assert page.notices[0].resumed_at == "nothing left"

    def test_one_partition_that_is_lost_with_all_that_follows_it_retires_and_is_not_idle(
        self, bench, monkeypatch
    ):
        bench.fill(5)
        settings = {"scope": api.PhysicalPartition(bench.partitions()[0]), "on_expired": api.SkipToOldest()}
        token = bench.page(size=1, **settings).continuation_token
        bench.sim.trim()
        monkeypatch.setattr(SimulationFeed, "survey", lambda *_, **__: Survey(gone={"p0": ()}))
        page = bench.page(token, **settings)
        assert (page.partition_retired, page.child_partitions, page.idle) == (True, (), False)

    @pytest.mark.parametrize("fault", [ServerError("503"), DeniedError("not yours")], ids=repr)
    def test_trouble_with_finding_the_oldest_does_not_cost_what_others_delivered(
        self, make_bench, ids, fault
    ):
        bench = make_bench(partitions=2)
        bench.fill_partition("p1", 5)
        token = bench.page(api.Beginning(), size=1).continuation_token
        bench.sim.trim("p1")
        events = bench.fill_partition("p0", 3)
        bench.sim.fail_next(None, fault, times=FOREVER, operation="survey")
        page = bench.page(token, on_expired=api.SkipToOldest())
        assert ids(page) == events
        assert bench.sim.public_id("p1") in page.diagnostics.partition_errors


class TestAudit:
    @pytest.fixture
    def audited(self, make_bench):
        """Make a bench, whose feed is audited by every call, and a token."""
        bench = make_bench(behaviour=ServiceBehaviour(proves_children=False))
        bench.connect(coverage_audit_seconds=1e-9)
        return bench, bench.page(api.Now()).continuation_token

    def test_an_expired_position_is_raised(self, audited, caplog):
        bench, token = audited
        bench.sim.fail_next(None, TrimmedError("gone"), times=FOREVER, operation="survey")
        bench.refused(api.ErrorCategory.CHECKPOINT_EXPIRED, token)
        assert "audit" not in caplog.text

    def test_a_failure_is_logged(self, audited, caplog):
        bench, token = audited
        bench.sim.fail_next(None, ServerError("503"), times=FOREVER, operation="survey")
        bench.page(token)
        assert "the audit of coverage failed (503)" in caplog.text

    @pytest.mark.parametrize(("timeout", "most"), [(8.0, 4.0), (1000.0, 10.0)])
    def test_half_the_time_and_all_but_ten_seconds_are_left_for_pages(
        self, audited, monkeypatch, timeout, most
    ):
        bench, token = audited
        allowed, survey = [], SimulationFeed.survey

        def timed(feed, asked, deadline, **rest):
            allowed.append(deadline.remaining())
            return survey(feed, asked, deadline, **rest)

        monkeypatch.setattr(SimulationFeed, "survey", timed)
        bench.page(token, timeout=timeout)
        assert len(allowed) == 1
        assert allowed[0] <= most

    def test_a_clock_that_was_set_back_delays_no_audit(self, make_bench, monkeypatch):
        bench = make_bench(behaviour=ServiceBehaviour(proves_children=False))
        bench.connect(coverage_audit_seconds=1000)
        token = bench.page(api.Now()).continuation_token
        audits, survey, now = [], SimulationFeed.survey, time.time()

        def counted(feed, asked, deadline, *, whole=True, **rest):
            audits.append(whole)
            return survey(feed, asked, deadline, whole=whole, **rest)

        monkeypatch.setattr(SimulationFeed, "survey", counted)
        token = bench.page(token).continuation_token
        assert audits == []
        monkeypatch.setattr(time, "time", lambda: now - 10_000)
        bench.page(token)
        assert audits == [True]

    def test_a_feed_that_is_over_has_none(self, audited, ended, monkeypatch):
        bench, token = audited
        bench.sim.delay_children("p0", 10**6)
        bench.sim.roll("p0")
        token, listings = bench.page(token).continuation_token, []

        def survey(feed, asked, deadline, *, whole=True, **rest):
            listings.append(whole)
            if listings.count(True) > 1:
                raise TrimmedError("gone")
            return Survey(final={"p0": api.FeedEnded("switched off")})

        monkeypatch.setattr(SimulationFeed, "survey", survey)
        assert ended(bench.page(token)) == "switched off"


class TestErrors:
    def test_native_cause_and_its_facts_are_there(self, bench):
        native = ServerError("the vendor's own words")
        bench.sim.fail_next("p0", native, times=FOREVER)
        error = bench.refused(api.ErrorCategory.TRANSIENT_FAILURE)
        assert error.__cause__ is native
        detail = error.detail
        assert detail.native_class == "multiclouddb_conformance.simulation.errors.ServerError"
        assert detail.native_code == "ServerError"
        assert detail.native_text == "the vendor's own words"
        assert detail.provider == "simulation"


def broken(*args, **kwargs):
    raise ZeroDivisionError("a bug in the provider")


class TestProviderBugs:
    """Exceptions that violate the contract are reported once, and nothing is leaked or lost."""

    @pytest.mark.parametrize(
        ("owner", "method"),
        [
            (SimulationMapper, "events"),
            (SimulationMapper, "cursor_after"),
            (SimulationReader, "fetch"),
            (SimulationFeed, "open"),
            (SimulationFeed, "start"),
            (SimulationFeed, "survey"),
            (SimulationFeed, "join"),
            (SimulationProvider, "open_feed"),
        ],
        ids=lambda value: value if isinstance(value, str) else value.__name__,
    )
    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
    def test_bug_is_an_error_and_the_feed_goes_on_when_it_is_mended(
        self, make_bench, ids, monkeypatch, owner, method, threads
    ):
        bench = make_bench(partitions=3)
        bench.connect(threads=threads)
        bench.fill(20)
        bench.sim.merge("p0", "p1")
        bench.sim.delay_children("p2", 1)
        bench.sim.split("p2")
        bench.fill(20)
        place, came, errors = BEGINNING, [], []
        for _ in range(4):
            monkeypatch.setattr(owner, method, broken)
            try:
                page = bench.page(place, size=5)
            except api.MulticloudDbError as error:
                errors.append(error)
            else:
                came += ids(page)
                place = page.continuation_token
            monkeypatch.undo()
            page = bench.page(place, size=5)
            came += ids(page)
            place = page.continuation_token
        came += ids(bench.drain(place, size=5)[0])
        assert sorted(came) == sorted(bench.written())
        assert {error.category for error in errors} <= {api.ErrorCategory.PERMANENT_FAILURE}
        assert all("a bug in the provider" in error.message for error in errors)

    def test_bug_in_mapping_one_partition_does_not_cost_the_others(self, make_bench, ids, monkeypatch):
        bench = make_bench(partitions=2)
        good, bad = bench.fill_partition("p0", 3), bench.fill_partition("p1", 3)
        events = SimulationMapper.events

        def picky(self, records, start, stop):
            bad = records.records[0].partition_id == "p1"
            return broken() if bad else events(self, records, start, stop)

        monkeypatch.setattr(SimulationMapper, "events", picky)
        page = bench.page()
        assert ids(page) == good
        bench.refused(api.ErrorCategory.PERMANENT_FAILURE, page.continuation_token)
        monkeypatch.undo()
        assert ids(bench.page(page.continuation_token)) == bad

    @pytest.mark.parametrize("method", ["close", "cancel"])
    def test_reader_that_fails_to_close_breaks_nothing(self, bench, ids, monkeypatch, method):
        bench.fill(5)
        real = getattr(SimulationReader, method)

        def failing(self):
            real(self)
            broken()

        monkeypatch.setattr(SimulationReader, method, failing)
        bench.sim.fail_next("p0", ServerError("503"), times=2)
        assert ids(bench.page()) == bench.written()
        bench.engine.close()

    def test_provider_that_fails_to_close_leaves_nothing_open(self, bench, monkeypatch):
        bench.fill(3)
        bench.page(size=1)
        monkeypatch.setattr(SimulationProvider, "close", broken)
        with pytest.raises(api.MulticloudDbError, match="a bug in the provider"):
            bench.engine.close()
        monkeypatch.undo()
        assert bench.calls.open_readers == 0
        bench.engine.close()

    def test_closing_waits_for_no_call_and_ends_each_thread(self, make_bench, monkeypatch):
        bench, begun, over, ended = make_bench(), threading.Event(), threading.Event(), []

        def hang(*_):
            begun.set()
            over.wait(5)
            ended.append(True)
            raise DeniedError("no")

        with no_thread_left():
            bench.connect(threads=True)
            monkeypatch.setattr(bench.provider, "open_feed", hang)
            refused = partial(
                bench.refused, api.ErrorCategory.TRANSIENT_FAILURE, match="the client was closed"
            )
            call = threading.Thread(target=refused)
            call.start()
            begun.wait(20)
            bench.engine.close()
            assert not ended
            over.set()


def test_only_an_expired_position_tells_where_reading_could_go_on(make_bench, monkeypatch):
    bench, asked, survey = make_bench(partitions=1), [], SimulationFeed.survey

    def recorded(feed, places, *rest, **named):
        asked.append(feed.describe(places["p0"]).text)
        return survey(feed, places, *rest, **named)

    monkeypatch.setattr(SimulationFeed, "survey", recorded)
    token = bench.page(api.Now()).continuation_token
    bench.fill(5)
    bench.sim.fail_next("p0", DeniedError("no"))
    denied = bench.refused(api.ErrorCategory.AUTHORIZATION_FAILED, token)
    assert denied.detail.oldest_position is None
    bench.sim.trim("p0")
    expired = bench.refused(api.ErrorCategory.CHECKPOINT_EXPIRED, token)
    assert expired.detail.oldest_position
    assert asked == ["commit 0"]


@pytest.mark.parametrize(
    ("listing", "oldest"),
    [(Listing.ALL, "commit 6, commit 6"), (Listing.OPEN, "commit 0, commit 6, commit 6")],
)
def test_a_lost_partition_tells_where_its_successors_begin(make_bench, listing, oldest):
    bench = make_bench(2, behaviour=ServiceBehaviour(listing=listing))
    token = bench.page(api.Now()).continuation_token
    bench.fill(5)
    bench.sim.split("p0")
    bench.sim.trim("p0")
    expired = bench.refused(api.ErrorCategory.CHECKPOINT_EXPIRED, token)
    assert expired.detail.oldest_position == oldest


class Angry(api.Observer):
    """An observer that raises an error in every method."""

    page = retry = reader_opened = reader_closed = partition_retired = gap = retention_headroom_low = broken


class TestObserver:
    def test_exceptions_of_an_observer_end_in_the_log(self, make_bench, ids, caplog):
        bench = make_bench(partitions=2, retention_seconds=60)
        bench.connect(observer=Angry())
        bench.fill(10)
        bench.sim.split("p0")
        bench.fill(10)
        bench.sim.fail_next("p1", ServerError("503"))
        assert sorted(ids(bench.drain(size=3)[0])) == sorted(bench.written())
        assert "failed with ZeroDivisionError" in caplog.text
        assert {record.name for record in caplog.records} >= {"multiclouddb.engine"}

    def test_the_text_of_its_exception_is_not_logged(self, make_bench, caplog):
        """It may quote a document."""

        class Quoting(api.Observer):
            def page(self, address, page):
                raise LookupError(*page.events)

        bench = make_bench()
        bench.connect(observer=Quoting())
        bench.fill(1)
        ((event,), _) = bench.drain()
        assert "page failed with LookupError" in caplog.text
        assert "test_trouble.py" in caplog.text, "the place"
        assert event.event_id not in caplog.text
        assert str(event.key) not in caplog.text

    def test_only_pages_tell_it_keys_and_documents(self, make_bench):
        bench, told = make_bench(partitions=2, retention_seconds=60), Mock(api.Observer)
        bench.connect(observer=told)
        for number in range(10):
            bench.sim.write(f"a-marked-key-{number}", {"text": "a-marked-field"})
        bench.sim.split("p0")
        bench.sim.fail_next("p1", ServerError("503"))
        assert len(bench.drain(size=3)[0]) == 10
        calls = [call for call in told.method_calls if call[0] != "page"]
        assert {name for name, _, _ in calls} >= {"retry", "reader_opened", "partition_retired"}
        diagnostics = [call.args[1].diagnostics for call in told.page.call_args_list]
        assert "a-marked" not in repr([*calls, *diagnostics])

    def test_partitions_have_their_public_ids_everywhere(self, make_bench):
        bench, told = make_bench(partitions=2), Mock(api.Observer)
        bench.connect(observer=told)
        bench.fill(5)
        children = bench.sim.split("p0")
        bench.sim.fail_next("p1", ServerError("503"))
        bench.drain()
        bench.engine.close()
        public = {name: bench.sim.public_id(name) for name in bench.sim.partitions}
        told.partition_retired.assert_called_once_with(
            bench.sim.address, public["p0"], tuple(public[name] for name in children)
        )
        assert told.retry.call_args.args[1] == public["p1"]
        for method in (told.reader_opened, told.reader_closed):
            assert {call.args[1] for call in method.call_args_list} == set(public.values())

    @pytest.mark.parametrize("scope", [None, api.PhysicalPartition], ids=["feed", "partition"])
    def test_children_that_are_named_late_are_told(self, make_bench, scope):
        bench, told = make_bench(), Mock(api.Observer)
        bench.connect(observer=told)
        settings = {"scope": scope(bench.sim.public_id("p0"))} if scope else {}
        token = bench.page(api.Now(), **settings).continuation_token
        bench.sim.delay_children("p0", 2)
        name, *children = map(bench.sim.public_id, ("p0", *bench.sim.split("p0")))
        bench.drain(token, **settings)
        told.partition_retired.assert_called_once_with(bench.sim.address, name, tuple(children))


def test_a_throttle_is_raised_before_an_answer_that_is_late(make_bench):
    """An error of a throttled call is more informative than one of a late answer: it contains the time to
    wait.
    """
    bench = make_bench(2)
    bench.connect(threads=True, attempts=1)
    bench.fill(10)
    bench.sim.hold("p0")
    bench.sim.fail_next("p1", ThrottledError("too fast", 7.0), None)
    with pytest.raises(api.MulticloudDbError) as caught:
        bench.page(api.Beginning(), timeout=0.5)
    assert caught.value.category == api.ErrorCategory.THROTTLED


class TestRetryAfter:
    """A partition that is throttled is not asked before the service wants it, also not by the next page."""

    @pytest.fixture
    def throttled(self, make_bench):
        """Read a page that delivers one partition, while another is throttled for two seconds."""
        bench = make_bench(2)
        bench.connect(attempts=1)
        bench.fill_partition("p0", 20)
        bench.fill_partition("p1", 5)
        bench.sim.fail_next("p1", ThrottledError("too fast", 2.0))
        page = bench.page(api.Beginning(), 5)
        assert len(page.events) == 5
        assert bench.calls.fetches["p1"] == 1
        return bench, page.continuation_token

    def test_later_pages_deliver_others_and_name_it(self, throttled):
        bench, token = throttled
        for _ in range(3):
            page = bench.page(token, 5)
            token = page.continuation_token
            assert list(page.diagnostics.partition_errors) == [bench.sim.public_id("p1")]
            assert len(page.events) == 5
        page = bench.page(token, 5)
        assert (page.events, page.idle) == ((), False)
        assert bench.calls.fetches["p1"] == 1

    def test_it_is_asked_when_the_time_has_passed(self, throttled, eventually):
        bench, token = throttled
        events = []

        def has_all():
            nonlocal token
            page = bench.page(token)
            token = page.continuation_token
            events.extend(page.events)
            return len(events) == 20

        eventually(has_all)
        assert bench.calls.fetches["p1"] in (2, 3)

    def test_alone_it_raises_at_once(self, make_bench):
        bench = make_bench(1)
        bench.connect(attempts=1)
        bench.fill(5)
        bench.sim.fail_next("p0", ThrottledError("too fast", 60.0))
        for _ in range(3):
            error = bench.refused(api.ErrorCategory.THROTTLED, api.Beginning())
            assert error.detail.retry_after_seconds == 60.0
        assert bench.calls.fetches["p0"] == 1


SOON = 60


@pytest.fixture
def pauses(monkeypatch):
    """Do not wait, but record how long each pause would be."""
    waited = []
    # Only there: threads that earlier tests have left, such as monitors of PyMongo, must go on sleeping.
    monkeypatch.setattr("multiclouddb_spi.retry.time", SimpleNamespace(sleep=waited.append))
    return waited


def failing(error, times=None):
    """Return a call that fails `times` times, and then returns the number of attempts."""
    made = []

    def ask(deadline=None):
        made.append(deadline)
        if times is None or len(made) <= times:
            raise type(error)(*error.args)
        return len(made)

    return ask


class TestTries:
    def call(self, sim, ask, seconds=SOON, **settings):
        return Tries(SimulationProvider(sim), **settings).call(ask, Deadline.after(seconds))

    def test_it_is_made_so_often_and_the_last_failure_is_raised(self, bench, pauses):
        told = []
        with pytest.raises(ServerError):
            self.call(bench.sim, failing(ServerError("503")), on_retry=lambda *facts: told.append(facts))
        assert [(number, type(error)) for number, _, error in told] == [
            (number, ServerError) for number in range(1, ATTEMPTS)
        ]
        assert [seconds for _, seconds, _ in told] == pauses

    def test_the_waits_grow_with_full_jitter(self, bench, monkeypatch):
        waited = []
        monkeypatch.setattr("tenacity.wait.random.uniform", lambda low, high: high)
        with pytest.raises(ServerError):
            self.call(bench.sim, failing(ServerError("503")), attempts=8, pause=waited.append)
        assert waited == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])

    def test_the_service_s_pause_is_waited_in_full(self, bench, pauses):
        assert self.call(bench.sim, failing(ThrottledError("slow", 3.0), 2)) == 3
        assert all(3.0 <= seconds <= 3.0 + 2.0 / 4 for seconds in pauses)

    @pytest.mark.parametrize(
        "error",
        [DeniedError("no"), ServerError("503", None, True), KeyboardInterrupt()],
        ids=["for good", "retried by the vendor", "an interrupt"],
    )
    def test_what_is_not_to_be_tried_again_is_not(self, bench, pauses, error):
        ask = failing(error, 1)
        with pytest.raises(type(error)):
            self.call(bench.sim, ask)
        assert (ask(), pauses) == (2, [])

    @pytest.mark.parametrize(
        "cut", [ServerError("no answer in time"), DeniedError("no")], ids=["cut off", "for good"]
    )
    def test_an_attempt_that_the_deadline_cuts_off_does_not_hide_the_failure_before_it(self, bench, cut):
        deadline, told = Deadline.after(SOON), []

        def ask():
            if not told:
                raise ServerError("the replica lags")
            object.__setattr__(deadline, "at", 0.0)
            raise cut

        with pytest.raises(type(cut)) as caught:
            Tries(
                SimulationProvider(bench.sim),
                pause=lambda _: None,
                on_retry=lambda *facts: told.append(facts),
            ).call(ask, deadline)
        assert ("lags" in str(caught.value)) == isinstance(cut, ServerError)

    def test_an_interrupt_of_a_later_try_is_raised(self, bench, pauses):
        def then_interrupted():
            raise KeyboardInterrupt if pauses else ServerError("503")

        with pytest.raises(KeyboardInterrupt):
            self.call(bench.sim, then_interrupted)
        assert len(pauses) == 1

    def test_a_confidential_failure_leaves_nothing_of_the_vendor_s_text(self, bench):
        """Spark and the command line call the service without the engine."""
        provider = SimulationProvider(bench.sim)
        found = Fault(api.ErrorCategory.PERMANENT_FAILURE, "it did not work; try again", confidential=True)
        provider.classify = lambda error: found
        spec = spec_of(provider, api.ChangeFeedRequest(bench.sim.address, api.Now()), "open")
        with pytest.raises(api.MulticloudDbError) as caught:
            OpenFeed(provider, spec, Tries(provider).call, 5).call("plan", failing(ServerError("hunter2")))
        error = caught.value
        assert (error.category, error.detail.operation) == (found.category, "plan")
        assert error.__cause__ is None
        assert error.__suppress_context__
        assert "hunter2" not in f"{error} {error!r} {error.detail!r}"

    def test_an_error_is_classified_once(self, bench):
        provider, error, asked = SimulationProvider(bench.sim), ServerError("503"), []
        classify = provider.classify
        provider.classify = lambda error: asked.append(error) or classify(error)
        assert fault_of(provider, error) is fault_of(provider, error)
        with pytest.raises(api.MulticloudDbError), user_errors(provider, "read"):
            raise error
        assert asked == [error]

    def test_a_failure_is_raised_if_the_retries_cannot_be_loaded(self, bench, monkeypatch):
        """The retry code is loaded at the first failure; without free file handles, loading fails."""
        monkeypatch.setitem(sys.modules, "tenacity", None)
        with pytest.raises(ThrottledError):
            self.call(bench.sim, failing(ThrottledError("slow down")))


LARGE = 100_000


def cut_after(nbytes):
    arrival = Arrival()
    arrival.heard(nbytes)
    return arrival


def test_each_break_quarters_it_and_four_answers_double_it():
    size, seen = AnswerSize(), []
    for _ in range(3):
        seen.append(size.of(1000))
        size.failed(LARGE)
    assert seen == [1000, 250, 62]
    grown = []
    for _ in range(24):
        grown.append(size.of(1000))
        size.succeeded(LARGE, caught_up=False)
    assert grown == [each for each in (15, 31, 62, 125, 250, 500) for _ in range(4)]
    assert size.is_full


def test_an_answer_that_breaks_is_asked_for_in_parts(bench, monkeypatch):
    asked, fetch = [], SimulationReader.fetch

    def breaking(reader, records, *limits):
        asked.append(records)
        if len(asked) == 1:
            current().heard(LARGE)
            raise ServerError("the connection broke")
        return fetch(reader, records, *limits)

    monkeypatch.setattr(SimulationReader, "fetch", breaking)
    bench.fill(100)
    assert len(bench.drain()[0]) == 100
    assert asked[:11] == [20, 5, 5, 5, 5, 10, 10, 10, 10, 20, 20]


@pytest.mark.parametrize(("nbytes", "is_given_up"), [(100, True), (5000, False)])
def test_an_answer_that_trickles_is_given_up(monkeypatch, nbytes, is_given_up):
    now = [1000.0]
    monkeypatch.setattr("multiclouddb_spi.time_limits.time", SimpleNamespace(monotonic=lambda: now[0]))
    arrival = cut_after(nbytes)
    now[0] += 5
    with pytest.raises(TooSlow, match="too slowly") if is_given_up else nullcontext():
        arrival.check()


def test_an_answer_that_slows_down_is_given_up(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("multiclouddb_spi.time_limits.time", SimpleNamespace(monotonic=lambda: now[0]))
    arrival = cut_after(5000)
    now[0] += 5
    arrival.check()
    arrival.heard(100)
    now[0] += 5
    with pytest.raises(TooSlow, match="100 bytes in 4 s"):
        arrival.check()


@pytest.mark.parametrize("nbytes", [0, 500], ids=["no answer", "a refusal"])
def test_a_failure_without_an_answer_changes_nothing(nbytes):
    size = AnswerSize()
    size.failed(nbytes)
    assert size.is_full


class TestUncounted:
    """Some drivers, and an application's own client, do not let anybody count the bytes of an answer."""

    def test_from_the_second_break_on_it_is_quartered(self):
        size, seen = AnswerSize(), []
        for _ in range(4):
            seen.append(size.of(1000))
            size.failed(None)
        assert seen == [1000, 1000, 250, 62]
        for _ in range(100):
            size.failed(None)
        assert size.of(100_000) == 1

    def test_a_server_that_is_down_changes_nothing_where_bytes_are_counted(self):
        size, counting, counted = AnswerSize(), Counting(), Arrival()
        counted.begin()
        for arrival in (counted, *(Arrival() for _ in range(4))):
            size.failed(counting.received(arrival))
        assert size.is_full

    def test_a_server_that_is_down_changes_nothing_for_a_client_that_has_counted_an_answer(
        self, make_bench, monkeypatch
    ):
        """A refused connection has no answer, so it doesn't show whether bytes are counted."""
        bench, asked, fetch = make_bench(partitions=1), [], SimulationReader.fetch

        def counted(reader, records, *limits):
            asked.append(records)
            if 1 < len(asked) < 6:
                raise ServerError("connection refused")
            current().begin()
            return fetch(reader, records, *limits)

        monkeypatch.setattr(SimulationReader, "fetch", counted)
        bench.fill(100)
        assert len(bench.drain()[0]) == 100
        assert set(asked) == {20}

    def test_breaks_with_answers_between_them_change_nothing(self):
        size = AnswerSize()
        for _ in range(4):
            size.failed(None)
            size.succeeded(100, caught_up=False)
        assert size.is_full

    @pytest.mark.parametrize("caught_up", [True, False])
    def test_an_empty_answer_counts_only_if_nothing_is_left(self, caught_up):
        """A stream that is opened again may begin with an empty answer, before the one that is cut."""
        size = AnswerSize()
        for _ in range(4):
            size.failed(None)
            size.succeeded(0, caught_up=caught_up)
        assert size.is_full == caught_up

    def test_records_that_the_reader_leaves_out_make_it_grow(self, bench, monkeypatch):
        """DynamoDB's start at `Now` walks over the older records of a shard."""
        asked, fetch = [], SimulationReader.fetch

        def walking(reader, records, *limits):
            asked.append(records)
            if len(asked) < 4:
                raise ServerError("reset")
            if len(asked) < 24:
                place = reader._place
                return Batch((), reader._mapper, place, place, nbytes=1000, caught_up=False)
            return fetch(reader, records, *limits)

        monkeypatch.setattr(SimulationReader, "fetch", walking)
        bench.fill(100)
        assert len(bench.drain()[0]) == 100
        assert asked[:4] == [20, 20, 5, 1]
        assert set(asked[20:]) == {20}

    def test_an_answer_that_was_given_up_by_the_caller_changes_nothing(self, bench, monkeypatch):
        asked, fetch = [], SimulationReader.fetch

        def cancelled(reader, records, *limits):
            asked.append(records)
            if len(asked) < 4:
                current().cancel()
                raise ServerError("reset")
            return fetch(reader, records, *limits)

        monkeypatch.setattr(SimulationReader, "fetch", cancelled)
        bench.fill(100)
        with suppress(api.MulticloudDbError):
            bench.drain()
        assert set(asked) == {20}

    @pytest.mark.parametrize(
        ("error", "wanted"), [(ServerError("reset"), [20, 20, 5, 1]), (ThrottledError("slow down"), [20] * 4)]
    )
    def test_a_service_that_limits_requests_is_not_asked_for_more_of_them(
        self, bench, monkeypatch, error, wanted
    ):
        asked, fetch = [], SimulationReader.fetch

        def failing_first(reader, records, *limits):
            asked.append(records)
            if len(asked) < 4:
                raise error
            return fetch(reader, records, *limits)

        monkeypatch.setattr(SimulationReader, "fetch", failing_first)
        bench.fill(100)
        assert len(bench.drain()[0]) == 100
        assert asked[:4] == wanted


def test_a_long_answer_counts_although_a_short_one_followed():
    """After a failure, a vendor's client may still tell the server that it needs the cursor no more."""
    size, arrival = AnswerSize(), cut_after(LARGE)
    arrival.begin()
    arrival.heard(40)
    size.failed(Counting().received(arrival))
    assert not size.is_full
