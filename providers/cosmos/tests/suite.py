"""The conformance suite, with the cases that Cosmos DB shows in another way.

The children of a split hold everything that was in the parent. So a parent ends where reading stopped, and
what was left of it comes through its children, which then are the partitions of these events.
"""

import attrs
import pytest

from multiclouddb_api import PhysicalPartition
from multiclouddb_conformance import us8
from multiclouddb_conformance.collection import ids
from multiclouddb_conformance.us8 import *  # noqa: F403


def unplaced(events):
    """The events by id, without the partition that they came through."""
    return {event.event_id: attrs.evolve(event, partition_id="") for event in events}


class TestEventIdentity(us8.TestEventIdentity):
    @pytest.mark.needs("split")
    def test_ids_are_the_same_behind_a_split(self, collection):
        collection.fill(20)
        before = unplaced(collection.read(collection.begin, 20))
        collection.split()
        collection.restart()
        assert unplaced(collection.drain(collection.begin)) == before


@pytest.mark.needs("split")
class TestRetirement(us8.TestRetirement):
    def _split_unread(self, collection):
        name = collection.partitions()[0]
        token = collection.now(scope=PhysicalPartition(name))
        collection.fill(30)
        mine = [event for event in collection.read(collection.begin, 30) if event.partition_id == name]
        collection.split(name)
        return name, token, mine

    def test_everything_in_a_partition_comes_before_it_retires(self, collection):
        name, token, mine = self._split_unread(collection)
        (page,) = collection.pages(token, scope=PhysicalPartition(name))
        assert page.partition_retired
        assert unplaced(collection.follow(name, token)) == unplaced(mine)

    @pytest.mark.parametrize("size", [1, 3])
    def test_small_pages_retire_behind_the_last_event(self, collection, size):
        name, token, mine = self._split_unread(collection)
        got = collection.follow(name, token, size)
        assert len(got) == len(mine)
        assert unplaced(got) == unplaced(mine)

    @pytest.mark.parametrize("size", [1, 3])
    def test_what_was_read_before_the_split_does_not_come_again(self, collection, size):
        name = collection.partitions()[0]
        token = collection.now(scope=PhysicalPartition(name))
        collection.fill(30)
        mine = [event for event in collection.read(collection.begin, 30) if event.partition_id == name]
        page = collection.page(token, size, scope=PhysicalPartition(name))
        collection.split(name)
        collection.restart()
        rest = collection.follow(name, page.continuation_token, size)
        assert sorted([*ids(page.events), *ids(rest)]) == sorted(ids(mine))

    def test_children_start_where_the_parent_ended(self, collection):
        name, token, _ = self._split_unread(collection)
        children = {each for each in collection.partitions() if each != name}
        collection.fill(20, start=30)
        alone = collection.follow(name, token)
        lineage = {event.partition_id for event in alone}
        everything = collection.read(collection.begin, 50)
        assert lineage <= children
        assert sorted(ids(alone)) == sorted(ids(each for each in everything if each.partition_id in lineage))


class TestIdle(us8.TestIdle):
    """A partition counts its own changes: without one, its position is the same and stays good."""

    @pytest.mark.needs("several", "trim", "still")
    def test_a_partition_that_is_idle_for_long_does_not_fall_out_of_retention(self, collection):
        mine, other = collection.partitions()[:2]
        busy = collection.key_in(other)
        scope = PhysicalPartition(mine)
        token = collection.last(collection.now(scope=scope), scope=scope).continuation_token
        for number in range(3):
            collection.put(busy, n=number)
            page = collection.last(token, scope=scope)
            assert page.events == ()
            token = page.continuation_token
            collection.trim()
            collection.restart()
        assert collection.last(token, scope=scope).idle
