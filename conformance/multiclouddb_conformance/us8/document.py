"""Tests the values, keys and document images in events."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from multiclouddb_api import (
    Capability,
    ChangeType,
    ErrorCategory,
    NewItemStateMode,
    OldItemStateMode,
    canonical_json,
    event_from_json,
    event_to_json,
)
from multiclouddb_conformance.collection import Collection
from multiclouddb_conformance.harness import CollectionKind, Harness, Write
from multiclouddb_conformance.values import KEYS, VALUES

__all__ = ["TestImages", "TestKeys", "TestValues"]

Make = Callable[..., Collection]
_OLD = Capability.CHANGE_FEED_OLD_ITEM_STATE


def _params(kind: str, values: Any) -> list[Any]:
    return [pytest.param(value, id=name, marks=pytest.mark.needs(f"{kind}:{name}")) for name, value in values]


@pytest.mark.shows("Plan 2")
class TestValues:
    """Documents are delivered as they were written, including the types of their values."""

    @pytest.mark.parametrize("value", _params("value", VALUES.items()))
    def test_a_value_survives(self, collection: Collection, value: Any) -> None:
        collection.put("a", value=value)
        (event,) = collection.read(collection.begin, 1)
        expected = collection.harness.document("a", {"value": value})
        assert event.new_item_state is not None
        assert canonical_json(dict(event.new_item_state)) == canonical_json(dict(expected))

    def test_an_event_survives_as_json(self, collection: Collection) -> None:
        collection.put("a", text="x", number=1, list=[1, None])
        (event,) = collection.read(collection.begin, 1)
        assert event_from_json(event_to_json(event)) == event


@pytest.mark.shows("Plan 3")
class TestKeys:
    """Keys are delivered as they were written, including the types of their values."""

    @pytest.mark.parametrize("value", _params("key", KEYS.items()))
    @pytest.mark.requires(Capability.CHANGE_FEED_DELETES)
    def test_a_key_survives_on_every_type_of_change(self, collection: Collection, value: Any) -> None:
        collection.put(value, n=1)
        collection.put(value, n=2)
        collection.delete(value)
        events = collection.read(collection.begin, 3)
        assert [event.key for event in events] == 3 * [collection.harness.key(value)]
        assert [event.type for event in events] == list(ChangeType)

    @pytest.mark.needs("key:integer", "key:true")
    def test_keys_of_different_types_are_different_keys(self, collection: Collection) -> None:
        for value in ("1", 1, True):
            collection.put(value, n=1)
        events = collection.read(collection.begin, 3)
        assert {event.key for event in events} == {collection.harness.key(value) for value in ("1", 1, True)}


class TestImages:
    """The request and the kind of the collection determine the documents in an event."""

    @pytest.mark.shows("Plan 2")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    @pytest.mark.requires(Capability.CHANGE_FEED_CHANGE_TYPES)
    def test_omit_leaves_the_document_out(self, collection: Collection) -> None:
        collection.put("a", n=1)
        (event,) = collection.drain(collection.begin, new_item_state_mode=NewItemStateMode.OMIT)
        assert (event.type, event.new_item_state) == (ChangeType.CREATE, None)

    @pytest.mark.shows("Plan 2")
    def test_require_gives_the_full_document(self, collection: Collection) -> None:
        collection.put("a", n=1, text="x")
        (event,) = collection.drain(collection.begin, new_item_state_mode=NewItemStateMode.REQUIRE)
        assert event.new_item_state == collection.harness.document("a", {"n": 1, "text": "x"})

    @pytest.mark.shows("Plan 2", "Plan 8")
    @pytest.mark.needs("keys_only")
    def test_a_feed_of_keys_refuses_require_and_says_what_to_do(self, make_collection: Make) -> None:
        keys = make_collection("keys", CollectionKind.KEYS_ONLY)
        keys.put("a", n=1)
        error = keys.refused(
            ErrorCategory.UNSUPPORTED_CAPABILITY, keys.begin, new_item_state_mode=NewItemStateMode.REQUIRE
        )
        assert "; " in error.message

    @pytest.mark.shows("Plan 2")
    @pytest.mark.needs("keys_only")
    def test_a_feed_of_keys_has_events_without_documents(self, make_collection: Make) -> None:
        keys = make_collection("keys", CollectionKind.KEYS_ONLY)
        keys.put("a", n=1)
        keys.put("a", n=2)
        events = keys.read(keys.begin, 2)
        assert [(event.type, event.new_item_state) for event in events] == [
            (ChangeType.CREATE, None),
            (ChangeType.UPDATE, None),
        ]

    @pytest.mark.shows("Further 2")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_old_documents_are_not_there_unless_asked_for(self, collection: Collection) -> None:
        collection.put("a", n=1)
        collection.put("a", n=2)
        assert [event.old_item_state for event in collection.read(collection.begin, 2)] == [None, None]

    @pytest.mark.shows("Further 2")
    @pytest.mark.requires(_OLD)
    @pytest.mark.parametrize("mode", [OldItemStateMode.REQUIRE, OldItemStateMode.INCLUDE_IF_AVAILABLE])
    def test_old_documents_are_whole(self, make_collection: Make, mode: OldItemStateMode) -> None:
        images = make_collection("images", CollectionKind.OLD_IMAGES)
        start = images.now(old_item_state_mode=mode)
        images.put("a", n=1, kept="x")
        images.put("a", n=2, kept="x")
        images.delete("a")
        old = [event.old_item_state for event in images.read(start, 3, old_item_state_mode=mode)]
        document = images.harness.document
        assert old == [None, document("a", {"n": 1, "kept": "x"}), document("a", {"n": 2, "kept": "x"})]

    @pytest.mark.shows("Further 2")
    @pytest.mark.requires(_OLD)
    def test_an_old_document_that_is_not_kept_is_none_or_whole(self, collection: Collection) -> None:
        mode = OldItemStateMode.INCLUDE_IF_AVAILABLE
        start = collection.now(old_item_state_mode=mode)
        collection.put("a", n=1, text="x")
        collection.put("a", n=2, text="x")
        _, event = collection.read(start, 2, old_item_state_mode=mode)
        assert event.old_item_state in (None, collection.harness.document("a", {"n": 1, "text": "x"}))

    @pytest.mark.shows("Further 2")
    @pytest.mark.refuses(_OLD)
    @pytest.mark.parametrize("mode", [OldItemStateMode.REQUIRE, OldItemStateMode.INCLUDE_IF_AVAILABLE])
    def test_old_documents_are_refused(self, collection: Collection, mode: OldItemStateMode) -> None:
        error = collection.refused(
            ErrorCategory.UNSUPPORTED_CAPABILITY, collection.begin, old_item_state_mode=mode
        )
        assert "; " in error.message

    @pytest.mark.shows("Further 3")
    def test_the_native_record_comes_only_when_asked_for(
        self, harness: Harness, collection: Collection
    ) -> None:
        harness.write(collection.address, [Write("a", {"n": 1})])
        (plain,) = collection.read(collection.begin, 1)
        (native,) = collection.drain(collection.begin, include_native=True)
        assert plain.native is None
        assert native.native is not None
