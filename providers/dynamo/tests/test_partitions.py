"""Tests lineage: every shard is read after its parent, whatever happens to shards between two reads."""

import pytest

from multiclouddb_api import Beginning, ErrorCategory, FeedEnded, Gap, Now, OperationOptions, SkipToOldest
from multiclouddb_conformance.refusals import refused
from multiclouddb_dynamo_emulator import ChildFilter, Order, Remains
from multiclouddb_spi.continuation.token import decode_token

from .world import TABLE, World, markers

HOUR = 3600
FOR_EVER = 10**9
PATIENT = OperationOptions(wait_seconds=0.05)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    """Allow two listings of a disabled stream without a pause; `test_coverage` tests the pause."""
    monkeypatch.setattr("multiclouddb_dynamo.shards._SETTLED_SECONDS", 0.0)


def enable(world, enabled=True):
    stream = {"StreamEnabled": enabled} | ({"StreamViewType": "NEW_AND_OLD_IMAGES"} if enabled else {})
    world.server.client().update_table(TableName=TABLE, StreamSpecification=stream)


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
        assert not {name for name, parent in parents.items() if parent == shard} & seen


class TestLateChildren:
    """Tests a shard that has ended while the service does not list its children yet."""

    def test_a_child_that_was_not_listed_when_the_stream_was_disabled(self, world):
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        world.habits.late_children = 1
        world.roll_over()
        last = world.put("b")
        enable(world, False)
        assert consumer.until_idle() == last

    @pytest.mark.parametrize("skips", [False, True])
    def test_children_that_were_trimmed_before_they_were_seen_are_a_loss(self, world, skips):
        """The read does not wait forever if a shard is no longer listed but its grandchildren are."""
        consumer = world.consumer(**({"on_expired": SkipToOldest()} if skips else {}))
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
        left = world.put("left")
        world.roll_over()
        world.script.advance(2 * HOUR)
        consumer.restart()
        if skips:
            assert consumer.until_idle(20) == left
            assert [type(notice) for notice in consumer.notices] == [Gap]
        else:
            with refused(ErrorCategory.CHECKPOINT_EXPIRED):
                consumer.until_idle(10)


class TestListing:
    """Tests listings whose pages show shards in any order while the stream changes."""

    @pytest.mark.parametrize("order", Order)
    def test_a_parent_may_come_on_a_later_page_than_its_child(self, order):
        with World(shards=3, order=order, shards_per_page=1) as world:
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

    @pytest.mark.parametrize(
        ("child_filter", "splits", "calls"),
        [(None, 1, 2), (ChildFilter.IGNORED, 4, 4 + 2 * 6), (ChildFilter.REFUSED, 4, 4 + 2 * 6)],
    )
    def test_children_are_asked_for_one_by_one_where_this_is_possible(self, child_filter, splits, calls):
        habits = {} if child_filter is None else {"child_filter": child_filter}
        with World(shards=50, shards_per_page=10, **habits) as world:
            consumer = world.consumer()
            consumer.until_idle()
            world.journal.clear()
            for shard in world.open()[:splits]:
                world.script.split(shard)
            written = world.put_everywhere()
            assert sorted(consumer.until_idle()) == written
            assert world.journal.count("DescribeStream") <= calls

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
            calls = world.journal.calls("GetShardIterator")
            assert sorted(call.shard for call in calls if call.iterator_type == "LATEST") == sorted(alive)


@pytest.mark.parametrize("remains", Remains)
class TestTrimmed:
    """Tests shards and records that have expired."""

    def test_shards_that_are_trimmed_between_the_listing_and_the_reading(self, remains):
        with World(shards=2) as world:
            world.put_everywhere()
            world.roll_over()
            world.roll_over()
            written = world.put_everywhere()
            gone = [shard.shard_id for shard in world.script.shards(TABLE) if not shard.is_open]
            world.troubles.act(lambda: world.script.drop_shards(gone, remains), operation="DescribeStream")
            assert sorted(world.consumer().until_idle()) == written

    def test_an_old_token_is_an_expired_checkpoint(self, remains):
        with World(remains=remains) as world:
            consumer = world.consumer(max_page_size=1)
            world.put("a", "b")
            consumer.read()
            world.roll_over()
            world.script.advance(25 * HOUR)
            world.put("c")
            with refused(ErrorCategory.CHECKPOINT_EXPIRED, "24 hours") as caught:
                consumer.restart().read()
            assert caught.value.detail.oldest_position

    def test_skipping_loses_nothing_of_what_is_left(self, remains):
        """One branch was read completely; in the other, some records have expired and some remain."""
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


def test_a_child_found_at_now_that_nobody_read_for_a_day_is_an_expired_checkpoint(world):
    """The loss is told although the time of the parent's position is unknown: no record of it was read."""
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
    with refused(ErrorCategory.CHECKPOINT_EXPIRED):
        consumer.restart().until_idle()


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
            enable(world, False)
            assert sorted(markers(consumer.events) + consumer.restart().until_idle()) == written
            while not consumer.notices:
                consumer.read()
            assert {type(notice) for notice in consumer.notices} == {FeedEnded}
            assert consumer.read().idle

    def test_a_disabled_stream_cannot_be_started_in(self, world):
        enable(world, False)
        for start in (Beginning(), Now()):
            with refused(ErrorCategory.INVALID_REQUEST, "enable"):
                world.consumer(start).read()

    def test_a_stream_that_was_enabled_again_is_another(self, world):
        """Another process sees it at its first read, before the last changes of the old stream."""
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        world.put("unread")
        enable(world, False)
        enable(world)
        world.put("b")
        with refused(ErrorCategory.INVALID_REQUEST, "recreated"):
            world.consumer(consumer.start).read()
        with refused(ErrorCategory.INVALID_REQUEST, "recreated"):
            consumer.until_idle()
        assert consumer.markers in ([1], [1, 2])

    @pytest.mark.parametrize("start", [Beginning(), Now()], ids=["beginning", "now"])
    def test_a_client_that_knew_the_old_stream_starts_in_the_new_one(self, world, start):
        client = world.client()
        world.consumer(start, client).read()
        enable(world, False)
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
        with refused(ErrorCategory.NOT_FOUND):
            world.consumer().read()
