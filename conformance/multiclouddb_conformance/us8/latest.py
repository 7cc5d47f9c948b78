"""Tests a feed that contains only the newest version of each document: no deletes, no earlier versions."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    ChangeEvent,
    ChangeType,
    LogicalPartition,
    MulticloudDbKey,
    PhysicalPartition,
)
from multiclouddb_conformance.collection import Collection, ids

__all__ = ["TestLatestVersions"]

_ALL: Final = Capability.CHANGE_FEED_ALL_VERSIONS


@attrs.frozen
class _History:
    """Changes of a few documents, and what is left of them."""

    collection: Collection
    left: dict[MulticloudDbKey, Any] = attrs.field(factory=dict)

    def write(self, *numbers: int) -> None:
        """Make changes: creates, updates, deletes, and documents that are deleted and made again."""
        harness = self.collection.harness
        for number in numbers:
            name = f"k{number % 5}"
            if number % 7 == 3 and harness.key(name) in self.left:
                self.collection.delete(name)
                del self.left[harness.key(name)]
            else:
                self.collection.put(name, n=number)
                self.left[harness.key(name)] = harness.document(name, {"n": number})

    def last(self, events: list[ChangeEvent]) -> dict[MulticloudDbKey, Any]:
        found = {event.key: event.new_item_state for event in events}
        return {key: found[key] for key in found if key in self.left}


@pytest.mark.shows("Further 15")
@pytest.mark.refuses(_ALL)
@pytest.mark.refuses(Capability.CHANGE_FEED_DELETES)
@pytest.mark.needs("alone")
class TestLatestVersions:
    """Tests a provider without deletes and earlier versions."""

    @pytest.mark.refuses(Capability.CHANGE_FEED_CHANGE_TYPES)
    @pytest.mark.parametrize("size", [1, 3, 0])
    def test_each_existing_document_ends_with_its_last_state(self, collection: Collection, size: int) -> None:
        history = _History(collection)
        history.write(*range(30))
        events = collection.drain(collection.begin, size)
        assert {event.key: event.new_item_state for event in events} == history.left
        assert len(events) == len(history.left)
        assert {event.type for event in events} <= {ChangeType.UPDATE}

    @pytest.mark.needs("split")
    @pytest.mark.parametrize("size", [1, 0])
    def test_it_ends_so_whatever_happens_between_pages(self, collection: Collection, size: int) -> None:
        history, token = _History(collection), collection.begin
        events = list[ChangeEvent]()
        for number in range(0, 40, 4):
            history.write(*range(number, number + 4))
            if number == 12:
                children = collection.split()
            if number == 28 and collection.harness.can_merge:
                collection.merge(children)
            page = collection.page(token, size)
            events += page.events
            token = page.continuation_token
            collection.restart()
        events += collection.drain(token, size)
        assert history.last(events) == history.left
        last = dict[MulticloudDbKey, str]()
        for event in events:
            assert event.order_key > last.get(event.key, "")
            last[event.key] = event.order_key
        assert len(ids(events)) == len(set(ids(events)))

    def test_no_event_is_of_a_document_that_never_existed(self, collection: Collection) -> None:
        history = _History(collection)
        history.write(*range(30))
        names = {collection.harness.key(f"k{number}") for number in range(5)}
        assert {event.key for event in collection.drain(collection.begin)} <= names

    @pytest.mark.requires(Capability.CHANGE_FEED_BEGINNING)
    def test_the_beginning_has_every_existing_document(self, collection: Collection) -> None:
        history = _History(collection)
        history.write(*range(30))
        events = collection.drain(Beginning())
        assert {event.key: event.new_item_state for event in events} == history.left
        again = collection.drain(Beginning(), 1)
        assert {each.event_id: each.order_key for each in again} == {
            each.event_id: each.order_key for each in events
        }

    @pytest.mark.requires(Capability.CHANGE_FEED_POINT_IN_TIME)
    def test_a_moment_is_never_late(self, collection: Collection) -> None:
        history = _History(collection)
        history.write(*range(20))
        events = collection.drain(collection.begin)
        for event in events:
            wanted = {each.key for each in events if each.timestamp >= event.timestamp}
            got = collection.drain(AtTime(event.timestamp))
            assert {each.key for each in got} >= wanted
            early = timedelta(seconds=collection.harness.precision_seconds)
            assert all(each.timestamp >= event.timestamp - early for each in got)

    @pytest.mark.requires(Capability.CHANGE_FEED_BEGINNING)
    @pytest.mark.needs("still")
    def test_a_partition_has_its_documents_only(self, collection: Collection) -> None:
        history = _History(collection)
        history.write(*range(20))
        found = [
            event
            for name in collection.partitions()
            for event in collection.drain(Beginning(), scope=PhysicalPartition(name))
        ]
        assert {event.key: event.new_item_state for event in found} == history.left
        assert len(found) == len(history.left)

    @pytest.mark.requires(Capability.CHANGE_FEED_BEGINNING)
    @pytest.mark.requires(Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE)
    @pytest.mark.needs("split")
    def test_a_key_has_its_document_only(self, collection: Collection) -> None:
        key = collection.harness.key("k1")
        scope = LogicalPartition(key)
        collection.put("k1", n=1)
        collection.put("k2", n=2)
        (event,) = collection.drain(Beginning(), scope=scope)
        assert event.key == key
        token = collection.now(scope=scope)
        collection.split()
        collection.put("k1", n=3)
        collection.put("k1", n=4)
        (later,) = collection.drain(token, scope=scope)
        assert later.new_item_state == collection.harness.document("k1", {"n": 4})
        assert later.order_key > event.order_key

    def test_a_document_that_was_deleted_and_made_again_is_one_update(self, collection: Collection) -> None:
        collection.put("a", n=1)
        token = collection.last(collection.begin).continuation_token
        collection.delete("a")
        collection.put("a", n=2)
        (event,) = collection.drain(token)
        assert event.type is ChangeType.UPDATE
        assert event.new_item_state == collection.harness.document("a", {"n": 2})
