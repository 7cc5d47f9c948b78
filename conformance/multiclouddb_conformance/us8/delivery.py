"""Tests that creates, updates and deletes are delivered, alone and in transactions."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import pytest

from multiclouddb_api import Capability, ChangeType
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.harness import Write

__all__ = ["TestPropagation", "TestTransactions"]


@pytest.mark.shows("FR-065", "Plan 1")
class TestPropagation:
    """Each write results in exactly one event."""

    @pytest.mark.shows("FR-068")
    @pytest.mark.requires(Capability.CHANGE_FEED_CHANGE_TYPES)
    def test_a_create_arrives_with_its_document(self, collection: Collection) -> None:
        collection.put("a", n=1)
        (event,) = collection.read(collection.begin, 1)
        assert event.type is ChangeType.CREATE
        assert event.key == collection.harness.key("a")
        assert event.new_item_state == collection.harness.document("a", {"n": 1})
        assert event.address == collection.address
        assert not event.backfilled

    @pytest.mark.shows("FR-068")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    @pytest.mark.requires(Capability.CHANGE_FEED_CHANGE_TYPES)
    def test_an_update_arrives_with_the_whole_new_document(self, collection: Collection) -> None:
        collection.put("a", n=1, kept="x")
        collection.put("a", n=2, kept="x", added=[1])
        _, event = collection.read(collection.begin, 2)
        assert event.type is ChangeType.UPDATE
        expected = {"n": 2, "kept": "x", "added": [1]}
        assert event.new_item_state == collection.harness.document("a", expected)

    @pytest.mark.shows("FR-068")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    @pytest.mark.requires(Capability.CHANGE_FEED_DELETES)
    def test_a_delete_arrives_without_a_document(self, collection: Collection) -> None:
        collection.put("a", n=1)
        collection.delete("a")
        _, event = collection.read(collection.begin, 2)
        assert (event.type, event.new_item_state) == (ChangeType.DELETE, None)
        assert event.key == collection.harness.key("a")
        assert event.by_expiry is not True

    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    @pytest.mark.requires(Capability.CHANGE_FEED_DELETES)
    def test_a_document_deleted_and_written_again_is_created_twice(self, collection: Collection) -> None:
        collection.put("a", n=1)
        collection.delete("a")
        collection.put("a", n=2)
        kinds = [event.type for event in collection.read(collection.begin, 3)]
        assert kinds == [ChangeType.CREATE, ChangeType.DELETE, ChangeType.CREATE]

    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_every_version_of_a_document_arrives_in_order(self, collection: Collection) -> None:
        for number in range(10):
            collection.put("a", n=number)
        states = [event.new_item_state for event in collection.read(collection.begin, 10)]
        assert [state["n"] for state in states if state is not None] == list(range(10))

    def test_many_documents_arrive_once_each(self, collection: Collection) -> None:
        names = collection.fill(50)
        events = collection.drain(collection.begin)
        assert len(events) == len(set(ids(events))) == 50
        assert {event.key for event in events} == {collection.harness.key(name) for name in names}

    def test_what_is_written_between_pages_arrives_after_them(self, collection: Collection) -> None:
        token = collection.begin
        for number in range(5):
            collection.put("a", n=number)
            (event,) = collection.read(token, 1)
            assert event.new_item_state == collection.harness.document("a", {"n": number})
            token = collection.last(token).continuation_token

    @pytest.mark.needs("expire")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    @pytest.mark.requires(Capability.CHANGE_FEED_DELETES)
    def test_a_delete_by_the_service_says_that_it_is_an_expiry(self, collection: Collection) -> None:
        collection.put("a", n=1)
        collection.harness.expire(collection.address, "a")
        *_, event = collection.read(collection.begin, 2 + collection.harness.expiry_updates)
        assert (event.type, event.by_expiry) == (ChangeType.DELETE, True)


@pytest.mark.shows("Plan 1")
@pytest.mark.needs("batch")
class TestTransactions:
    """Several writes are made in one commit."""

    def test_every_write_of_a_transaction_is_an_event(self, collection: Collection) -> None:
        collection.batch(*(Write(f"k{number}", {"n": number}) for number in range(10)))
        events = collection.read(collection.begin, 10)
        assert {event.new_item_state["n"] for event in events if event.new_item_state} == set(range(10))

    @pytest.mark.shows("Promise 10")
    def test_a_page_may_end_inside_a_transaction(self, collection: Collection) -> None:
        collection.batch(*(Write(f"k{number}", {"n": number}) for number in range(10)))
        pages = list(collection.pages(collection.begin, 1))
        events = [event for page in pages for event in page.events]
        assert max(len(page.events) for page in pages) == 1
        assert len(ids(events)) == len(set(ids(events))) == 10

    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    @pytest.mark.requires(Capability.CHANGE_FEED_DELETES)
    def test_creates_updates_and_deletes_may_be_mixed(self, collection: Collection) -> None:
        collection.put("old", n=0)
        token = collection.last(collection.begin).continuation_token
        collection.batch(Write("new", {"n": 1}), Write("old", None), Write("other", {"n": 2}))
        events = {event.key: event.type for event in collection.read(token, 3)}
        key = collection.harness.key
        assert events == {
            key("new"): ChangeType.CREATE,
            key("old"): ChangeType.DELETE,
            key("other"): ChangeType.CREATE,
        }
