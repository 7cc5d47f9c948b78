"""Tests lineage: every shard is read after its parent, whatever happens to shards between two reads."""

import pytest

from multiclouddb_api import (
    Beginning,
    ErrorCategory,
    FeedEnded,
    Gap,
    MulticloudDbError,
    Now,
    OperationOptions,
    SkipToOldest,
)
from multiclouddb_dynamo_emulator import ChildFilter, Order, Remains
from multiclouddb_spi.continuation.token import decode_token

from .world import TABLE, World, markers

HOUR = 3600
FOR_EVER = 10**9
PATIENT = OperationOptions(wait_seconds=0.05)


@pytest.fixture
def world():
    with World() as made:
        yield made


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    """Allow two listings of a disabled stream without a pause between them.

    `test_late_listing` tests the pause.
    """
    monkeypatch.setattr("multiclouddb_dynamo.shards._SETTLED_SECONDS", 0.0)


def disable(world):
    world.server.client().update_table(TableName=TABLE, StreamSpecification={"StreamEnabled": False})


def enable(world):
    view = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    world.server.client().update_table(TableName=TABLE, StreamSpecification=view)


def states(token):
    """Return the state of each shard in a token."""
    return decode_token(token).state["p"]


def assert_parents_first(events, world):
    """Check that no event of a shard comes after an event of the shard's child."""
    parents = {shard.shard_id: shard.parent for shard in world.script.shards(TABLE)}
    seen = set()
    for event in events:
        shard = event.partition_id.rpartition(":")[2]
        seen.add(shard)
        heirs = {name for name, parent in parents.items() if parent == shard}
        assert not heirs & seen


class TestLateChildren:
    """Tests a shard that has ended while the service does not list its children yet."""

    def test_a_child_that_was_not_listed_when_the_stream_was_disabled(self, world):
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        world.habits.late_children = 1
        world.roll_over()
        last = world.put("b")
        disable(world)
        assert consumer.until_idle() == last

    def test_children_that_were_trimmed_before_they_were_seen_are_an_expired_checkpoint(self, world):
        """The read does not wait forever if a shard is no longer listed but its grandchildren are."""
        consumer = self.left_for_two_days(world)
        with pytest.raises(MulticloudDbError) as caught:
            consumer.until_idle(10)
        assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED

    def test_and_skipping_goes_on_with_their_descendants(self, world):
        consumer = self.left_for_two_days(world)
        consumer.request["on_expired"] = SkipToOldest()
        left = consumer.until_idle(20)
        assert left == world.left
        assert [type(notice) for notice in consumer.notices] == [Gap]

    @staticmethod
    def left_for_two_days(world):
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        world.habits.late_children = FOR_EVER
        world.roll_over()
        consumer.read()
        assert states(consumer.token)[0][2:] == [1]
        world.habits.late_children = 0
        for shard in world.script.shards(TABLE):
            world.script.hide(shard.shard_id, 0)
        world.put("lost")
        world.roll_over()
        world.script.advance(23 * HOUR)
        world.left = world.put("left")
        world.roll_over()
        world.script.advance(2 * HOUR)
        return consumer.restart()


class TestListing:
    """Tests listings whose pages show shards in any order while the stream changes."""

    @pytest.mark.parametrize("order", Order)
    @pytest.mark.parametrize("size", [1])
    def test_a_parent_may_come_on_a_later_page_than_its_child(self, order, size):
        with World(shards=3, order=order, shards_per_page=size) as world:
            written = world.put_everywhere()
            world.script.split(world.open()[1])
            written += world.put_everywhere()
            world.roll_over()
            written += world.put_everywhere()
            consumer = world.consumer()
            assert sorted(consumer.until_idle()) == written
            assert_parents_first(consumer.events, world)

    def test_shards_that_split_while_they_are_listed(self):
        """A split between two pages of a listing: the listing shows only half of the children."""
        with World(shards=60, order=Order.SHUFFLED, shards_per_page=10) as world:
            world.troubles.act(
                lambda: [world.script.split(shard) for shard in world.open()[:20]], operation="DescribeStream"
            )
            consumer = world.consumer(Now())
            consumer.read()
            written = world.put_everywhere()
            consumer.until_found(written)
            assert sorted(consumer.markers) == written

    def test_a_shard_that_vanishes_while_shards_are_listed(self, world):
        world.script.grow(TABLE, 30, 1)
        world.habits.shards_per_page = 10
        world.troubles.act(lambda: world.script.drop_oldest(TABLE, 15), operation="DescribeStream")
        consumer = world.consumer(Now())
        consumer.read()
        written = world.put("a")
        assert consumer.until_idle() == written

    def test_children_are_asked_for_one_by_one_and_not_by_listing_all(self):
        with World(shards=50, shards_per_page=10) as world:
            consumer = world.consumer()
            consumer.until_idle()
            world.journal.clear()
            world.script.split(world.open()[0])
            written = world.put_everywhere()
            assert sorted(consumer.until_idle()) == written
            assert world.journal.count("DescribeStream") <= 2

    @pytest.mark.parametrize("child_filter", [ChildFilter.IGNORED, ChildFilter.REFUSED])
    def test_where_that_cannot_be_asked_all_are_listed_once(self, child_filter):
        with World(shards=50, shards_per_page=10, child_filter=child_filter) as world:
            consumer = world.consumer()
            consumer.until_idle()
            world.journal.clear()
            for shard in world.open()[:4]:
                world.script.split(shard)
            written = world.put_everywhere()
            assert sorted(consumer.until_idle()) == written
            assert world.journal.count("DescribeStream") <= 4 + 2 * 6

    @pytest.mark.parametrize("code", ["ResourceNotFoundException", "ValidationException"])
    def test_a_service_that_knows_no_children_of_a_trimmed_parent(self, world, code):
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        world.roll_over()
        written = world.put("b")
        world.troubles.fail("DescribeStream", code, 1, shard=None)
        assert consumer.until_idle() == written

    def test_latest_is_never_used_for_a_child(self):
        with World(shards=3) as world:
            consumer = world.consumer(Now())
            consumer.read()
            alive = set(world.open())
            for _ in range(3):
                world.roll_over()
                world.script.split(world.open()[0])
                world.put_everywhere()
                consumer.restart().until_idle()
            latest = [
                call for call in world.journal.calls("GetShardIterator") if call.iterator_type == "LATEST"
            ]
            assert {call.shard for call in latest} == alive
            assert len(latest) == len(alive)


