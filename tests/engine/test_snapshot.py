"""Tests what the engine does for `Snapshot()`: the order within a page, the rate, the release of the stream,
audits, and tokens.
"""

import json
import time

import pytest

from multiclouddb_api import (
    BackfillDone,
    ChangeFeedIterator,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Observer,
    OperationOptions,
    PartitionFoundLate,
    PhysicalPartition,
    Resnapshot,
    SkipToOldest,
    Snapshot,
    SnapshotOrder,
    SnapshotStarted,
)
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import (
    Listing,
    ServerError,
    ServiceBehaviour,
    Simulation,
    SimulationProvider,
    feed,
)
from multiclouddb_conformance.simulation.segments import cut_segments
from multiclouddb_spi import (
    Awaiting,
    Child,
    Deadline,
    Drained,
    Engine,
    FeedSpec,
    InlineExecutor,
    Scanned,
    Segment,
)
from multiclouddb_spi.continuation.entry import Entry, Plan, Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import state_from_json
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_spi.faults import Fault, InvalidCursor, ProviderFault
from multiclouddb_spi.fetching.turns import PollResult, Turns
from multiclouddb_spi.scan.scanning import Scanning

ORDERED, INTERLEAVED, AUTO = SnapshotOrder.ORDERED, SnapshotOrder.INTERLEAVED, SnapshotOrder.AUTO


class Seen(Observer):
    def __init__(self):
        self.interleaved = []

    def snapshot_interleaved(self, address, seconds):
        self.interleaved.append(seconds)


class Reading:
    """A feed that is read page by page."""

    def __init__(self, sim, order=INTERLEAVED, size=8, observer=None, **wanted):
        self.sim, self.size = sim, size
        self.provider = SimulationProvider(sim)
        config = ClientConfig("simulation", {}, coverage_audit_seconds=0.0)
        self.engine = Engine(self.provider, config, observer, executor=InlineExecutor(), pause=lambda _: None)
        self.position = Snapshot(order, **wanted)

    def page(self, timeout=30.0, **settings):
        request = ChangeFeedRequest(self.sim.address, self.position, max_page_size=self.size, **settings)
        page = self.engine.read_changes(request, OperationOptions(timeout))
        self.position = FromContinuationToken(page.continuation_token)
        return page

    def pages(self):
        while True:
            page = self.page()
            yield page
            if page.idle:
                return

    @property
    def state(self):
        return decode_token(self.position.token).state

    @property
    def lineage(self):
        return state_from_json(self.state, RULES)


def filled(count, partitions=1, **settings):
    behaviour = settings.pop("behaviour", ServiceBehaviour())
    sim = Simulation(partitions, behaviour, **settings)
    for number in range(count):
        sim.write(f"k{number}", {"n": number})
    return sim


def no_clock():
    """Return the time of a service that does not report its time."""


def kinds(page):
    return [event.backfilled for event in page.events]


class TestPlaces:
    def test_the_scan_keeps_a_quarter_of_the_page_while_changes_come_fast(self):
        sim = filled(40)
        reading = Reading(sim)
        reading.page()
        for number in range(200):
            sim.write("busy", {"n": number})
        pages = [kinds(reading.page()) for _ in range(5)]
        assert [page.count(True) for page in pages] == [2] * 5
        assert [page.count(False) for page in pages] == [6] * 5

    @pytest.mark.parametrize(("size", "pages"), [(1, 40), (2, 20), (3, 40)])
    def test_a_small_page_gives_it_in_turns(self, size, pages):
        sim = filled(60)
        reading = Reading(sim, size=size)
        reading.page()
        for number in range(400):
            sim.write("busy", {"n": number})
        rows = sum(kinds(reading.page()).count(True) for _ in range(pages))
        assert rows == pages * size // 4

    def test_the_stream_is_asked_first(self):
        sim = filled(40)
        reading = Reading(sim)
        reading.page()
        sim.write("k1", {"n": 100})
        assert kinds(reading.page())[0] is False

    def test_the_scan_takes_what_the_stream_leaves(self):
        reading = Reading(filled(40))
        reading.page()
        assert kinds(reading.page()) == [True] * 8

    def test_the_oldest_position_of_the_stream_is_asked_first(self):
        sim = filled(40, partitions=2)
        reading = Reading(sim, size=2)
        reading.page()
        for number in range(60):
            sim.write(f"new{number}", {"n": number})
        last = {}
        for _ in range(30):
            page = reading.page()
            for event in page.events:
                if not event.backfilled:
                    last[event.partition_id] = event.timestamp
        assert len(last) == 2
        assert abs(max(last.values()) - min(last.values())).total_seconds() < 0.02

    def test_a_worn_position_takes_the_places_of_the_scan(self):
        sim = filled(40, retention_seconds=100.0)
        reading = Reading(sim)
        reading.page()
        for number in range(100):
            sim.write("busy", {"n": number})
        assert kinds(reading.page()).count(True) == 2
        sim.advance(60)
        for number in range(100):
            sim.write("busy", {"n": number})
        assert kinds(reading.page()).count(True) == 0

    def test_a_scan_without_places_waits_for_partitions_that_were_not_asked_yet(self):
        sim = filled(0)
        feed = SimulationProvider(sim).open_feed(FeedSpec(sim.address), Deadline.after(30))
        lineage = Lineage([Entry.read("p0", 1)], RULES)
        lineage.begin_scan(Plan("s", [0], "f", 1))
        result = PollResult(Turns(lineage), limit=1)  # a quarter of this page is no whole place
        scanning = Scanning(None, feed, lineage, result, Deadline.after(30), no_clock, single=False)
        assert scanning.is_sharing()
        assert scanning.patience(30.0) > 0

    def test_the_page_ends_with_the_notice_that_the_scan_is_over(self):
        sim = filled(3)
        reading = Reading(sim, ORDERED)
        reading.page()
        sim.write("k1", {"n": 1})
        (done,) = (page for page in reading.pages() if page.notices)
        assert isinstance(done.notices[0], BackfillDone)
        assert False not in kinds(done)


