"""Tests planned reads of a snapshot: whole segments in any order, repeatable steps, then changes."""

import threading
from collections import Counter

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import (
    ServerError,
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
    TrimmedError,
)
from multiclouddb_conformance.simulation.segments import SegmentReader
from multiclouddb_conformance.sink import Sink
from multiclouddb_spi import Deadline, FeedSpec, Planner, ProviderFault, read_range
from multiclouddb_spi.continuation import entry
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.errors import fault_of
from multiclouddb_spi.retry import Tries
from multiclouddb_spi.scan.step import stream_limit

from .reading import Asked, Through, events_of, write

SOON = 30.0


class Plan:
    def __init__(self, count, behaviour=None, retention=None, **wanted):
        self.sim = Simulation(2, behaviour or ServiceBehaviour(), retention_seconds=retention)
        write(self.sim, count)
        self.provider = SimulationProvider(self.sim)
        self.feed = self.provider.open_feed(FeedSpec(self.sim.address), Deadline.after(SOON))
        self.planner = Planner(self.provider, self.feed, audit_seconds=1e9)
        self.lineage = self.planner.start(api.Snapshot(**wanted), Deadline.after(SOON))

    def step(self, most=None):
        step = self.planner.advance(self.lineage, most, Deadline.after(SOON), allow_empty=True)
        self.lineage = self.planner.restore(step.after.to_json())
        return step

    def events(self, step):
        """Read the ranges of a step as tasks would: in any order, each range separately."""
        return list(events_of(self.provider, self.feed, reversed(step.ranges())))

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


def test_a_provider_that_cuts_nothing_is_asked_a_hundred_times_a_step(monkeypatch):
    plan, asked = Plan(10, segments=1), []

    def nothing(feed, scan, rest, count, deadline):
        asked.append(count)
        return [], rest

    monkeypatch.setattr(SimulationFeed, "segments", nothing)
    assert plan.step().ranges() == []
    assert len(asked) == 100
    monkeypatch.undo()
    assert len([event for step in plan.run() for event in plan.events(step)]) == 10


def test_a_segment_that_is_cut_twice_is_refused(monkeypatch):
    plan, segments = Plan(10, segments=4), SimulationFeed.segments

    def twice(feed, *asked):
        found, rest = segments(feed, *asked)
        return [*found, found[0]], rest

    monkeypatch.setattr(SimulationFeed, "segments", twice)
    with pytest.raises(ProviderFault, match="cut twice"):
        plan.step()


def test_a_piece_of_another_scan_is_refused(monkeypatch):
    plan = Plan(10, ServiceBehaviour(splits_segments=1.0, page_limit=1), segments=1)
    pieces = SegmentReader._pieces

    def of_another(reader, left):
        other = attrs.evolve(reader._segment.scan, plan_id="another")
        return tuple(attrs.evolve(each, scan=other) for each in pieces(reader, left))

    monkeypatch.setattr(SegmentReader, "_pieces", of_another)
    plan.step()
    (part,) = plan.step().ranges()
    with pytest.raises(api.MulticloudDbError, match="belongs to another scan") as caught:
        list(read_range(plan.provider, plan.feed, part))
    assert (caught.value.category, caught.value.retryable) == (api.ErrorCategory.PERMANENT_FAILURE, False)


def test_an_expired_segment_is_never_skipped():
    """A segment contains rows, and a copy without these rows would stay wrong."""
    plan = Plan(10, segments=1)
    plan.step()
    (part,) = plan.step().ranges()
    plan.sim.fail_next(part.partition_id, TrimmedError("too old"))
    with pytest.raises(api.MulticloudDbError) as caught:
        list(read_range(plan.provider, plan.feed, part, api.SkipToOldest()))
    assert caught.value.category is api.ErrorCategory.CHECKPOINT_EXPIRED
    assert sum(map(len, read_range(plan.provider, plan.feed, part, api.SkipToOldest()))) == 10


