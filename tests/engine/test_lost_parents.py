"""Tests a child whose lost parent is found again, because an entry of the lineage still leads to the parent.

The service still serves closed partitions that `Feed.oldest` no longer names, if no unread record of theirs
was removed. On a real service, the end of such a partition may have been fetched before it was removed.
"""

import random
from collections import Counter
from itertools import permutations

import pytest

from multiclouddb_api import Beginning
from multiclouddb_conformance.simulation import Listing, ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_spi import Deadline, FeedSpec, Planner, read_range

LISTINGS = [Listing.ALL, Listing.OPEN, Listing.OPEN_WITH_RANGES]


class Stream:
    """A planner whose batches are read at once."""

    def __init__(self, listing, partitions=2):
        behaviour = ServiceBehaviour(strict_retention=False, heartbeats=False, listing=listing)
        self.sim = Simulation(partitions=partitions, behaviour=behaviour)
        self._provider, self._deadline = SimulationProvider(self.sim), Deadline.after(60)
        self._feed = self._provider.open_feed(FeedSpec(self.sim.address), self._deadline)
        self._planner = Planner(self._provider, self._feed)
        self._at = self._planner.start(Beginning(), self._deadline)
        self.came, self.order = [], []

    def write(self):
        for key in range(12):
            self.sim.write(f"k{key}", {"n": len(self.sim.truth)})

    def step(self):
        plan = self._planner.advance(self._at, None, self._deadline)
        for part in plan.ranges():
            for batch in read_range(self._provider, self._feed, part):
                self.came += [event.event_id for event in batch.events(0, len(batch))]
            self.order.append(part.partition_id)
        self._at = plan.after
        return plan.moved

    def live(self, dice):
        """Let one thing happen to the service or to the stream."""
        names = self.sim.open_partitions
        match dice.randrange(8):
            case 0 if len(names) < 8:
                self.sim.split(dice.choice(names))
            case 1 | 2 if len(names) > 1:
                self.sim.merge(*dice.sample(names, 2))
            case 3:
                self.sim.roll(dice.choice(names))
            case 4:
                came = set(self.came)
                unread = [item.commit for item in self.sim.truth if item.event_id not in came]
                self.sim.trim(upto=min(unread, default=self.sim.head + 1) - 1)
            case 5 | 6:
                self.step()
            case _:
                self.write()

    def check(self):
        """Every change came once, and after those of the ancestors of its partition."""
        assert [name for name, times in Counter(self.came).items() if times > 1] == []
        assert len(self.came) == len(self.sim.truth)
        lineage, later = self.sim.lineage, set()
        for name in reversed(self.order):
            ancestors, pending = set(), list(lineage.get(name, ()))
            while pending:
                if (parent := pending.pop()) not in ancestors:
                    ancestors.add(parent)
                    pending += lineage.get(parent, ())
            assert ancestors.isdisjoint(later), f"{name} was read before a parent"
            later.add(name)

    def drain(self):
        for _ in range(100):
            if not self.step():
                return
        pytest.fail("the stream did not end")


def _one_lost_ancestor(sim):
    """The lost parent is a child of the partition that ends last."""
    left, _ = sim.split(sim.roll("p1"))
    return sim.merge("p0", left)


def _two_lost_ancestors(sim):
    """Between the partition that ends last and the lost parent is another lost partition."""
    left, _ = sim.split(sim.roll("p1"))
    return sim.merge("p0", sim.roll(sim.roll(left)))


def _two_lost_parents(sim):
    """Both parents of the merged child are lost, and different partitions lead to them."""
    left, right = sim.split(sim.roll("p1"))
    low, high = sim.split(sim.roll("p0"))
    sim.merge(low, right)
    return sim.merge(sim.roll(high), left)


def _a_lost_child(sim):
    """The merged child is lost too; only its own child still exists."""
    left, _ = sim.split(sim.roll("p1"))
    return sim.roll(sim.merge("p0", left))


@pytest.mark.parametrize("listing", LISTINGS)
@pytest.mark.parametrize(
    "history", [_one_lost_ancestor, _two_lost_ancestors, _two_lost_parents, _a_lost_child]
)
def test_the_child_is_read_once_and_after_its_parents(history, listing):
    stream = Stream(listing)
    stream.write()
    stream.step()
    newest = history(stream.sim)
    stream.sim.trim()
    stream.write()
    stream.sim.roll(newest)
    stream.write()
    stream.drain()
    assert stream.sim.partitions["p1"].gone
    stream.check()


def _merged_twice(sim, first, second, third):
    """The two merged partitions are lost; the older one is an ancestor of the younger one."""
    merged = sim.merge(first, sim.roll(second))
    return sim.roll(sim.merge(sim.roll(sim.roll(merged)), third))


@pytest.mark.parametrize("listing", LISTINGS)
@pytest.mark.parametrize("order", list(permutations(["p0", "p1", "p2"])))
def test_a_lost_child_is_read_before_a_lost_descendant(order, listing):
    stream = Stream(listing, 3)
    stream.write()
    stream.step()
    _merged_twice(stream.sim, *order)
    stream.sim.trim()
    stream.write()
    stream.drain()
    stream.check()


@pytest.mark.parametrize("listing", LISTINGS)
@pytest.mark.parametrize("late", list(permutations(["p0", "p1"])))
def test_a_lost_child_does_not_wait_for_a_lost_descendant(late, listing):
    """The descendant is in the lineage first, and waits for a parent that nothing has named yet."""
    stream = Stream(listing, 3)
    stream.write()
    stream.step()
    _merged_twice(stream.sim, "p0", "p1", "p2")
    for calls, name in enumerate(late, 2):
        stream.sim.delay_children(name, calls)
    stream.write()
    stream.step()
    stream.sim.trim(upto=stream.sim.head - 12)
    for _ in range(4):
        stream.step()
    stream.drain()
    stream.check()


@pytest.mark.parametrize("listing", LISTINGS)
@pytest.mark.parametrize("block", range(3))
def test_nothing_comes_twice_whatever_retention_removes(block, listing):
    """Retention removes only what was read, at random moments of random lives."""
    for seed in range(1000 * block, 1000 * block + 40):
        dice = random.Random(seed)
        stream = Stream(listing, dice.choice([1, 2, 4]))
        for _ in range(dice.randrange(10, 40)):
            stream.live(dice)
        stream.drain()
        stream.check()
