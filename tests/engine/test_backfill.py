"""Tests feeds whose stream can start only at `Now`: every other start begins with an ordered scan."""

from datetime import timedelta

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import ServiceBehaviour, SimulationProvider
from multiclouddb_conformance.simulation.feed import SimulationFeed
from multiclouddb_spi import Deadline, FeedSpec, Planner, ProviderFault
from multiclouddb_spi.continuation.state import state_from_json
from multiclouddb_spi.continuation.token import decode_token, to_micros


class BackfillFeed(SimulationFeed):
    """A feed of a service that can start a stream only at the current time.

    Attributes:
        asked: The positions and the partitions for which a scan was requested.
        plan: A function that changes the plan of a scan.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = []
        self.plan = lambda plan: plan

    def start(self, position, partition_id, deadline):
        assert isinstance(position, api.Now)
        return super().start(position, partition_id, deadline)

    def backfill(self, position, partition_id, deadline):
        self.asked.append((position, partition_id))
        seeds = tuple(self.start(api.Now(), partition_id, deadline))
        return self.plan(attrs.evolve(self.snapshot(None, deadline), seeds=seeds)) if seeds else None


class BackfillProvider(SimulationProvider):
    """A provider of one feed that supports backfills."""

    def __init__(self, sim):
        super().__init__(sim)
        self.feed = BackfillFeed(sim, FeedSpec(sim.address), self.calls)

    def open_feed(self, spec, deadline):
        self.feed.spec = spec
        return self.feed


@pytest.fixture
def bench(make_bench):
    """Provide a collection of two partitions, and an engine that reads it through backfills."""
    made = make_bench(2)
    made.connect(provider=BackfillProvider(made.sim))
    return made


@pytest.fixture
def feed(bench):
    return bench.provider.feed


def lineage(page):
    return state_from_json(decode_token(page.continuation_token).state, RULES)


def starts(bench):
    return [api.Beginning(), api.AtTime(bench.sim.now - timedelta(seconds=5))]


def read(bench, place, **request):
    """Read all pages up to the first idle page; return the items, the notices and the last token."""
    pages = list(bench.walk(place, 3, **request))
    events = [(event.new_item_state["n"], event.backfilled) for page in pages for event in page.events]
    return events, [notice for page in pages for notice in page.notices], pages[-1].continuation_token


@pytest.mark.parametrize("number", [0, 1])
def test_the_rows_come_before_every_change(bench, feed, number):
    bench.fill(10)
    position = starts(bench)[number]
    first = bench.page(position, 3)
    assert feed.asked == [(position, None)]
    plan = lineage(first).plan
    assert (plan.holds, plan.auto) == (True, False)
    bench.sim.write("k0", {"n": 100})
    events, notices, _ = read(bench, first.continuation_token)
    rows = [(event.new_item_state["n"], event.backfilled) for event in first.events] + events[:-1]
    assert {backfilled for _, backfilled in rows} == {True}
    assert len(rows) == 10
    assert events[-1] == (100, False)
    assert [type(notice) for notice in notices] == [api.BackfillDone]


@pytest.mark.parametrize("number", [0, 1])
def test_a_partition_is_started_alone(bench, feed, number):
    bench.fill_partition("p1", 1)
    position = starts(bench)[number]
    scope = api.PhysicalPartition(bench.partitions()[1])
    events, _, token = read(bench, position, scope=scope)
    assert feed.asked == [(position, "p1")]
    assert events == [(0, True)]
    bench.fill_partition("p0", 2)
    bench.fill_partition("p1", 3)
    events, _, _ = read(bench, token, scope=scope)
    assert events == [(0, False), (1, False), (2, False)]


def test_an_audit_counts_from_the_start_of_the_scan_and_a_partition_has_none(bench):
    bench.sim.behaviour = ServiceBehaviour(late_children=1)
    page = bench.page(api.AtTime(bench.sim.now - timedelta(seconds=5)))
    assert lineage(page).audited.since == to_micros(bench.sim.now)
    page = bench.page(api.Beginning(), scope=api.PhysicalPartition(bench.partitions()[1]))
    assert lineage(page).audited is None


def test_a_partition_without_a_scan_cannot_be_started(bench, feed):
    scope = api.PhysicalPartition(bench.partitions()[1])
    feed.plan = lambda _: None
    for position in starts(bench):
        bench.refused(
            api.ErrorCategory.INVALID_REQUEST,
            position,
            scope=scope,
            match=r"PhysicalPartition\.partition_id.*can be read from this.*list_physical_partitions",
        )


def test_a_time_in_the_future_is_refused_before_a_scan_is_planned(bench, feed):
    late = api.AtTime(bench.sim.now + timedelta(seconds=61))
    bench.refused(api.ErrorCategory.INVALID_REQUEST, late, match=r"AtTime\.utc.*61 s ahead")
    assert feed.asked == []
    bench.page(api.AtTime(bench.sim.now + timedelta(seconds=60)))
    assert len(feed.asked) == 1


def test_only_a_scan_of_every_row_is_whole(bench):
    bench.fill(3)
    beginning, moment = starts(bench)
    alone = api.PhysicalPartition(bench.partitions()[1])
    asked = [(beginning, {}), (moment, {}), (beginning, {"scope": alone})]
    started = [bench.page(position, 3, **more).notices[0].whole for position, more in asked]
    assert started == [True, False, False]


def test_rows_without_a_common_floor_cannot_be_read_among_changes(bench, feed):
    wanted = api.Snapshot(api.SnapshotOrder.INTERLEAVED)
    bench.refused(api.ErrorCategory.UNSUPPORTED_CAPABILITY, wanted, match="ORDERED or AUTO")
    planner, soon = Planner(bench.provider, feed), Deadline.after(30)
    with pytest.raises(ProviderFault, match="ORDERED or AUTO"):
        planner.start(wanted, soon)
    assert planner.start(api.Snapshot(api.SnapshotOrder.ORDERED), soon).plan.holds


def test_a_scan_without_a_stream_is_tried_again(bench, feed):
    feed.plan = lambda plan: attrs.evolve(plan, seeds=())
    error = bench.refused(api.ErrorCategory.TRANSIENT_FAILURE, match="names no partition to read")
    assert error.retryable
