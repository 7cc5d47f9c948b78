"""Tests records that come after many empty pages, also if reading starts between the empty pages.

AWS returns such pages.
"""

import itertools

import pytest

from multiclouddb_api import Beginning, Capability, Now
from multiclouddb_dynamo.client import Calls
from multiclouddb_dynamo.position import place_of
from multiclouddb_dynamo.provider import CAPABILITIES
from multiclouddb_dynamo.source import DELAY_SECONDS, EMPTY_ANSWERS, MOST_ITERATORS
from multiclouddb_spi import Planner, Range, read_range
from multiclouddb_spi.continuation.token import decode_token

from .world import World, markers, seconds, soon

READ = "GetRecords"
HOUR = 3600
EXPIRED = 16 * 60  # an iterator is valid for 15 minutes
RUNS = 10


@pytest.fixture(autouse=True)
def few_answers():
    """Read as many answers as for the service."""


def cron(world, consumer, most, every=0):
    """Run the consumer in separate processes, each until it is idle, until every record is found.

    Return what was found, and the number of calls of each run.
    """
    calls = []
    while len(calls) < most:
        world.script.advance(every)
        consumer.restart()
        world.journal.clear()
        found = consumer.until_idle()
        calls.append(world.journal.count(READ))
        if found:
            return found, calls
    return [], calls


def begun(world):
    """Return a consumer whose token comes after a record."""
    consumer = world.consumer()
    world.put("a")
    consumer.until_idle()
    return consumer


def waiting(world, count):
    """Return a consumer whose token comes before the given number of empty pages and three records."""
    consumer = begun(world)
    world.script.expire_iterators()
    world.habits.empty_pages = count
    return consumer, world.put("b", "c", "d")


