"""Tests snapshots while the service, the application or a clock causes faults."""

import time

import attrs
import pytest

from multiclouddb_api import (
    BackfillDone,
    ChangeFeedRequest,
    ClientConfig,
    Dropped,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    OperationOptions,
    PhysicalPartition,
    Resnapshot,
    Snapshot,
    SnapshotOrder,
    SnapshotStarted,
)
from multiclouddb_conformance.simulation import ServerError, ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_conformance.simulation.feed import SimulationFeed
from multiclouddb_conformance.simulation.segments import SegmentReader
from multiclouddb_spi import Batch, Ended, Engine, InlineExecutor
from multiclouddb_spi.faults import Fault
from multiclouddb_spi.fetching.turns import HEAD_SECONDS

ORDERED, INTERLEAVED, AUTO = SnapshotOrder.ORDERED, SnapshotOrder.INTERLEAVED, SnapshotOrder.AUTO


class Consumer:
    """A consumer that reads one feed page by page, by default in one thread."""

    def __init__(self, sim, order=INTERLEAVED, size=8, *, threads=False, **wanted):
        self.sim, self.size, self.position = sim, size, Snapshot(order, **wanted)
        config = ClientConfig("simulation", {}, coverage_audit_seconds=0.0)
        settings = {} if threads else {"executor": InlineExecutor()}
        self.engine = Engine(SimulationProvider(sim), config, pause=lambda _: None, **settings)

    def page(self, timeout=30.0, **settings):
        request = ChangeFeedRequest(self.sim.address, self.position, max_page_size=self.size, **settings)
        page = self.engine.read_changes(request, OperationOptions(timeout))
        self.position = FromContinuationToken(page.continuation_token)
        return page

    def plan(self, **settings):
        request = ChangeFeedRequest(self.sim.address, self.position)
        return self.engine.plan_partitions(request, OperationOptions(), **settings)


def filled(count, partitions=2, **habits):
    sim = Simulation(partitions, ServiceBehaviour(**habits))
    for number in range(count):
        sim.write(f"k{number}", {"n": number})
    return sim


class TestPlanned:
    @pytest.mark.parametrize("order", [ORDERED, AUTO])
    @pytest.mark.parametrize("pages", [1, 2])
    def test_a_token_whose_stream_waits_cannot_be_planned(self, order, pages):
        consumer = Consumer(filled(40), order, 4)
        for _ in range(pages):
            consumer.page()
        with pytest.raises(MulticloudDbError, match="INTERLEAVED") as caught:
            consumer.plan()
        assert caught.value.category == ErrorCategory.INVALID_REQUEST

    @pytest.mark.parametrize("with_descendants", [False, True])
    @pytest.mark.parametrize("pages", [0, 1, 2, 5])
    def test_a_token_of_any_page_is_planned_without_loss(self, pages, with_descendants):
        sim = filled(40)
        consumer = Consumer(sim, INTERLEAVED, 4)
        seen = [event for _ in range(pages) for event in consumer.page().events]
        parts = consumer.plan(with_descendants=with_descendants)
        assert len({name for name, _ in parts}) == len(parts)
        sim.write("k1", {"n": "later"})
        for name, token in parts:
            consumer.position = FromContinuationToken(token)
            for _ in range(50):
                page = consumer.page(scope=PhysicalPartition(name, with_descendants=with_descendants))
                seen += page.events
                if page.idle or page.partition_retired:
                    break
            else:
                raise AssertionError(f"{name} never ends")
        rows = [event.event_id for event in seen if event.backfilled]
        assert len(rows) == len(set(rows)) == 40
        assert [event.new_item_state for event in seen if not event.backfilled] == [{"n": "later"}]


class TestNoPartition:
    """Tests a service that names no partition of the stream when a snapshot starts.

    After the scan, a feed without a partition would end, and would never deliver a change.
    """

    @pytest.mark.parametrize("order", [ORDERED, INTERLEAVED, AUTO])
    def test_the_start_is_refused_and_can_be_repeated(self, order):
        sim = filled(10, partitions=1)
        sim.hide("p0", 1)
        consumer, rows = Consumer(sim, order), 0
        with pytest.raises(MulticloudDbError, match="names no partition") as caught:
            consumer.page()
        assert caught.value.retryable
        while not (page := consumer.page()).idle:
            rows += len(page.events)
        sim.write("k1", {"n": "later"})
        assert rows == 10
        assert [event.new_item_state for event in consumer.page().events] == [{"n": "later"}]

    def test_it_cannot_be_planned_either(self):
        sim = filled(10, partitions=1)
        sim.hide("p0", 1)
        consumer = Consumer(sim, INTERLEAVED, segments=2)
        with pytest.raises(MulticloudDbError, match="names no partition"):
            consumer.plan()
        assert len(consumer.plan()) == 1 + 2

    def test_nor_does_it_replace_an_expired_position(self):
        sim = filled(10, partitions=1)
        consumer = Consumer(sim, ORDERED)
        consumer.page()
        while not consumer.page().idle:
            pass
        sim.write("k1", {"n": "lost"})
        sim.trim()
        sim.hide("p0", 1)  # from the snapshot of the first page
        expired = consumer.position
        with pytest.raises(MulticloudDbError, match="names no partition") as caught:
            consumer.page(on_expired=Resnapshot(Snapshot(ORDERED)))
        assert caught.value.retryable
        assert consumer.position == expired
        assert SnapshotStarted in map(type, consumer.page(on_expired=Resnapshot(Snapshot(ORDERED))).notices)