class TestAuto:
    def test_it_begins_ordered_and_releases_the_stream_at_half_of_the_retention(self):
        sim, seen = filled(60, retention_seconds=100.0), Seen()
        reading = Reading(sim, AUTO, 4, observer=seen)
        reading.page()
        sim.write("k1", {"n": 100})
        page = reading.page()
        assert False not in kinds(page)
        assert page.diagnostics.snapshot.order is ORDERED
        assert seen.interleaved == []
        sim.advance(45)
        assert False not in kinds(reading.page())
        sim.advance(10)
        page = reading.page()
        assert False in kinds(page)
        assert page.diagnostics.snapshot.order is INTERLEAVED
        assert [round(seconds) for seconds in seen.interleaved] == [45]
        assert page.diagnostics.retention_headroom_seconds is not None

    def test_the_time_is_counted_from_the_start_also_in_a_token_that_was_put_away(self):
        sim = filled(60, retention_seconds=100.0)
        reading = Reading(sim, AUTO, 4)
        reading.page()
        sim.advance(70)
        assert reading.page().diagnostics.snapshot.order is INTERLEAVED

    @pytest.mark.parametrize("order", [ORDERED, AUTO])
    def test_without_a_known_retention_the_stream_waits(self, order):
        sim = filled(20)
        reading = Reading(sim, order, 4)
        reading.page()
        sim.advance(1e6)
        sim.write("k1", {"n": 100})
        flat = [kind for page in reading.pages() for kind in kinds(page)]
        assert flat == [True] * 20 + [False]

    def test_a_retention_that_is_known_later_counts_from_then(self):
        sim = filled(60)
        reading = Reading(sim, AUTO, 4)
        reading.page()
        reading.page()
        sim.retention_seconds = 100.0
        assert reading.page().diagnostics.snapshot.order is ORDERED
        sim.advance(55)
        assert reading.page().diagnostics.snapshot.order is INTERLEAVED