def test_a_limit_counts_estimated_rows_in_whole_segments():
    plan = Plan(1000, segments=100)
    sizes = [len(step.ranges()) for step in plan.run(50)]
    assert sizes[0] == 0
    assert set(sizes[1:-1]) == {5}


@pytest.mark.parametrize(("most", "size"), [(20, 1), (None, 64)])
def test_without_an_estimate_a_limited_step_reads_one_segment(monkeypatch, most, size):
    snapshot = SimulationFeed.snapshot
    monkeypatch.setattr(SimulationFeed, "snapshot", lambda *of: attrs.evolve(snapshot(*of), records=None))
    plan = Plan(100, segments=100)
    assert [len(plan.step(most).ranges()) for _ in range(3)] == [0, size, min(size, 100 - size)]


ORDERED, INTERLEAVED, AUTO = api.SnapshotOrder.ORDERED, api.SnapshotOrder.INTERLEAVED, api.SnapshotOrder.AUTO


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


def test_a_step_has_rows_and_changes_within_the_limit():
    plan = Plan(1000, segments=100, order=INTERLEAVED)
    write(plan.sim, 1000)
    sizes = [(0, 0)]
    for step in plan.run(100):
        events = plan.events(step)
        rows = sum(event.backfilled for event in events)
        sizes.append((rows, len(events) - rows))
    assert max(rows + changes for rows, changes in sizes) <= 130
    both = [each for each in sizes if all(each)]
    assert len(both) > 10
    assert all(changes >= 75 for _, changes in both[:-1]), "what the stream needs"
    assert max(rows for rows, changes in sizes if not changes) >= 70


def aged(order, retention=60.0, writes=0, part=0.6):
    plan = Plan(40, segments=10, order=order, retention=retention)
    plan.step(4)
    for number in range(writes):
        plan.sim.write(f"more{number}", {"n": number})
    plan.sim.advance(retention * part)
    return plan


@pytest.mark.parametrize(
    ("order", "part", "holds"), [(AUTO, 0.49, True), (AUTO, 0.5, False), (ORDERED, 0.9, True)]
)
def test_auto_releases_the_stream_when_exactly_half_of_the_retention_is_used(order, part, holds):
    plan = aged(order, part=part)
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


def test_a_position_that_expired_is_found_before_a_range_is_planned(monkeypatch):
    plan = aged(INTERLEAVED)
    soon = Deadline.after(SOON)

    def check(feed, *, surely=False):
        planner = Planner(plan.provider, feed)
        try:
            planner.check_kept(plan.lineage, soon, surely=surely)
        finally:
            planner.close()

    kept = Asked(plan.feed)
    check(kept)
    assert kept.asked == []  # nothing is read while retention is far away
    with monkeypatch.context() as patch:
        patch.setattr(SimulationFeed, "clock", lambda *_: None)
        check(kept)
        assert kept.asked == []
        check(kept, surely=True)
        assert len(kept.asked) == 2, "the partitions of the stream"
    kept = Asked(plan.feed)
    for seconds, asked in ((23.0, 0), (1.0, 2)):
        plan.sim.advance(seconds)
        check(kept)
        assert len(kept.asked) == asked
    plan.sim.write("k1", {"n": 100})
    plan.sim.advance(600.0)
    plan.sim.trim_older_than(60.0)
    feed = Asked(plan.feed)
    with pytest.raises(Exception, match="no longer kept") as caught:
        check(feed)
    assert 1 <= len(feed.asked) <= 2
    for most, nbytes, wait, _ in feed.asked:
        assert (most, wait) == (1, 0.0)
        assert 1 << 16 <= nbytes <= 1 << 26
    assert fault_of(plan.provider, caught.value).category == api.ErrorCategory.CHECKPOINT_EXPIRED
    assert plan.provider.calls.open_readers == 0


