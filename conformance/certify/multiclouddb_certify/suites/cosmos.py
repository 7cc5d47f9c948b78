"""The conformance suite, with replacements for the tests in which Cosmos DB behaves differently.

`Beginning()` and `AtTime(…)` start a scan. The scan returns each item once, in its current state. The scan
omits items that are changed during the scan, because the feed returns their changes after the scan. After a
split, the children contain all changes of the parent. Therefore a parent partition counts as ended at the
last position that was read. The children deliver the remaining changes, and the events of these changes
contain the ids of the children.
"""

from datetime import timedelta, timezone

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    BackfillDone,
    Beginning,
    ChangeType,
    EntireCollection,
    ErrorCategory,
    LogicalPartition,
    PhysicalPartition,
    Snapshot,
    SnapshotOrder,
)
from multiclouddb_conformance import us8
from multiclouddb_conformance.collection import ids
from multiclouddb_conformance.sink import Sink
from multiclouddb_conformance.snapshots import ScannedCollection, is_done, started_of, until_equal, walk
from multiclouddb_conformance.us8 import *  # noqa: F403


def unplaced(events):
    """Map each event's id to a copy of the event without its partition id."""
    return {event.event_id: attrs.evolve(event, partition_id="") for event in events}


class TestEventIdentity(us8.TestEventIdentity):
    @pytest.mark.needs("split")
    def test_ids_are_the_same_after_a_split(self, collection):
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
    def test_small_pages_retire_after_the_last_event(self, collection, size):
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
    """The LSNs of a partition count only the changes of that partition.

    An idle partition therefore keeps its position, and the position stays valid.
    """

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


def keys(events):
    return {event.key for event in events}


class TestBeginning(us8.TestBeginning):
    def test_the_beginning_of_one_partition_has_its_changes_only(self, collection):
        names = collection.fill(20)
        homes = {event.key: event.partition_id for event in collection.read(collection.begin, 20)}
        assert len(homes) == len(names)
        for name in collection.partitions():
            mine = collection.drain(Beginning(), scope=PhysicalPartition(name))
            assert len(mine) == len(keys(mine))
            assert keys(mine) == {key for key, home in homes.items() if home == name}

    @pytest.mark.needs("split")
    def test_one_partition_goes_on_in_its_range_and_then_names_its_children(self, collection):
        name = collection.partitions()[0]
        collection.fill(20)
        pages = list(collection.pages(Beginning(), 3, scope=PhysicalPartition(name)))
        assert any(isinstance(notice, BackfillDone) for page in pages for notice in page.notices)
        token = pages[-1].continuation_token
        collection.fill(20, start=20)
        children = collection.split(name)
        last = collection.last(token, scope=PhysicalPartition(name))
        assert last.partition_retired
        assert {child.partition_id for child in last.child_partitions} == set(children)

    def test_every_row_is_a_create_and_says_that_it_was_backfilled(self, collection):
        for number in range(3):
            collection.put("a", n=number)
        collection.put("gone", n=0)
        collection.delete("gone")
        (event,) = collection.drain(Beginning())
        assert (event.type, event.backfilled) == (ChangeType.CREATE, True)
        assert event.new_item_state["n"] == 2


class TestAtTime(us8.TestAtTime):
    def test_a_moment_is_inclusive_and_never_late(self, collection):
        collection.fill(8)
        for event in collection.drain(collection.begin):
            assert event.key in keys(collection.drain(AtTime(event.timestamp)))

    def test_a_moment_leaves_out_what_was_last_changed_before(self, collection):
        collection.put("old", n=0)
        collection.harness.pass_time()
        collection.put("new", n=0)
        (new,) = [each for each in collection.drain(collection.begin) if "new" in str(each.key)]
        assert keys(collection.drain(AtTime(new.timestamp))) == {new.key}

    def test_a_moment_of_any_offset_is_the_same_moment(self, collection):
        collection.put("old", n=0)
        collection.harness.pass_time()
        collection.fill(4)
        # The four writes can fall in two seconds.
        _, moment, *_ = sorted(event.timestamp for event in collection.drain(collection.begin))
        elsewhere = moment.astimezone(timezone(timedelta(hours=5, minutes=45)))
        found = keys(collection.drain(AtTime(moment)))
        assert len(found) == 4
        assert keys(collection.drain(AtTime(elsewhere))) == found

    @pytest.mark.needs("trim")
    def test_a_moment_before_retention_has_expired(self, collection):
        """The feed of latest versions has no retention, so no position expires."""
        collection.fill(10)
        oldest = min(event.timestamp for event in collection.drain(collection.begin))
        collection.trim()
        assert len(keys(collection.drain(AtTime(oldest)))) == 10


_SCOPES = ["collection", "partition", "key"]


