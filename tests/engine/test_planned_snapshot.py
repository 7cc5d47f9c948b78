"""Tests planned reads of a snapshot: whole segments in any order, repeatable steps, then changes."""

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError, SkipToOldest, Snapshot, SnapshotOrder
from multiclouddb_conformance.simulation import ServiceBehaviour, Simulation, SimulationProvider, TrimmedError
from multiclouddb_spi import Deadline, FeedSpec, Planner, read_range

SOON = 30.0


class Plan:
    def __init__(self, count, behaviour=None, retention=None, **wanted):
        self.sim = Simulation(2, behaviour or ServiceBehaviour(), retention_seconds=retention)
        for number in range(count):
            self.sim.write(f"k{number}", {"n": number})
        self.provider = SimulationProvider(self.sim)
        self.feed = self.provider.open_feed(FeedSpec(self.sim.address), Deadline.after(SOON))
        self.planner = Planner(self.provider, self.feed, audit_seconds=1e9)
        self.lineage = self.planner.start(Snapshot(**wanted), Deadline.after(SOON))

    def step(self, most=None):
        step = self.planner.advance(self.lineage, most, Deadline.after(SOON), allow_empty=True)
        self.lineage = self.planner.restore(step.after.to_json())
        return step

    def events(self, step):
        """Read the ranges of a step as tasks would: in any order, each range separately."""
        return [
            event
            for part in reversed(step.ranges())
            for batch in read_range(self.provider, self.feed, part)
            for event in batch.events(0, len(batch))
        ]

    def run(self, most=None):
        while (step := self.step(most)).moved:
            yield step


@pytest.mark.parametrize("most", [None, 1, 7, 100])
@pytest.mark.parametrize("splits", [0.0, 0.5])
def test_every_row_is_in_one_step_and_changes_follow(most, splits):
    plan = Plan(40, ServiceBehaviour(splits_segments=splits, page_limit=3), segments=10)
    plan.sim.write("k1", {"n": 100})
    steps = [plan.events(step) for step in plan.run(most)]
    rows = [event for events in steps for event in events if event.backfilled]
    assert len(rows) == len({event.event_id for event in rows}) == 40
    kinds = [event.backfilled for events in steps for event in events]
    assert kinds == sorted(kinds, reverse=True)
    assert kinds.count(False) == 1


def test_an_expired_segment_is_never_skipped():
    """A segment contains rows, and a copy without these rows would stay wrong."""
    plan = Plan(10, segments=1)
    plan.step()
    (part,) = plan.step().ranges()
    plan.sim.fail_next(part.partition_id, TrimmedError("too old"))
    with pytest.raises(MulticloudDbError) as caught:
        list(read_range(plan.provider, plan.feed, part, SkipToOldest()))
    assert caught.value.category is ErrorCategory.CHECKPOINT_EXPIRED
    assert sum(map(len, read_range(plan.provider, plan.feed, part, SkipToOldest()))) == 10


@pytest.mark.parametrize("most", [2, 5, 100])
def test_readers_of_a_segment_that_splits_are_closed(most):
    plan = Plan(40, ServiceBehaviour(splits_segments=1.0, page_limit=3, faults_in_row=100), segments=1)
    plan.step()
    (part,) = plan.step().ranges()
    batches = read_range(plan.provider, plan.feed, part)
    for _, _batch in zip(range(most), batches, strict=False):
        assert plan.provider.calls.open_readers <= 1
    batches.close()
    assert plan.provider.calls.opens.total() > 1
    assert plan.provider.calls.open_readers == 0


def test_a_limit_counts_estimated_rows_in_whole_segments():
    plan = Plan(1000, segments=100)
    sizes = [len(step.ranges()) for step in plan.run(50)]
    assert sizes[0] == 0
    assert set(sizes[1:-1]) == {5}


def test_a_step_that_is_read_again_has_the_same_rows():
    plan = Plan(40, segments=4)
    plan.step()
    step = plan.step()
    assert [event.event_id for event in plan.events(step)] == [event.event_id for event in plan.events(step)]


def test_an_empty_collection_is_over_at_once():
    plan = Plan(0)
    assert [plan.events(step) for step in plan.run()] == [[]] * 2
    assert plan.lineage.plan is None


def test_auto_is_read_as_ordered_while_positions_are_kept():
    plan = Plan(3, order=SnapshotOrder.AUTO)
    plan.sim.write("k1", {"n": 1})
    kinds = [event.backfilled for step in plan.run() for event in plan.events(step)]
    assert kinds == [True] * 3 + [False]
