"""Tests what the engine does for `Snapshot()`: places on a page, the rate, the end of the scan, faults."""

import json
import threading
import time
from unittest.mock import Mock

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import (
    Listing,
    ServerError,
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
    SimulationReader,
)
from multiclouddb_conformance.simulation import feed as simulated_feed
from multiclouddb_conformance.simulation import provider as simulated
from multiclouddb_conformance.simulation.segments import SegmentReader, cut_segments
from multiclouddb_spi import (
    Awaiting,
    Batch,
    Child,
    Deadline,
    Drained,
    Ended,
    Engine,
    Feed,
    FeedSpec,
    InlineExecutor,
    Planner,
    Scanned,
)
from multiclouddb_spi.continuation.entry import Entry, Plan, Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import state_from_json
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_spi.cursor import InvalidCursor
from multiclouddb_spi.faults import Fault
from multiclouddb_spi.fetching.scan_share import ScanShare
from multiclouddb_spi.fetching.stream import TURN_SECONDS

from .reading import write

ORDERED, INTERLEAVED, AUTO = api.SnapshotOrder.ORDERED, api.SnapshotOrder.INTERLEAVED, api.SnapshotOrder.AUTO
GONE = Fault(api.ErrorCategory.CHECKPOINT_EXPIRED, "gone")


class Consumer:
    """A consumer that reads one feed page by page, by default in one thread."""

    def __init__(
        self, sim, order=INTERLEAVED, size=8, *, threads=False, observer=None, config=None, **wanted
    ):
        self.sim, self.size, self.position = sim, size, api.Snapshot(order, **wanted)
        config = api.ClientConfig("simulation", {}, coverage_audit_seconds=0.0, **(config or {}))
        settings = {} if threads else {"executor": InlineExecutor()}
        self.engine = Engine(SimulationProvider(sim), config, observer, pause=lambda _: None, **settings)

    def page(self, timeout=30.0, **settings):
        request = api.ChangeFeedRequest(self.sim.address, self.position, max_page_size=self.size, **settings)
        page = self.engine.read_changes(request, api.OperationOptions(timeout))
        self.position = api.FromContinuationToken(page.continuation_token)
        return page

    def pages(self, **settings):
        while True:
            page = self.page(**settings)
            yield page
            if page.idle or page.partition_retired:
                return

    def plan(self, **settings):
        request = api.ChangeFeedRequest(self.sim.address, self.position)
        return self.engine.plan_partitions(request, api.OperationOptions(), **settings)

    def part(self, name, token, **settings):
        """Read one planned partition or segment to its end."""
        self.position = api.FromContinuationToken(token)
        return list(self.pages(scope=api.PhysicalPartition(name, **settings)))

    @property
    def lineage(self):
        return state_from_json(decode_token(self.position.token).state, RULES)


def filled(count, partitions=1, retention=None, **habits):
    sim = Simulation(partitions, ServiceBehaviour(**habits), retention_seconds=retention)
    write(sim, count)
    return sim


def busy(sim, count, name="busy"):
    for number in range(count):
        sim.write(f"{name}{number}" if name == "new" else name, {"n": number})


def kinds(*pages):
    return [event.backfilled for page in pages for event in page.events]


def refused(consumer, match, category=None, **settings):
    with pytest.raises(api.MulticloudDbError, match=match) as caught:
        list(consumer.pages(**settings))
    assert category in (None, caught.value.category)
    return caught.value