class TestBarrier:
    def test_what_an_audit_finds_waits_for_the_scan(self):
        sim = filled(20, partitions=2)
        sim.hide("p1", 1)
        reading = Reading(sim, ORDERED, 4)
        reading.page()
        for number in range(30):
            sim.write(f"new{number}", {"n": number})
        pages = list(reading.pages())
        assert any(isinstance(notice, PartitionFoundLate) for page in pages for notice in page.notices)
        flat = [kind for page in pages for kind in kinds(page)]
        assert flat == sorted(flat, reverse=True)
        assert flat.count(False) >= 30

    def test_a_segment_that_splits_keeps_it(self):
        behaviour = ServiceBehaviour(splits_segments=1.0, segments=2, faults_in_row=100)
        sim = filled(40, behaviour=behaviour)
        reading = Reading(sim, ORDERED, 2)
        reading.page()
        for number in range(5):
            sim.write(f"k{number}", {"n": 100})
        flat = [kind for page in reading.pages() for kind in kinds(page)]
        assert flat == sorted(flat, reverse=True)
        assert flat.count(False) == 5
        assert flat.count(True) == 40

    def test_a_late_child_of_an_ended_partition_waits_too(self):
        lineage = Lineage([Entry.read("p0", 1)], RULES)
        lineage.begin_scan(Plan("s", [0], "f", 1, holds=True))
        assert lineage.active() == []
        (waiting,) = lineage.waiting()
        assert waiting.waits == ("s",)
        lineage.cut([Segment("a", 1)], None)
        assert lineage.scanned("a", [Segment("b", 2), Segment("c", 3)]) == ["b", "c"]
        assert lineage.scanned("b", []) == []
        assert not lineage.is_scanned()
        assert lineage.scanned("c", []) == []
        assert lineage.is_scanned()
        assert lineage.end_scan() == ["p0"]

    def test_a_child_that_is_named_during_the_scan_does_not_start(self):
        lineage = Lineage([Entry("p0", Stage.END, (1,))], RULES)
        lineage.begin_scan(Plan("s", [0], "f", 1, holds=True))
        assert lineage.ended("p0", [Child("c", ("p0",), 2)], complete=True) == []
        (waiting,) = lineage.waiting()
        assert (waiting.partition_id, waiting.waits) == ("c", ("s",))


class TestTrouble:
    def test_a_plan_that_cannot_be_cut_now_is_cut_later(self):
        sim = filled(10)
        reading = Reading(sim, ORDERED)
        reading.page()
        sim.fail_next(None, ServerError("503"), times=10, operation="segments")
        with pytest.raises(MulticloudDbError) as caught:
            reading.page()
        assert caught.value.retryable
        assert len([kind for page in reading.pages() for kind in kinds(page)]) == 10

    @pytest.mark.parametrize("operation", ["segments", "snapshot"])
    def test_a_failure_for_good_is_raised(self, operation):
        sim = filled(10)
        reading = Reading(sim, ORDERED)
        if operation == "segments":
            reading.page()
        fault = Fault(ErrorCategory.AUTHORIZATION_FAILED, "may not scan; ask for the right")
        sim.fail_next(None, fault, operation=operation)
        with pytest.raises(MulticloudDbError, match="may not scan"):
            reading.page()

    def test_a_collection_that_is_dropped_is_never_done(self):
        sim = filled(30)
        reading = Reading(sim, ORDERED, 4)
        reading.page()
        reading.page()
        sim.drop()
        with pytest.raises(MulticloudDbError) as caught:
            next(page for page in reading.pages() if page.notices)
        assert caught.value.category == ErrorCategory.NOT_FOUND

    @pytest.mark.parametrize("outcome", [Drained((Child("c", ("p0",), 1),)), Awaiting()])
    def test_a_segment_that_ends_like_a_partition_is_refused(self, outcome):
        lineage = Lineage([Entry.read("p0", 1)], RULES)
        lineage.begin_scan(Plan("s", [0], "f", 1, holds=True))
        lineage.cut([Segment("a", 1)], None)
        with pytest.raises(ProviderFault, match="violates the contract"):
            lineage.check_end("a", outcome)

    def test_a_partition_that_ends_like_a_segment_is_refused(self):
        with pytest.raises(ProviderFault, match="is not a segment"):
            Lineage([Entry.read("p0", 1)], RULES).check_end("p0", Scanned())

    def test_a_segment_that_is_cut_twice_is_refused(self):
        lineage = Lineage([Entry.read("p0", 1)], RULES)
        lineage.begin_scan(Plan("s", [0], "f", 1))
        lineage.cut([Segment("a", 1)], [1])
        for cut in ([Segment("a", 2)], [Segment("p0", 1)], [Segment("b", 1), Segment("b", 2)]):
            with pytest.raises(ProviderFault, match="cut twice"):
                lineage.check_cut(cut)
        lineage.check_end("a", Scanned((Segment("a", 2), Segment("b", 3))))

    def test_a_provider_that_cuts_twice_is_reported(self, monkeypatch):
        sim = filled(20)
        reading = Reading(sim, ORDERED)
        reading.page()
        once = cut_segments(reading.lineage.plan.cursor, 1)[0]
        monkeypatch.setattr(feed, "cut_segments", lambda cursor, count: (once, cursor))
        with pytest.raises(MulticloudDbError, match="cut twice"):
            list(reading.pages())

    def test_an_expired_segment_is_not_skipped(self):
        sim = filled(10)
        reading = Reading(sim, ORDERED, 2)
        reading.page()
        sim.fail_next(None, Fault(ErrorCategory.CHECKPOINT_EXPIRED, "the version is gone; start again"))
        page = reading.page(on_expired=Resnapshot(Snapshot(ORDERED)))
        assert [type(notice).__name__ for notice in page.notices] == ["Gap", "SnapshotStarted"]
        assert page.events == ()


