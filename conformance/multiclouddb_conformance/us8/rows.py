"""Tests rows without their changes: a scan of all rows, a lookup of single rows, and that both agree."""
# ruff: noqa: D102 - a test's name says what it is about

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Final

import attrs
import pytest

from multiclouddb_api import (
    BackfillDone,
    Capability,
    ChangeEvent,
    ChangeFeedPage,
    ChangeType,
    ErrorCategory,
    FeedEnded,
    LogicalPartition,
    LookupAnswer,
    MulticloudDbError,
    MulticloudDbKey,
    NotKnown,
    Now,
    PhysicalPartition,
    ScanFloor,
    Snapshot,
    SnapshotOrder,
    canonical_json,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.harness import Write
from multiclouddb_conformance.refusals import check_refusal
from multiclouddb_conformance.snapshots import ScannedCollection, changes, is_done, started_of, walk
from multiclouddb_conformance.values import KEYS, VALUES

__all__ = [
    "TestLookup",
    "TestNoLookup",
    "TestNoRowsAlone",
    "TestRowsAlone",
    "TestScannedRow",
    "TestSpellings",
]

_ALONE: Final = Capability.CHANGE_FEED_ROWS
_KEY: Final = Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE
_LOOKUP: Final = Capability.LOOKUP
_ROWS: Final = Snapshot(changes=False)


def _has_ended(page: ChangeFeedPage) -> bool:
    return any(isinstance(notice, FeedEnded) for notice in page.notices)


@pytest.mark.shows("Further 14")
@pytest.mark.requires(_ALONE)
@pytest.mark.needs("alone")
class TestRowsAlone:
    """Tests `Snapshot(changes=False)`."""

    @pytest.mark.parametrize("size", [1, 3, 0])
    def test_every_row_comes_once_and_then_the_feed_ends(self, collection: Collection, size: int) -> None:
        source = ScannedCollection(collection)
        source.fill(12)
        expected = source.rows()
        pages = list(
            walk(
                collection, _ROWS, size, lambda number: source.put(f"new{number}", number) if number else None
            )
        )
        assert pages[0].events == ()
        started = started_of(pages[0])
        assert not started.whole
        rows = [event for page in pages for event in page.events]
        assert all(event.backfilled for event in rows)
        assert len(rows) == len(set(ids(rows)))
        assert {row.key: row.new_item_state for row in rows if row.key in expected} == expected
        (end,) = (number for number, page in enumerate(pages) if is_done(page))
        assert BackfillDone(started.partition_id, started.floor) in pages[end].notices
        assert next(number for number, page in enumerate(pages) if page.idle or _has_ended(page)) == end
        again = collection.page(pages[end].continuation_token, size)
        assert (again.events, again.idle, _has_ended(again)) == ((), True, True)

    def test_rows_that_do_not_change_are_never_left_out(self, collection: Collection) -> None:
        source = ScannedCollection(collection)
        source.fill(16)
        still = {f"still{number}": number for number in range(16)}
        for name, number in still.items():
            source.put(name, number)
        kept = {
            key: row
            for key, row in source.rows().items()
            if str(next(iter(key.components.values()))) in still
        }
        change = changes(source)

        def between(number: int) -> None:
            change(number)
            collection.restart()

        rows = [event for page in walk(collection, _ROWS, 3, between) for event in page.events]
        assert all(event.backfilled for event in rows)
        assert len(kept) == 16
        assert {row.key: row.new_item_state for row in rows if row.key in kept} == kept

    @pytest.mark.parametrize("order", list(SnapshotOrder))
    def test_a_plan_has_segments_alone(self, collection: Collection, order: SnapshotOrder) -> None:
        source = ScannedCollection(collection)
        source.fill(20)
        wanted = Snapshot(order, segments=4, changes=False)
        plan = collection.client.plan_partitions(collection.request(wanted))
        assert plan
        assert all(part.is_segment for part in plan)
        rows = []
        for part in plan:
            scope = PhysicalPartition(part.partition_id)
            *_, last = pages = list(collection.pages(part.continuation_token, 3, scope=scope))
            assert is_done(last)
            assert last.partition_retired
            assert last.child_partitions == ()
            rows += [event for page in pages for event in page.events]
            collection.restart()
        assert {row.key: row.new_item_state for row in rows} == source.rows()
        assert len(rows) == 20

    def test_an_empty_collection_ends_at_once(self, collection: Collection) -> None:
        pages = list(walk(collection, _ROWS))
        assert [event for page in pages for event in page.events] == []
        assert [is_done(page) for page in pages].count(True) == 1
        assert _has_ended(pages[-1])

    @pytest.mark.requires(_KEY)
    def test_one_partition_key_has_its_rows_only(self, collection: Collection) -> None:
        source = ScannedCollection(collection)
        source.fill(6)
        key = collection.harness.key("k3")
        pages = list(walk(collection, _ROWS, 1, scope=LogicalPartition(key)))
        rows = [event for page in pages for event in page.events]
        assert {row.key: row.new_item_state for row in rows} == {key: source.rows()[key]}
        assert _has_ended(pages[-1])


@pytest.mark.shows("Further 14")
@pytest.mark.needs("alone")
class TestNoRowsAlone:
    """Tests a provider that cannot deliver the rows alone."""

    @pytest.mark.refuses(_ALONE)
    def test_the_rows_alone_are_refused_with_the_way_out(self, collection: Collection) -> None:
        request = attrs.evolve(collection.request(_ROWS), provider_options=None)
        with pytest.raises(MulticloudDbError) as caught:
            collection.client.read_changes(request)
        check_refusal(caught.value, ErrorCategory.UNSUPPORTED_CAPABILITY)
        assert "; " in caught.value.message


def _answers(collection: Collection, *keys: MulticloudDbKey) -> Mapping[MulticloudDbKey, LookupAnswer]:
    options = collection.request(Now()).provider_options
    return collection.client.lookup(collection.address, keys, provider_options=options)


def _look_up(collection: Collection, *keys: MulticloudDbKey) -> dict[MulticloudDbKey, ChangeEvent | None]:
    found = dict[MulticloudDbKey, ChangeEvent | None]()
    for key, row in _answers(collection, *keys).items():
        assert not isinstance(row, NotKnown), row.reason
        found[key] = row
    return found


@pytest.mark.shows("Further 14")
@pytest.mark.requires(_LOOKUP)
@pytest.mark.needs("alone")
class TestLookup:
    """Tests `client.lookup`."""

    def test_it_returns_the_current_row_or_none(self, collection: Collection) -> None:
        source = ScannedCollection(collection)
        source.fill(5)
        source.put("k1", 100)
        source.delete("k2")
        keys = [collection.harness.key(name) for name in ("k4", "k1", "k2", "absent", "k0", "k1")]
        rows = _look_up(collection, *keys)
        assert list(rows) == list(dict.fromkeys(keys))
        assert {key: row.new_item_state for key, row in rows.items() if row} == {
            key: row for key, row in source.rows().items() if key in keys
        }
        for key, row in rows.items():
            if row is not None:
                assert row.key == key
                assert (row.type, row.backfilled, row.old_item_state) == (ChangeType.CREATE, True, None)
                assert (row.address, row.by_expiry, row.partition_id) == (collection.address, False, "")

    def test_many_keys_take_several_calls_to_the_service(self, collection: Collection) -> None:
        key = collection.harness.key
        for start in range(0, 90, 10):
            collection.batch(*(Write(f"k{number}", {"n": number}) for number in range(start, start + 10)))
        keys = [key(f"k{number}") for number in range(250)]
        rows = _look_up(collection, *keys)
        assert list(rows) == keys
        document = collection.harness.document
        assert [row.new_item_state for row in rows.values() if row] == [
            document(f"k{number}", {"n": number}) for number in range(90)
        ]

    def test_a_row_has_the_same_id_whenever_it_is_looked_up(self, collection: Collection) -> None:
        collection.fill(2)
        key = collection.harness.key("k1")
        seen = {row.event_id for _ in range(2) for row in _look_up(collection, key).values() if row}
        other = _look_up(collection, collection.harness.key("k0"))
        assert len(seen) == 1
        assert not seen & {row.event_id for row in other.values() if row}

    def test_too_many_keys_are_refused(self, collection: Collection) -> None:
        with pytest.raises(MulticloudDbError) as caught:
            _look_up(collection, *[collection.harness.key("k0")] * 1001)
        check_refusal(caught.value, ErrorCategory.INVALID_REQUEST)

    @pytest.mark.needs("named_keys")
    def test_a_key_that_no_row_can_have_is_refused_or_not_known(self, collection: Collection) -> None:
        """The service was not asked for such a key, so it has not said that there is no row."""
        collection.fill(1)
        good, strange = collection.harness.key("k0"), MulticloudDbKey({"no such component": "k0"})
        try:
            rows = _answers(collection, good, strange)
        except MulticloudDbError as error:
            refusal = error
        else:
            assert isinstance(rows[strange], NotKnown)
            return
        check_refusal(refusal, ErrorCategory.INVALID_REQUEST)
        assert "no such component" in refusal.message

    def test_no_keys_have_no_rows(self, collection: Collection) -> None:
        assert _look_up(collection) == {}


@pytest.mark.shows("Further 14")
@pytest.mark.refuses(_LOOKUP)
@pytest.mark.needs("alone")
class TestNoLookup:
    """Tests a database without lookups."""

    def test_it_is_refused_with_the_way_out(self, collection: Collection) -> None:
        with pytest.raises(MulticloudDbError) as caught:
            _look_up(collection, collection.harness.key("k0"))
        check_refusal(caught.value, ErrorCategory.UNSUPPORTED_CAPABILITY)
        assert "; " in caught.value.message


@pytest.mark.shows("Further 14")
@pytest.mark.requires(_ALONE, Capability.CHANGE_FEED_ALL_VERSIONS)
@pytest.mark.needs("alone")
class TestScannedRow:
    """A scanned row, a looked-up row and the image of the last change are equal, also as text."""

    def test_it_equals_the_image_of_the_last_change(self, collection: Collection) -> None:
        names = [name for name in VALUES if name in collection.harness.value_types]
        _are_last_images(collection, [(name, VALUES[name]) for name in names])

    @pytest.mark.parametrize("without", ["decimal", "float"])
    def test_its_key_is_that_of_the_last_change(self, collection: Collection, without: str) -> None:
        """To some services, a decimal and a float are the same key."""
        types = collection.harness.key_types - {without}
        _are_last_images(collection, [(value, 0) for name, value in KEYS.items() if name in types])


def _are_last_images(collection: Collection, documents: Sequence[tuple[Any, Any]]) -> None:
    """Write each document twice, and compare its row with the event of the second write."""
    for name, value in documents:
        collection.put(name, n=1)
        collection.put(name, value=value)
    last = {event.key: event for event in collection.read(collection.begin, 2 * len(documents))}
    facts = collection.client.capabilities().scan
    assert facts is not None
    rows = {event.key: event for page in walk(collection, _ROWS) for event in page.events}
    assert rows.keys() == last.keys() == {collection.harness.key(name) for name, _ in documents}
    found: Mapping[MulticloudDbKey, ChangeEvent | None] = {}
    if collection.client.capabilities().is_supported(_LOOKUP):
        found = _look_up(collection, *last)
    for key, change in last.items():
        scanned = rows[key]
        for row in [scanned, *([found[key]] if found else [])]:
            assert row is not None
            assert row.key.canonical() == change.key.canonical()
            assert row.new_item_state is not None
            assert change.new_item_state is not None
            assert canonical_json(dict(row.new_item_state)) == canonical_json(dict(change.new_item_state))
        looked_up = found.get(key)
        if looked_up is not None:
            assert looked_up.order_key == (scanned.order_key if facts.floor is ScanFloor.ROW else "")
        match facts.floor:
            case ScanFloor.HIGH:
                assert scanned.order_key > change.order_key
            case ScanFloor.LOW:
                assert scanned.order_key < change.order_key
            case ScanFloor.ROW:
                assert scanned.order_key == change.order_key


@pytest.mark.shows("Further 17", "Promise 16")
@pytest.mark.requires(_ALONE, _LOOKUP, Capability.CHANGE_FEED_ALL_VERSIONS)
@pytest.mark.needs("alone", "spellings")
class TestSpellings:
    """Keys are equal exactly if the service takes them for one item, in every place where a key stands."""

    def test_two_spellings_are_one_key_exactly_if_the_service_keeps_one_item(
        self, collection: Collection
    ) -> None:
        spelled = collection.harness.spelled("spelled")
        collection.restart()
        there = Collection(collection.harness, spelled.address, collection.client)
        has_scope = there.client.capabilities().is_supported(_KEY)
        for pair in combinations(spelled.values, 2):
            begin, keys = there.now(), [spelled.key(value) for value in pair]
            scopes = [LogicalPartition(key) for key in keys if has_scope]
            starts = [there.now(scope=scope) for scope in scopes]
            for n, value in enumerate(pair, 1):
                spelled.write(value, n)
            events = there.read(begin, 2)
            rows = [event for page in walk(there, _ROWS) for event in page.events]
            # The service has stored so many items, whatever the library takes for their keys.
            last = {event.key: event.new_item_state for event in events}
            assert len(last) == len(rows), pair
            assert {row.key: row.new_item_state for row in rows} == last
            assert len({event.key.canonical() for event in events}) == len(rows)
            answers = _look_up(there, *keys)
            assert [_number(answers[key]) for key in keys] == ([1, 2] if len(rows) == 2 else [2, 2])
            assert {row.key for row in answers.values() if row is not None} == last.keys()
            for scope, start in zip(scopes, starts, strict=True):
                assert len(there.drain(start, scope=scope)) == 3 - len(rows), (pair, scope)
            end = there.now()
            for value in pair[2 - len(rows) :]:
                spelled.write(value, None)
            deletes = there.read(end, len(rows))
            assert {event.key for event in deletes} == last.keys(), pair
            assert {event.type for event in deletes} == {ChangeType.DELETE}


def _number(row: ChangeEvent | None) -> Any:
    assert row is not None
    assert row.new_item_state is not None
    return row.new_item_state["n"]