class TestPlaces:
    @pytest.mark.parametrize(("size", "pages"), [(1, 40), (2, 20), (3, 40), (8, 20)])
    def test_the_scan_keeps_a_quarter_while_changes_come_fast(self, size, pages):
        sim = filled(60)
        consumer = Consumer(sim, size=size)
        consumer.page()
        busy(sim, 400)
        found = [kinds(consumer.page()) for _ in range(pages)]
        assert sum(page.count(True) for page in found) == pages * size // 4
        assert size < 8 or all(page[0] is False for page in found), "the stream is asked first"

    def test_a_stream_with_small_answers_is_asked_until_it_has_its_share(self):
        sim = filled(60, page_limit=1)
        consumer = Consumer(sim)
        consumer.page()
        busy(sim, 400)
        assert [kinds(consumer.page()).count(False) for _ in range(10)] == [6] * 10

    def test_the_scan_takes_what_the_stream_leaves(self):
        consumer = Consumer(filled(40))
        consumer.page()
        assert kinds(consumer.page()) == [True] * 8

    def test_the_oldest_position_of_the_stream_is_asked_first(self):
        sim = filled(40, partitions=2)
        consumer = Consumer(sim, size=2)
        consumer.page()
        busy(sim, 60, "new")
        events = [event for _ in range(30) for event in consumer.page().events if not event.backfilled]
        last = {event.partition_id: event.timestamp for event in events}
        assert len(last) == 2
        assert abs(max(last.values()) - min(last.values())).total_seconds() < 0.02

    def test_a_worn_position_takes_the_places_of_the_scan(self):
        sim = filled(40, retention=100.0)
        consumer, found = Consumer(sim), []
        consumer.page()
        for seconds in (0, 60):
            sim.advance(seconds)
            busy(sim, 100)
            found.append(kinds(consumer.page()).count(True))
        assert found == [2, 0]

    def test_a_scan_that_ends_early_leaves_the_page_to_the_changes(self, monkeypatch):
        consumer = Consumer(filled(40, page_limit=2), config={"max_concurrency": 1})
        consumer.page()
        end_segments(monkeypatch)
        busy(consumer.sim, 20)
        page = consumer.page()
        assert [type(notice) for notice in page.notices] == [api.Dropped]
        assert kinds(page) == [False] * 8


class TestAuto:
    def test_it_begins_ordered_and_releases_the_stream_at_half_of_the_retention(self):
        sim, seen = filled(60, retention=100.0), Mock(api.Observer)
        consumer = Consumer(sim, AUTO, 4, observer=seen)
        consumer.page()
        sim.write("k1", {"n": 100})
        for seconds in (0, 45):
            sim.advance(seconds)
            page = consumer.page()
            assert False not in kinds(page)
            assert page.diagnostics.snapshot.order is ORDERED
        seen.snapshot_interleaved.assert_not_called()
        sim.advance(10)
        page = consumer.page()
        assert False in kinds(page)
        assert page.diagnostics.snapshot.order is INTERLEAVED
        (told,) = seen.snapshot_interleaved.call_args_list
        assert round(told.args[1]) == 45
        assert page.diagnostics.retention_headroom_seconds is not None

    @pytest.mark.parametrize("order", [ORDERED, AUTO])
    def test_the_headroom_of_a_stream_that_waits_is_told(self, order):
        sim = filled(40, retention=100.0)
        consumer = Consumer(sim, order, 4)
        consumer.page()
        sim.advance(30)
        assert round(consumer.page().diagnostics.retention_headroom_seconds) == 70

    def test_a_retention_that_is_known_later_counts_from_then(self):
        sim = filled(60)
        consumer = Consumer(sim, AUTO, 4)
        consumer.page()
        sim.advance(1e6)
        assert consumer.page().diagnostics.snapshot.order is ORDERED
        sim.retention_seconds = 100.0
        assert consumer.page().diagnostics.snapshot.order is ORDERED
        sim.advance(55)
        assert consumer.page().diagnostics.snapshot.order is INTERLEAVED


def test_what_an_audit_finds_waits_for_the_scan():
    sim = filled(20, partitions=2)
    sim.hide("p1", 1)
    consumer = Consumer(sim, ORDERED, 4)
    consumer.page()
    busy(sim, 30, "new")
    pages = list(consumer.pages())
    assert any(isinstance(notice, api.PartitionFoundLate) for page in pages for notice in page.notices)
    assert kinds(*pages) == sorted(kinds(*pages), reverse=True)
    assert kinds(*pages).count(False) >= 30


def end_segments(monkeypatch):
    """Let each segment end as if the collection were dropped."""

    def fetch(self, most, nbytes):
        here = self._cursor()
        return Batch([], self._mapper, here, here, Ended(api.Dropped(self._id)), 0, caught_up=True)

    monkeypatch.setattr(SegmentReader, "_fetch", fetch)