def test_positions_are_checked_at_once_and_a_failed_request_repeats_no_other():
    sim = Simulation(partitions=8)
    provider = SimulationProvider(sim)
    feed = provider.open_feed(FeedSpec(sim.address), Deadline.after(SOON))
    together, asked = threading.Barrier(8), Counter()

    def through(fetch, *arguments):
        name = fetch.__self__._id
        asked[name] += 1
        if asked[name] == 1:
            together.wait(SOON)
            if name == "p3":
                raise ServerError("503")
        return fetch(*arguments)

    planner = Planner(provider, Through(feed, through), call=Tries(provider, pause=lambda _: None).call)
    lineage = planner.start(api.Beginning(), Deadline.after(SOON))
    planner.check_kept(lineage, Deadline.after(SOON), surely=True)
    assert asked == {f"p{number}": 2 if number == 3 else 1 for number in range(8)}
    planner.close()
    assert provider.calls.open_readers == 0


REQUESTS = ["clock", "start", "survey", "heads", "snapshot", "segments"]


class Failing:
    """Makes the first attempt of every request fail, and repeats it as a `call` of the planner does."""

    def __init__(self, monkeypatch):
        self.sent, self.reading, self._attempt = set(), False, 0
        for name in REQUESTS:
            monkeypatch.setattr(SimulationFeed, name, self._failing(name, getattr(SimulationFeed, name)))

    def _failing(self, name, original):
        def request(feed, *args, **named):
            if self.reading:  # a range has its own retries
                return original(feed, *args, **named)
            assert self._attempt, f"{name} is not sent through `call`"
            if self._attempt == 1:
                raise ServerError("503")
            self.sent.add(name)
            return original(feed, *args, **named)

        return request

    def __call__(self, ask, deadline):
        for self._attempt in (1, 2, 3):
            try:
                return ask()
            except ServerError:
                continue
            finally:
                self._attempt = 0
        pytest.fail("a request failed twice, so it was sent with another one")


def _consume(provider, feed, planner, failing, at, deadline):
    """Read every planned step; return the ids of the events and the last lineage."""
    came = []
    for _ in range(10):  # the service names children late, so a step without news is not the end
        step = planner.advance(at, None, deadline)
        failing.reading = True
        events = events_of(provider, feed, step.ranges(), api.SkipToOldest())
        came += [event.event_id for event in events]
        failing.reading, at = False, step.after
    return came, at


def test_each_request_is_repeated_alone(monkeypatch):
    sim = Simulation(partitions=4, behaviour=ServiceBehaviour(late_children=1))
    write(sim, 12)
    failing, deadline = Failing(monkeypatch), Deadline.after(60)
    provider = SimulationProvider(sim)
    feed = provider.open_feed(FeedSpec(sim.address), deadline)
    planner = Planner(provider, feed, api.SkipToOldest(), call=failing, audit_seconds=1e-9)
    for position in [api.Beginning(), api.Snapshot(order=api.SnapshotOrder.AUTO)]:
        at = planner.start(position, deadline)
        came, at = _consume(provider, feed, planner, failing, at, deadline)
        assert len(came) == 12
    planner.target(at, deadline)
    left, _ = sim.split("p0")
    rolled = sim.roll(left)
    write(sim, 12)
    sim.trim("p0")
    sim.split(rolled)
    write(sim, 12)
    came, _ = _consume(provider, feed, planner, failing, at, deadline)
    assert len(set(came)) == len(came)
    assert {item.event_id for item in sim.truth[12:] if item.partition_id != "p0"} == set(came)
    planner.target_at(sim.commit_time(sim.head), deadline)
    assert failing.sent == set(REQUESTS)


@pytest.mark.parametrize(("most", "changes"), [(1, 1), (3, 1), (8, 2), (20, 10), (None, None)])
def test_each_step_leaves_the_stream_a_share(most, changes):
    plan = entry.Plan("p", None, "", 0, segments=4, records=40)
    lineage = Lineage([plan, entry.Entry.read("s", 1, listed=False)], RULES)
    assert stream_limit(lineage, most) == changes


def test_a_busy_stream_leaves_the_scan_a_share():
    plan = Plan(4, segments=4, order=INTERLEAVED)
    for _ in range(12):
        write(plan.sim, 4)
        plan.step(1)
    assert plan.lineage.plan is None