class TestCutting:
    """Tests a service that is slow, fails or does not answer when it is asked for the next segments."""

    @pytest.mark.parametrize("answer", ["late", "slow and empty"])
    def test_changes_are_delivered_while_no_segment_comes(self, answer, monkeypatch):
        sim = filled(40, slow=1.0, latency=0.05)
        consumer = Consumer(sim, threads=True, size=4)
        consumer.page()

        def segments(self, cursor, count, deadline):
            time.sleep(deadline.remaining() + 0.05 if answer == "late" else 0.4)
            return [], cursor

        monkeypatch.setattr(SimulationFeed, "segments", segments)
        for number in range(4):
            sim.write(f"n{number}", {"n": number})
        page = consumer.page(timeout=1.5)
        assert len(page.events) > 0
        assert not page.idle

    def test_a_plan_that_is_always_empty_is_never_done(self, monkeypatch):
        consumer = Consumer(filled(5))
        consumer.page()
        monkeypatch.setattr(SimulationFeed, "segments", lambda self, cursor, count, deadline: ([], cursor))
        for _ in range(3):
            page = consumer.page()
            assert not page.idle
            assert page.notices == ()

    def test_a_plan_without_any_segment_is_done_at_once(self, monkeypatch):
        consumer = Consumer(filled(5))
        consumer.page()
        monkeypatch.setattr(SimulationFeed, "segments", lambda self, cursor, count, deadline: ([], None))
        assert [type(notice) for notice in consumer.page().notices] == [BackfillDone]


class TestThrottled:
    def test_changes_do_not_wait_for_a_scan_that_fails(self, monkeypatch):
        sim = filled(200)
        consumer = Consumer(sim, threads=True, size=8)
        waits = []
        consumer.engine._fetcher._pause = consumer.engine._closed.wait
        consumer.page()

        def fetch(self, most, nbytes):
            raise ServerError("503 from the scan")

        monkeypatch.setattr(SegmentReader, "_fetch", fetch)
        for number in range(60):
            sim.write(f"k{number}", {"n": number})
        for _ in range(6):
            began = time.monotonic()
            assert [event.backfilled for event in consumer.page().events] == [False] * 8
            waits.append(time.monotonic() - began)
        # Otherwise, each page would wait for a slow partition for up to 2 seconds.
        assert sorted(waits)[3] < HEAD_SECONDS / 2, waits


class TestDropped:
    @pytest.mark.parametrize("threads", [False, True])
    @pytest.mark.parametrize("pages", [1, 2, 3])
    @pytest.mark.parametrize("order", [ORDERED, INTERLEAVED])
    def test_a_segment_that_ends_takes_those_in_flight_with_it(self, threads, pages, order, monkeypatch):
        consumer = Consumer(filled(80), order, 4, threads=threads)
        for _ in range(pages):
            consumer.page()

        def fetch(self, most, nbytes):
            here = self._cursor()
            return Batch([], self._mapper, here, here, Ended(Dropped(self._id)), 0, caught_up=True)

        monkeypatch.setattr(SegmentReader, "_fetch", fetch)
        notices = []
        for _ in range(30):
            page = consumer.page()
            notices += page.notices
            if page.idle:
                break
        assert [type(notice) for notice in notices] == [Dropped]


