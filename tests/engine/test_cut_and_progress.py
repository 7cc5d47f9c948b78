"""Tests how the scan of a snapshot is cut into segments, how the scan's progress is counted, and what changes
when the scan ends.
"""

import time
from types import SimpleNamespace

import attrs
import pytest

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    Dropped,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    OperationOptions,
    Snapshot,
    SnapshotOrder,
)
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_conformance.simulation import provider as simulated
from multiclouddb_conformance.simulation.feed import SimulationFeed
from multiclouddb_conformance.simulation.segments import SegmentReader, cut_segments
from multiclouddb_spi import Awaiting, Batch, Child, Drained, Ended, Engine, Feed, InlineExecutor, Scanned
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.fetching.fetcher import ScanRates
from multiclouddb_spi.scan.start import lost

ORDERED, INTERLEAVED, AUTO = SnapshotOrder.ORDERED, SnapshotOrder.INTERLEAVED, SnapshotOrder.AUTO
SCANS = ("snapshot", "segments", "__dict__", "__weakref__")


class Consumer:
    """A consumer that reads one feed page by page, in one thread."""

    def __init__(self, sim, order, size=8, *, rate=None, **config):
        self.sim, self.size, self.position = sim, size, Snapshot(order, max_scan_rate=rate)
        settings = ClientConfig("simulation", {}, coverage_audit_seconds=0.0, **config)
        self.engine = Engine(
            SimulationProvider(sim), settings, executor=InlineExecutor(), pause=lambda _: None
        )

    def page(self):
        request = ChangeFeedRequest(self.sim.address, self.position, max_page_size=self.size)
        page = self.engine.read_changes(request, OperationOptions(30.0))
        self.position = FromContinuationToken(page.continuation_token)
        return page

    def pages(self, count):
        return [self.page() for _ in range(count)]


def filled(count, behaviour=None, **settings):
    sim = Simulation(1, behaviour or ServiceBehaviour(), **settings)
    for number in range(count):
        sim.write(f"k{number}", {"n": number})
    return sim


def test_one_answer_with_segments_is_enough_for_a_call(monkeypatch):
    """If a service defines one segment at a time, the engine starts to read before eight segments are
    defined.
    """
    asked = []

    def segments(self, cursor, count, deadline):
        asked.append(count)
        return cut_segments(cursor, 1)

    monkeypatch.setattr(SimulationFeed, "segments", segments)
    consumer = Consumer(filled(80), ORDERED, size=4)
    consumer.page()
    page = consumer.page()
    assert len(page.events) == 4
    assert len(asked) == 1


def test_every_segment_that_was_read_is_counted():
    consumer = Consumer(filled(40), INTERLEAVED)
    told = [page.diagnostics.snapshot for page in consumer.pages(20)]
    done = [progress.segments_done for progress in told if progress is not None]
    assert done == sorted(done)
    assert 0 < max(done) <= 4
    assert told[-1] is None


def test_every_row_that_was_delivered_is_counted():
    consumer, rows = Consumer(filled(40), ORDERED), 0
    consumer.page()
    for _ in range(4):
        page = consumer.page()
        rows += len(page.events)
        assert page.diagnostics.snapshot.rows == rows > 0


def test_a_rate_of_less_than_one_a_second_is_kept(monkeypatch):
    """The simulation charges 2 units for a read of one row. At a rate of 0.5 units per second, the next read
    follows 4 seconds later.
    """
    consumer, now = Consumer(filled(40), ORDERED, rate=0.5), [3000.0]
    consumer.page()

    def monotonic():
        now[0] += 1e-6
        return now[0]

    monkeypatch.setattr(time, "monotonic", monotonic)
    page = consumer.page()
    assert len(page.events) == 1
    (plan_id,) = consumer.engine._context.rates._not_before
    later = consumer.engine._context.rates.not_before(plan_id) - now[0]
    assert later == pytest.approx(4.0, abs=0.1)


def test_the_gap_before_another_snapshot_names_the_position_of_its_own_partition():
    feed = SimpleNamespace(public_id=str, describe=lambda cursor: SimpleNamespace(text=f"at {cursor}"))
    lineage = Lineage([Entry.read("p0", 1), Entry.read("p1", 2)], RULES)
    assert [lost(feed, lineage, name).lost_from for name in ("p0", "p1")] == ["at 1", "at 2"]
    assert lost(feed, lineage, "gone").lost_from == "its position"


def test_rates_of_the_scans_that_were_read_last_are_kept():
    rates = ScanRates()
    for number in range(1025):
        rates.spend(f"s{number}", 50.0)
    assert rates.not_before("s0") == 0.0
    assert rates.not_before("s1") > 0
    assert rates.not_before("s1024") > 0


def test_a_position_that_is_kept_for_less_than_a_second_is_no_worn_one():
    """None of the retention time has been used, so the changes still wait for the scan."""
    consumer = Consumer(filled(40, retention_seconds=0.45), AUTO, size=4)
    consumer.page()
    assert consumer.page().diagnostics.snapshot.order is ORDERED


def test_a_provider_that_makes_no_snapshots_refuses_the_token_of_one(monkeypatch):
    """A process with an older release of the provider reads a token from a newer release."""
    consumer = Consumer(filled(40), INTERLEAVED)
    consumer.page()
    kept = {name: member for name, member in vars(SimulationFeed).items() if name not in SCANS}
    monkeypatch.setattr(simulated, "SimulationFeed", type("PlainFeed", (Feed,), kept))
    older = Consumer(consumer.sim, INTERLEAVED)
    older.position = consumer.position
    with pytest.raises(MulticloudDbError, match="does not support snapshots") as caught:
        older.page()
    assert caught.value.category == ErrorCategory.INVALID_REQUEST


def test_a_scan_that_ends_early_leaves_the_page_to_the_changes(monkeypatch):
    """The remaining segments no longer exist, so the engine reads the changes instead."""
    consumer = Consumer(filled(40, ServiceBehaviour(page_limit=2)), INTERLEAVED, 8, max_concurrency=1)
    consumer.page()

    def fetch(self, most, nbytes):
        here = self._cursor()
        return Batch([], self._mapper, here, here, Ended(Dropped(self._id)), 0, caught_up=True)

    monkeypatch.setattr(SegmentReader, "_fetch", fetch)
    for number in range(20):
        consumer.sim.write("busy", {"n": number})
    page = consumer.page()
    assert [type(notice) for notice in page.notices] == [Dropped]
    assert len(page.events) == 8


@pytest.mark.parametrize("outcome", [Drained((Child("c", ("p0",), 1),)), Drained(()), Awaiting()])
def test_a_provider_that_ends_a_segment_like_a_partition_is_refused(monkeypatch, outcome):
    """If the segment's end were accepted, the token would lose a part of the scan, or a partition would be
    read twice.
    """
    consumer = Consumer(filled(40), ORDERED)
    consumer.page()
    whole = SegmentReader._fetch

    def fetch(self, most, nbytes):
        batch = whole(self, most, nbytes)
        return attrs.evolve(batch, outcome=outcome) if isinstance(batch.outcome, Scanned) else batch

    monkeypatch.setattr(SegmentReader, "_fetch", fetch)
    with pytest.raises(MulticloudDbError, match="violates the contract") as caught:
        consumer.pages(20)
    assert caught.value.category == ErrorCategory.PERMANENT_FAILURE