class TestRetention:
    """Segments are not partitions of the service.

    If the rules for lost partitions were applied to segments, other partitions would wait for a segment.
    """

    def life(self, seed):
        sim = Simulation(2, ServiceBehaviour(seed=seed, listing=Listing.OPEN, segments=3))
        for number in range(30):
            sim.write(f"k{number}", {"n": number})
        reading = Reading(sim, INTERLEAVED, 3)
        reading.page()
        for number in range(4):
            for name in list(sim.open_partitions)[:1]:
                sim.split(name)
            for key in range(10):
                sim.write(f"k{key}", {"n": number})
            sim.trim()
            sim.write("last", {"n": number})
            reading.page(on_expired=SkipToOldest())
        for _ in range(200):
            if (page := reading.page(on_expired=SkipToOldest())).idle:
                return page
        return None

    def test_a_gap_during_the_scan_does_not_stop_the_feed(self):
        assert all(self.life(seed) for seed in range(10))


class TestRate:
    def test_rows_a_second_are_kept(self, monkeypatch):
        clock = [1000.0]
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        sim = filled(100)
        reading = Reading(sim, ORDERED, 50, max_scan_rate=10.0)
        reading.engine._context.closed.wait = lambda seconds: clock.__setitem__(0, clock[0] + seconds)
        began, rows = clock[0], 0
        reading.page()
        while rows < 100:
            rows += len(reading.page().events)
            clock[0] += 0.01
        # The simulation charges 1 unit for each call and 1 unit for each row.
        assert 9.0 <= clock[0] - began <= 14.0

    def test_a_plan_divides_it(self):
        sim = filled(20)
        reading = Reading(sim, max_scan_rate=8.0, segments=4)
        request = ChangeFeedRequest(sim.address, reading.position)
        plan = reading.engine.plan_partitions(request, OperationOptions())
        rates = [item[3][2] for _, token in plan for item in decode_token(token).state["p"] if len(item) > 3]
        assert rates == [2.0] * 4


class TestToken:
    def test_a_plan_comes_back(self):
        plan = Plan(
            "snapshot:a", [1], "f", 5, holds=True, announced=True, auto=True, rate=1.5, retention=7, done=1,
            segments=4, rows=9, records=10, credit=3,
        )  # fmt: skip
        made = Lineage(
            [plan, Entry("p", Stage.WAIT, (1,), ("snapshot:a",)), Entry.read("s", 1, listed=False)], RULES
        )
        again = Lineage.from_json(json.loads(json.dumps(made.to_json())), RULES)
        assert again.plan == plan
        assert made.to_json()["p"][0] == ["snapshot:a", [1], 240, ["f", 5, 1.5, 7, 1, 4, 9, 10, 3]]
        assert list(again) == list(made)
        assert (again.segment_count, [each.partition_id for each in again.listed()]) == (1, ["p"])

    @pytest.mark.parametrize("place", range(9))
    @pytest.mark.parametrize("value", ["x", -1, 2**60, [], {}, float("nan"), True])
    def test_a_damaged_plan_is_refused(self, place, value):
        good = ["f", 5, 1.5, 7, 1, 4, 9, 10, 3]
        if (
            (place == 0 and value == "x")
            or (place == 1 and value == -1)
            or (place == 2 and value in (2**60,))
        ):
            return
        good[place] = value
        with pytest.raises(InvalidCursor):
            Lineage.from_json({"p": [["s", None, 16, good]]}, RULES)

    def test_two_snapshots_in_one_token_are_refused(self):
        plan = ["f", 5, None, None, 0, None, 0, None, 0]
        with pytest.raises(InvalidCursor):
            Lineage.from_json({"p": [["a", None, 16, plan], ["b", None, 16, plan]]}, RULES)

    def test_it_grows_by_at_most_400_bytes_for_32000_segments(self):
        sim = filled(200, partitions=64)
        reading = Reading(sim, ORDERED, 1, segments=32_000)
        plain = len(Reading(sim).engine.read_changes(
            ChangeFeedRequest(sim.address, Snapshot(ORDERED, segments=1)), OperationOptions()
        ).continuation_token)  # fmt: skip
        most = max(len(page.continuation_token) for page, _ in zip(reading.pages(), range(60), strict=False))
        stream = Reading(filled(0, partitions=64), ORDERED, 1)
        list(stream.pages())
        assert most - len(stream.position.token) <= 400 * 4 / 3, (most, plain, len(stream.position.token))


