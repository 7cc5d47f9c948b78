"""Tests feeds whose `compare` may return None.

If `compare` returns None, the order is unknown, so the engine must not omit an event.
"""

import pytest

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError, SkipToOldest
from multiclouddb_conformance.delegating import WrappedFeed, WrappedProvider
from multiclouddb_conformance.simulation import (
    ServiceBehaviour,
    Simulation,
    SimulationProvider,
)
from multiclouddb_spi import (
    Continue,
    Deadline,
    Ended,
    Feed,
    FeedSpec,
    Head,
    Planner,
    ProviderFault,
    Range,
    Target,
    read_range,
)
from multiclouddb_spi.planning import ranges
from multiclouddb_spi.planning.planner import clip


class Vague(WrappedFeed):
    """A feed that cannot compare two different positions."""

    def compare(self, a, b):
        return 0 if a == b else None


class VagueProvider(WrappedProvider):
    def open_feed(self, spec, deadline):
        return Vague(self.inner.open_feed(spec, deadline), self)


class World:
    """One partition with five changes, and the positions before and after each change."""

    def __init__(self, behaviour=None, on_expired=None, partitions=1):
        self.sim = Simulation(partitions, behaviour or ServiceBehaviour())
        self.provider = VagueProvider(SimulationProvider(self.sim))
        self.soon = Deadline.after(60)
        self.feed = self.provider.open_feed(FeedSpec(self.sim.address), self.soon)
        self.planner = Planner(self.provider, self.feed, on_expired)
        self.start = self.planner.start(Beginning(), self.soon)
        self.names = []

    def fill(self, count):
        self.names += [self.sim.write(f"k{n}", {"n": n}).event_id for n in range(count)]

    def read(self, *parts, on_expired=None):
        found = []
        for part in parts:
            for batch in read_range(self.provider, self.feed, part, on_expired):
                found += [event.event_id for event in batch.events(0, len(batch))]
        return found

    def steps_to(self, target):
        """Plan and read steps of at most two records."""
        found, at = [], self.start
        for _ in range(20):
            step = self.planner.advance(at, 2, self.soon, target)
            if not step.moved:
                return found
            found += self.read(*step.ranges())
            at = step.after
        raise AssertionError("the planned run does not end")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(ranges, "_sleep", lambda seconds: None)


def places(world):
    """Return the start position and the current end position."""
    target = world.planner.target(world.start, world.soon)
    return world.start.cursor("p0"), target.cursors["p0"], target


def test_what_lies_before_a_target_is_read_and_nothing_behind_it():
    world = World()
    world.fill(5)
    *_, target = places(world)
    first = list(world.names)
    world.fill(3)
    assert [name for step in world.planner.steps(world.start, world.soon, target)
            for name in world.read(*step.ranges())] == first  # fmt: skip


def test_a_head_that_may_lie_behind_a_target_is_put_at_it():
    world = World()
    heads = {"p0": Head(8, 3, Ended(None)), "p1": Head(8, 3, Continue())}
    expected = {"p0": Head(5, None, Continue()), "p1": Head(8, 3, Continue())}
    assert clip(world.feed, heads, Target({"p0": 5, "p2": 7}, frozenset())) == expected


def test_small_steps_to_a_target_end():
    world = World()
    world.fill(5)
    *_, target = places(world)
    assert world.steps_to(target) == world.names


def test_a_partition_that_may_have_ended_too_early_is_not_taken_for_whole():
    world = World(ServiceBehaviour(drop_notice=True, page_limit=1))
    world.fill(5)
    start, end, _ = places(world)
    rows = read_range(world.provider, world.feed, Range("p0", start, end))
    assert len(next(rows)) == 1
    world.sim.drop()
    with pytest.raises(MulticloudDbError, match="ended before the end of the planned range") as caught:
        list(rows)
    assert (caught.value.category, caught.value.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)


def test_what_is_left_of_an_expired_range_is_read():
    world = World()
    world.fill(5)
    start, end, _ = places(world)
    world.sim.trim(upto=3)
    assert world.read(Range("p0", start, end), on_expired=SkipToOldest()) == world.names[3:]


def test_each_position_is_asked_alone_where_the_order_does_not_show_which_has_expired():
    world = World(on_expired=SkipToOldest())
    world.fill(5)
    world.sim.trim(upto=3)
    step = world.planner.advance(world.start, None, world.soon)
    assert [
        name for part in step.ranges() for name in world.read(part, on_expired=SkipToOldest())
    ] == world.names[3:]


class TestDefaults:
    """Tests the defaults of `discover` and `join` in a feed whose partitions have no children."""

    def ask(self, feed, cursors):
        return Feed.join(feed, "c", cursors)

    def test_one_cursor_is_where_a_child_starts(self):
        cursor = [4]
        assert self.ask(World().feed, [cursor]) is cursor

    @pytest.mark.parametrize("cursors", [[3, 5, 4], [5, 4, 3], [4, 3, 5]])
    def test_of_several_it_is_the_one_before_all_others(self, cursors):
        assert self.ask(World().feed.inner, cursors) == 3

    def test_where_the_order_is_unknown_it_is_not_guessed(self):
        with pytest.raises(
            ProviderFault, match=r"Vague does not say where c starts.*implement `join`"
        ) as caught:
            self.ask(World().feed, [3, 5])
        assert not caught.value.fault.retryable