class TestTrimmed:
    """Tests shards and records that have expired."""

    @pytest.mark.parametrize("remains", Remains)
    def test_shards_that_are_trimmed_between_the_listing_and_the_reading(self, remains):
        with World(shards=2) as world:
            world.put_everywhere()
            world.roll_over()
            world.roll_over()
            written = world.put_everywhere()
            gone = [shard.shard_id for shard in world.script.shards(TABLE) if not shard.is_open]
            world.troubles.act(lambda: world.script.drop_shards(gone, remains), operation="DescribeStream")
            assert sorted(world.consumer().until_idle()) == written

    @pytest.mark.parametrize("remains", Remains)
    def test_an_old_token_is_an_expired_checkpoint(self, remains):
        with World(remains=remains) as world:
            consumer = world.consumer(max_page_size=1)
            world.put("a", "b")
            consumer.read()
            world.roll_over()
            world.script.advance(25 * HOUR)
            world.put("c")
            with pytest.raises(MulticloudDbError) as caught:
                consumer.restart().read()
            assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED
            assert "24 hours" in str(caught.value)
            assert caught.value.detail.oldest_position

    @pytest.mark.parametrize("remains", Remains)
    def test_skipping_loses_nothing_of_what_is_left(self, remains):
        """One branch was read completely.

        In the other branch, some records have expired, and the remaining records are read.
        """
        with World(shards=2, remains=remains) as world:
            consumer = world.consumer(max_page_size=1, on_expired=SkipToOldest())
            left, right = world.open()
            world.put_in(left, 2)
            world.put_in(right, 2)
            consumer.read()
            world.roll_over()
            world.script.advance(23 * HOUR)
            written = world.put_everywhere()
            world.script.split(world.open()[0])
            written += world.put_everywhere()
            world.script.advance(2 * HOUR)
            assert set(written) <= set(consumer.restart().until_idle())
            assert Gap in {type(notice) for notice in consumer.notices}

    def test_a_child_found_at_now_that_nobody_read_for_a_day_is_an_expired_checkpoint(self, world):
        """The time of the parent's position is unknown, because no record of the parent was read.

        The loss must still be reported.
        """
        world.put("a")
        world.habits.late_children = 2
        world.roll_over()
        consumer = world.consumer(Now())
        consumer.read()
        world.habits.late_children = 0
        world.troubles.fail("GetRecords", "InternalServerError", None, shard=world.chain())
        while world.chain() not in {state[0] for state in states(consumer.token)}:
            consumer.read(PATIENT)
        world.troubles.end()
        world.put("lost")
        world.script.advance(25 * HOUR)
        world.put("left")
        with pytest.raises(MulticloudDbError) as caught:
            consumer.restart().until_idle()
        assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED


class TestIncarnations:
    """Tests streams that are disabled, enabled again, deleted or recreated."""

    def test_a_disabled_stream_ends_the_feed_when_all_of_it_is_read(self):
        with World(shards=2) as world:
            world.settings["child_watch_seconds"] = 0.0
            consumer = world.consumer(max_page_size=1)
            written = world.put_everywhere()
            consumer.read()
            world.roll_over()
            written += world.put_everywhere()
            disable(world)
            assert sorted(markers(consumer.events) + consumer.restart().until_idle()) == written
            while not consumer.notices:
                consumer.read()
            assert {type(notice) for notice in consumer.notices} == {FeedEnded}
            assert consumer.read().idle

    def test_a_disabled_stream_cannot_be_started_in(self, world):
        disable(world)
        for start in (Beginning(), Now()):
            with pytest.raises(MulticloudDbError) as caught:
                world.consumer(start).read()
            assert caught.value.category == ErrorCategory.INVALID_REQUEST
            assert "enable" in str(caught.value)

    @pytest.mark.parametrize("fresh", [False, True], ids=["same process", "other process"])
    def test_a_stream_that_was_enabled_again_is_another(self, world, fresh):
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        disable(world)
        enable(world)
        world.put("b")
        if fresh:
            consumer.restart()
        with pytest.raises(MulticloudDbError) as caught:
            consumer.until_idle()
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
        assert "recreated" in str(caught.value)

    @pytest.mark.parametrize("start", [Beginning(), Now()], ids=["beginning", "now"])
    def test_a_client_that_knew_the_old_stream_starts_in_the_new_one(self, world, start):
        client = world.client()
        world.consumer(start, client).read()
        disable(world)
        enable(world)
        consumer = world.consumer(start, client)
        consumer.read()
        written = world.put("b")
        assert markers(consumer.events) + consumer.until_idle() == written

    def test_a_deleted_table(self, world):
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        world.server.client().delete_table(TableName=TABLE)
        consumer.until_idle()
        assert FeedEnded in {type(notice) for notice in consumer.notices}
        with pytest.raises(MulticloudDbError) as caught:
            world.consumer().read()
        assert caught.value.category == ErrorCategory.NOT_FOUND
