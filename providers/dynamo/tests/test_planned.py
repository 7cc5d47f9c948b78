"""Tests bounded reads of a stream, as Spark makes them."""

import pytest

from multiclouddb_api import Beginning, ErrorCategory, SkipToOldest
from multiclouddb_spi import Planner, ProviderFault, ranges_between, read_range

from .world import World, markers, soon

HOUR = 3600

pytestmark = pytest.mark.usefixtures("hasty")


class Job:
    """Plans the steps of one feed, and reads each step."""

    def __init__(self, world, on_expired=None):
        self.on_expired = on_expired
        self.provider, self.feed = world.feed()
        self.planner = Planner(self.provider, self.feed, on_expired)
        self.lineage = None

    def run(self):
        """Plan a step, read it, and return its markers."""
        if self.lineage is None:
            self.lineage = self.planner.start(Beginning(), soon())
        step = self.planner.advance(self.lineage, None, soon())
        self.lineage = step.after
        found = []
        for part in ranges_between(step.before, step.after, step.ends):
            for batch in read_range(self.provider, self.feed, part, self.on_expired):
                found += batch.events(0, len(batch))
        return markers(found)


@pytest.fixture
def expired():
    """Return a job whose position in the only shard is at a record that is now trimmed."""
    with World() as world:
        job = Job(world)
        written = world.put("a", "b")
        assert job.run() == written
        yield world, job


def trimmed(world):
    """One trimmed record and one available record come after the position."""
    world.put("c")
    world.script.advance(25 * HOUR)
    return world.put("d")


def test_a_trimmed_position_has_expired(expired):
    world, job = expired
    trimmed(world)
    with pytest.raises(ProviderFault, match="24 hours") as caught:
        job.run()
    assert caught.value.fault.category == ErrorCategory.CHECKPOINT_EXPIRED


@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended"])
def test_skipping_goes_on_at_what_is_left(expired, ended):
    world, before = expired
    left = trimmed(world)
    if ended:
        world.roll_over()
        left += world.put("e")
    job = Job(world, SkipToOldest())
    job.lineage = before.lineage
    found = job.run()
    while set(found) < set(left):
        more = job.run()
        found += more
    assert found == left


def test_a_run_that_ends_by_itself_continues_in_the_child_of_a_shard_that_was_read_to_its_end():
    """A shard that was read to its end stays in the lineage, because children may be listed late."""
    with World() as world:
        job = Job(world)
        written = world.put("a", "b")
        assert job.run() == written
        world.roll_over()
        written = world.put("c", "d")
        target = job.planner.target(job.lineage, soon())
        found = []
        while (step := job.planner.advance(job.lineage, 1, soon(), target, allow_empty=True)).moved:
            for part in ranges_between(step.before, step.after, step.ends):
                for batch in read_range(job.provider, job.feed, part, None):
                    found += batch.events(0, len(batch))
            job.lineage = step.after
        assert markers(found) == written