class TestTrouble:
    def test_a_plan_that_cannot_be_cut_now_is_cut_later(self):
        sim = filled(10)
        consumer = Consumer(sim, ORDERED)
        consumer.page()
        sim.fail_next(None, ServerError("503"), times=10, operation="segments")
        with pytest.raises(api.MulticloudDbError) as caught:
            consumer.page()
        assert caught.value.retryable
        assert len(kinds(*consumer.pages())) == 10

    @pytest.mark.parametrize("operation", ["segments", "snapshot"])
    def test_a_failure_for_good_is_raised(self, operation):
        sim = filled(10)
        fault = Fault(api.ErrorCategory.AUTHORIZATION_FAILED, "may not scan; ask for the right")
        sim.fail_next(None, fault, operation=operation)
        refused(Consumer(sim, ORDERED), "may not scan")

    def test_a_collection_that_is_dropped_is_never_done(self):
        sim = filled(30)
        consumer = Consumer(sim, ORDERED, 4)
        consumer.page()
        consumer.page()
        sim.drop()
        refused(consumer, "dropped", api.ErrorCategory.NOT_FOUND)

    @pytest.mark.parametrize("outcome", [Drained((Child("c", ("p0",), 1),)), Drained(()), Awaiting()])
    def test_a_provider_that_ends_a_segment_like_a_partition_is_refused(self, monkeypatch, outcome):
        """Else the token would lose a part of the scan, or a partition would be read twice."""
        whole = SegmentReader._fetch

        def fetch(self, most, nbytes):
            batch = whole(self, most, nbytes)
            return attrs.evolve(batch, outcome=outcome) if isinstance(batch.outcome, Scanned) else batch

        monkeypatch.setattr(SegmentReader, "_fetch", fetch)
        consumer = Consumer(filled(40), ORDERED)
        refused(consumer, "violates the contract", api.ErrorCategory.PERMANENT_FAILURE)

    def test_a_provider_that_cuts_twice_is_refused(self, monkeypatch):
        consumer = Consumer(filled(20), ORDERED)
        consumer.page()
        plan = consumer.lineage.plan
        once = cut_segments(plan.scan, plan.cursor, 1)[0]
        monkeypatch.setattr(simulated_feed, "cut_segments", lambda scan, rest, count: (once, rest))
        refused(consumer, "cut twice")

    def test_a_provider_that_cuts_nothing_is_asked_a_hundred_times_a_page(self, monkeypatch):
        consumer, asked = Consumer(filled(20), ORDERED), []
        consumer.page()

        def nothing(scan, rest, count):
            asked.append(count)
            return [], rest

        monkeypatch.setattr(simulated_feed, "cut_segments", nothing)
        page = consumer.page()
        assert (len(asked), page.events, page.idle) == (100, (), False)
        monkeypatch.undo()
        assert len(kinds(*consumer.pages())) == 20

    @pytest.mark.parametrize("threads", [False, True])
    @pytest.mark.parametrize("pages", [1, 3])
    @pytest.mark.parametrize("order", [ORDERED, INTERLEAVED])
    def test_a_segment_that_ends_the_feed_takes_those_in_flight_with_it(
        self, threads, pages, order, monkeypatch
    ):
        consumer = Consumer(filled(80, 2), order, 4, threads=threads)
        for _ in range(pages):
            consumer.page()
        end_segments(monkeypatch)
        notices = [type(notice) for page in consumer.pages() for notice in page.notices]
        assert notices == [api.Dropped]

    def test_a_provider_without_snapshots_refuses_the_token_of_one(self, monkeypatch):
        consumer = Consumer(filled(40))
        consumer.page()
        scans = ("snapshot", "segments", "__dict__", "__weakref__")
        kept = {name: member for name, member in vars(SimulationFeed).items() if name not in scans}
        monkeypatch.setattr(simulated, "SimulationFeed", type("PlainFeed", (Feed,), kept))
        other = Consumer(consumer.sim)
        other.position = consumer.position
        refused(other, "does not support snapshots", api.ErrorCategory.INVALID_REQUEST)

    def test_changes_do_not_wait_for_a_scan_that_fails(self, monkeypatch):
        sim = filled(200, 2)
        consumer, waits = Consumer(sim, threads=True), []
        consumer.engine._calls.kept.context.fetcher._pause = consumer.engine._calls.kept.context.closed.wait
        consumer.page()

        def fetch(self, most, nbytes):
            raise ServerError("503 from the scan")

        monkeypatch.setattr(SegmentReader, "_fetch", fetch)
        busy(sim, 60, "new")
        for _ in range(6):
            began = time.monotonic()
            assert kinds(consumer.page()) == [False] * 8
            waits.append(time.monotonic() - began)
        # Otherwise, each page would wait for a slow partition for up to 2 seconds.
        assert sorted(waits)[3] < TURN_SECONDS / 2, waits

    def test_rows_that_come_slowly_keep_their_places(self, monkeypatch):
        sim = filled(60)
        consumer, fetch = Consumer(sim, threads=True), SegmentReader.fetch
        consumer.page()

        def slow(reader, *asked):
            time.sleep(0.15)
            return fetch(reader, *asked)

        def counted(scanning, running, longest):
            looks.append(longest)
            return patience(scanning, running, longest)

        looks, patience = [], ScanShare.patience
        monkeypatch.setattr(SegmentReader, "fetch", slow)
        monkeypatch.setattr(ScanShare, "patience", counted)
        busy(sim, 60)
        assert kinds(consumer.page()).count(True) == 2
        assert 0 < len(looks) < 100  # and the call sleeps meanwhile

    def test_changes_that_come_slowly_keep_their_places(self, monkeypatch):
        sim = filled(200, 2)
        consumer, fetch = Consumer(sim, threads=True), SimulationReader.fetch
        consumer.page()
        busy(sim, 60)
        begun = threading.Event()

        def late(reader, *asked):
            assert begun.wait(20)
            return fetch(reader, *asked)

        def taken(scanning, turn, number):
            found = places(scanning, turn, number)
            begun.set()  # rows are here, and the changes come only now
            return found

        places = ScanShare.places
        monkeypatch.setattr(SimulationReader, "fetch", late)
        monkeypatch.setattr(ScanShare, "places", taken)
        assert kinds(consumer.page()).count(False) == 6

    @pytest.mark.parametrize("answer", ["late", "slow and empty"])
    def test_changes_are_delivered_while_no_segment_comes(self, answer, monkeypatch):
        sim = filled(40, 2, slow=1.0, latency=0.05)
        consumer = Consumer(sim, threads=True, size=4)
        consumer.page()

        def segments(self, scan, rest, count, deadline):
            time.sleep(deadline.remaining() + 0.05 if answer == "late" else 0.4)
            return [], rest

        monkeypatch.setattr(SimulationFeed, "segments", segments)
        busy(sim, 4)
        page = consumer.page(timeout=1.5)
        assert len(page.events) > 0
        assert not page.idle