@pytest.mark.needs("alone")
class TestEveryStart(us8.TestEveryStart):
    def chosen(self, collection, scope):
        """Write one document; return its key, its first change, and the scope that contains it."""
        key = collection.harness.key("mine")
        collection.put("mine", n=0)
        (home,) = collection.read(collection.begin, 1)
        scopes = {
            "collection": EntireCollection(),
            "partition": PhysicalPartition(home.partition_id),
            "key": LogicalPartition(key),
        }
        return key, home, scopes[scope]

    @pytest.mark.parametrize("scope", _SCOPES)
    @pytest.mark.parametrize("start", ["beginning", "now", "time"])
    def test_a_start_in_a_scope_gives_what_comes_after_it(self, collection, start, scope):
        key, home, chosen = self.chosen(collection, scope)
        if start == "now":
            position = collection.now(scope=chosen)
        else:
            position = Beginning() if start == "beginning" else AtTime(home.timestamp)
            position = collection.page(position, scope=chosen).continuation_token
        collection.put("mine", n=1)
        collection.put("another", n=1)
        events = [event for event in collection.drain(position, 1, scope=chosen) if event.key == key]
        assert [event.new_item_state["n"] for event in events] == [1]

    @pytest.mark.parametrize("scope", _SCOPES)
    def test_a_row_comes_and_then_its_changes(self, collection, scope):
        key, _, chosen = self.chosen(collection, scope)
        *_, page = collection.pages(Beginning(), 1, scope=chosen)
        collection.put("mine", n=1)
        events = collection.drain(page.continuation_token, 1, scope=chosen)
        assert [event.new_item_state["n"] for event in events if event.key == key] == [1]


class TestLoss(us8.TestLoss):
    def test_nothing_is_lost_from_the_beginning(self, collection):
        """A scan delivers items instead of past changes. The target equals the source, even if the process is
        killed after every page.
        """
        source, sink = ScannedCollection(collection), Sink()
        source.fill(12)
        source.delete("k3")

        def between(number):
            if number < 6:
                source.put(f"k{2 * number}", 100 + number)
            if number == 2:
                collection.split()
            collection.restart()

        start = collection.request(Beginning()).provider_options
        for page in walk(collection, Beginning(), 2, between, provider_options=start):
            sink.apply(page.events)
        until_equal(source, sink, page.continuation_token)


class TestSnapshot(us8.TestSnapshot):
    def test_the_floor_lies_above_every_earlier_change(self, collection):
        """The LSNs of a partition count only its own changes, so every later change has a higher
        `order_key`.
        """
        collection.fill(5)
        earlier = collection.read(collection.begin, 5)
        floor = started_of(collection.page(Snapshot(SnapshotOrder.ORDERED))).floor
        assert all(floor < event.order_key for event in earlier)

    def test_a_row_says_what_it_is(self, collection):
        collection.fill(5)
        changes = {event.key: event.order_key for event in collection.drain(collection.begin)}
        first, *pages = walk(collection, Snapshot(SnapshotOrder.ORDERED))
        rows = [event for page in pages for event in page.events if event.backfilled]
        assert {event.key: event.order_key for event in rows} == changes
        assert all(event.order_key > started_of(first).floor for event in rows)
        assert {event.type for event in rows} == {ChangeType.CREATE}
        assert {(event.old_item_state, event.by_expiry) for event in rows} == {(None, False)}
        assert len({event.timestamp for event in rows}) == 1

    def test_one_partition_key_has_its_rows_only(self, collection):
        source = ScannedCollection(collection)
        source.fill(6)
        key = collection.harness.key("k3")
        scope = LogicalPartition(key)
        pages = list(walk(collection, Snapshot(), 1, scope=scope))
        source.put("k3", 100)
        source.put("k4", 100)
        pages += walk(collection, pages[-1].continuation_token, 1, scope=scope)
        events = [event for page in pages for event in page.events]
        assert {event.key for event in events} == {key}
        assert [event.backfilled for event in events] == [True, False]
        assert any(map(is_done, pages))

    def test_interleaved_is_refused_with_the_way_out(self, collection):
        wanted = Snapshot(SnapshotOrder.INTERLEAVED)
        assert "ORDERED" in collection.refused(ErrorCategory.UNSUPPORTED_CAPABILITY, wanted).message


class TestSnapshotUnderLoad(us8.TestSnapshotUnderLoad):
    @pytest.mark.needs("split")
    def test_ordered_holds_the_changes_through_a_split(self, collection):
        source = ScannedCollection(collection)
        source.fill(10)

        def between(number):
            if number == 1:
                collection.split()
            if 1 < number < 6:
                source.put(f"k{number}", 100 + number)

        pages = list(walk(collection, Snapshot(SnapshotOrder.ORDERED), 1, between))
        kinds = [event.backfilled for page in pages for event in page.events]
        assert kinds == sorted(kinds, reverse=True)
        assert kinds.count(True) >= 6
        assert kinds.count(False) >= 4
