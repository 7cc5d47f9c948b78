"""Tests planning with random changes to a partitioned log.

As with micro-batches, the log is planned in steps, and the planned ranges are read later.
"""

import random
from datetime import timedelta

import attrs
import pytest

from multiclouddb_api import AtTime, Beginning, ErrorCategory, MulticloudDbError, Now, SkipToOldest
from multiclouddb_conformance.simulation import (
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
)
from multiclouddb_spi import (
    Deadline,
    FeedSpec,
    Planner,
    Range,
    RecordFault,
    SupportsHeads,
    ranges_between,
    read_range,
)
from multiclouddb_spi.planning import ranges

MANY = 10_000
BEGINNING = Beginning()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Retries without a pause."""
    monkeypatch.setattr(ranges, "_sleep", lambda seconds: None)


class Headless:
    """The same feed, but without its cheap method for finding heads (end positions)."""

    def __init__(self, feed):
        self._feed = feed

    def for_one_call(self):
        return self

    def __getattr__(self, name):
        if name == "heads":
            raise AttributeError(name)
        return getattr(self._feed, name)


class Consumer:
    """Plans steps over a simulation and reads the ranges between them."""

    def __init__(self, sim, position=BEGINNING, *, heads=True, on_expired=None, skip_poison=False):
        self.sim = sim
        self.provider = SimulationProvider(sim)
        self.deadline = Deadline.after(60)
        feed = self.attempt(lambda: self.provider.open_feed(FeedSpec(sim.address), self.deadline))
        assert isinstance(feed, SimulationFeed)
        self.feed = feed if heads else Headless(feed)
        assert isinstance(self.feed, SupportsHeads) == heads
        self.on_expired = on_expired
        self.planner = Planner(self.provider, self.feed, on_expired, skip_poison=skip_poison)
        self.poison = []
        self._on_poison = self.poison.append if skip_poison else None
        self.position = self.attempt(lambda: self.planner.start(position, self.deadline))
        self.steps = []

    def attempt(self, call):
        """Make a call of the planner, and repeat it if it fails, because the planner itself does not
        retry."""
        for _ in range(100):
            try:
                return call()
            except Exception as error:
                if not self.provider.classify(error).retryable:
                    raise
        raise AssertionError("it never works")

    def step(self, max_records=None, target=None):
        """Plan one step as a micro-batch does: convert both ends to JSON and back."""
        before = self.position
        step = self.attempt(lambda: self.planner.advance(before, max_records, self.deadline, target))
        if not step.moved:
            return None
        self.position = self.planner.restore(step.after.to_json())
        parts = ranges_between(before, self.position, step.ends)
        events = self.read(parts)
        if max_records is not None:
            assert len(events) <= max_records
        self.steps.append((parts, events))
        return events

    def read(self, parts):
        found = []
        for part in random.sample(parts, len(parts)):
            for batch in read_range(self.provider, self.feed, part, self.on_expired, self._on_poison):
                found += batch.events(0, len(batch))
        return found

    def drain(self, **limits):
        events = []
        for _ in range(MANY):
            came = self.step(**limits)
            if came is None and all(end.children for end in self.position.ends()):
                return events
            events += came or []
        raise AssertionError("it does not end")

    def delivered(self):
        return [event for _, events in self.steps for event in events]


def ids(events):
    return sorted(event.event_id for event in events)


def written(sim, after=0):
    return sorted(record.event_id for record in sim.truth if record.commit > after)


def live(sim, dice, actions, reshape=True):
    """Change the log at random."""
    for _ in range(actions):
        match dice.choice(["write"] * 6 + ["transaction"] + ["split", "merge", "roll"] * reshape):
            case "write":
                sim.write(f"k{dice.randrange(12)}", {"n": sim.head} if dice.random() > 0.2 else None)
            case "transaction":
                names = dice.sample(range(12), dice.randrange(2, 8))
                sim.transaction([(f"k{name}", {"n": sim.head}) for name in names])
            case "split" if len(sim.open_partitions) < 10:
                name = dice.choice(sim.open_partitions)
                if sum(high - low for low, high in sim.partitions[name].ranges) > 4:
                    sim.split(name, dice.randrange(2, 4))
            case "merge" if len(sim.open_partitions) > 1:
                sim.merge(*dice.sample(sim.open_partitions, 2))
            case "roll":
                sim.roll(dice.choice(sim.open_partitions))
            case _:
                pass


@pytest.mark.parametrize("heads", [True, False], ids=["heads", "by-reading"])
@pytest.mark.parametrize("seed", range(40))
def test_every_event_once_in_order_and_again_the_same(seed, heads):
    dice = random.Random(seed)
    sim = Simulation(partitions=dice.randrange(1, 5))
    sim.behaviour = ServiceBehaviour.rough(seed) if dice.random() < 0.6 else ServiceBehaviour(seed=seed)
    live(sim, dice, 20)
    consumer = Consumer(sim, heads=heads)
    for _ in range(12):
        live(sim, dice, dice.randrange(12))
        for _ in range(dice.randrange(4)):
            consumer.step(dice.choice([None, 1, 2, 5, 50]))
    consumer.drain(max_records=dice.choice([None, 3, 1000]))

    assert ids(consumer.delivered()) == written(sim)
    seen = {}
    for event in consumer.delivered():
        assert seen.get(event.key, "") < event.order_key
        seen[event.key] = event.order_key
    for parts, events in consumer.steps:
        assert ids(consumer.read(parts)) == ids(events)


@pytest.mark.parametrize("heads", [True, False], ids=["heads", "by-reading"])
@pytest.mark.parametrize("limit", [1, 2, 7])
def test_no_partition_starves_behind_idle_or_busy_ones(limit, heads):
    sim = Simulation(partitions=40)
    consumer = Consumer(sim, Now(), heads=heads)
    sim.write("lonely", {"n": 1})
    assert len(consumer.drain(max_records=limit)) == 1

    busy = [f"k{number}" for number in range(300)]
    sim.write("rare", {"n": 1})
    for turn in range(3 * len(sim.open_partitions)):
        for key in busy[turn : turn + 10]:
            sim.write(key, {"n": turn})
        if any(event.key.components["id"] == "rare" for event in consumer.step(limit)):
            break
    else:
        pytest.fail("the rare one never came")


def test_limit_is_used_up_when_the_records_are_in_one_partition():
    sim = Simulation(partitions=16)
    consumer = Consumer(sim, Now())
    for number in range(500):
        sim.write("one", {"n": number})
    assert len(consumer.step(300)) == 300


@pytest.mark.parametrize("limit", [None, 5])
def test_target_ends_under_writes_splits_and_merges(limit):
    """A run that ends by itself reads the existing changes of all partitions, but no later changes."""
    dice = random.Random(limit)
    sim = Simulation(partitions=3)
    live(sim, dice, 80)
    consumer = Consumer(sim)
    before = written(sim)
    target = consumer.planner.target(consumer.position, consumer.deadline)
    consumer_events = []
    for _ in range(MANY):
        live(sim, dice, 10)
        came = consumer.step(limit, target)
        if came is None:
            break
        consumer_events += came
    assert ids(consumer_events) == before

    consumer.drain()
    assert ids(consumer.delivered()) == written(sim)


def test_steps_end_though_records_come_as_fast_as_it_asks():
    sim = Simulation(partitions=3)
    live(sim, random.Random(1), 60)
    consumer = Consumer(sim)
    before = written(sim)
    parts = []
    for step in consumer.planner.steps(consumer.position, consumer.deadline):
        parts += step.ranges()
        live(sim, random.Random(len(parts)), 20, reshape=False)
    got = ids(consumer.read(parts))
    assert set(before) <= set(got) <= set(written(sim))
    assert len(set(got)) == len(got)


@pytest.mark.parametrize("seed", range(10))
def test_target_at_a_moment_reads_what_was_committed_before(seed):
    dice = random.Random(seed)
    sim = Simulation(partitions=3)
    live(sim, dice, 60)
    sim.advance(1)
    before, moment = written(sim), sim.now
    sim.advance(1)
    live(sim, dice, 60)
    consumer = Consumer(sim)
    target = consumer.planner.target_at(moment, consumer.deadline)
    assert ids(consumer.drain(target=target)) == before


def test_children_named_late_are_read_when_they_are_named():
    sim = Simulation(partitions=1)
    consumer = Consumer(sim)
    sim.write("a", {"n": 1})
    (first,) = sim.open_partitions
    sim.delay_children(first, 3)
    sim.split(first)
    sim.write("a", {"n": 2})
    sim.write("b", {"n": 1})
    assert len(consumer.step()) == 1
    assert consumer.position.ends()
    while len(consumer.delivered()) < 3:
        consumer.step()
    assert ids(consumer.delivered()) == written(sim)


def test_what_lies_before_a_poison_record_is_planned_first():
    """If a planner finds heads by reading, it reaches the poison record during planning."""
    sim = Simulation(partitions=1, behaviour=ServiceBehaviour(poison_at_fetch=True))
    consumer = Consumer(sim, heads=False)
    sim.write("a", {"n": 1})
    sim.write("b", {"n": 1}, poison=True)
    assert len(consumer.step()) == 1
    with pytest.raises(RecordFault):
        consumer.step()


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("limit", [None, 1, 3])
def test_what_lies_behind_a_record_that_cannot_be_fetched_is_planned_and_read(heads, limit):
    sim = Simulation(partitions=2, behaviour=ServiceBehaviour(poison_at_fetch=True))
    consumer = Consumer(sim, heads=heads, skip_poison=True)
    for number in range(12):
        sim.write(f"k{number}", {"n": number}, poison=number in (0, 3, 4, 11))
    left = [record.event_id for record in sim.truth if not record.poison]
    assert ids(consumer.drain(max_records=limit)) == sorted(left)
    assert len(consumer.poison) == 4


class TestSkipToOldest:
    def test_reads_on_in_a_trimmed_partition(self):
        sim = Simulation(partitions=2)
        consumer = Consumer(sim, on_expired=SkipToOldest())
        for number in range(20):
            sim.write(f"k{number}", {"n": number})
        sim.trim(upto=10)
        kept = written(sim, after=10)
        assert ids(consumer.drain(max_records=3)) == kept

    @pytest.mark.parametrize("limit", [None, 2])
    def test_goes_on_with_the_descendants_and_keeps_the_others(self, limit):
        sim = Simulation(partitions=3)
        consumer = Consumer(sim, on_expired=SkipToOldest())
        for number in range(30):
            sim.write(f"k{number}", {"n": number})
        gone = sim.open_partitions[1]
        owned = [record.event_id for record in sim.truth if record.partition_id == gone]
        sim.split(gone)
        sim.trim(gone)
        assert sim.partitions[gone].gone
        for number in range(30):
            sim.write(f"k{number}", {"n": -number})
        left = sorted(set(written(sim)) - set(owned))
        assert ids(consumer.drain(max_records=limit)) == left

    def test_without_it_the_expiry_is_told(self):
        sim = Simulation(partitions=1)
        consumer = Consumer(sim)
        sim.write("a", {"n": 1})
        sim.trim()
        with pytest.raises(Exception, match="no longer kept") as caught:
            consumer.step()
        assert consumer.provider.classify(caught.value).category == ErrorCategory.CHECKPOINT_EXPIRED


def test_range_of_a_collection_that_was_dropped_is_not_silently_short():
    sim = Simulation(partitions=1, behaviour=ServiceBehaviour(drop_notice=True))
    consumer = Consumer(sim)
    sim.write("a", {"n": 1})
    (part,) = consumer.planner.advance(consumer.position, None, consumer.deadline).ranges()
    sim.drop()
    with pytest.raises(MulticloudDbError, match="try again"):
        consumer.read([part])


def test_moment_that_is_to_come_is_refused():
    sim = Simulation()
    with pytest.raises(MulticloudDbError, match="ahead of the service's clock"):
        Consumer(sim, AtTime(sim.now + timedelta(hours=1)))


def test_range_is_plain_data():
    part = Range("p0", [1, 2], None)
    assert part == Range(*attrs.astuple(part))