def test_the_end_of_the_scan_waits_for_no_partition():
    sim = filled(0)
    consumer, notices = Consumer(sim, ORDERED, threads=True), []
    consumer.page()
    sim.hold("p0")
    try:
        began = time.monotonic()
        while api.BackfillDone not in map(type, notices):
            notices += consumer.page(timeout=12).notices
        assert time.monotonic() - began < 8
    finally:
        sim.release()


class TestCutting:
    def segments(self, monkeypatch, answer):
        asked = []

        def segments(self, scan, rest, count, deadline):
            asked.append((count, deadline.remaining()))
            return answer(scan, rest)

        monkeypatch.setattr(SimulationFeed, "segments", segments)
        return asked

    def test_one_answer_with_segments_is_enough_for_a_call(self, monkeypatch):
        asked = self.segments(monkeypatch, lambda scan, rest: cut_segments(scan, rest, 1))
        consumer = Consumer(filled(80), ORDERED, size=4)
        consumer.page()
        assert len(consumer.page().events) == 4
        assert len(asked) == 1
        consumer.page()
        assert [count for count, _ in asked] == [8, 7]

    @pytest.mark.parametrize(("timeout", "most"), [(16, 8), (60, 10)])
    def test_cutting_takes_half_of_the_time_at_most(self, monkeypatch, timeout, most):
        asked = self.segments(monkeypatch, lambda scan, rest: cut_segments(scan, rest, 1))
        consumer = Consumer(filled(80), ORDERED, size=4)
        consumer.page()
        consumer.page(timeout=timeout)
        ((count, seconds),) = asked
        assert count == 8
        assert most - 2 < seconds <= most

    def test_a_plan_that_is_always_empty_is_never_done(self, monkeypatch):
        consumer = Consumer(filled(5))
        consumer.page()
        self.segments(monkeypatch, lambda scan, rest: ([], rest))
        assert [(page.idle, page.notices) for page in (consumer.page() for _ in range(3))] == [
            (False, ())
        ] * 3

    def test_every_segment_and_row_is_counted(self):
        consumer, rows = Consumer(filled(40), ORDERED, 4, segments=10), 0
        found = []
        for page in consumer.pages():
            rows += kinds(page).count(True)
            if (progress := page.diagnostics.snapshot) is not None:
                found.append(progress)
                assert (progress.rows, progress.segments, progress.records) == (rows, 10, 40)
        done = [progress.segments_done for progress in found]
        assert done == sorted(done)
        assert 0 < done[-1] <= 10
        assert page.diagnostics.snapshot is None


