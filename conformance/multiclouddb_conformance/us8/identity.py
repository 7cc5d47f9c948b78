"""Tests the identity of collections, tokens, partitions and events."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from datetime import UTC, timedelta
from typing import Any, Final

import attrs
import pytest

from multiclouddb_api import (
    Capability,
    ChangeEvent,
    Dropped,
    ErrorCategory,
    ErrorReason,
    FeedEnded,
    LogicalPartition,
    MulticloudDbError,
    PhysicalPartition,
    ResourceAddress,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.refusals import check_refusal
from multiclouddb_spi import Deadline
from multiclouddb_spi.continuation.token import decode_token, encode_token

__all__ = ["TestEventIdentity", "TestForeignTokens", "TestRecreated"]

Make = Callable[..., Collection]
_LOGICAL = Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE
_END_SECONDS = 30.0
_WRONG = ErrorCategory.INVALID_REQUEST
_MALFORMED: Final = (ErrorReason.MALFORMED,)
_RECREATED: Final = (ErrorReason.RECREATED,)
_WRONG_OPTIONS: Final = (ErrorReason.WRONG_OPTIONS,)
_WRONG_PROVIDER: Final = (ErrorReason.WRONG_PROVIDER,)
_WRONG_RESOURCE: Final = (ErrorReason.WRONG_RESOURCE,)
_WRONG_SCOPE: Final = (ErrorReason.WRONG_SCOPE,)
# A feed of a whole database has the database's address, and its partition that of a collection.
_WRONG_SCOPE_OR_RESOURCE: Final = (*_WRONG_SCOPE, *_WRONG_RESOURCE)


def _altered(token: str, **changes: Any) -> str:
    """Return a valid token with one changed field."""
    return encode_token(attrs.evolve(decode_token(token), **changes))


def _of_version(token: str, version: object) -> str:
    body = {"v": version, "p": decode_token(token).provider_id}
    payload = json.dumps(body).encode()
    raw = b"j" + zlib.crc32(payload).to_bytes(4, "big") + payload
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.shows("Plan 9")
class TestForeignTokens:
    """A token of another feed is refused, and the message says what differs."""

    def test_of_another_provider(self, collection: Collection) -> None:
        error = collection.refused(
            _WRONG, _altered(collection.begin, provider_id="elsewhere"), reasons=_WRONG_PROVIDER
        )
        assert "elsewhere" in error.message

    @pytest.mark.needs("alone")
    def test_of_another_collection(self, collection: Collection, make_collection: Make) -> None:
        other = make_collection("other")
        error = collection.refused(_WRONG, other.begin, reasons=_WRONG_RESOURCE)
        assert "other" in error.message

    def test_of_another_database(self, collection: Collection) -> None:
        address = ResourceAddress("another-database", collection.address.collection)
        error = collection.refused(
            _WRONG, _altered(collection.begin, address=address), reasons=_WRONG_RESOURCE
        )
        assert "another-database" in error.message

    @pytest.mark.shows("Plan 10")
    @pytest.mark.needs("still")
    def test_of_a_partition_for_the_collection(self, collection: Collection) -> None:
        (name, *_) = collection.partitions()
        token = collection.now(scope=PhysicalPartition(name))
        collection.refused(_WRONG, token, reasons=_WRONG_SCOPE_OR_RESOURCE)

    def test_of_the_collection_for_a_partition(self, collection: Collection) -> None:
        (name, *_) = collection.partitions()
        scope = PhysicalPartition(name)
        collection.refused(_WRONG, collection.begin, scope=scope, reasons=_WRONG_SCOPE_OR_RESOURCE)

    @pytest.mark.shows("Plan 10")
    @pytest.mark.needs("several", "still")
    def test_of_another_partition(self, collection: Collection) -> None:
        first, second = collection.partitions()[:2]
        token = collection.now(scope=PhysicalPartition(first))
        collection.refused(_WRONG, token, scope=PhysicalPartition(second))

    @pytest.mark.requires(_LOGICAL)
    def test_of_another_key(self, collection: Collection) -> None:
        mine, other = (LogicalPartition(collection.harness.key(name)) for name in ("mine", "other"))
        collection.refused(_WRONG, collection.now(scope=mine), scope=other, reasons=_WRONG_SCOPE)

    @pytest.mark.needs("other_options")
    def test_of_other_options(self, collection: Collection) -> None:
        options = collection.harness.other_options()
        collection.refused(_WRONG, collection.begin, provider_options=options, reasons=_WRONG_OPTIONS)
        collection.refused(_WRONG, collection.now(provider_options=options))

    @pytest.mark.parametrize("version", [0, 99, "1", None])
    def test_of_another_version(self, collection: Collection, version: object) -> None:
        reason = ErrorReason.UNKNOWN_VERSION if version == 99 else ErrorReason.MALFORMED
        collection.refused(_WRONG, _of_version(collection.begin, version), reasons=[reason])

    @pytest.mark.parametrize("text", ["x", "AAAA", "é", pytest.param("a" * 10_000, id="long"), "=", "%00"])
    def test_that_is_none(self, collection: Collection, text: str) -> None:
        collection.refused(_WRONG, text, reasons=_MALFORMED)

    def test_that_is_cut_short(self, collection: Collection) -> None:
        token = collection.begin
        for length in range(1, len(token), max(1, len(token) // 16)):
            collection.refused(_WRONG, token[:length], reasons=_MALFORMED)

    def test_that_is_damaged(self, collection: Collection) -> None:
        token = collection.begin
        for place in range(0, len(token), max(1, len(token) // 16)):
            letter = "A" if token[place] != "A" else "B"
            collection.refused(_WRONG, token[:place] + letter + token[place + 1 :])

    @pytest.mark.parametrize("cursor", [None, "x", -1, 2**62, {}, [[]], {"$x": 1}])
    def test_with_a_cursor_that_nobody_made(self, collection: Collection, cursor: Any) -> None:
        # Only the service can tell that it has not reached a position of the right form.
        reasons = () if cursor == 2**62 else _MALFORMED
        state: Any = decode_token(collection.begin).state
        forged = {**state, "p": [[entry[0], cursor, *entry[2:]] for entry in state["p"]]}
        collection.refused(_WRONG, _altered(collection.begin, state=forged), reasons=reasons)

    @pytest.mark.shows("Plan 10")
    def test_a_partition_id_of_another_collection(
        self, collection: Collection, make_collection: Make
    ) -> None:
        other = make_collection("other")
        (name, *_) = other.partitions()
        scope, reasons = PhysicalPartition(name), [ErrorReason.WRONG_RESOURCE]
        collection.refused(_WRONG, collection.begin, scope=scope, reasons=reasons)

    @pytest.mark.shows("Plan 10")
    def test_a_partition_id_of_another_provider(self, collection: Collection) -> None:
        (name, *_) = collection.partitions()
        foreign = "elsewhere:" + name.partition(":")[2]
        reasons = [ErrorReason.WRONG_PROVIDER]
        error = collection.refused(
            _WRONG, collection.begin, scope=PhysicalPartition(foreign), reasons=reasons
        )
        assert "elsewhere" in error.message


@pytest.mark.shows("Plan 11")
@pytest.mark.needs("recreate")
class TestRecreated:
    """A new collection has the name of an earlier collection."""

    @pytest.mark.needs("alone")
    def test_a_token_of_the_old_one_is_refused(self, collection: Collection) -> None:
        collection.fill(5)
        token = collection.page(collection.begin, 2).continuation_token
        collection.harness.recreate(collection.address)
        collection.restart()
        collection.refused(_WRONG, token, reasons=_RECREATED)

    @pytest.mark.needs("alone")
    @pytest.mark.parametrize("unread", [0, 3])
    def test_a_client_that_has_it_open_gives_nothing_of_the_new_one(
        self, collection: Collection, unread: int
    ) -> None:
        """As soon as the service detects the new collection, the token is refused."""
        collection.fill(5)
        # If a service cannot prove that all children are known, it searches for more before it reports the
        # end.
        config = attrs.evolve(collection.harness.config(), child_watch_seconds=0)
        with open_client(collection.harness.plugin, config) as client:
            token = collection.last(collection.begin, client=client).continuation_token
            collection.fill(unread)
            collection.harness.recreate(collection.address)
            collection.fill(5)
            for _ in range(2):
                start, left, until = token, unread, Deadline.after(_END_SECONDS)
                refused: MulticloudDbError | None = None
                while refused is None:
                    assert not until.passed(), "the token is not refused"
                    try:
                        page = collection.page(start, client=client)
                    except MulticloudDbError as error:
                        refused = error
                        break
                    left -= len(page.events)
                    assert left >= 0
                    assert not any(isinstance(each, Dropped | FeedEnded) for each in page.notices)
                    start = page.continuation_token
                check_refusal(refused, _WRONG, _RECREATED)

    @pytest.mark.needs("alone")
    def test_a_partition_id_of_the_old_one_is_refused(self, collection: Collection) -> None:
        (name, *_) = collection.partitions()
        collection.harness.recreate(collection.address)
        collection.restart()
        with pytest.raises(MulticloudDbError, match="recreated") as caught:
            collection.now(scope=PhysicalPartition(name))
        # Spanner knows a partition of its stream, and does not say of what stream another one is.
        check_refusal(caught.value, _WRONG, [ErrorReason.RECREATED, ErrorReason.WRONG_RESOURCE])

    def test_the_new_one_can_be_read(self, collection: Collection) -> None:
        collection.fill(5)
        collection.harness.recreate(collection.address)
        token = collection.now()
        collection.fill(3)
        assert len(collection.read(token, 3)) == 3


@pytest.mark.shows("Plan 14", "Promise 9")
class TestEventIdentity:
    """Tests the fields `event_id`, `order_key` and `timestamp`."""

    @pytest.mark.shows("FR-068")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_ids_are_unique_in_the_collection(self, collection: Collection) -> None:
        for number in range(40):
            collection.put(f"k{number % 4}", n=number)
        events = collection.read(collection.begin, 40)
        assert len(set(ids(events))) == 40
        assert all(event.event_id for event in events)

    def test_a_redelivered_event_is_the_same_in_every_field(self, collection: Collection) -> None:
        collection.fill(20)
        first = {event.event_id: event for event in collection.drain(collection.begin)}
        collection.restart()
        for size in (1, 3):
            again = {event.event_id: event for event in collection.drain(collection.begin, size)}
            assert again == first

    @pytest.mark.needs("alone", "still")
    def test_ids_are_the_same_through_a_partition(self, collection: Collection) -> None:
        starts = {name: collection.now(scope=PhysicalPartition(name)) for name in collection.partitions()}
        collection.fill(20)
        events = {event.event_id: event for event in collection.read(collection.begin, 20)}
        for name, token in starts.items():
            for event in collection.drain(token, scope=PhysicalPartition(name)):
                assert events[event.event_id] == event

    @pytest.mark.requires(_LOGICAL)
    @pytest.mark.needs("alone")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_ids_are_the_same_through_a_key(self, collection: Collection) -> None:
        scope = LogicalPartition(collection.harness.key("mine"))
        start = collection.now(scope=scope)
        for number in range(5):
            collection.put("mine", n=number)
        assert collection.drain(start, scope=scope) == collection.read(collection.begin, 5)

    @pytest.mark.needs("split")
    def test_ids_are_the_same_after_a_split(self, collection: Collection) -> None:
        collection.fill(20)
        before = {event.event_id: event for event in collection.read(collection.begin, 20)}
        collection.split()
        collection.restart()
        after = {event.event_id: event for event in collection.drain(collection.begin)}
        assert after == before

    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_of_two_changes_of_a_key_the_later_sorts_higher(self, collection: Collection) -> None:
        for number in range(30):
            collection.put("a", n=number)
        keys = {_number(event): event.order_key for event in collection.read(collection.begin, 30)}
        assert [keys[number] for number in range(30)] == sorted(set(keys.values()))

    @pytest.mark.needs("split", "merge")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_the_later_sorts_higher_across_partitions(self, collection: Collection) -> None:
        for number in range(10):
            collection.put("a", n=number)
        home = collection.read(collection.begin, 10)[0].partition_id
        children = collection.split(home)
        for number in range(10, 20):
            collection.put("a", n=number)
        collection.merge(children)
        for number in range(20, 30):
            collection.put("a", n=number)
        events = sorted(collection.read(collection.begin, 30), key=lambda event: event.order_key)
        numbers = [event.new_item_state["n"] for event in events if event.new_item_state is not None]
        assert numbers == list(range(30))

    @pytest.mark.shows("FR-068", "Plan 18")
    def test_timestamps_are_aware_and_utc(self, collection: Collection) -> None:
        collection.fill(5)
        for event in collection.read(collection.begin, 5):
            assert event.timestamp.tzinfo is UTC
            assert event.timestamp.utcoffset() == timedelta(0)

    @pytest.mark.shows("FR-068", "Plan 18")
    def test_timestamps_are_of_the_service_s_clock(self, collection: Collection) -> None:
        before = collection.harness.now()
        collection.fill(5)
        after = collection.harness.now()
        slack = timedelta(seconds=5)
        for event in collection.read(collection.begin, 5):
            assert before - slack - collection.harness.rounding <= event.timestamp <= after + slack


def _number(event: ChangeEvent) -> int:
    assert event.new_item_state is not None
    number: int = event.new_item_state["n"]
    return number
