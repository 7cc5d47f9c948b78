"""Tests reads after retention has removed shards: nothing that is left is missed, and the calls are few."""

import time

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    Gap,
    MulticloudDbError,
    OperationOptions,
    PhysicalPartition,
    SkipToOldest,
)
from multiclouddb_conformance.refusals import refused

from .world import ADDRESS, World

SKIPS = {"on_expired": SkipToOldest()}
LONG = OperationOptions(timeout_seconds=120)


pytestmark = pytest.mark.usefixtures("hasty_readers")


@pytest.mark.parametrize(
    "calls", [0, 1, 2, 4, *(pytest.param(calls, marks=pytest.mark.soak) for calls in (3, 5, 6, 7, 8))]
)
def test_a_shard_that_is_listed_after_its_child_is_read_first(calls):
    """A → B → C: a feed stands in A when A expires, and the listing shows C some calls before it shows B."""
    with World() as world:
        world.settings["coverage_audit_seconds"] = 0.2
        a = world.chain()
        consumer = world.consumer(**SKIPS)
        consumer.until_found(world.put("k1", "k2"))
        b = world.script.roll_over(a)
        middle = world.put("k1", "k2", "k3")
        last = world.put_in(world.script.roll_over(b), 2)
        world.script.drop_shards([a])
        if calls:
            world.script.hide(b, calls=calls)
        consumer.restart()
        del consumer.events[:]
        consumer.until_found(middle + last)
        assert consumer.markers == middle + last
        assert [type(notice) for notice in consumer.notices].count(Gap) == 1


def test_a_shard_that_waits_for_a_lost_one_is_read():
    """A → B, beside C: a feed that has begun with all of them has not read A when A expires."""
    with World(shards=2) as world:
        a, c = world.open()
        lost = world.put_in(a, 3)
        b = world.script.roll_over(a)
        kept = world.put_in(b, 2) + world.put_in(c, 2)
        consumer = world.consumer(max_page_size=1, **SKIPS)
        consumer.read()
        world.script.drop_shards([a])
        consumer.restart()
        consumer.until_found(kept)
        assert set(kept) <= set(consumer.markers) < {*lost, *kept}
        assert [type(notice) for notice in consumer.notices].count(Gap) == 1


def lose_all(world):
    """Let a consumer read every shard, lose each of them, and check that it reads all that is left, once.

    Return the seconds until everything was read.
    """
    consumer = world.consumer(**SKIPS)
    old = world.open()
    for shard in old:
        world.script.fill(shard, 1)
    while len(consumer.events) < len(old):
        consumer.read(LONG)
    for shard in world.roll_over():
        world.script.fill(shard, 1)
    world.script.drop_shards(old)
    consumer.restart()
    world.journal.clear()
    del consumer.events[:]
    began = time.monotonic()
    while len(consumer.events) < len(old):
        consumer.read(LONG)
    seconds = time.monotonic() - began
    consumer.until_idle()
    assert len({event.event_id for event in consumer.events}) == len(consumer.events) == len(old)
    assert sum(isinstance(notice, Gap) for notice in consumer.notices) == len(old)
    return seconds


def test_forty_lost_shards_on_four_pages_take_few_listings():
    with World(shards=40, shards_per_page=10) as world:
        lose_all(world)
        assert world.journal.count("DescribeStream") <= 8


@pytest.mark.soak
def test_a_thousand_lost_shards_on_ten_pages_end_in_thirty_seconds():
    with World(shards=1000) as world:
        assert lose_all(world) < 30
        assert world.journal.count("DescribeStream") <= 20


@pytest.mark.parametrize("skips", [False, True], ids=["fail", "skip"])
def test_a_worker_with_descendants_is_planned_again_after_a_loss(skips):
    """What remains may descend from the partition of another worker."""
    with World(shards=2) as world:
        client = world.client()
        parts = client.plan_partitions(ChangeFeedRequest(ADDRESS, Beginning()), with_descendants=True)
        workers = [
            world.consumer(
                FromContinuationToken(token),
                scope=PhysicalPartition(name, with_descendants=True),
                **(SKIPS if skips else {}),
            )
            for name, token in parts
        ]
        old = world.open()
        mine = [world.put_in(shard) for shard in old]
        for worker, marker in zip(workers, mine, strict=True):
            worker.until_found(marker)
        world.roll_over()
        world.put_everywhere()
        world.script.drop_shards(old)
        later = world.put_everywhere()
        for worker in workers:
            with refused(ErrorCategory.CHECKPOINT_EXPIRED):
                worker.restart().until_found(later, at_most=5)
            assert not set(worker.markers) & set(later)


@pytest.mark.parametrize("hidden", ["nothing", "a half", "the middle"])
def test_a_worker_goes_on_where_the_listing_proves_what_follows(hidden):
    """A worker's only shard is lost: a half of it, or the parent of what is listed, may be listed later."""
    with World() as world:
        request = ChangeFeedRequest(ADDRESS, Beginning())
        ((name, token),) = world.client().plan_partitions(request, with_descendants=True)
        world.put("lost")
        root = world.chain()
        middle, half = world.script.split(root)
        left = world.put_in(middle) + world.put_in(half, 2)
        left += world.put_in(world.script.roll_over(middle), 2)
        world.script.drop_shards([root])
        if hidden != "nothing":
            world.script.hide(half if hidden == "a half" else middle, calls=6)
        scope = PhysicalPartition(name, with_descendants=True)
        worker = world.consumer(FromContinuationToken(token), scope=scope, **SKIPS)
        while not set(left) <= set(worker.markers):
            try:
                worker.read()
            except MulticloudDbError as error:
                if not error.retryable:
                    raise
        worker.until_idle()
        assert len(worker.events) == 5
        assert [type(notice) for notice in worker.notices] == [Gap]