class TestNoPartition:
    """A service names no partition of the stream: after the scan, such a feed would deliver no change."""

    @pytest.mark.parametrize("order", [ORDERED, INTERLEAVED, AUTO])
    def test_the_start_is_refused_and_can_be_repeated(self, order):
        sim = filled(10)
        sim.hide("p0", 1)
        consumer = Consumer(sim, order)
        with pytest.raises(api.MulticloudDbError, match="names no partition") as caught:
            consumer.page()
        assert caught.value.retryable
        assert kinds(*consumer.pages()) == [True] * 10
        sim.write("k1", {"n": "later"})
        assert [event.new_item_state for event in consumer.page().events] == [{"n": "later"}]

    def test_an_expired_position_is_not_replaced(self):
        sim, again = filled(10), api.Resnapshot(api.Snapshot(ORDERED))
        consumer = Consumer(sim, ORDERED)
        list(consumer.pages())
        sim.write("k1", {"n": "lost"})
        sim.trim()
        sim.hide("p0", 1)  # from the snapshot of the first page
        expired = consumer.position
        with pytest.raises(api.MulticloudDbError, match="names no partition") as caught:
            consumer.page(on_expired=again)
        assert (caught.value.retryable, consumer.position) == (True, expired)
        assert api.SnapshotStarted in map(type, consumer.page(on_expired=again).notices)


class TestExpired:
    def test_a_segment_is_not_skipped(self):
        """It contains rows, and a copy without these rows would stay wrong."""
        sim = filled(10)
        consumer = Consumer(sim, ORDERED, 2)
        consumer.page()
        sim.fail_next(None, GONE)
        with pytest.raises(api.MulticloudDbError) as caught:
            consumer.page(on_expired=api.SkipToOldest())
        assert caught.value.category == api.ErrorCategory.CHECKPOINT_EXPIRED
        sim.fail_next(None, GONE)
        page = consumer.page(on_expired=api.Resnapshot(api.Snapshot(ORDERED)))
        assert [type(notice) for notice in page.notices] == [api.Gap, api.SnapshotStarted]
        assert page.events == ()

    def test_the_watermark_of_another_snapshot_is_its_moment(self):
        sim, seen = filled(10), Mock(api.Observer)
        consumer = Consumer(sim, ORDERED, observer=seen)
        list(consumer.pages())
        sim.write("k1", {"n": "lost"})
        sim.advance(60)
        sim.trim()
        page = consumer.page(on_expired=api.Resnapshot(api.Snapshot(ORDERED)))
        gap, started = page.notices
        assert gap == api.Gap(sim.public_id("p0"), "commit 10", "a new snapshot")
        assert isinstance(started, api.SnapshotStarted)
        seen.gap.assert_called_once_with(sim.address, gap)
        assert page.diagnostics.watermark == sim.now

    @pytest.mark.parametrize("order", [ORDERED, INTERLEAVED, AUTO])
    def test_a_partition_whose_children_are_gone_begins_another_snapshot(self, order):
        sim = filled(20, 2, late_children=3)
        consumer = Consumer(sim, size=100)
        list(consumer.pages())
        sim.split(next(iter(sim.open_partitions)))
        consumer.page()
        sim.fail_next(None, GONE, times=10, operation="survey")
        page = consumer.page(on_expired=api.Resnapshot(api.Snapshot(order)))
        assert [type(notice) for notice in page.notices] == [api.Gap, api.SnapshotStarted]

    def test_a_gap_during_the_scan_does_not_stop_the_feed(self):
        """Segments are not partitions: if a loss applied to them, others would wait for a segment."""
        for seed in range(10):
            sim = filled(30, 2, seed=seed, listing=Listing.OPEN, segments=3)
            consumer = Consumer(sim, size=3)
            consumer.page()
            for number in range(4):
                for name in list(sim.open_partitions)[:1]:
                    sim.split(name)
                for key in range(10):
                    sim.write(f"k{key}", {"n": number})
                sim.trim()
                sim.write("last", {"n": number})
                consumer.page(on_expired=api.SkipToOldest())
            pages = (consumer.page(on_expired=api.SkipToOldest()) for _ in range(200))
            assert any(page.idle for page in pages), seed


