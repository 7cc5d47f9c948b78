"""Tests that a planned read with an end time does not read after that time."""

from datetime import timedelta

import pytest

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError, SkipToOldest
from multiclouddb_conformance.simulation import ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_spi import Deadline, FeedSpec, Planner, ranges_between, read_range


class Headless:
    """A feed that cannot find heads (end positions) without reading."""

    def __init__(self, feed):
        self._feed = feed

    def for_one_call(self):
        return self

    def __getattr__(self, name):
        if name == "heads":
            raise AttributeError(name)
        return getattr(self._feed, name)


@pytest.mark.parametrize("heads", [True, False], ids=["heads", "by reading"])
@pytest.mark.parametrize("most", [None, 2])
def test_a_partition_that_ends_right_at_the_moment_leads_to_no_child(heads, most):
    sim = Simulation()
    for number in range(3):
        sim.write("k", {"n": number})
    before = [item.event_id for item in sim.truth]
    sim.advance(1)
    moment = sim.now
    sim.advance(1)
    sim.split("p0")
    for number in range(10):
        sim.write(f"k{number}", {"n": number})
    provider, deadline = SimulationProvider(sim), Deadline.after(60)
    feed = provider.open_feed(FeedSpec(sim.address), deadline)
    feed = feed if heads else Headless(feed)
    planner = Planner(provider, feed)
    target = planner.target_at(moment, deadline)
    at, delivered = planner.start(Beginning(), deadline), []
    for _ in range(10):
        step = planner.advance(at, most, deadline, target)
        if not step.moved:
            break
        for part in ranges_between(at, step.after, step.ends):
            for batch in read_range(provider, feed, part, None):
                delivered += [event.event_id for event in batch.events(0, len(batch))]
        at = step.after
    assert delivered == before
    assert [entry.partition_id for entry in at.active()] == ["p0"]


class Asked:
    """A feed that records how many records each fetch of its readers requests."""

    def __init__(self, feed):
        self._feed, self.asked = feed, []

    def for_one_call(self):
        return self

    def __getattr__(self, name):
        return getattr(self._feed, name)

    def open(self, *args):
        reader = self._feed.open(*args)
        fetch = reader.fetch

        def noted(most, nbytes, wait, deadline):
            self.asked.append((most, nbytes, wait, deadline.remaining()))
            return fetch(most, nbytes, wait, deadline)

        reader.fetch = noted
        return reader


def test_a_range_is_read_in_parts_that_fit_into_memory_and_end():
    sim = Simulation()
    for number in range(3):
        sim.write("k", {"n": number})
    provider, deadline = SimulationProvider(sim), Deadline.after(60)
    feed = Asked(provider.open_feed(FeedSpec(sim.address), deadline))
    planner = Planner(provider, feed)
    at = planner.start(Beginning(), deadline)
    step = planner.advance(at, None, deadline)
    feed.asked.clear()
    for part in ranges_between(at, step.after, step.ends):
        assert sum(map(len, read_range(provider, feed, part, None))) == 3
    assert feed.asked
    for most, nbytes, wait, remaining in feed.asked:
        assert 100 <= most <= 100_000
        assert 1 << 20 <= nbytes <= 1 << 26
        assert wait == 0
        assert 10 <= remaining <= 600


@pytest.mark.parametrize("heads", [True, False], ids=["heads", "by reading"])
def test_a_partition_beside_one_that_retention_took_is_read_in_the_same_step(heads):
    sim = Simulation(partitions=2)
    provider, deadline = SimulationProvider(sim), Deadline.after(60)
    feed = provider.open_feed(FeedSpec(sim.address), deadline)
    feed = feed if heads else Headless(feed)
    planner = Planner(provider, feed, SkipToOldest())
    at = planner.start(Beginning(), deadline)
    for number in range(40):
        sim.write(f"k{number}", {"n": number})
    left = [item.event_id for item in sim.truth if item.partition_id == "p1"]
    sim.trim("p0")
    step = planner.advance(at, None, deadline)
    assert step.moved
    delivered = [
        event.event_id
        for part in ranges_between(at, step.after, step.ends)
        for batch in read_range(provider, feed, part, SkipToOldest())
        for event in batch.events(0, len(batch))
    ]
    assert left
    assert delivered == left
    assert step.skipped == (f"{feed.public_id('p0')} after {feed.describe(at.cursor('p0')).text}",)
    assert planner.advance(step.after, None, deadline).skipped == ()


def test_a_target_in_the_future_is_refused_under_the_name_of_the_caller():
    sim = Simulation()
    sim.write("k", {"n": 1})
    provider, deadline = SimulationProvider(sim), Deadline.after(60)
    planner = Planner(provider, provider.open_feed(FeedSpec(sim.address), deadline))
    with pytest.raises(MulticloudDbError, match="endingPosition") as caught:
        planner.target_at(sim.now + timedelta(hours=1), deadline, "endingPosition")
    assert caught.value.category == ErrorCategory.INVALID_REQUEST


def test_what_was_read_shortly_before_the_deadline_is_a_step():
    sim = Simulation(behaviour=ServiceBehaviour(page_limit=10))
    for number in range(50):
        sim.write("k", {"n": number})
    provider = SimulationProvider(sim)
    feed = Headless(provider.open_feed(FeedSpec(sim.address), Deadline.after(60)))
    planner = Planner(provider, feed)
    at = planner.start(Beginning(), Deadline.after(60))
    step = planner.advance(at, None, Deadline.after(20))
    assert sum(len(batch) for part in step.ranges() for batch in read_range(provider, feed, part)) == 10
