"""Tests planned reads of a snapshot together with its changes: `INTERLEAVED`, and `AUTO` after the stream is
released.
"""

import pytest

from multiclouddb_api import ErrorCategory, SnapshotOrder
from multiclouddb_conformance.simulation import ServiceBehaviour
from multiclouddb_conformance.sink import Sink
from multiclouddb_spi import Deadline
from multiclouddb_spi.errors import fault_of
from multiclouddb_spi.planning.planner import check_kept

from .test_planned_snapshot import SOON, Plan
from .test_planner_bounds import Asked

INTERLEAVED, AUTO = SnapshotOrder.INTERLEAVED, SnapshotOrder.AUTO


def writing(plan, number):
    """Make the changes that an application makes while the scan runs."""
    plan.sim.write(f"k{number % 40}", {"n": 100 + number})
    plan.sim.write(f"k{(number * 7) % 40}", None if number % 3 else {"n": 200 + number})
    names = list(plan.sim.open_partitions)
    if number == 2:
        plan.sim.split(names[0])
    if number == 5:
        plan.sim.merge(*names[:2])


@pytest.mark.parametrize("most", [None, 1, 7, 100])
@pytest.mark.parametrize("splits", [0.0, 0.5])
def test_rows_and_changes_come_together_and_make_the_source(most, splits):
    plan = Plan(40, ServiceBehaviour(splits_segments=splits, page_limit=3), segments=100, order=INTERLEAVED)
    sink, kinds = Sink(), []
    for number, step in enumerate(plan.run(most)):
        events = plan.events(step)
        sink.apply(events)
        kinds += [event.backfilled for event in events]
        if number < 12:
            writing(plan, number)
    assert sink.rows() == {key: dict(document) for key, document in plan.sim.documents().items()}
    if most != 100 and most is not None:
        assert kinds.index(False) < len(kinds) - 1 - kinds[::-1].index(True)


def test_a_step_that_is_read_again_has_the_same_events():
    plan = Plan(40, segments=10, order=INTERLEAVED)
    plan.step(12)
    plan.sim.write("k1", {"n": 100})
    step = plan.step(12)
    plan.sim.write("k2", {"n": 200})
    first = [event.event_id for event in plan.events(step)]
    assert [event.event_id for event in plan.events(step)] == first
    assert len(first) > 1


def test_a_step_has_rows_and_changes_within_the_limit():
    plan = Plan(1000, segments=100, order=INTERLEAVED)
    for number in range(1000):
        plan.sim.write(f"k{number}", {"n": number})
    sizes = [(0, 0)]
    for step in plan.run(100):
        events = plan.events(step)
        rows = sum(event.backfilled for event in events)
        sizes.append((rows, len(events) - rows))
    assert max(rows + changes for rows, changes in sizes) <= 130
    both = [each for each in sizes if all(each)]
    assert len(both) > 10
    assert all(changes >= 25 for _, changes in both[:-1])


def test_changes_that_come_after_a_quiet_time_fit_into_the_limit():
    """Without changes the scan gets three quarters of a step; the next step then has places for changes."""
    plan = Plan(1000, segments=100, order=INTERLEAVED)
    for _ in range(3):
        step = plan.step(100)
    rows = len(plan.events(step))
    assert 50 <= rows <= 85
    for number in range(1000):
        plan.sim.write(f"k{number}", {"n": number})
    kinds = [event.backfilled for event in plan.events(plan.step(100))]
    assert kinds.count(False) >= 25
    assert len(kinds) <= 110


def test_a_busy_stream_gets_what_the_scan_does_not_need():
    plan = Plan(1000, segments=100, order=INTERLEAVED)
    for number in range(1000):
        plan.sim.write(f"k{number}", {"n": number})
    plan.step(100)
    for _ in range(5):
        kinds = [event.backfilled for event in plan.events(plan.step(100))]
        assert 10 <= kinds.count(True) <= 40
        assert kinds.count(False) >= 70


def test_a_step_of_one_record_reads_one_segment():
    plan = Plan(40, segments=40, order=INTERLEAVED)
    counts = [plan.lineage.segment_count]
    while plan.lineage.plan is not None:
        plan.sim.write("k1", {"n": len(counts)})
        plan.step(1)
        counts.append(plan.lineage.segment_count)
    assert max(counts) == 1
    assert len(counts) > 30


def aged(order, retention=60.0, writes=0, part=0.6):
    plan = Plan(40, segments=10, order=order, retention=retention)
    plan.step(4)
    for number in range(writes):
        plan.sim.write(f"more{number}", {"n": number})
    plan.sim.advance(retention * part)
    return plan


def test_a_retention_that_is_known_later_counts_from_then():
    plan = Plan(40, segments=10, order=AUTO)
    plan.step(4)
    assert plan.lineage.plan.retention is None
    plan.sim.retention_seconds = 60.0
    plan.step(4)
    assert plan.lineage.plan.holds
    plan.sim.advance(40.0)
    plan.step(4)
    assert not plan.lineage.plan.holds


def test_auto_releases_the_stream_when_half_of_the_retention_is_used():
    plan = aged(AUTO)
    plan.sim.write("k1", {"n": 100})
    plan.step(4)
    assert not plan.lineage.plan.holds
    assert [event.backfilled for event in plan.events(plan.step(4))].count(False) == 1
    assert plan.lineage.plan is not None


@pytest.mark.parametrize(("part", "holds"), [(0.49, True), (0.5, False)])
def test_the_stream_is_released_when_exactly_half_of_the_retention_is_used(part, holds):
    plan = aged(AUTO, part=part)
    plan.step(4)
    assert plan.lineage.plan.holds is holds


def test_a_scan_that_outlasts_the_retention_ends_equal():
    for order in (AUTO, INTERLEAVED):
        plan = Plan(400, segments=200, order=order, retention=60.0)
        sink, steps = Sink(), 0
        for step in plan.run(8):
            sink.apply(plan.events(step))
            steps += 1
            if steps < 60:
                writing(plan, steps)
                plan.sim.advance(5.0)
                plan.sim.trim_older_than(60.0)
        assert steps > 30
        assert sink.rows() == {key: dict(document) for key, document in plan.sim.documents().items()}


def test_the_scan_waits_while_a_worn_stream_fills_its_limit():
    plan = aged(INTERLEAVED, writes=40)
    plan.step(8)
    step = plan.step(8)
    assert {event.backfilled for event in plan.events(step)} == {False}
    while plan.step(8).moved:
        pass
    assert plan.lineage.plan is None


def test_a_position_that_expired_is_found_before_a_range_is_planned():
    plan = aged(INTERLEAVED)
    soon = Deadline.after(SOON)
    check_kept(plan.feed, plan.lineage, soon)
    plan.sim.write("k1", {"n": 100})
    plan.sim.advance(600.0)
    plan.sim.trim_older_than(60.0)
    feed = Asked(plan.feed)
    with pytest.raises(Exception, match="no longer kept") as caught:
        check_kept(feed, plan.lineage, soon)
    ((most, nbytes, wait, _),) = feed.asked
    assert (most, wait) == (1, 0.0)
    assert 1 << 16 <= nbytes <= 1 << 26
    assert fault_of(plan.provider, caught.value).category == ErrorCategory.CHECKPOINT_EXPIRED