class Clock:
    """The monotonic clock of one engine, which only the engine's pauses move."""

    def __init__(self, consumer, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        consumer.engine._calls.kept.context.closed.wait = self.wait

    def wait(self, seconds=0.0):
        self.now += seconds


class TestRate:
    """Tests the rate limit; the simulation charges 1 unit for each call and 1 unit for each row."""

    @pytest.mark.parametrize("rate", [100.0, 1e6])
    @pytest.mark.parametrize("size", [1, 1000])
    def test_many_empty_segments_cost_what_they_are_charged(self, rate, size, monkeypatch):
        consumer = Consumer(filled(20, 2), ORDERED, size, segments=300, max_scan_rate=rate)
        clock = Clock(consumer, monkeypatch)
        began = clock.now
        while not consumer.page().idle:
            clock.now += 0.0001
        assert consumer.engine.provider.calls.violations == []
        assert 300 / rate - 1.5 <= clock.now - began <= 2 * (300 + 2 * 20) / rate + 1.5

    @pytest.mark.parametrize("size", [1, 8, 50])
    def test_it_is_kept_beside_a_busy_stream(self, size, monkeypatch):
        sim = filled(60, 2)
        consumer = Consumer(sim, size=size, max_scan_rate=10.0)
        clock = Clock(consumer, monkeypatch)
        asked, fetch = [], SegmentReader.fetch

        def noted(reader, most, *limits):
            asked.append(most)
            return fetch(reader, most, *limits)

        monkeypatch.setattr(SegmentReader, "fetch", noted)
        consumer.page()
        began, rows = clock.now, 0
        while rows < 60:
            busy(sim, size)
            rows += kinds(consumer.page()).count(True)
            clock.now += 0.02
            assert clock.now < began + 60
        assert clock.now - began >= 5.0
        assert max(asked) <= 10

    @pytest.mark.parametrize(("rate", "size", "most"), [(0.5, 8, 1), (10.0, 50, 10), (1e6, 3000, 3000)])
    def test_a_fetch_requests_the_rows_of_a_second(self, rate, size, most, monkeypatch):
        asked, fetch = [], SegmentReader._fetch

        def recorded(reader, records, nbytes):
            asked.append(records)
            return fetch(reader, records, nbytes)

        monkeypatch.setattr(SegmentReader, "_fetch", recorded)
        consumer = Consumer(filled(20), ORDERED, size, max_scan_rate=rate, segments=1)
        consumer.page()
        consumer.page()
        assert asked == [most]

    @pytest.mark.parametrize("rate", [100.0, None])
    def test_another_snapshot_has_a_rate_of_its_own(self, rate, monkeypatch):
        sim = filled(60)
        consumer = Consumer(sim, ORDERED, 50, max_scan_rate=1.0, segments=1)
        clock = Clock(consumer, monkeypatch)
        consumer.page()
        consumer.page()
        sim.fail_next(None, GONE)
        again = api.Snapshot(ORDERED, max_scan_rate=rate, segments=1)
        page = consumer.page(on_expired=api.Resnapshot(again))
        assert api.SnapshotStarted in map(type, page.notices)
        began = clock.now
        assert sum(kinds(*consumer.pages())) == 60
        assert clock.now - began < 5  # of the engine's clock; 60 rows at the first rate take a minute

    @pytest.mark.parametrize("changes", [True, False])
    def test_a_plan_divides_it(self, changes):
        consumer = Consumer(filled(20), max_scan_rate=8.0, segments=4, changes=changes)
        items = [item for _, token in consumer.plan() for item in decode_token(token).state["p"]]
        assert [item[3][2] for item in items if len(item) > 3] == [2.0] * 4

    @pytest.mark.parametrize(
        ("field", "values"),
        [
            ("max_scan_rate", [10**400, 10**30, 5e-324, float("inf"), float("nan"), 0, -1]),
            ("segments", [10**30, 2**64, 0, -1]),
        ],
    )
    def test_a_value_that_no_token_can_hold_is_refused(self, field, values):
        for value in values:
            with pytest.raises(api.MulticloudDbError, match=field):
                api.Snapshot(**{field: value})

    @pytest.mark.parametrize("rate", [1e-6, 0.5, 1, 10**9])
    def test_one_that_is_taken_is_kept_by_every_token(self, rate):
        consumer = Consumer(filled(20, 2), max_scan_rate=rate, segments=1000)
        name, token = consumer.plan()[-1]
        consumer.position = api.FromContinuationToken(token)
        page = consumer.page(scope=api.PhysicalPartition(name))
        assert [type(notice) for notice in page.notices] == [api.SnapshotStarted]
        consumer.page(scope=api.PhysicalPartition(name))


class TestRowsAlone:
    def test_a_new_snapshot_never_replaces_them(self):
        consumer = Consumer(filled(10), size=2, changes=False)
        consumer.page()
        consumer.sim.fail_next(None, GONE)
        refused(consumer, ".", api.ErrorCategory.CHECKPOINT_EXPIRED, on_expired=api.Resnapshot())
        rows = kinds(*consumer.pages())
        assert rows == [True] * 10

    def test_a_target_must_not_delete_what_they_leave_out(self):
        for changes in (False, True):
            (started,) = Consumer(filled(3), changes=changes).page().notices
            assert started.whole is changes

    def test_a_token_of_them_can_be_inspected_and_planned(self):
        consumer = Consumer(filled(20), size=3, segments=5, changes=False)
        consumer.page()
        rows = len(consumer.page().events)
        assert consumer.engine.inspect(consumer.position.token, api.OperationOptions(), None, None).resumes
        parts = consumer.plan()
        assert all(part.is_segment for part in parts)
        for part in parts:
            pages = consumer.part(*part)
            told = pages[0].diagnostics.snapshot
            assert (told.segments_done, told.segments, told.rows) == (0, 1, 0)
            rows += kinds(*pages).count(True)
        assert rows == 20

    def test_what_would_read_changes_is_refused(self):
        with pytest.raises(api.MulticloudDbError, match=r"Resnapshot\.snapshot"):
            api.Resnapshot(api.Snapshot(changes=False))
        refused(
            Consumer(filled(1), changes=False), "on_expired", api.ErrorCategory.INVALID_REQUEST,
            on_expired=api.Resnapshot(),
        )  # fmt: skip
        sim = filled(1)
        provider = SimulationProvider(sim)
        feed = provider.open_feed(FeedSpec(sim.address), Deadline.after(30))
        with pytest.raises(api.MulticloudDbError, match=r"Snapshot\.changes"):
            Planner(provider, feed).start(api.Snapshot(changes=False), Deadline.after(30))


class TestToken:
    def test_a_plan_comes_back(self):
        plan = Plan(
            "snapshot:a", [1], "f", 5, holds=True, announced=True, auto=True, rate=1.5, retention=7, done=1,
            segments=4, rows=9, records=10, credit=3,
        )  # fmt: skip
        waits, part = (
            Entry("p", Stage.WAIT, (1,), ("snapshot:a",)),
            Entry.read("snapshot:a:s", 1, listed=False),
        )
        made = Lineage([plan, waits, part], RULES)
        again = Lineage.from_json(json.loads(json.dumps(made.to_json())), RULES)
        assert again.plan == plan
        assert made.to_json()["p"][0] == ["snapshot:a", [1], 240, ["f", 5, 1.5, 7, 1, 4, 9, 10, 3]]
        assert list(again) == list(made)
        assert (again.segment_count, [each.partition_id for each in again.listed()]) == (1, ["p"])

    def test_a_damaged_plan_is_refused(self):
        good, fine = ["f", 5, 1.5, 7, 1, 4, 9, 10, 3], {(0, "x"), (1, -1), (2, 2**60)}
        for place in range(9):
            for value in ["x", -1, 2**60, [], {}, float("nan"), True]:
                if isinstance(value, list | dict) or (place, value) not in fine:
                    bad = [*good[:place], value, *good[place + 1 :]]
                    with pytest.raises(InvalidCursor):
                        Lineage.from_json({"p": [["s", None, 16, bad]]}, RULES)
        with pytest.raises(InvalidCursor):
            Lineage.from_json({"p": [["a", None, 16, good], ["b", None, 16, good]]}, RULES)

    @pytest.mark.parametrize(
        ("partitions", "segments"), [(64, 4000), pytest.param(1000, 32_000, marks=pytest.mark.soak)]
    )
    def test_many_segments_are_read_and_take_at_most_400_bytes_of_the_token(self, partitions, segments):
        """Beside them each partition says that it waits for the rows, as it does for those of one segment."""

        def longest(count):
            pages = list(Consumer(filled(2000, partitions), ORDERED, 1000, segments=count).pages())
            rows = [event.event_id for page in pages for event in page.events if event.backfilled]
            assert len(rows) == len(set(rows)) == 2000
            return max(len(page.continuation_token) for page in pages)

        assert longest(segments) - longest(1) <= 400 * 4 / 3

    @pytest.mark.parametrize("field", ["records", "segments"])
    @pytest.mark.parametrize("value", [-1, 2**60, 10.5])
    def test_a_wrong_estimate_leaves_it_readable(self, field, value, monkeypatch):
        snapshot = SimulationFeed.snapshot

        def wrong(self, segments, deadline):
            return attrs.evolve(snapshot(self, segments, deadline), **{field: value})

        monkeypatch.setattr(SimulationFeed, "snapshot", wrong)
        consumer = Consumer(filled(10, 2))
        assert getattr(consumer.page().diagnostics.snapshot, field) is None
        assert len(consumer.page().events) == 8

    @pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300, -5.0])
    @pytest.mark.parametrize("order", [ORDERED, INTERLEAVED, AUTO])
    def test_a_wrong_time_until_a_position_expires_leaves_it_readable(self, order, seconds, monkeypatch):
        monkeypatch.setattr(SimulationFeed, "headroom", lambda self, cursor, now: seconds)
        assert len(kinds(*Consumer(filled(10, 2), order).pages())) == 10