class TestScale:
    def test_32000_segments_and_1000_partitions(self):
        sim = filled(2000, partitions=1000)
        reading = Reading(sim, INTERLEAVED, 1000, segments=32_000)
        rows = [event.event_id for page in reading.pages() for event in page.events if event.backfilled]
        assert len(rows) == len(set(rows)) == 2000
        assert reading.provider.calls.violations == []

    def test_progress_is_shown(self):
        reading = Reading(filled(40), ORDERED, 4, segments=10)
        shown = [page.diagnostics.snapshot for page in reading.pages()]
        done = [progress for progress in shown if progress is not None]
        assert [progress.segments for progress in done] == [10] * len(done)
        assert [progress.rows for progress in done] == sorted(progress.rows for progress in done)
        assert done[0].records == 40
        assert shown[-1] is None


class TestIterator:
    def test_a_loop_over_single_events_is_refused_with_resnapshot(self):
        reading = Reading(filled(3))
        request = ChangeFeedRequest(reading.sim.address, Snapshot(), on_expired=Resnapshot())
        changes = ChangeFeedIterator(Client(reading), request, until_idle=True)
        with pytest.raises(MulticloudDbError, match=r"pages\(\)"):
            iter(changes)
        notices = [notice for page in changes.pages() for notice in page.notices]
        assert [type(notice) for notice in notices] == [SnapshotStarted, BackfillDone]

    def test_a_loop_over_single_events_reads_a_snapshot(self):
        reading = Reading(filled(3))
        request = ChangeFeedRequest(reading.sim.address, Snapshot())
        assert len(list(ChangeFeedIterator(Client(reading), request, until_idle=True))) == 3

    def test_an_interrupted_first_page_comes_again_and_begins_no_other_snapshot(self):
        reading = Reading(filled(3))
        request = ChangeFeedRequest(reading.sim.address, Snapshot())
        changes = ChangeFeedIterator(Client(reading), request, until_idle=True)
        first = next(changes.pages())
        assert next(changes.pages()) == first

    @pytest.mark.parametrize("order", [ORDERED, INTERLEAVED])
    def test_a_token_can_be_planned_only_when_no_change_waits(self, order):
        sim = filled(40)
        reading = Reading(sim, order, 4, segments=20)
        reading.page()
        seen = {event.event_id for event in reading.page().events}
        request = ChangeFeedRequest(sim.address, reading.position)
        if order is ORDERED:
            with pytest.raises(MulticloudDbError, match="in one process"):
                reading.engine.plan_partitions(request, OperationOptions())
            return
        for name, token in reading.engine.plan_partitions(request, OperationOptions())[1:]:
            reading.position = FromContinuationToken(token)
            while not (page := reading.page(scope=PhysicalPartition(name))).partition_retired:
                seen.update(event.event_id for event in page.events)
            seen.update(event.event_id for event in page.events)
        assert len(seen) == 40

    def test_a_planned_segment_that_is_read_alone_retires(self):
        sim = filled(20)
        reading = Reading(sim, segments=4)
        plan = reading.engine.plan_partitions(
            ChangeFeedRequest(sim.address, reading.position), OperationOptions()
        )
        rows = 0
        for name, token in plan[1:]:
            reading.position = FromContinuationToken(token)
            while True:
                page = reading.page(scope=PhysicalPartition(name))
                rows += len(page.events)
                if page.partition_retired:
                    break
            assert page.child_partitions == ()
            again = reading.page(scope=PhysicalPartition(name))
            assert again.partition_retired
        assert rows == 20

    def test_the_last_page_of_a_segment_without_rows_is_not_idle(self):
        reading = Reading(filled(0), segments=1)
        request = ChangeFeedRequest(reading.sim.address, reading.position)
        _, (name, token) = reading.engine.plan_partitions(request, OperationOptions())
        reading.position = FromContinuationToken(token)
        pages = [reading.page(scope=PhysicalPartition(name)) for _ in range(2)]
        assert [page.events for page in pages] == [(), ()]
        assert [(page.partition_retired, page.idle) for page in pages] == [(False, False), (True, False)]


class Client:
    def __init__(self, reading):
        self._engine = reading.engine

    def read_changes(self, request, options=None):
        return self._engine.read_changes(request, options or OperationOptions())
