"""Tests cases that a model of the feed has found.

In each of these cases, an earlier version lost events silently.
"""

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    Gap,
    MulticloudDbError,
    Now,
    PartitionFoundLate,
    PhysicalPartition,
    SkipToOldest,
)

from .world import ADDRESS, World, markers

HOUR = 3600
PAGES = 60

pytestmark = pytest.mark.usefixtures("hasty")


def native(name):
    return name.rpartition(":")[2]


def public(world, shard):
    """Return the public id of the given open shard."""
    return next(name for name in world.client().list_physical_partitions(ADDRESS) if native(name) == shard)


@pytest.mark.parametrize("restart", [False, True])
def test_a_child_of_an_empty_shard_is_read_from_its_own_first_record(restart):
    with World(tells_time=False) as world:
        consumer = world.consumer()
        consumer.until_idle()
        # The position now contains an iterator of the empty shard.
        consumer.until_idle()
        early = [mark for half in world.script.split(world.chain()) for mark in world.put_in(half, 3)]
        if restart:
            consumer.restart()
        consumer.until_found(early, at_most=5)


def test_so_is_one_that_is_closed_and_listed_late():
    with World(empty_pages=4) as world:
        first, second = world.script.split(world.chain())
        early = world.put_in(first) + world.put_in(second, 2)
        world.script.roll_over(second)
        world.script.hide(second, calls=3)
        world.script.hide(world.open()[1], calls=3)
        world.consumer().until_found(early, at_most=5)


def test_so_it_is_where_the_children_are_followed():
    with World(empty_pages=4) as world:
        first, _ = world.script.split(world.chain())
        early = world.put_in(first, 3)
        world.script.split(first)
        client = world.client()
        planned = ChangeFeedRequest(ADDRESS, Beginning())
        ((name, token),) = client.plan_partitions(planned, with_descendants=True)
        scope = PhysicalPartition(name, with_descendants=True)
        request = ChangeFeedRequest(ADDRESS, FromContinuationToken(token), scope)
        found = set()
        changes = client.iterate_changes(request, idle_backoff_seconds=0.01)
        for page, _ in zip(changes.pages(), range(PAGES), strict=False):
            found.update(markers(page.events))
            if found >= set(early):
                break
        assert found >= set(early)


def test_a_shard_that_is_only_hidden_is_not_given_up_when_records_of_it_expire():
    with World(shards=2) as world:
        shard, other = world.open()
        consumer = world.consumer(on_expired=SkipToOldest())
        consumer.until_found(world.put_in(shard) + world.put_in(other))
        world.put_in(shard, 2)
        world.script.advance(25 * HOUR)
        kept = world.put_in(shard)
        world.script.hide(shard, calls=8)
        consumer.until_idle()
        kept += world.put_in(shard, 2)
        consumer.until_found(kept, at_most=5)
        assert any(isinstance(notice, Gap) for notice in consumer.notices)
        assert not any(isinstance(notice, PartitionFoundLate) for notice in consumer.notices)


def test_nor_is_it_when_it_is_read_alone():
    with World(shards=2) as world:
        shard, _ = world.open()
        consumer = world.consumer(on_expired=SkipToOldest(), scope=PhysicalPartition(public(world, shard)))
        consumer.until_found(world.put_in(shard))
        world.put_in(shard, 2)
        world.script.advance(25 * HOUR)
        kept = world.put_in(shard)
        world.script.hide(shard, calls=8)
        consumer.until_found(kept, at_most=5)
        consumer.until_found(world.put_in(shard, 2), at_most=5)


def hidden_parent(world):
    """Hide a closed shard from listings, but show its children.

    Return the changes of the shard and of its children.
    """
    first, second = world.script.split(world.chain())
    found = world.put_in(first) + world.put_in(second, 2)
    children = world.script.split(second)
    found += [mark for child in children for mark in world.put_in(child)]
    world.script.hide(second, seconds=HOUR)
    return second, found


def test_a_start_reads_a_parent_that_is_not_listed_before_its_children():
    with World() as world:
        world.settings |= {"child_watch_seconds": 0.0}
        _, found = hidden_parent(world)
        consumer = world.consumer()
        consumer.until_found(found, at_most=5)
        assert consumer.markers.index(found[2]) < min(map(consumer.markers.index, found[3:]))


def test_so_does_a_plan():
    with World() as world:
        hidden, _ = hidden_parent(world)
        plan = world.client().plan_partitions(ChangeFeedRequest(ADDRESS, Beginning()))
        assert hidden in {native(name) for name, _ in plan}


@pytest.mark.parametrize("left", [0, 1])
def test_a_process_that_slept_for_a_day_tells_of_what_was_trimmed_meanwhile(left):
    """Trimmed records are reported even if the client's clock stands still: the service sends the time."""
    with World(shards=2) as world:
        read, unread = world.open()
        world.put_in(unread, 2)
        consumer = world.consumer()
        trouble = world.troubles.fail("GetRecords", "InternalServerError", None, shard=unread)
        consumer.until_found(world.put_in(read), at_most=5)
        trouble.end()
        world.script.advance(25 * HOUR)
        if left:
            world.put_in(unread)
        with pytest.raises(MulticloudDbError, match="CHECKPOINT_EXPIRED"):
            consumer.until_idle()


@pytest.mark.parametrize("retired", [False, True], ids=["planned", "retired"])
def test_a_watch_that_is_looked_at_after_a_day_does_not_say_that_all_was_read(retired):
    """Nothing claims that everything was read if one half of a split was trimmed before it was listed."""
    with World() as world:
        world.put("a")
        parent = world.chain()
        scope = PhysicalPartition(public(world, parent))
        start = Beginning() if retired else Now()
        _, late = world.script.split(parent) if not retired else (None, None)
        if not retired:
            world.script.hide(late, seconds=5)
        plan = dict(world.client().plan_partitions(ChangeFeedRequest(ADDRESS, start)))
        token = plan[scope.partition_id]
        if retired:
            _, late = world.script.split(parent)
            world.script.hide(late, seconds=5)
            consumer = world.consumer(FromContinuationToken(token), scope=scope)
            while not consumer.read().partition_retired:
                pass
            token = consumer.token
        world.put_in(late, 2)
        for _ in range(7):
            world.script.advance(4 * HOUR)
            world.roll_over()
        consumer = world.consumer(FromContinuationToken(token), scope=scope)
        if retired:
            page = consumer.read()
            assert page.diagnostics.partition_errors.keys() == {scope.partition_id}
            assert page.diagnostics.open_watches == consumer.read().diagnostics.open_watches == 1
        else:
            with pytest.raises(MulticloudDbError) as caught:
                consumer.read()
            assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED
