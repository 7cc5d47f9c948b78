"""Tests starts: every change after `Now` is delivered, and no clock but the service's counts."""

import sys
import time
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    Now,
    PhysicalPartition,
)
from multiclouddb_conformance.refusals import refused
from multiclouddb_spi import ProviderFault

from .world import ADDRESS, EXPIRED, HOUR, TABLE, World, fetch, markers, soon, state_of

MANY = 70  # more open shards than a token can have iterators


@pytest.fixture
def world():
    with World(shards=3) as made:
        yield made


def started(world):
    consumer = world.consumer(Now())
    consumer.read()
    return consumer


class TestOneStart:
    """No event is lost; if the iterators have expired, events are at most two minutes older than `Now`."""

    @pytest.mark.parametrize(
        ("hours", "fresh"), [(0, False), (0, True), (EXPIRED / HOUR, False), (23.5, True)]
    )
    def test_exactly_what_comes_after_it_in_every_process(self, world, hours, fresh):
        world.put_everywhere()
        world.script.advance(121)
        consumer = started(world)
        after = world.put_everywhere()
        world.script.advance(hours * HOUR)
        if fresh:
            consumer.restart()
        consumer.until_idle()
        assert sorted(consumer.markers) == after

    def test_an_idle_feed_renews_its_iterators(self, world):
        world.put_everywhere()
        consumer = started(world)
        for _ in range(4):
            world.script.advance(10 * 60)
            consumer.restart().read()
        after = world.put_everywhere()
        world.script.advance(10 * 60)
        assert sorted(consumer.restart().until_idle()) == after
        assert "TRIM_HORIZON" not in {call.iterator_type for call in world.journal.calls("GetShardIterator")}

    def test_what_is_early_is_at_most_two_minutes_old(self, world):
        world.put_everywhere()
        world.script.advance(125)
        young = world.put_everywhere()
        world.script.advance(100)
        consumer = started(world)
        after = world.put_everywhere()
        world.script.advance(EXPIRED)
        assert sorted(consumer.restart().until_idle()) == young + after

    def test_what_is_old_is_walked_over_once(self):
        with World() as world:
            world.script.fill(world.chain(), 3000)
            world.script.advance(HOUR)
            consumer = started(world)
            world.script.advance(EXPIRED)
            while not consumer.restart().read().idle:
                pass
            world.journal.clear()
            after = world.put("a")
            assert consumer.restart().until_idle() == after
            assert sum(call.records for call in world.journal.calls("GetRecords")) <= 2
        assert consumer.markers == after

    def test_what_was_walked_over_may_be_trimmed(self):
        """Trimmed records that are older than the token's position are not a loss."""
        with World() as world:
            world.put("old")
            world.script.advance(4 * HOUR)
            consumer = started(world)
            world.script.advance(EXPIRED)
            consumer.restart().read()
            world.script.advance(20 * HOUR)
            after = world.put("a")
            world.troubles.fail("GetShardIterator", "TrimmedDataAccessException", 1)
            assert consumer.restart().until_idle() == after

    def test_a_token_of_an_idle_table_is_good_for_a_day_and_no_longer(self, world):
        consumer = started(world)
        world.script.advance(25 * HOUR)
        with refused(ErrorCategory.CHECKPOINT_EXPIRED):
            consumer.restart().read()

    def test_a_refusal_ends_it(self):
        """A start takes one call for each open shard."""
        with World(shards=100) as world:
            _, feed = world.feed()
            world.troubles.fail("GetShardIterator", "AccessDeniedException", None)
            with pytest.raises(ClientError, match="AccessDenied"):
                feed.start(Now(), None, soon())
            assert world.journal.count("GetShardIterator") < 70


class TestLineage:
    @pytest.mark.parametrize("late", [0, EXPIRED], ids=["iterator", "no iterator"])
    def test_a_shard_ends_before_its_first_record(self, world, late):
        consumer = started(world)
        after = world.put_everywhere()
        world.roll_over()
        after += world.put_everywhere()
        for shard in world.open():
            world.script.split(shard)
        after += world.put_everywhere()
        world.script.advance(late)
        assert sorted(consumer.restart().until_idle()) == after

    def test_a_shard_that_closes_between_the_listing_and_its_iterator(self, world):
        written = []

        def closes():
            for shard in world.open():
                world.script.split(shard)
            written.extend(world.put_everywhere())

        world.put_everywhere()
        world.troubles.act(closes, operation="DescribeStream")
        consumer = started(world)
        written += world.put_everywhere()
        assert sorted(markers(consumer.events) + consumer.restart().until_idle()) == sorted(written)

    @pytest.mark.parametrize("calls", [1, 3])
    def test_a_closed_shard_whose_children_are_not_listed_yet(self, world, calls):
        world.put_everywhere()
        world.habits.late_children = calls
        world.roll_over()
        consumer = started(world)
        after = world.put_everywhere()
        assert sorted(markers(consumer.events) + consumer.restart().until_idle()) == after

    def test_closed_shards_whose_children_are_listed_are_not_read(self, world):
        """The token still contains them, because another child may be listed later."""
        for _ in range(4):
            world.put_everywhere()
            world.roll_over()
        consumer = started(world)
        shards = world.script.shards(TABLE)
        assert {name for name, *_ in state_of(consumer.token)} == {shard.shard_id for shard in shards}
        assert world.journal.count("GetRecords") <= 3 * 3
        assert consumer.until_idle() == []


