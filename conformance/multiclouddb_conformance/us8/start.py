"""Tests the starts of a feed: the beginning, now, and a given time."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

from datetime import timedelta, timezone

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    EntireCollection,
    ErrorCategory,
    ErrorReason,
    FeedScope,
    LogicalPartition,
    MulticloudDbError,
    Now,
    PhysicalPartition,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.refusals import LOST, check_refusal

__all__ = ["TestAtTime", "TestBeginning", "TestEveryStart", "TestNow"]

_BEGINNING = Capability.CHANGE_FEED_BEGINNING
_TIME = Capability.CHANGE_FEED_POINT_IN_TIME
_KEY = Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE
_STARTS = (
    pytest.param("beginning", marks=pytest.mark.requires(_BEGINNING)),
    "now",
    pytest.param("time", marks=pytest.mark.requires(_TIME)),
)
_SCOPES = (
    "collection",
    pytest.param("partition", marks=pytest.mark.needs("still")),
    pytest.param("key", marks=pytest.mark.requires(_KEY)),
)


@pytest.mark.shows("Plan 4")
class TestBeginning:
    """With `Beginning()`, the feed starts at the oldest change that is still kept."""

    @pytest.mark.shows("FR-067")
    @pytest.mark.requires(_BEGINNING)
    def test_the_beginning_has_everything(self, collection: Collection) -> None:
        names = collection.fill(10)
        keys = {event.key for event in collection.drain(Beginning())}
        assert keys == {collection.harness.key(name) for name in names}

    @pytest.mark.requires(_BEGINNING)
    def test_an_empty_collection_is_idle_from_the_beginning(self, collection: Collection) -> None:
        assert collection.drain(Beginning()) == []

    @pytest.mark.requires(_BEGINNING)
    @pytest.mark.needs("alone", "still")
    def test_the_beginning_of_one_partition_has_its_changes_only(self, collection: Collection) -> None:
        collection.fill(20)
        everything = collection.drain(Beginning())
        for name in collection.partitions():
            mine = collection.drain(Beginning(), scope=PhysicalPartition(name))
            assert ids(mine) == ids(event for event in everything if event.partition_id == name)

    @pytest.mark.requires(_BEGINNING)
    @pytest.mark.needs("split", "merge")
    def test_the_beginning_goes_through_partitions_that_ended(self, collection: Collection) -> None:
        collection.fill(10)
        children = collection.split()
        collection.fill(10, start=10)
        collection.merge(children)
        collection.fill(10, start=20)
        events = collection.drain(Beginning())
        assert len(events) == len(set(ids(events))) == 30

    @pytest.mark.shows("Promise 2")
    @pytest.mark.requires(_BEGINNING)
    @pytest.mark.needs("split", "key_order")
    @pytest.mark.parametrize("size", [1, 0])
    def test_the_beginning_reads_parents_before_their_children(
        self, collection: Collection, size: int
    ) -> None:
        for number in range(40):
            collection.put(f"k{number % 4}", n=number)
            if number in (10, 20):
                collection.split()
        last: dict[str, str] = {}
        for event in collection.drain(Beginning(), size):
            assert event.order_key > last.get(str(event.key), "")
            last[str(event.key)] = event.order_key
        assert len(last) == 4

    @pytest.mark.shows("FR-067")
    @pytest.mark.refuses(_BEGINNING)
    def test_the_beginning_is_refused(self, collection: Collection) -> None:
        _refused(collection, Beginning())


@pytest.mark.shows("Plan 4", "Promise 5")
class TestNow:
    """The feed returns only later changes, and its first token is already durable."""

    @pytest.mark.shows("FR-067")
    def test_now_leaves_out_what_was(self, collection: Collection) -> None:
        collection.put("old", n=1)
        token = collection.now()
        collection.put("new", n=2)
        (event,) = collection.read(token, 1)
        assert event.key == collection.harness.key("new")

    def test_the_first_page_of_now_is_empty(self, collection: Collection) -> None:
        collection.fill(5)
        assert collection.page(Now()).events == ()

    @pytest.mark.needs("still")
    def test_now_of_one_partition_is_empty_too(self, collection: Collection) -> None:
        collection.fill(20)
        for name in collection.partitions():
            assert collection.page(Now(), scope=PhysicalPartition(name)).events == ()

    def test_now_holds_across_a_restart_before_the_first_event(self, collection: Collection) -> None:
        token = collection.now()
        collection.restart()
        collection.fill(5)
        assert len(collection.read(token, 5)) == 5

    def test_now_holds_through_idle_pages_and_restarts(self, collection: Collection) -> None:
        token = collection.now()
        for _ in range(3):
            token = collection.last(token).continuation_token
            collection.restart()
        collection.put("a", n=1)
        assert len(collection.read(token, 1)) == 1

    @pytest.mark.needs("split")
    def test_now_holds_through_a_split_before_the_first_event(self, collection: Collection) -> None:
        token = collection.now()
        collection.split()
        collection.fill(20)
        collection.restart()
        assert len(collection.read(token, 20)) == 20

    @pytest.mark.needs("still")
    def test_now_of_one_partition_holds(self, collection: Collection) -> None:
        collection.fill(5)
        tokens = {name: collection.now(scope=PhysicalPartition(name)) for name in collection.partitions()}
        collection.restart()
        collection.fill(20, start=5)
        events = [
            event
            for name, token in tokens.items()
            for event in collection.drain(token, scope=PhysicalPartition(name))
        ]
        assert len(events) == len(set(ids(events))) == 20


@pytest.mark.shows("Plan 4", "Promise 6")
class TestAtTime:
    """The feed starts at the first change at or after a given time."""

    @pytest.mark.shows("FR-067")
    @pytest.mark.requires(_TIME)
    def test_a_moment_is_inclusive_and_never_late(self, collection: Collection) -> None:
        collection.fill(8)
        events = sorted(collection.drain(collection.begin), key=lambda event: event.timestamp)
        for event in events:
            got = set(ids(collection.drain(AtTime(event.timestamp))))
            assert got >= {later.event_id for later in events if later.timestamp >= event.timestamp}

    @pytest.mark.requires(_TIME)
    def test_a_moment_is_early_by_at_most_its_precision(self, collection: Collection) -> None:
        collection.fill(8)
        events = sorted(collection.drain(collection.begin), key=lambda event: event.timestamp)
        precision = timedelta(seconds=collection.harness.precision_seconds)
        for event in events:
            got = collection.drain(AtTime(event.timestamp))
            assert all(earlier.timestamp >= event.timestamp - precision for earlier in got)

    @pytest.mark.requires(_TIME)
    def test_a_moment_of_any_offset_is_the_same_moment(self, collection: Collection) -> None:
        collection.fill(4)
        moment = collection.drain(collection.begin)[2].timestamp
        elsewhere = moment.astimezone(timezone(timedelta(hours=5, minutes=45)))
        assert sorted(ids(collection.drain(AtTime(elsewhere)))) == sorted(
            ids(collection.drain(AtTime(moment)))
        )

    @pytest.mark.requires(_TIME)
    def test_a_moment_after_everything_gives_what_comes(self, collection: Collection) -> None:
        collection.fill(4)
        last = max(event.timestamp for event in collection.drain(collection.begin))
        token = collection.last(AtTime(last + timedelta(microseconds=1))).continuation_token
        collection.put("later", n=1)
        (event,) = collection.read(token, 1)
        assert event.key == collection.harness.key("later")

    @pytest.mark.requires(_TIME)
    def test_a_moment_to_come_is_refused(self, collection: Collection) -> None:
        ahead = collection.harness.now() + timedelta(minutes=10)
        collection.refused(ErrorCategory.INVALID_REQUEST, AtTime(ahead), reasons=[ErrorReason.CLOCK])

    @pytest.mark.requires(_TIME)
    @pytest.mark.needs("trim")
    def test_a_moment_before_retention_has_expired(self, collection: Collection) -> None:
        collection.fill(10)
        oldest = min(event.timestamp for event in collection.drain(collection.begin))
        collection.trim()
        collection.refused(ErrorCategory.CHECKPOINT_EXPIRED, AtTime(oldest), reasons=LOST)

    @pytest.mark.requires(_TIME)
    @pytest.mark.needs("split")
    def test_a_moment_before_a_split_goes_through_it(self, collection: Collection) -> None:
        collection.fill(10)
        oldest = min(event.timestamp for event in collection.drain(collection.begin))
        collection.split()
        collection.fill(10, start=10)
        assert len(set(ids(collection.drain(AtTime(oldest))))) == 20

    @pytest.mark.shows("FR-067")
    @pytest.mark.refuses(_TIME)
    def test_a_moment_is_refused(self, collection: Collection) -> None:
        _refused(collection, AtTime(collection.harness.now()))


@pytest.mark.shows("FR-067", "Plan 4")
@pytest.mark.needs("alone")
class TestEveryStart:
    """Tests every start position with every scope."""

    @pytest.mark.parametrize("scope", _SCOPES)
    @pytest.mark.parametrize("start", _STARTS)
    def test_a_start_in_a_scope_gives_what_comes_after_it(
        self, collection: Collection, start: str, scope: str
    ) -> None:
        key = collection.harness.key("mine")
        collection.put("mine", n=0)
        collection.put("other", n=0)
        home = next(event for event in collection.read(collection.begin, 2) if event.key == key)
        chosen: FeedScope = EntireCollection()
        if scope == "partition":
            chosen = PhysicalPartition(home.partition_id)
        elif scope == "key":
            chosen = LogicalPartition(key)
        position: Beginning | AtTime | str = Beginning()
        if start == "now":
            position = collection.now(scope=chosen)
        elif start == "time":
            position = AtTime(home.timestamp)
        collection.put("mine", n=1)
        collection.put("another", n=1)
        events = [event for event in collection.drain(position, 1, scope=chosen) if event.key == key]
        numbers = [event.new_item_state["n"] for event in events if event.new_item_state is not None]
        has_all = collection.harness.capabilities.is_supported(Capability.CHANGE_FEED_ALL_VERSIONS)
        assert numbers == ([1] if start == "now" or not has_all else [0, 1])


def _refused(collection: Collection, start: Beginning | AtTime) -> None:
    """Check that a request without an opt-in is refused, and that the error says what to do."""
    request = collection.request(start)
    with pytest.raises(MulticloudDbError) as caught:
        collection.client.read_changes(attrs.evolve(request, provider_options=None))
    check_refusal(caught.value, ErrorCategory.UNSUPPORTED_CAPABILITY)
    assert "; " in caught.value.message