class TestRuns:
    """Tests separate processes that each read until the feed is idle."""

    @pytest.mark.parametrize(("count", "every"), [(40, HOUR), (500, 0)])
    def test_they_reach_what_is_behind_empty_pages(self, world, count, every):
        consumer, written = waiting(world, count)
        found, calls = cron(world, consumer, RUNS, every)
        assert found == written
        assert len(calls) <= 4

    def test_one_whose_iterators_expire_all_the_time_becomes_idle(self, world):
        consumer = begun(world)
        world.troubles.expire(None, every=2)
        written = world.put("b")
        assert any(consumer.read(seconds(1)).idle for _ in range(9))
        assert consumer.markers[1:] == written

    @pytest.mark.parametrize("every", [pytest.param(0, marks=pytest.mark.soak), HOUR])
    def test_a_shard_without_records_costs_little_most_times(self, world, every):
        found, calls = cron(world, begun(world), 22, every)
        assert found == []
        assert sorted(calls)[len(calls) // 2] <= 20
        assert sum(calls) / len(calls) <= 150

    @pytest.mark.soak
    def test_many_shards_cost_little_each_time(self):
        shards = MOST_ITERATORS + 36
        with World(shards=shards) as world:
            world.put_everywhere()
            consumer = world.consumer()
            consumer.until_idle()
            _, calls = cron(world, consumer, 3)
            assert max(calls) <= EMPTY_ANSWERS * shards
            assert len(consumer.token) <= 40 * shards

    @pytest.mark.parametrize("every", [0, HOUR])
    def test_a_now_whose_iterator_has_expired(self, every):
        with World(empty_pages=50) as world:
            world.put("old")
            world.script.advance(121)
            consumer = world.consumer(Now())
            consumer.read()
            written = world.put("a")
            world.script.advance(EXPIRED)
            found, calls = cron(world, consumer, RUNS, every)
            assert found == written
            assert len(calls) <= 4

    @pytest.mark.parametrize("refusal", ["ExpiredIteratorException", "ValidationException"])
    def test_an_iterator_that_is_no_good_any_more_costs_a_call(self, world, refusal):
        consumer, written = waiting(world, 40)
        consumer.restart().until_idle()
        world.habits.empty_pages = 0
        world.troubles.fail(READ, refusal, 1)
        assert consumer.restart().until_idle() == written


class TestIdleMeansRead:
    """Tests that no page is idle before an open shard has answered without records many times in a row."""

    COUNT = EMPTY_ANSWERS - 1

    def test_the_first_run_and_a_later_one_read_what_is_behind_empty_pages(self):
        with World(empty_pages=self.COUNT) as world:
            written = world.put("a")
            consumer = world.consumer()
            assert consumer.until_idle() == written
            world.script.expire_iterators()
            written = world.put("b", "c")
            assert consumer.restart().until_idle() == written

    def test_a_run_that_ends_by_itself_does(self):
        with World(empty_pages=self.COUNT) as world:
            provider, feed = world.feed()
            planner = Planner(provider, feed)
            written = world.put("a")
            before = planner.start(Beginning(), soon())
            target = planner.target(before, soon())
            (part,) = planner.advance(before, None, soon(), target).ranges()
            batches = list(read_range(provider, feed, part))
            assert [marker for batch in batches for marker in markers(batch.events(0, len(batch)))] == written

    def test_a_call_that_ends_before_is_not_idle(self, world):
        consumer, written = waiting(world, self.COUNT)
        consumer.restart()
        world.troubles.delay(READ, 0.1)
        page = consumer.read(seconds(0.5))
        assert (page.events, page.idle) == ((), False)
        world.troubles.end()
        assert consumer.until_idle() == written

    def test_a_plan_and_the_next_share_what_they_have_looked_through(self, world):
        provider, feed = world.feed()
        planner = Planner(provider, feed)
        world.put("a")
        before = planner.start(Beginning(), soon())
        for _ in range(8):
            before = planner.advance(before, None, soon(), allow_empty=True).after
        world.journal.clear()
        planner.advance(before, None, soon(), allow_empty=True)
        assert world.journal.count(READ) <= 2

    @pytest.mark.parametrize("count", [1, 4])
    def test_empty_answers_of_an_iterator_that_is_gone_prove_nothing(self, world, count):
        """A new iterator begins at the last record, and may pass empty pages again."""
        consumer, written = waiting(world, count)
        assert consumer.until_idle() == written

    @pytest.mark.parametrize("every", [5, 8])
    def test_throttled_calls_do_not_make_a_shard_busy_for_ever(self, world, every, monkeypatch):
        """The empty answers before a throttled call count together with those after it."""
        records, calls = Calls.records, itertools.count(1)

        def throttled(*arguments, **settings):
            if next(calls) % every == 0:
                world.troubles.fail(READ, "ThrottlingException", 1)
            return records(*arguments, **settings)

        consumer = begun(world).restart()
        monkeypatch.setattr(Calls, "records", throttled)
        assert consumer.until_idle(most=50) == []

    def test_the_note_of_the_capability_names_both_numbers(self):
        note = CAPABILITIES[Capability.CHANGE_FEED].note
        assert f"{EMPTY_ANSWERS} answers" in note
        assert f"{DELAY_SECONDS:.0f} seconds" in note


class TestEnded:
    """Tests that a shard that has ended is read to its end before the feed is idle."""

    def test_one_run_reads_it(self, world):
        written = world.put("a")
        world.roll_over()
        world.habits.empty_pages = 600
        world.put("b")
        world.habits.empty_pages = 600
        consumer = world.consumer()
        while not consumer.markers:
            assert not consumer.read().idle
        assert consumer.markers == written

    def test_one_that_was_open_longer_than_a_shard_is_asked_after(self, world):
        consumer = begun(world)
        world.put("b")
        world.roll_over()
        written = world.put("c")
        world.habits.empty_pages = 200
        world.script.advance(5 * HOUR)
        consumer.restart()
        while len(consumer.markers) < 2:
            assert not consumer.read().idle
        world.habits.empty_pages = 0
        world.script.expire_iterators()
        consumer.restart().until_idle()
        assert consumer.markers[2:] == written


class TestRanges:
    """Tests planned reads: the iterator in a position does not change the meaning of the position."""

    def test_places_that_differ_in_it_alone_are_one_place(self, world):
        provider, feed = world.feed()
        world.put("a")
        (seed,) = feed.start(Beginning(), None, soon())
        reader = feed.open(seed.partition_id, seed.cursor)
        first, second = (reader.fetch(10, 1 << 20, 0.0, soon()) for _ in range(2))
        bare, hinted = first.cursor_after(1), second.cursor_after(0)
        assert bare != hinted
        assert feed.compare(bare, hinted) == 0
        assert feed.describe(bare) == feed.describe(hinted)
        assert place_of(hinted).trail is not None
        world.journal.clear()
        for start, until in ((bare, hinted), (hinted, bare)):
            assert not list(read_range(provider, feed, Range(seed.partition_id, start, until)))
        assert world.journal.count(READ) == 0

    def test_a_run_that_ends_by_itself_keeps_what_it_has_looked_through(self, world):
        provider, feed = world.feed()
        planner = Planner(provider, feed)
        world.put("a")
        before = planner.start(Beginning(), soon())
        before = planner.advance(before, None, soon(), allow_empty=True).after
        target = planner.target(before, soon())
        step = planner.advance(before, None, soon(), target, allow_empty=True)
        assert step.empty
        assert step.ranges() == []
        assert step.after.to_json()["p"] == [[name, cursor] for name, cursor in target.cursors.items()]
        assert not planner.advance(step.after, None, soon(), target, allow_empty=True).moved


def test_a_token_of_an_idle_shard_has_its_sequence_number_too(world):
    ((_, cursor),) = decode_token(begun(world).token).state["p"]
    place = place_of(cursor)
    assert place.trail is not None
    assert int(place.seq) > 0
