"""Tests the scopes of a feed: a collection, a partition, a key, and wider scopes."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from multiclouddb_api import (
    Capability,
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    ErrorReason,
    FeedScope,
    LogicalPartition,
    MulticloudDbError,
    PhysicalPartition,
    ResourceAddress,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.refusals import check_refusal

__all__ = ["TestLogicalPartition", "TestPhysicalPartition", "TestWiderScopes"]

Make = Callable[..., Collection]
_LOGICAL = Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE
_DATABASE = Capability.CHANGE_FEED_DATABASE_SCOPE
_CLUSTER = Capability.CHANGE_FEED_CLUSTER_SCOPE


@pytest.mark.shows("FR-069")
@pytest.mark.needs("alone")
class TestPhysicalPartition:
    """Separate reads of all partitions also cover the whole collection."""

    @pytest.mark.shows("Plan 5")
    def test_a_collection_lists_its_partitions(self, collection: Collection) -> None:
        names = collection.partitions()
        assert names
        assert len(set(names)) == len(names)

    @pytest.mark.shows("Plan 5")
    @pytest.mark.needs("several", "still")
    def test_a_collection_has_as_many_partitions_as_were_asked_for(self, make_collection: Make) -> None:
        assert len(make_collection("many", partitions=5).partitions()) == 5

    @pytest.mark.needs("several", "still")
    def test_every_partition_of_many_is_read(self, make_collection: Make) -> None:
        many = make_collection("many", partitions=9)
        many.fill(150)
        events = many.read(many.begin, 150)
        assert {event.partition_id for event in events} == set(many.partitions())

    @pytest.mark.needs("still")
    def test_partitions_together_have_every_event_once(self, collection: Collection) -> None:
        starts = {name: collection.now(scope=PhysicalPartition(name)) for name in collection.partitions()}
        collection.fill(30)
        everything = ids(collection.read(collection.begin, 30))
        parts = [
            event
            for name, token in starts.items()
            for event in collection.drain(token, scope=PhysicalPartition(name))
        ]
        assert sorted(ids(parts)) == sorted(everything)

    @pytest.mark.needs("still")
    def test_an_event_names_the_partition_that_it_came_through(self, collection: Collection) -> None:
        starts = {name: collection.now(scope=PhysicalPartition(name)) for name in collection.partitions()}
        collection.fill(20)
        for name, token in starts.items():
            events = collection.drain(token, scope=PhysicalPartition(name))
            assert {event.partition_id for event in events} <= {name}

    @pytest.mark.shows("Plan 13")
    @pytest.mark.needs("still")
    def test_a_partition_keeps_its_order_in_every_scope(self, collection: Collection) -> None:
        starts = {name: collection.now(scope=PhysicalPartition(name)) for name in collection.partitions()}
        collection.fill(30)
        everything = collection.read(collection.begin, 30)
        for name, token in starts.items():
            alone = ids(collection.drain(token, 3, scope=PhysicalPartition(name)))
            assert alone == ids(event for event in everything if event.partition_id == name)

    @pytest.mark.shows("Plan 5")
    @pytest.mark.needs("still")
    def test_a_partition_that_lives_is_not_retired(self, collection: Collection) -> None:
        (name, *_) = collection.partitions()
        page = collection.last(collection.now(scope=PhysicalPartition(name)), scope=PhysicalPartition(name))
        assert (page.idle, page.partition_retired, page.child_partitions) == (True, False, ())

    @pytest.mark.parametrize("text", ["nonsense", "a:b", "a:b.c:", ":::", "é"])
    def test_what_is_no_partition_id_is_refused(self, collection: Collection, text: str) -> None:
        scope, malformed = PhysicalPartition(text), [ErrorReason.MALFORMED]
        collection.refused(ErrorCategory.INVALID_REQUEST, collection.begin, scope=scope, reasons=malformed)

    def test_an_id_with_an_unknown_partition_is_refused(self, collection: Collection) -> None:
        (name, *_) = collection.partitions()
        unknown = PhysicalPartition(name.rpartition(":")[0] + ":no-such-partition")
        with pytest.raises(MulticloudDbError) as caught:
            collection.now(scope=unknown)
        assert caught.value.category in (ErrorCategory.INVALID_REQUEST, ErrorCategory.NOT_FOUND)


@pytest.mark.shows("FR-069")
@pytest.mark.needs("alone")
class TestLogicalPartition:
    """A feed returns all changes of one partition key."""

    @pytest.mark.requires(_LOGICAL)
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_a_key_has_its_changes_only(self, collection: Collection) -> None:
        scope = LogicalPartition(collection.harness.key("mine"))
        start = collection.now(scope=scope)
        for number in range(10):
            collection.put("mine", n=number)
            collection.put(f"other-{number}", n=number)
        events = collection.read(start, 10, scope=scope)
        assert {event.key for event in events} == {collection.harness.key("mine")}
        assert [event.new_item_state["n"] for event in events if event.new_item_state] == list(range(10))

    @pytest.mark.requires(_LOGICAL)
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_a_key_moves_through_small_pages(self, collection: Collection) -> None:
        scope = LogicalPartition(collection.harness.key("mine"))
        start = collection.now(scope=scope)
        for number in range(5):
            collection.fill(5, start=5 * number)
            collection.put("mine", n=number)
        events = collection.drain(start, 1, scope=scope)
        assert len(events) == len(set(ids(events))) == 5

    @pytest.mark.shows("Plan 13")
    @pytest.mark.requires(_LOGICAL)
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_a_key_has_the_same_events_as_in_the_collection(self, collection: Collection) -> None:
        scope = LogicalPartition(collection.harness.key("mine"))
        start = collection.now(scope=scope)
        collection.fill(5)
        collection.put("mine", n=1)
        collection.delete("mine")
        everything = collection.read(collection.begin, 7)
        mine = collection.drain(start, scope=scope)
        assert mine == [event for event in everything if event.key == collection.harness.key("mine")]

    @pytest.mark.shows("Plan 13")
    @pytest.mark.requires(_LOGICAL)
    @pytest.mark.needs("split", "merge")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_a_key_is_followed_through_a_split_and_a_merge(self, collection: Collection) -> None:
        key = collection.harness.key("mine")
        start = collection.now(scope=LogicalPartition(key))
        collection.put("mine", n=0)
        home = next(event.partition_id for event in collection.read(collection.begin, 1))
        children = collection.split(home)
        collection.put("mine", n=1)
        collection.merge(children)
        collection.put("mine", n=2)
        events = collection.read(start, 3, scope=LogicalPartition(key))
        assert [event.new_item_state["n"] for event in events if event.new_item_state] == [0, 1, 2]

    @pytest.mark.refuses(_LOGICAL)
    def test_a_key_is_refused_with_the_way_out(self, collection: Collection) -> None:
        _refused(collection, LogicalPartition(collection.harness.key("mine")), collection.address)


@pytest.mark.shows("Further 4")
@pytest.mark.needs("alone")
class TestWiderScopes:
    """A feed covers more than one collection if the service supports such a scope."""

    @pytest.mark.requires(_DATABASE)
    def test_a_database_has_every_collection(self, make_collection: Make) -> None:
        first, second = make_collection("first"), make_collection("second")
        database = ResourceAddress(database=first.address.database)
        start = first.now(address=database, scope=EntireDatabase())
        first.fill(5)
        second.fill(5)
        events = first.read(start, 10, address=database, scope=EntireDatabase())
        assert {event.address for event in events} == {first.address, second.address}

    @pytest.mark.requires(_CLUSTER)
    def test_a_cluster_has_every_database(self, make_collection: Make) -> None:
        first, second = make_collection("first"), make_collection("second")
        start = first.now(address=ResourceAddress(), scope=EntireCluster())
        first.fill(5)
        second.fill(5)
        events = first.read(start, 10, address=ResourceAddress(), scope=EntireCluster())
        assert {event.address for event in events} == {first.address, second.address}

    @pytest.mark.refuses(_DATABASE)
    def test_a_database_is_refused_with_the_way_out(self, collection: Collection) -> None:
        _refused(
            collection, EntireDatabase(), ResourceAddress(database=collection.address.database or "main")
        )

    @pytest.mark.refuses(_CLUSTER)
    def test_a_cluster_is_refused_with_the_way_out(self, collection: Collection) -> None:
        _refused(collection, EntireCluster(), ResourceAddress())

    def test_a_scope_that_does_not_fit_the_address_is_refused(self, collection: Collection) -> None:
        nowhere = attrs.evolve(collection.address, collection=None)
        with pytest.raises(MulticloudDbError) as caught:
            collection.now(address=nowhere)
        check_refusal(caught.value, ErrorCategory.INVALID_REQUEST)


def _refused(collection: Collection, scope: FeedScope, address: ResourceAddress) -> None:
    """Check that a request without an opt-in is refused, and that the error says what to do."""
    request = collection.request(collection.begin, scope=scope, address=address)
    with pytest.raises(MulticloudDbError) as caught:
        collection.client.read_changes(attrs.evolve(request, provider_options=None))
    check_refusal(caught.value, ErrorCategory.UNSUPPORTED_CAPABILITY)
    assert "; " in caught.value.message
