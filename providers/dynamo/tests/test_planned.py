"""Tests planning for Spark: how many calls a shard costs, and that a walk through empty answers ends."""

import pytest

from multiclouddb_api import Beginning, Now
from multiclouddb_dynamo.capabilities import EMPTY_ANSWERS
from multiclouddb_spi import Planner, read_range

from .world import World, all_of, soon

READ = "GetRecords"
SHARDS = 6


@pytest.fixture(autouse=True)
def few_answers():
    """Read as many answers as for the service."""


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Wait for every answer, and ask a quiet shard again at once: else a step asks what its time allows."""
    monkeypatch.setattr("multiclouddb_spi.planning.heads.TURN_SECONDS", 60.0)
    monkeypatch.setattr("multiclouddb_dynamo.reader._FIRST_PAUSE", 0.0)


class Run:
    """A run of planned batches; each is read."""

    def __init__(self, world, start, most=None):
        self.world, self.most, self.found = world, most, []
        self.provider, self.feed = world.feed()
        self.planner = Planner(self.provider, self.feed)
        self.at = self.planner.start(start, soon())

    def step(self):
        """Plan and read a batch; return the step, and how many records were requested for the plan."""
        self.world.journal.clear()
        step = self.planner.advance(self.at, self.most, soon(), allow_empty=True)
        calls, self.at = self.world.journal.count(READ), step.after
        for part in step.ranges():
            for batch in read_range(self.provider, self.feed, part):
                self.found += all_of(batch)
        return step, calls

    def drain(self, most=50):
        for _ in range(most):
            if self.step()[0].is_end:
                return
        pytest.fail("the run does not end")

    def restart(self):
        """Plan without the readers of the steps before."""
        self.planner._context.consumers.forget()


@pytest.fixture(params=[True, False], ids=["tokens with iterators", "tokens without"])
def shards(request, monkeypatch):
    """Return a number of shards, which may be too many for iterators in tokens."""
    if not request.param:
        monkeypatch.setattr("multiclouddb_dynamo.reader.MOST_ITERATORS", 1)
    return SHARDS


def test_a_shard_costs_one_call_with_news_and_one_without(shards):
    with World(shards=shards) as world:
        world.put_everywhere()
        run = Run(world, Beginning())
        run.drain()
        written = world.put_everywhere()
        step, calls = run.step()
        assert (len(step.ranges()), calls) == (shards, shards)
        busy = world.open()[:2]
        for shard in busy:
            written += world.put_in(shard)
        step, calls = run.step()
        assert len(step.news) == 2
        assert shards <= calls <= shards * 1.1 + 2
        run.drain()
        assert sorted(run.found)[-len(written) :] == sorted(written)


@pytest.mark.parametrize("lost", [True, False], ids=["each reader is lost", "readers live"])
@pytest.mark.parametrize("most", [None, 1])
@pytest.mark.usefixtures("shards")
def test_a_record_behind_empty_answers_comes_beside_a_busy_shard(lost, most):
    with World(shards=2) as world:
        run = Run(world, Now(), most)
        busy, quiet = world.open()[:2]
        world.put_in(busy), world.put_in(quiet)
        run.drain()
        world.script.expire_iterators()
        world.habits.empty_pages = EMPTY_ANSWERS - 1
        (hidden,) = world.put_in(quiet)
        asked = 0
        for _ in range(10 * EMPTY_ANSWERS):
            world.put_in(busy)
            run.step()
            asked += world.journal.count(READ, quiet)
            if lost:
                run.restart()
            if hidden in run.found:
                break
        else:
            pytest.fail("it was never found")
        # The planner walks through the empty answers once, and so may the task. A reader that follows a lost
        # one asks for the last record once more.
        assert asked <= (3 if lost else 2) * EMPTY_ANSWERS + 4


@pytest.mark.parametrize("most", [None, 30])
def test_a_backlog_of_ten_answers_in_each_shard_is_planned_whole(most):
    with World(shards=3, page_bytes=1000) as world:
        written = [marker for shard in world.open() for marker in world.put_in(shard, 40)]
        run = Run(world, Beginning(), most)
        run.drain(60)
        assert sorted(run.found) == written