class TestPlanned:
    @pytest.mark.parametrize("order", [ORDERED, AUTO])
    @pytest.mark.parametrize("pages", [1, 2])
    def test_a_token_whose_stream_waits_cannot_be_planned(self, order, pages):
        consumer = Consumer(filled(40, 2), order, 4)
        for _ in range(pages):
            consumer.page()
        with pytest.raises(api.MulticloudDbError, match="INTERLEAVED") as caught:
            consumer.plan()
        assert caught.value.category == api.ErrorCategory.INVALID_REQUEST

    @pytest.mark.parametrize("with_descendants", [False, True])
    @pytest.mark.parametrize("pages", [0, 2, 5])
    def test_a_token_of_any_page_is_planned_without_loss(self, pages, with_descendants):
        sim = filled(40, 2)
        consumer = Consumer(sim, size=4)
        seen = [event for _ in range(pages) for event in consumer.page().events]
        parts = consumer.plan(with_descendants=with_descendants)
        assert len({name for name, _ in parts}) == len(parts)
        sim.write("k1", {"n": "later"})
        for part in parts:
            pages = consumer.part(*part, with_descendants=with_descendants)
            seen += [event for page in pages for event in page.events]
        rows = [event.event_id for event in seen if event.backfilled]
        assert len(rows) == len(set(rows)) == 40
        assert [event.new_item_state for event in seen if not event.backfilled] == [{"n": "later"}]

    @pytest.mark.parametrize("rows", [20, 0])
    def test_a_segment_that_is_read_alone_retires_and_is_never_idle(self, rows):
        consumer, found = Consumer(filled(rows), segments=4), 0
        for name, token in consumer.plan()[1:]:
            pages = consumer.part(name, token)
            found += len(kinds(*pages))
            again = consumer.page(scope=api.PhysicalPartition(name))
            assert (pages[-1].partition_retired, again.partition_retired) == (True, True)
            assert pages[-1].child_partitions == ()
            assert not any(page.idle for page in pages)
        assert found == rows


class Client:
    def __init__(self, consumer):
        self._engine = consumer.engine

    def read_changes(self, request, options=None):
        return self._engine.read_changes(request, options or api.OperationOptions())


class TestIterator:
    def changes(self, **settings):
        consumer = Consumer(filled(3))
        request = api.ChangeFeedRequest(consumer.sim.address, api.Snapshot(), **settings)
        return api.ChangeFeedIterator(Client(consumer), request, until_idle=True)

    def test_a_loop_over_single_events_is_refused_with_resnapshot(self):
        changes = self.changes(on_expired=api.Resnapshot())
        with pytest.raises(api.MulticloudDbError, match=r"pages\(\)"):
            iter(changes)
        notices = [notice for page in changes.pages() for notice in page.notices]
        assert [type(notice) for notice in notices] == [api.SnapshotStarted, api.BackfillDone]

    def test_an_interrupted_first_page_comes_again_and_begins_no_other_snapshot(self):
        changes = self.changes()
        assert next(changes.pages()) == next(changes.pages())
