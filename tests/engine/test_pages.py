"""Tests what a page promises: its size limit, its order, its token, and when it may be idle."""

import threading
from datetime import timedelta

import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    Dropped,
    ErrorCategory,
    Invalidated,
    LogicalPartition,
    MulticloudDbKey,
    Now,
    Observer,
    PhysicalPartition,
    RecordSkipped,
    Renamed,
)
from multiclouddb_conformance.simulation import ServerError, ServiceBehaviour, SimulationReader
from multiclouddb_spi.continuation.token import decode_token


def grown(bench):
    """Make a short history with transactions, a split, a merge, a roll and deletes."""
    sim = bench.sim
    bench.fill(12)
    sim.transaction([(f"k{number}", {"n": number}) for number in range(10)])
    sim.split(sim.open_partitions[0])
    bench.fill(12)
    sim.merge(*sim.open_partitions[:2])
    sim.transaction([(f"k{number}", None) for number in range(5)])
    sim.roll(sim.open_partitions[0])
    bench.fill(12)


def state(page):
    """Return the position in a page's token.

    Tokens also contain their time of issue, so their texts differ.
    """
    return decode_token(page.continuation_token).state


class TestSize:
    @pytest.mark.parametrize("size", [1, 2, 7, 29, 30, 31])
    def test_bound_is_hard_inside_a_transaction(self, bench, ids, size):
        bench.sim.transaction([(f"k{number}", {"n": number}) for number in range(30)])
        pages = list(bench.walk(size=size))
        assert max(len(page.events) for page in pages) == min(size, 30)
        assert [name for page in pages for name in ids(page)] == bench.written()

    def test_bound_holds_over_several_partitions(self, make_bench):
        bench = make_bench(partitions=5)
        bench.connect()
        bench.fill(60, keys=60)
        pages = list(bench.walk(size=7))
        assert {len(page.events) for page in pages[:-2]} == {7}

    def test_0_means_the_page_of_the_provider(self, bench):
        bench.fill(50)
        assert [len(page.events) for page in bench.walk()] == [20, 20, 10, 0]

    def test_page_larger_than_the_provider_has_is_filled(self, bench):
        bench.fill(50)
        assert len(bench.page(size=45).events) == 45

    def test_service_is_not_asked_for_more_than_a_first_small_page_needs(self, bench):
        """A caller that asks for one event does not cause a read of a thousand events."""
        bench.fill(50)
        bench.page(size=1)
        assert bench.page(size=1).diagnostics.native_charge <= 3


class TestResume:
    def test_one_token_gives_the_same_events_to_many_threads(self, make_bench, ids):
        bench = make_bench(partitions=3)
        bench.connect(threads=True)
        bench.fill(60, keys=20)
        first = bench.page(size=4)
        came = [None] * 8

        def read(number):
            came[number] = sorted(ids(bench.drain(first.continuation_token, size=number + 1)[0]))

        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert came == [sorted(set(bench.written()) - set(ids(first)))] * 8


class TestTokenMoves:
    def test_token_moves_on_an_empty_page_when_the_service_does(self, make_bench):
        bench = make_bench(partitions=2)
        bench.connect()
        quiet, busy = bench.sim.open_partitions
        scope = PhysicalPartition(bench.sim.public_id(quiet))
        before = bench.page(Now(), scope=scope)
        bench.fill_partition(busy, 5)
        after = bench.page(before.continuation_token, scope=scope)
        assert after.idle
        assert not after.events
        assert decode_token(after.continuation_token).state != decode_token(before.continuation_token).state

    def test_idle_feed_never_falls_out_of_retention(self, make_bench, ids):
        bench = make_bench(partitions=2)
        bench.connect()
        quiet, busy = bench.sim.open_partitions
        scope = PhysicalPartition(bench.sim.public_id(quiet))
        first = token = bench.page(Now(), scope=scope).continuation_token
        for _ in range(20):
            bench.fill_partition(busy, 3)
            token = bench.page(token, scope=scope).continuation_token
            bench.sim.trim()
        late = bench.fill_partition(quiet)
        assert ids(bench.page(token, scope=scope)) == late
        bench.refused(ErrorCategory.CHECKPOINT_EXPIRED, first, scope=scope)

    def test_token_is_there_on_every_page(self, bench):
        bench.fill(5)
        assert all(page.continuation_token for page in bench.walk(size=2))

    def test_record_out_of_scope_moves_the_token(self, bench):
        bench.fill(3)
        scope = LogicalPartition(MulticloudDbKey({"id": "nobody"}))
        before = bench.page(Now(), scope=scope)
        bench.fill(3)
        after = bench.page(before.continuation_token, scope=scope)
        assert not after.events
        assert decode_token(after.continuation_token).state != decode_token(before.continuation_token).state


