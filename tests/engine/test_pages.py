"""Tests what a page promises: its size limit, its order, its token, and when it may be idle."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from unittest.mock import Mock, call

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_conformance.delegating import WrappedProvider
from multiclouddb_conformance.simulation import (
    ServerError,
    ServiceBehaviour,
    SimulationFeed,
    SimulationProvider,
    SimulationReader,
    TrimmedError,
)
from multiclouddb_conformance.simulation.service_behaviour import CaughtUp
from multiclouddb_spi import Drained, Ended
from multiclouddb_spi.reading.filling import Filling, Waiting


class TestSize:
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
        assert bench.calls.fetches["p0"] == 2, "nothing is read ahead of a first page"


class TestBacklog:
    """While many changes wait, a page that is larger than usual takes several answers of the service.

    A sink commits each page: in pages of one answer each, a night's changes took a hundred commits.
    """

    @pytest.fixture
    def backlog(self, make_bench, monkeypatch):
        """Return a function that makes a bench with 2,100 changes, and holds all but the first answers."""
        fetch, over = SimulationReader.fetch, threading.Event()

        def make(sent, full=500, fails=None, **settings):
            bench, asked = make_bench(behaviour=ServiceBehaviour(page_limit=full)), itertools.count()
            bench.connect(threads=True, **settings)
            bench.fill(2100)

            def held(*arguments):
                number = next(asked)
                if number == fails:
                    raise TrimmedError("gone")
                assert number < sent or over.wait(20)
                return fetch(*arguments)

            monkeypatch.setattr(SimulationReader, "fetch", held)
            return bench

        yield make
        over.set()

    @pytest.fixture
    def fills(self, monkeypatch):
        """Note for each wait with records in hand whether it is that for the rest of a page."""
        noted, more = [], Waiting.for_more

        def for_more(waiting, *, fills):
            noted.append(fills)
            return more(waiting, fills=fills)

        monkeypatch.setattr(Waiting, "for_more", for_more)
        return noted

    def test_fills_the_page(self, backlog, monkeypatch, fills):
        monkeypatch.setattr("multiclouddb_spi.reading.filling._FILL_SECONDS", 20.0)
        assert len(backlog(4).page(size=2000).events) == 2000
        assert True in fills

    @pytest.mark.parametrize(("full", "usual"), [(400, 1000), (500, 2000)], ids=["not full", "usual size"])
    def test_is_not_waited_for_after_a_small_answer_or_in_a_page_of_the_usual_size(
        self, backlog, fills, full, usual
    ):
        """After an answer that is not full, nobody knows whether more follows."""
        assert len(backlog(1, full, page_records=usual).page(size=2000).events) == full
        assert True not in fills

    @pytest.mark.parametrize(("timeout", "seconds"), [(30.0, 0.5), (3.0, 60.0)])
    def test_holds_a_page_up_only_shortly_and_never_past_its_time(
        self, backlog, monkeypatch, timeout, seconds
    ):
        """It is no failure either, because the call had the time to wait for it."""
        monkeypatch.setattr("multiclouddb_spi.reading.filling._FILL_SECONDS", seconds)
        page = backlog(1).page(size=1000, timeout=timeout)
        assert (len(page.events), page.diagnostics.partition_errors) == (500, {})

    @pytest.mark.parametrize(("room", "waits"), [(0.0005, False), (1.0, True)])
    def test_is_not_waited_for_if_no_record_fits(self, backlog, monkeypatch, fills, room, waits):
        bench, sizes, take = backlog(2), [], Filling._take

        def noted(filling, stream):
            sizes.append(stream.batch.nbytes)
            take(filling, stream)

        monkeypatch.setattr(Filling, "_take", noted)
        bench.page(size=500)
        bench.connect(threads=True)
        limit = int(sizes[0] * (1 + room))
        assert len(bench.page(size=1000, max_page_bytes=limit).events) == 500
        assert (True in fills) is waits

    def test_is_not_waited_for_behind_a_notice(self, backlog, fills):
        bench = backlog(2, fails=1)
        page = bench.page(size=1500, on_expired=api.SkipToOldest())
        assert (len(page.events), [type(each) for each in page.notices]) == (500, [api.Gap])
        assert fills[-1] is False


@pytest.mark.shows("Promise 15")
class TestBytes:
    """`max_page_bytes`: a page ends by bytes too, with at least one event, and nothing is lost or starved."""

    @staticmethod
    def _filled(bench, sizes):
        for number, size in enumerate(sizes):
            bench.sim.write(f"k{number}", {"n": bench.sim.head + 1, "text": "x" * size})

    @staticmethod
    def _bytes(page):
        return sum(len(event.new_item_state["text"]) for event in page.events)

    def test_equal_records_fill_a_page_up_to_the_limit(self, bench):
        self._filled(bench, [10_000] * 12)
        pages = list(bench.walk(max_page_bytes=35_000))
        assert [len(page.events) for page in pages][:4] == [3, 3, 3, 3]

    def test_record_that_is_larger_than_the_limit_has_a_page_of_its_own(self, bench):
        self._filled(bench, [50_000] * 4)
        pages = list(bench.walk(max_page_bytes=1))
        assert [len(page.events) for page in pages if page.events] == [1, 1, 1, 1]

    def test_by_default_a_page_has_a_quarter_of_the_buffer(self, make_bench):
        bench = make_bench()
        bench.connect(max_buffered_bytes=400_000)
        self._filled(bench, [30_000] * 10)
        pages = [page for page in bench.walk() if page.events]
        assert [len(page.events) for page in pages] == [3, 3, 3, 1]

    @pytest.mark.parametrize("threads", [False, True])
    @pytest.mark.parametrize("partitions", [1, 3, 16])
    @pytest.mark.parametrize("limit", [1, 900, 5_000, 70_000])
    def test_any_sizes_in_any_partitions(self, make_bench, limit, partitions, threads):
        """Each page has at most the limit and two records more: the average may hide one, and the first
        partition in the queue can put one on the page in any case."""
        bench = make_bench(partitions)
        bench.connect(threads=threads)
        sizes = [(37 * number) % 11 * 400 for number in range(90)]
        self._filled(bench, sizes)
        pages = list(bench.walk(max_page_bytes=limit))
        assert sorted(event.event_id for page in pages for event in page.events) == sorted(bench.written())
        assert max(map(self._bytes, pages)) <= 2 * limit + 2 * max(sizes)

    def test_large_records_of_others_starve_no_partition(self, make_bench):
        """One partition has records that fill a page, and both are read in turn."""
        bench = make_bench(2)
        large, small = bench.key_in("p0"), bench.key_in("p1")
        for number in range(8):
            bench.sim.write(large, {"n": number, "text": "x" * 90_000})
            bench.sim.write(small, {"n": number, "text": "x"})
        pages = [page for page in bench.walk(size=2, max_page_bytes=100_000) if page.events]
        first = [{event.partition_id for event in page.events} for page in pages[:4]]
        assert set().union(*first[:2]) == set(bench.partitions())
        assert sum(len(page.events) for page in pages) == 16

    def test_token_goes_on_with_another_limit(self, bench):
        self._filled(bench, [10_000] * 6)
        page = bench.page(max_page_bytes=20_000)
        rest, _ = bench.drain(page.continuation_token, max_page_bytes=10_000)
        assert [event.event_id for event in [*page.events, *rest]] == bench.written()

    def test_negative_limit_is_refused(self):
        with pytest.raises(api.MulticloudDbError, match=r"max_page_bytes.*use 0 for a quarter"):
            api.ChangeFeedRequest("sim/items", api.Beginning(), max_page_bytes=-1)


def test_a_page_that_only_fixes_the_start_has_no_events(make_bench, monkeypatch):
    """A reader that fails in a first page with events would begin later at its next try, and miss them."""
    bench = make_bench(2)
    start, written = SimulationFeed.start, []

    def followed_by_writes(feed, *arguments):
        seeds = start(feed, *arguments)
        written.extend(bench.sim.write(f"k{number}", {"n": number}).event_id for number in range(3))
        return seeds

    monkeypatch.setattr(SimulationFeed, "start", followed_by_writes)
    page = bench.page(api.Now(), wait=20.0, start_only=True)
    monkeypatch.undo()
    assert (page.events, page.idle, page.resumed_from) == ((), False, None)
    assert len(written) == 3
    assert sorted(event.event_id for event in bench.drain(page.continuation_token)[0]) == sorted(written)


class TestIdle:
    def test_filter_that_still_scans_is_not_idle(self, make_bench, ids):
        """The first answers are empty because of the filter, and the engine continues to read."""
        bench = make_bench(behaviour=ServiceBehaviour(scan_limit=1))
        bench.fill(50, keys=50)
        scope = api.LogicalPartition(api.MulticloudDbKey({"id": "k49"}))
        assert ids(bench.page(scope=scope)) == bench.written()[-1:]

    def test_partition_that_fails_while_the_call_waits_keeps_the_page_from_idle(
        self, make_bench, monkeypatch
    ):
        """A partition first answers that it has no records; in the next read of the same call, it fails."""
        bench = make_bench(partitions=2)
        bench.connect(attempts=1)
        token = bench.page(api.Now()).continuation_token
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

    def test_a_prefetched_nothing_from_before_a_write_is_no_proof(self, make_bench, ids):
        bench = make_bench(behaviour=ServiceBehaviour(caught_up=CaughtUp.WHEN_EMPTY))
        bench.connect(page_records=2)
        bench.fill(4)
        token = bench.page(bench.page(size=2).continuation_token, 2).continuation_token
        assert bench.calls.fetches["p0"] == 3, "the second page should have started a read ahead"
        late = bench.fill_partition("p0")
        page = bench.page(token)
        assert (ids(page), page.idle) == (late, False)

    def test_child_that_waits_keeps_the_page_from_idle_and_the_watermark_back(self, make_bench):
        bench = make_bench(partitions=2)
        token = bench.page(api.Now()).continuation_token
        bench.sim.merge("p0", "p1")
        bound = bench.sim.now
        bench.sim.fail_next("p1", ServerError("503"), times=None)
        bench.sim.advance(60)
        bench.fill(3)
        page = bench.page(token)
        assert page.diagnostics.watermark <= bound
        assert not page.idle
        bench.sim.forgive()
        events, token = bench.drain(page.continuation_token)
        assert len(events) == 3
        assert bench.page(token).idle


class TestNotices:
    def test_dropped_collection_ends_the_feed_for_good(self, make_bench, ended, ids):
        bench = make_bench(partitions=3, behaviour=ServiceBehaviour(drop_notice=True))
        bench.fill(3)
        token = bench.drain()[1]
        bench.sim.drop()
        page = bench.page(token)
        assert [notice for notice in page.notices if isinstance(notice, api.Dropped)] == [
            api.Dropped("sim/items")
        ]
        assert "sim/items" in ended(page)
        assert page.idle
        again = bench.page(page.continuation_token)
        assert ended(again) == ended(page)
        assert again.idle
        assert not again.events

    def test_events_before_the_end_are_delivered_first(self, bench, ids, ended):
        """The collection is dropped while some of its pages are still buffered."""
        bench.sim.behaviour = ServiceBehaviour(drop_notice=True)
        bench.fill(10)
        place, came = api.Beginning(), []
        for size in (1, 1, 2):
            page = bench.page(place, size)
            came += ids(page)
            place = page.continuation_token
        bench.sim.drop()
        pages = list(bench.walk(place, size=2))
        came += [name for page in pages for name in ids(page)]
        assert came == [item.event_id for item in bench.sim.history][: len(came)]
        assert ended(pages[-1])


class TestDiagnostics:
    def test_counts_calls_and_charge(self, make_bench):
        bench = make_bench(partitions=3)
        bench.fill(3)
        told = bench.page().diagnostics
        assert told.requests == bench.calls.total_fetches
        assert told.native_charge == told.requests + 3
        assert told.retries == 0
        assert 0 < told.elapsed_seconds < 10
        assert not told.partition_errors

    def test_calls_for_children_count(self, bench):
        token = bench.page(api.Now()).continuation_token
        bench.sim.delay_children("p0", 2)
        bench.sim.split("p0")
        token = bench.page(token).continuation_token
        page = bench.page(token)
        assert (bench.calls.surveys, page.diagnostics.requests) == (2, 1)
        assert bench.page(page.continuation_token).diagnostics.requests == 1 + 2

    def test_watermark_is_remembered_in_the_token(self, bench):
        bench.fill(5)
        bench.sim.advance(60)
        first = bench.page()
        assert first.diagnostics.watermark == bench.sim.now
        bench.sim.behaviour = ServiceBehaviour(watermarks=False)
        bench.connect()
        assert bench.page(first.continuation_token).diagnostics.watermark == first.diagnostics.watermark

    def test_headroom_of_a_partition_whose_children_are_unknown_stays(self, make_bench):
        bench = make_bench(retention_seconds=600, behaviour=ServiceBehaviour(proves_children=False))
        token = bench.page().continuation_token
        bench.sim.delay_children("p0", 10**6)
        bench.sim.roll("p0")
        page = bench.page(token)
        assert page.diagnostics.retention_headroom_seconds == pytest.approx(600, abs=1)

    def test_headroom_counts_every_position_of_a_waiting_child(self, make_bench, monkeypatch):
        """Two parents have named other positions of it, and the third fails."""
        bench = make_bench(partitions=3)
        fetch, positions = SimulationReader.fetch, []

        def named(self, records, nbytes, wait, deadline):
            batch = fetch(self, records, nbytes, wait, deadline)
            if not isinstance(batch.outcome, Drained):
                return batch
            (child,) = batch.outcome.children
            positions.append(child.cursor + len(positions))
            child = attrs.evolve(child, cursor=positions[-1])
            return attrs.evolve(batch, outcome=attrs.evolve(batch.outcome, children=(child,)))

        monkeypatch.setattr(SimulationReader, "fetch", named)
        monkeypatch.setattr(
            SimulationFeed, "headroom", lambda _, cursor, now: 900.0 - 100 * positions.index(cursor)
        )
        bench.fill(3)
        bench.sim.merge("p0", "p1", "p2")
        bench.sim.fail_next("p2", ServerError("503"), times=None)
        page = bench.page()
        assert len(positions) == 2
        assert page.diagnostics.retention_headroom_seconds == 800.0

    def test_low_headroom_is_told_to_the_observer(self, make_bench):
        bench, seen = make_bench(retention_seconds=3600), Mock(api.Observer)
        bench.connect(observer=seen, headroom_warning_seconds=600)
        bench.fill(3)
        bench.page(size=1)
        seen.retention_headroom_low.assert_not_called()
        bench.sim.advance(3300)
        told = bench.page(size=1).diagnostics
        assert told.retention_headroom_seconds == pytest.approx(300, abs=1)
        seen.retention_headroom_low.assert_called_once_with(
            bench.sim.address, bench.sim.public_id("p0"), told.retention_headroom_seconds
        )

    def test_observer_sees_every_page(self, bench):
        seen = Mock(api.Observer)
        bench.connect(observer=seen)
        bench.fill(3)
        pages = list(bench.walk(size=2))
        assert seen.page.call_args_list == [call(bench.sim.address, page) for page in pages]

    def test_clock_that_fails_costs_the_lag_and_is_not_asked_on_every_page(self, bench, ids):
        asked = []
        bench.fill(30)
        bench.sim.fail_next(None, ServerError("503"), times=None, operation="clock")
        control = bench.sim.control
        bench.sim.control = lambda operation: (asked.append(operation), control(operation))
        pages = list(bench.walk(size=1))
        assert [name for page in pages for name in ids(page)] == bench.written()
        assert {page.diagnostics.lag_seconds for page in pages} == {None}
        assert asked.count("clock") <= 6


def test_a_partition_whose_time_comes_is_asked_again_in_the_same_call(make_bench):
    bench = make_bench(behaviour=ServiceBehaviour(poll_after=0.2))
    bench.connect(threads=True)
    token = bench.page(api.Now()).continuation_token
    bench.fill(3)
    page = bench.page(token, timeout=25)
    assert [event.event_id for event in page.events] == bench.written()


def test_a_page_with_events_does_not_wait_for_a_partition_that_may_not_be_asked_yet(make_bench, ids):
    bench, pauses = make_bench(2, behaviour=ServiceBehaviour(poll_after=5.0)), []
    bench.connect(pause=pauses.append)
    events = bench.fill_partition("p0", 4)
    first = bench.page(size=1)
    second = bench.page(first.continuation_token, size=1)
    pauses.clear()
    third = bench.page(second.continuation_token)
    assert ids([*first.events, *second.events, *third.events]) == events
    assert bench.calls.fetches["p1"] == 1
    assert pauses == []


class SwitchedOff(WrappedProvider):
    """A feed in which each partition ends after its last record."""

    notice = api.FeedEnded("switched off")

    def fetch(self, reader, max_records, max_bytes, wait, deadline):
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        if not len(batch):
            return attrs.evolve(batch, outcome=Ended(self.notice))
        return batch


class Gone(SwitchedOff):
    """The same, of a resource that does not exist any more."""

    notice = api.Invalidated("switched off")


@pytest.mark.parametrize("kind", [SwitchedOff, Gone])
@pytest.mark.parametrize("size", [1, 3, 0])
def test_the_feed_ends_with_its_last_partition_and_says_so_once(make_bench, ended, size, kind):
    bench = make_bench(partitions=3)
    bench.connect(provider=kind(SimulationProvider(bench.sim)))
    for partition, count in (("p0", 0), ("p1", 2), ("p2", 9)):
        if count:
            bench.fill_partition(partition, count)
    pages, token = [], None
    while not pages or not ended(pages[-1]):
        pages.append(bench.page(token, size) if token else bench.page(size=size))
        token = pages[-1].continuation_token
    assert sum(len(page.events) for page in pages) == 11
    told = [kind.notice] if kind is Gone else []
    assert [*pages[-1].notices] == [*told, api.FeedEnded("switched off")]
    # A sink refuses a page on which the resource is gone, so no page says so while others have changes.
    assert not any(page.notices for page in pages[:-1])
    assert ended(bench.page(token)) == "switched off"


def test_a_start_at_now_does_not_trust_a_clock_that_was_carried_on(make_bench, monkeypatch):
    """Events after the start are delivered even if the service's clock was set back or one of its machines
    has a slow clock.
    """
    bench = make_bench(2, behaviour=ServiceBehaviour(proves_children=False))
    bench.connect(coverage_audit_seconds=1e-9)
    real, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + ahead[0])
    bench.page(api.Now())
    ahead[0] = 20.0
    late = bench.sim.open_partitions[1]
    bench.sim.hide(late, 2)
    place = bench.page(api.Now()).continuation_token
    wanted = bench.fill_partition(late, 3)
    bench.sim.split(late)
    found, came = [], []
    for _ in range(10):
        page = bench.page(place)
        found += [notice for notice in page.notices if isinstance(notice, api.PartitionFoundLate)]
        came += [event.event_id for event in page.events]
        place = page.continuation_token
    assert found
    assert came == wanted


SKIP = api.SkipToOldest()


def test_a_failure_that_was_retried_is_not_kept(make_bench):
    """The error's traceback refers to the records that were being read, which may take many megabytes."""
    bench = make_bench()
    bench.fill_partition("p0", 3)
    error = ServerError("503")
    kept = weakref.ref(error)
    bench.sim.fail_next("p0", error)
    del error
    page = bench.page(size=1)
    assert (len(page.events), page.diagnostics.retries) == (1, 1)
    gc.collect()
    assert kept() is None


def test_a_feed_of_one_key_goes_on_with_a_partition_that_is_listed_after_a_loss(make_bench, ids):
    bench = make_bench(behaviour=ServiceBehaviour(late_listing=1))
    bench.connect(coverage_audit_seconds=1e-9)
    scope = api.LogicalPartition(bench.sim.key("k"))
    token = bench.page(api.Now(), scope=scope).continuation_token
    bench.sim.write("k", {})
    child = bench.sim.roll("p0")
    last = bench.sim.roll(child)
    bench.sim.hide(last, 4)
    bench.sim.trim("p0")
    bench.sim.trim(child)
    left = bench.sim.write("k", {}).event_id
    found = []
    for _ in range(9):
        page = bench.page(token, scope=scope, on_expired=SKIP)
        token, found = page.continuation_token, found + ids(page)
    assert (found, page.idle) == ([left], True)