class TestExpired:
    @pytest.mark.parametrize("order", [ORDERED, INTERLEAVED, AUTO])
    def test_a_partition_whose_children_are_gone_begins_another_snapshot(self, order):
        sim = filled(20, late_children=3)
        consumer = Consumer(sim, INTERLEAVED, 100)
        while not consumer.page().idle:
            pass
        sim.split(next(iter(sim.open_partitions)))
        consumer.page()
        sim.fail_next(None, Fault(ErrorCategory.CHECKPOINT_EXPIRED, "gone"), times=10, operation="survey")
        page = consumer.page(on_expired=Resnapshot(Snapshot(order)))
        assert [type(notice).__name__ for notice in page.notices] == ["Gap", "SnapshotStarted"]

    def test_it_is_an_error_without(self):
        sim = filled(20, late_children=3)
        consumer = Consumer(sim, INTERLEAVED, 100)
        while not consumer.page().idle:
            pass
        sim.split(next(iter(sim.open_partitions)))
        consumer.page()
        sim.fail_next(None, Fault(ErrorCategory.CHECKPOINT_EXPIRED, "gone"), times=10, operation="survey")
        with pytest.raises(MulticloudDbError) as caught:
            consumer.page()
        assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED


class TestValues:
    @pytest.mark.parametrize("rate", [10**400, 10**30, 5e-324, float("inf"), float("nan"), 0, -1])
    def test_a_rate_that_no_token_can_hold_is_refused(self, rate):
        with pytest.raises(MulticloudDbError, match="max_scan_rate"):
            Snapshot(max_scan_rate=rate)

    @pytest.mark.parametrize("segments", [10**30, 2**64, 0, -1])
    def test_so_is_a_number_of_segments(self, segments):
        with pytest.raises(MulticloudDbError, match="segments"):
            Snapshot(segments=segments)

    @pytest.mark.parametrize("rate", [1e-6, 0.5, 1, 10**9])
    def test_a_rate_that_is_taken_is_kept_by_every_token(self, rate):
        consumer = Consumer(filled(20), max_scan_rate=rate, segments=1000)
        parts = consumer.plan()
        name, token = parts[-1]
        consumer.position = FromContinuationToken(token)
        page = consumer.page(scope=PhysicalPartition(name))
        assert [type(notice) for notice in page.notices] == [SnapshotStarted]
        consumer.page(scope=PhysicalPartition(name))


class Clock:
    """The monotonic clock of one engine, which only the engine's pauses move."""

    def __init__(self, consumer, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        consumer.engine._context.closed.wait = self.wait

    def wait(self, seconds=0.0):
        self.now += seconds


class TestRate:
    """Tests the rate limit; the simulation charges 1 unit for each call and 1 unit for each row."""

    @pytest.mark.parametrize("rate", [100.0, 1e6])
    @pytest.mark.parametrize("size", [1, 8, 1000])
    def test_many_empty_segments_cost_what_they_are_charged(self, rate, size, monkeypatch):
        consumer = Consumer(filled(20), ORDERED, size, segments=300, max_scan_rate=rate)
        clock = Clock(consumer, monkeypatch)
        began = clock.now
        while not consumer.page().idle:
            clock.now += 0.0001
        calls = consumer.engine._provider.calls
        assert calls.violations == []
        spent = clock.now - began
        assert spent <= 2 * (300 + 2 * 20) / rate + 1.5, spent
        assert spent >= 300 / rate - 1.5

    @pytest.mark.parametrize("size", [1, 3, 8, 50])
    def test_it_is_kept_beside_a_busy_stream(self, size, monkeypatch):
        sim = filled(60)
        consumer = Consumer(sim, INTERLEAVED, size, max_scan_rate=10.0)
        clock = Clock(consumer, monkeypatch)
        consumer.page()
        began, rows = clock.now, 0
        while rows < 60:
            for number in range(size):
                sim.write("busy", {"n": number})
            rows += sum(event.backfilled for event in consumer.page().events)
            clock.now += 0.02
            assert clock.now < began + 60
        assert clock.now - began >= 5.0


class TestEstimates:
    @pytest.mark.parametrize("field", ["records", "segments"])
    @pytest.mark.parametrize("value", [-1, 2**60, 10.5])
    def test_a_wrong_estimate_leaves_the_token_readable(self, field, value, monkeypatch):
        snapshot = SimulationFeed.snapshot

        def wrong(self, segments, deadline):
            return attrs.evolve(snapshot(self, segments, deadline), **{field: value})

        monkeypatch.setattr(SimulationFeed, "snapshot", wrong)
        consumer = Consumer(filled(10))
        assert getattr(consumer.page().diagnostics.snapshot, field) is None
        assert len(consumer.page().events) == 8

    @pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300, -5.0])
    @pytest.mark.parametrize("order", [ORDERED, INTERLEAVED, AUTO])
    def test_so_does_a_wrong_time_until_a_position_expires(self, order, seconds, monkeypatch):
        monkeypatch.setattr(SimulationFeed, "headroom", lambda self, cursor, now: seconds)
        consumer, rows = Consumer(filled(10), order), 0
        while not (page := consumer.page()).idle:
            rows += len(page.events)
        assert rows == 10