class TestManyShards:
    @pytest.fixture
    def world(self):
        with World(shards=MANY) as made:
            yield made

    def test_the_token_stays_small_and_loses_nothing(self, world):
        world.put_everywhere()
        consumer = started(world)
        assert all(len(cursor) == 2 and cursor[0] == "n" for _, cursor, *_ in state_of(consumer.token))
        assert len(consumer.token) < MANY * 40
        after = world.put_everywhere()
        # Readers that are given up leave their iterators.
        consumer.client._backend._calls.kept.consumers.forget()
        assert sorted(consumer.until_idle()) == after

    def test_a_second_start_takes_nothing_from_the_first(self, world):
        """Two starts of one client, even in the same second, do not share their iterators."""
        client = world.client()
        while time.time() % 1 > 0.3:  # so that both starts are in the same second
            time.sleep(0.01)
        one, two = world.consumer(Now(), client), world.consumer(Now(), client)
        one.read()
        between = world.put_in(world.open()[3])
        two.read()
        client._backend._calls.kept.consumers.forget()
        after = world.put_in(world.open()[5])
        assert set(after) <= set(two.until_idle()) | set(two.markers)
        one.until_idle()
        assert sorted(one.markers) == between + after


@pytest.mark.parametrize("shards", [3, MANY])
def test_the_plan_of_one_start_loses_nothing(shards):
    with World(shards=shards) as world:
        world.put_everywhere()
        world.script.advance(121)
        plan = world.client().plan_partitions(ChangeFeedRequest(ADDRESS, Now()))
        after = world.put_everywhere()
        client, found = world.client(), []
        for name, token in plan:
            consumer = world.consumer(FromContinuationToken(token), client, scope=PhysicalPartition(name))
            found += consumer.until_idle()
    assert sorted(found) == after
    assert len(plan) == shards


class TestClock:
    @pytest.fixture
    def ahead(self, monkeypatch):
        """Return a function that sets the client's clock ahead by the given seconds in the whole provider."""
        wrong, right = [0.0], time.time

        class Wrong(datetime):
            @classmethod
            def now(cls, zone=None):
                return datetime.fromtimestamp(right() + wrong[0], zone or UTC)

        for name, module in list(sys.modules.items()):
            if name.startswith("multiclouddb_dynamo.") and not name.endswith(".mapping"):
                monkeypatch.setattr(module, "datetime", Wrong, raising=False)
        return lambda seconds: wrong.__setitem__(0, seconds)

    @pytest.mark.parametrize("tells", [False, True])
    @pytest.mark.parametrize(("shards", "seconds"), [(3, -30 * HOUR), (3, 30 * HOUR), (MANY, 30 * HOUR)])
    def test_a_wrong_clock_and_one_that_is_set_in_between_lose_nothing(self, ahead, shards, seconds, tells):
        if not tells:
            ahead(seconds)
        with World(shards=shards, tells_time=tells) as world:
            world.put_everywhere()
            world.script.advance(HOUR if tells else 0)
            consumer = world.consumer(Now())
            assert consumer.read().events == ()
            after = world.put_everywhere()
            ahead(seconds)
            world.script.advance(EXPIRED)
            found = consumer.until_idle() if tells else consumer.restart().until_idle()
            assert set(after) <= set(found)
            assert sorted(found) == after or not tells

    def test_a_start_at_the_beginning_expires_when_the_service_says_so(self, ahead):
        ahead(30 * HOUR)
        with World(tells_time=False) as world:
            written = world.put("a")
            consumer = world.consumer(Beginning(), max_page_size=1)
            assert consumer.read().diagnostics.retention_headroom_seconds is None
            ahead(60 * HOUR)
            written += world.put("b")
            consumer.restart().until_idle()
            assert consumer.markers == written
            world.put("c")
            world.roll_over()
            world.put("d")
            world.script.advance(25 * HOUR)
            with refused(ErrorCategory.CHECKPOINT_EXPIRED):
                consumer.restart().read()

    @pytest.mark.parametrize(("tells", "minutes"), [(False, 25 * 60), (True, 70)])
    def test_a_start_that_was_not_read_in_time_is_told(self, tells, minutes):
        """Unread records may have been trimmed: the shard is gone, or the start is an hour old."""
        with World(tells_time=tells) as world:
            world.put("a")
            world.roll_over()
            (name, token), *_ = world.client().plan_partitions(ChangeFeedRequest(ADDRESS, Beginning()))
            start, scope = FromContinuationToken(token), PhysicalPartition(name)
            world.script.advance(60 * (minutes - 20))
            if tells:
                world.consumer(start, scope=scope).read()
            world.script.advance(60 * 20)
            with refused(ErrorCategory.CHECKPOINT_EXPIRED):
                world.consumer(start, scope=scope).read()

    def test_a_first_read_after_a_sleep_tells_of_what_was_trimmed_meanwhile(self):
        """Only the answers of this read show how long the process has slept."""
        with World() as world:
            world.put("lost")
            _, feed = world.feed()
            (seed,) = feed.start(Beginning(), None, soon())
            world.script.advance(25 * HOUR)
            world.put("left")
            with pytest.raises(ProviderFault) as caught:
                fetch(feed.open(seed.partition_id, seed.cursor))
            assert caught.value.fault.category == ErrorCategory.CHECKPOINT_EXPIRED

    @pytest.mark.parametrize("start", [Beginning(), Now()])
    def test_a_fresh_start_of_a_quiet_table_has_time(self, world, start):
        assert world.consumer(start).read().diagnostics.retention_headroom_seconds > 12 * HOUR