class TestIdle:
    def test_filter_that_still_scans_is_not_idle(self, make_bench, ids):
        """The first answers are empty because of the filter, and the engine continues to read."""
        bench = make_bench(behaviour=ServiceBehaviour(scan_limit=1))
        bench.connect()
        bench.fill(50, keys=50)
        scope = LogicalPartition(MulticloudDbKey({"id": "k49"}))
        assert ids(bench.page(scope=scope)) == bench.written()[-1:]

    def test_partition_without_an_answer_keeps_the_page_from_idle(self, make_bench):
        bench = make_bench(partitions=2)
        bench.connect()
        first = bench.page(Now())
        bench.sim.fail_next("p1", ServerError("503"), times=None)
        page = bench.page(first.continuation_token)
        assert not page.idle
        assert not page.events
        bench.sim.forgive()
        assert bench.page(page.continuation_token).idle

    def test_partition_that_fails_while_the_call_waits_keeps_the_page_from_idle(
        self, make_bench, monkeypatch
    ):
        """A partition first answers that it has no records; in the next read of the same call, it fails."""
        bench = make_bench(partitions=2)
        bench.connect(attempts=1)
        token = bench.page(Now()).continuation_token
        fetch, fetches = SimulationReader.fetch, []

        def failing_later(self, *args):
            fetches.append(self._id)
            if fetches.count("p1") > 1:
                raise ServerError("503")
            return fetch(self, *args)

        monkeypatch.setattr(SimulationReader, "fetch", failing_later)
        page = bench.page(token, wait=0.1)
        assert fetches.count("p1") > 1
        assert not page.idle
        assert list(page.diagnostics.partition_errors) == [bench.sim.public_id("p1")]

    def test_partition_that_waits_for_its_children_keeps_the_page_from_idle(self, bench, ids):
        token = bench.page(Now()).continuation_token
        bench.sim.delay_children("p0", 3)
        bench.sim.split("p0")
        late = bench.fill_partition(bench.sim.open_partitions[0])
        came = []
        for page in bench.walk(token):
            came += ids(page)
            assert page.idle == (came == late and not page.events)

    def test_answer_to_an_earlier_call_is_no_proof(self, make_bench, eventually, ids):
        """After the call has ended, p1 answers that it has no more changes; then a change is written."""
        bench = make_bench(partitions=2)
        bench.connect(threads=True)
        token = bench.page(Now()).continuation_token
        bench.fill_partition("p0")
        bench.sim.hold("p1")
        token = bench.page(token).continuation_token
        fetches = bench.calls.fetches["p1"]
        assert bench.sim.waiting() == {"p1": 1}
        bench.sim.release("p1")
        eventually(lambda: not bench.sim.waiting())
        with bench.sim.changed:
            late = bench.fill_partition("p1")
        page = bench.page(token)
        assert ids(page) == late
        assert bench.calls.fetches["p1"] >= fetches

    def test_stale_empty_answer_is_asked_again(self, make_bench, eventually):
        bench = make_bench(partitions=2)
        bench.connect(threads=True)
        token = bench.page(Now()).continuation_token
        bench.fill_partition("p0")
        bench.sim.hold("p1")
        token = bench.page(token).continuation_token
        before = bench.calls.fetches["p1"]
        bench.sim.release("p1")
        eventually(lambda: not bench.sim.waiting())
        assert bench.page(token).idle
        assert bench.calls.fetches["p1"] == before + 1

    def test_child_that_waits_keeps_the_page_from_idle(self, make_bench):
        bench = make_bench(partitions=2)
        bench.connect()
        token = bench.page(Now()).continuation_token
        bench.sim.merge("p0", "p1")
        bench.sim.fail_next("p1", ServerError("503"), times=None)
        page = bench.page(token)
        assert not page.idle
        bench.sim.forgive()
        assert bench.page(page.continuation_token).idle


