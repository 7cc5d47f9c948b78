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
    Now,
    PartitionFoundLate,
    PhysicalPartition,
    SkipToOldest,
)
from multiclouddb_conformance.refusals import refused

from .world import ADDRESS, World

HOUR = 3600

pytestmark = pytest.mark.usefixtures("hasty")


def native(name):
    return name.rpartition(":")[2]


def alone(world, shard):
    """Return the scope of the given open shard."""
    names = world.client().list_physical_partitions(ADDRESS)
    return PhysicalPartition(next(name for name in names if native(name) == shard))


@pytest.mark.parametrize("restart", [False, True])
def test_a_child_of_an_empty_shard_is_read_from_its_own_first_record(restart):
    with World(tells_time=False) as world:
        consumer = world.consumer()
        consumer.until_idle()
        consumer.until_idle()  # the position now contains an iterator of the empty shard
        early = [mark for half in world.script.split(world.chain()) for mark in world.put_in(half, 3)]
        if restart:
            consumer.restart()
        consumer.until_found(early, at_most=5)


def test_a_child_that_is_closed_and_listed_late_is_read_from_its_first_record():
    with World(empty_pages=4) as world:
        first, second = world.script.split(world.chain())
        early = world.put_in(first) + world.put_in(second, 2)
        world.script.roll_over(second)
        world.script.hide(second, calls=3)
        world.script.hide(world.open()[1], calls=3)
        world.consumer().until_found(early, at_most=5)


def test_a_worker_with_descendants_reads_a_child_from_its_first_record():
    with World(empty_pages=4) as world:
        first, _ = world.script.split(world.chain())
        early = world.put_in(first, 3)
        world.script.split(first)
        start = ChangeFeedRequest(ADDRESS, Beginning())
        ((name, token),) = world.client().plan_partitions(start, with_descendants=True)
        scope = PhysicalPartition(name, with_descendants=True)
        world.consumer(FromContinuationToken(token), scope=scope).until_found(early, at_most=5)


@pytest.mark.parametrize("by_itself", [False, True])
def test_a_hidden_shard_is_not_given_up_when_records_of_it_expire(by_itself):
    with World(shards=2) as world:
        shard, other = world.open()
        scope = {"scope": alone(world, shard)} if by_itself else {}
        consumer = world.consumer(on_expired=SkipToOldest(), **scope)
        consumer.until_found(world.put_in(shard) + ([] if by_itself else world.put_in(other)))
        world.put_in(shard, 2)
        world.script.advance(25 * HOUR)
        kept = world.put_in(shard)
        world.script.hide(shard, calls=8)
        if not by_itself:
            consumer.until_idle()
        consumer.until_found(kept + world.put_in(shard, 2), at_most=5)
        assert any(isinstance(notice, Gap) for notice in consumer.notices)
        assert not any(isinstance(notice, PartitionFoundLate) for notice in consumer.notices)


def test_a_start_reads_a_parent_that_is_not_listed_before_its_children(world):
    world.settings |= {"child_watch_seconds": 0.0}
    first, hidden = world.script.split(world.chain())
    found = world.put_in(first) + world.put_in(hidden, 2)
    found += [mark for child in world.script.split(hidden) for mark in world.put_in(child)]
    world.script.hide(hidden, seconds=HOUR)
    plan = world.client().plan_partitions(ChangeFeedRequest(ADDRESS, Beginning()))
    assert hidden in {native(name) for name, _ in plan}
    consumer = world.consumer()
    consumer.until_found(found, at_most=5)
    assert consumer.markers.index(found[2]) < min(map(consumer.markers.index, found[3:]))


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
        with refused(ErrorCategory.CHECKPOINT_EXPIRED):
            consumer.until_idle()


@pytest.mark.parametrize("retired", [False, True], ids=["planned", "retired"])
def test_a_watch_that_is_looked_at_after_a_day_does_not_say_that_all_was_read(world, retired):
    """Nothing claims that everything was read if one half of a split was trimmed before it was listed."""
    world.put("a")
    parent = world.chain()
    scope = alone(world, parent)
    if not retired:
        _, late = world.script.split(parent)
        world.script.hide(late, seconds=5)
    start = ChangeFeedRequest(ADDRESS, Beginning() if retired else Now())
    token = dict(world.client().plan_partitions(start))[scope.partition_id]
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
        with refused(ErrorCategory.CHECKPOINT_EXPIRED):
            consumer.read()
