"""Tests bounded reads of a stream, as Spark makes them."""

import pytest

from multiclouddb_api import Beginning, SkipToOldest
from multiclouddb_spi import Planner, ProviderFault, ranges_between, read_range

from .world import markers, soon

HOUR = 3600

pytestmark = pytest.mark.usefixtures("hasty")


class Job:
    """Plans the steps of one feed from the beginning, and reads each step."""

    def __init__(self, world):
        self.provider, self.feed = world.feed()
        self.lineage = self.planner().start(Beginning(), soon())

    def planner(self, on_expired=None):
        return Planner(self.provider, self.feed, on_expired)

    def run(self, on_expired=None, step=None):
        """Plan a step, read it, and return its markers."""
        step = step or self.planner(on_expired).advance(self.lineage, None, soon())
        self.lineage = step.after
        found = []
        for part in ranges_between(step.before, step.after, step.ends):
            for batch in read_range(self.provider, self.feed, part, on_expired):
                found += batch.events(0, len(batch))
        return markers(found)


@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended"])
def test_a_trimmed_position_has_expired_and_skipping_goes_on_at_what_is_left(world, ended):
    job = Job(world)
    written = world.put("a", "b")
    assert job.run() == written
    world.put("c")
    world.script.advance(25 * HOUR)
    left = world.put("d")
    before = job.lineage
    with pytest.raises(ProviderFault, match="24 hours"):
        job.run()
    if ended:
        world.roll_over()
        left += world.put("e")
    job.lineage, found = before, []
    while set(found) < set(left):
        found += job.run(SkipToOldest())
    assert found == left


def test_a_run_that_ends_by_itself_continues_in_the_child_of_a_shard_that_was_read_to_its_end(world):
    """A shard that was read to its end stays in the lineage, because children may be listed late."""
    job = Job(world)
    written = world.put("a", "b")
    assert job.run() == written
    world.roll_over()
    written, found = world.put("c", "d"), []
    planner = job.planner()
    target = planner.target(job.lineage, soon())
    while (step := planner.advance(job.lineage, 1, soon(), target, allow_empty=True)).moved:
        found += job.run(step=step)
    assert found == written