class TestAtTime:
    def test_seconds_ahead_of_the_service_are_named(self, bench):
        moment = bench.sim.now + timedelta(seconds=300)
        error = bench.refused(ErrorCategory.INVALID_REQUEST, AtTime(moment), match=r"AtTime\.utc")
        assert "300 s ahead" in error.message or "299 s ahead" in error.message
        assert bench.calls.starts == 0

    def test_a_minute_ahead_is_taken_for_now(self, bench, ids):
        bench.fill(3)
        first = bench.page(AtTime(bench.sim.now + timedelta(seconds=50)))
        assert first.idle
        after = bench.sim.head
        bench.fill(3)
        assert ids(bench.page(first.continuation_token)) == bench.written(after)


class TestEvents:
    def test_native_record_comes_when_asked_for(self, bench):
        bench.fill(1)
        assert bench.page(include_native=True).events[0].native == bench.sim.truth[0]

    def test_partition_id_of_an_event_can_be_read_by_itself(self, make_bench, ids):
        bench = make_bench(partitions=2)
        bench.connect()
        bench.fill(10)
        events = bench.drain()[0]
        name = events[0].partition_id
        own = [event.event_id for event in events if event.partition_id == name]
        assert ids(bench.page(scope=PhysicalPartition(name))) == own


class TestNotices:
    def test_facts_alone_make_a_page(self, bench):
        bench.sim.announce("p0", Renamed("items", "things"))
        page = bench.page()
        assert page.notices
        assert not page.events

    def test_dropped_collection_ends_the_feed_for_good(self, make_bench, ended, ids):
        bench = make_bench(partitions=3, behaviour=ServiceBehaviour(drop_notice=True))
        bench.connect()
        bench.fill(3)
        token = bench.drain()[1]
        bench.sim.drop()
        page = bench.page(token)
        assert [notice for notice in page.notices if isinstance(notice, Dropped)] == [Dropped("sim/items")]
        assert "sim/items" in ended(page)
        assert page.idle
        again = bench.page(page.continuation_token)
        assert ended(again) == ended(page)
        assert again.idle
        assert not again.events

    def test_end_of_the_feed_is_told_after_a_restart_too(self, make_bench, ended):
        bench = make_bench(behaviour=ServiceBehaviour(drop_notice=True))
        bench.connect()
        token = bench.page(Now()).continuation_token
        bench.sim.drop()
        last = bench.page(token)
        bench.connect()
        again = bench.page(last.continuation_token)
        assert ended(again) == ended(last)
        assert state(again) == state(last)

    def test_events_before_the_end_are_delivered_first(self, bench, ids, ended):
        """The collection is dropped while some of its pages are still buffered."""
        bench.sim.behaviour = ServiceBehaviour(drop_notice=True)
        bench.fill(10)
        place, came = Beginning(), []
        for size in (1, 1, 2):
            page = bench.page(place, size)
            came += ids(page)
            place = page.continuation_token
        bench.sim.drop()
        pages = list(bench.walk(place, size=2))
        came += [name for page in pages for name in ids(page)]
        assert came == [item.event_id for item in bench.sim.history][: len(came)]
        assert ended(pages[-1])

    def test_skipped_record_is_told_once(self, bench, ids):
        bench.sim.write("a", {"n": 1}, poison=True)
        bench.fill(3)
        error = bench.refused(ErrorCategory.PROVIDER_ERROR)
        page = bench.page(error.detail.skip_token)
        (notice,) = page.notices
        assert isinstance(notice, RecordSkipped)
        assert notice.partition_id == bench.sim.public_id("p0")
        assert notice.position in error.message
        assert not page.events
        assert not page.idle
        page = bench.page(page.continuation_token)
        assert ids(page) == bench.written()[1:]
        assert not page.notices

    def test_notice_that_is_no_end_does_not_end(self, bench, ended):
        bench.sim.announce("p0", Invalidated("somebody said so"))
        page = bench.page()
        assert ended(page) is None


class Seen(Observer):
    def __init__(self):
        self.low, self.pages = [], []

    def retention_headroom_low(self, address, partition_id, seconds):
        self.low.append((address, partition_id, seconds))

    def page(self, address, page):
        self.pages.append((address, page))


class TestDiagnostics:
    def test_counts_calls_and_charge(self, bench):
        bench.fill(3)
        told = bench.page().diagnostics
        assert told.requests == bench.calls.total_fetches
        assert told.native_charge == told.requests + 3
        assert told.retries == 0
        assert told.elapsed_seconds > 0
        assert not told.partition_errors

    def test_calls_for_children_count(self, bench):
        token = bench.page(Now()).continuation_token
        bench.sim.delay_children("p0", 2)
        bench.sim.split("p0")
        token = bench.page(token).continuation_token
        page = bench.page(token)
        assert (bench.calls.surveys, page.diagnostics.requests) == (2, 1)
        assert bench.page(page.continuation_token).diagnostics.requests == 1 + 2

    def test_retries_are_counted(self, bench):
        bench.fill(3)
        bench.sim.fail_next("p0", ServerError("503"), times=2)
        assert bench.page().diagnostics.retries == 2

    def test_lag_is_the_distance_to_the_service(self, bench):
        bench.fill(10)
        bench.sim.advance(60)
        lagging = bench.page(size=2).diagnostics
        assert lagging.lag_seconds == pytest.approx(60, abs=5)
        assert list(bench.walk())[-1].diagnostics.lag_seconds < 5

    def test_watermark_never_goes_back_and_no_later_event_is_older(self, make_bench):
        bench = make_bench(partitions=3)
        bench.connect()
        grown(bench)
        mark = None
        for page in bench.walk(size=3):
            assert all(mark is None or event.timestamp >= mark for event in page.events)
            told = page.diagnostics.watermark
            assert mark is None or told >= mark
            mark = told
        assert mark == bench.sim.now

    def test_watermark_is_remembered_in_the_token(self, bench):
        bench.fill(5)
        bench.sim.advance(60)
        first = bench.page()
        assert first.diagnostics.watermark == bench.sim.now
        bench.sim.behaviour = ServiceBehaviour(watermarks=False)
        bench.connect()
        assert bench.page(first.continuation_token).diagnostics.watermark == first.diagnostics.watermark

    def test_watermark_is_held_back_by_a_child_that_waits(self, make_bench):
        bench = make_bench(partitions=2)
        bench.connect()
        token = bench.page(Now()).continuation_token
        bench.sim.merge("p0", "p1")
        bound = bench.sim.now
        bench.sim.fail_next("p1", ServerError("503"), times=None)
        bench.sim.advance(60)
        bench.fill(3)
        assert bench.page(token).diagnostics.watermark <= bound

    def test_service_that_tells_nothing_leaves_none(self, bench, monkeypatch):
        monkeypatch.setattr(type(bench.sim), "commit_time", lambda self, number: None)
        bench.sim.behaviour = ServiceBehaviour(watermarks=False)
        bench.fill(3)
        told = bench.page().diagnostics
        assert told.watermark is None
        assert told.lag_seconds is None
        assert told.retention_headroom_seconds is None

    def test_low_headroom_is_told_to_the_observer(self, make_bench):
        bench = make_bench(retention_seconds=3600)
        seen = Seen()
        bench.connect(observer=seen, headroom_warning_seconds=600)
        bench.fill(3)
        bench.page(size=1)
        assert seen.low == []
        bench.sim.advance(3300)
        told = bench.page(size=1).diagnostics
        assert told.retention_headroom_seconds == pytest.approx(300, abs=1)
        ((address, partition_id, seconds),) = seen.low
        assert address == bench.sim.address
        assert partition_id == bench.sim.public_id("p0")
        assert seconds == told.retention_headroom_seconds

    def test_observer_sees_every_page(self, bench):
        seen = Seen()
        bench.connect(observer=seen)
        bench.fill(3)
        pages = list(bench.walk(size=2))
        assert seen.pages == [(bench.sim.address, page) for page in pages]

    def test_clock_that_fails_costs_the_lag_and_not_the_page(self, bench, ids):
        bench.fill(3)
        bench.sim.fail_next(None, ServerError("503"), times=None, operation="clock")
        page = bench.page()
        assert ids(page) == bench.written()
        assert page.diagnostics.lag_seconds is None

    def test_clock_is_not_asked_on_every_page(self, bench):
        asked = []
        bench.fill(30)
        control = bench.sim.control
        bench.sim.control = lambda operation: (asked.append(operation), control(operation))
        list(bench.walk(size=1))
        assert asked.count("clock") == 1

    def test_clock_that_fails_is_not_asked_on_every_page(self, bench):
        asked = []
        bench.fill(30)
        bench.sim.fail_next(None, ServerError("503"), times=None, operation="clock")
        control = bench.sim.control
        bench.sim.control = lambda operation: (asked.append(operation), control(operation))
        list(bench.walk(size=1))
        assert asked.count("clock") <= 6
