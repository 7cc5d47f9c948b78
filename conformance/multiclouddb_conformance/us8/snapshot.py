"""Tests snapshots, which return every existing row and then every change.

No change may be lost between the rows and the changes.
"""
# ruff: noqa: D102 - a test's name says what it is about

from __future__ import annotations

from typing import Any, Final

import attrs
import pytest

from multiclouddb_api import (
    BackfillDone,
    Capability,
    ChangeEvent,
    ChangeType,
    EntireCluster,
    ErrorCategory,
    LogicalPartition,
    MulticloudDbError,
    NewItemStateMode,
    PhysicalPartition,
    Resnapshot,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
    SnapshotStarted,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.refusals import check_refusal
from multiclouddb_conformance.sink import Sink
from multiclouddb_conformance.snapshots import (
    INTERLEAVED,
    ORDERED,
    ORDERS,
    ScannedCollection,
    is_done,
    started_of,
    until_equal,
    walk,
)

__all__ = ["TestNoSnapshot", "TestSnapshot"]

_SNAPSHOT: Final = Capability.CHANGE_FEED_SNAPSHOT
_KEY: Final = Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE
_MOST_PAGES: Final = 200


@pytest.mark.shows("Further 13")
@pytest.mark.requires(_SNAPSHOT)
@pytest.mark.needs("alone")
class TestSnapshot:
    """Tests the rows, the notices and the token of a snapshot."""

    @pytest.mark.parametrize("order", ORDERS)
    def test_the_first_page_pins_the_changes_and_has_no_rows(
        self, collection: Collection, order: SnapshotOrder
    ) -> None:
        collection.fill(5)
        page = collection.page(Snapshot(order))
        (notice,) = page.notices
        assert isinstance(notice, SnapshotStarted)
        assert notice.floor
        assert notice.whole
        assert page.events == ()
        assert not page.idle
        assert page.diagnostics.snapshot is not None

    @pytest.mark.parametrize("size", [1, 3, 0])
    @pytest.mark.parametrize("order", ORDERS)
    def test_every_row_comes_once_and_then_the_end(
        self, collection: Collection, order: SnapshotOrder, size: int
    ) -> None:
        source = ScannedCollection(collection)
        source.fill(12)
        pages = list(walk(collection, Snapshot(order), size))
        rows = [event for page in pages for event in page.events if event.backfilled]
        assert len(rows) == len(set(ids(rows))) == 12
        assert {event.key: event.new_item_state for event in rows} == source.rows()
        started = started_of(pages[0])
        done = [notice for page in pages for notice in page.notices if isinstance(notice, BackfillDone)]
        assert done == [BackfillDone(started.partition_id, started.floor)]
        (last,) = (number for number, page in enumerate(pages) if is_done(page))
        assert not any(event.backfilled for page in pages[last + 1 :] for event in page.events)

    @pytest.mark.parametrize("size", [2, 5])
    def test_another_process_goes_on_where_a_page_ends(self, collection: Collection, size: int) -> None:
        """A page ends within a segment and within what was read of it, because each segment has few rows."""
        source, rows = ScannedCollection(collection), list[ChangeEvent]()
        source.fill(12)
        page = collection.page(Snapshot(SnapshotOrder.ORDERED, segments=4))
        for _ in range(_MOST_PAGES):
            collection.restart()
            page = collection.page(page.continuation_token, size)
            rows += [event for event in page.events if event.backfilled]
            if is_done(page):
                break
        assert is_done(page)
        assert len(rows) == len(set(ids(rows))) == 12
        assert {event.key: event.new_item_state for event in rows} == source.rows()

    def test_a_row_says_what_it_is(self, collection: Collection) -> None:
        collection.fill(5)
        first, *pages = walk(collection, ORDERED)
        rows = [event for page in pages for event in page.events if event.backfilled]
        assert len(rows) == 5
        for event in rows:
            assert event.type is ChangeType.CREATE
            assert event.order_key == started_of(first).floor
            assert (event.old_item_state, event.by_expiry) == (None, False)
            assert event.address == collection.address
        assert len({event.timestamp for event in rows}) == 1

    @pytest.mark.needs("high_floor")
    def test_the_floor_lies_above_every_earlier_change(self, collection: Collection) -> None:
        collection.fill(5)
        earlier = collection.read(collection.begin, 5)
        floor = started_of(collection.page(ORDERED)).floor
        assert all(event.order_key < floor for event in earlier)

    def test_the_floor_lies_below_every_later_change(self, collection: Collection) -> None:
        collection.fill(5)
        first = collection.page(ORDERED)
        for number in range(5):
            collection.put(f"k{number}", n=100 + number)
        later = [
            event
            for page in walk(collection, first.continuation_token)
            for event in page.events
            if not event.backfilled
        ]
        assert len(later) >= 5
        assert all(event.order_key > started_of(first).floor for event in later)

    def test_a_row_has_the_same_id_whenever_it_is_read(self, collection: Collection) -> None:
        collection.fill(8)
        first = collection.page(ORDERED)
        runs = [
            {
                event.key: event.event_id
                for page in walk(collection, first.continuation_token, size)
                for event in page.events
                if event.backfilled
            }
            for size in (0, 1, 3)
        ]
        assert len(runs[0]) == 8
        assert runs[0] == runs[1] == runs[2]

    def test_two_snapshots_have_different_ids(self, collection: Collection) -> None:
        collection.fill(3)
        runs = [
            {event.event_id for page in walk(collection, ORDERED) for event in page.events} for _ in range(2)
        ]
        assert not runs[0] & runs[1]

    @pytest.mark.parametrize("order", ORDERS)
    def test_an_empty_collection_is_over_at_once(self, collection: Collection, order: SnapshotOrder) -> None:
        pages = list(walk(collection, Snapshot(order)))
        assert [event for page in pages for event in page.events] == []
        assert [is_done(page) for page in pages].count(True) == 1

    @pytest.mark.parametrize("order", ORDERS)
    def test_no_page_is_idle_before_the_end_and_the_watermark_stays(
        self, collection: Collection, order: SnapshotOrder
    ) -> None:
        source = ScannedCollection(collection)
        source.fill(6)
        moments = set()
        for page in walk(collection, Snapshot(order), 1, lambda number: source.put("x", number)):
            if is_done(page):
                break
            assert not page.idle
            moments.add(page.diagnostics.watermark)
        assert len(moments) == 1
        assert None not in moments

    @pytest.mark.parametrize("size", [1, 4])
    def test_ordered_has_every_row_before_any_change(self, collection: Collection, size: int) -> None:
        source = ScannedCollection(collection)
        source.fill(8)

        def between(number: int) -> None:
            if number < 6:
                source.put(f"k{number}", 100 + number)

        kinds = [
            event.backfilled for page in walk(collection, ORDERED, size, between) for event in page.events
        ]
        assert kinds == sorted(kinds, reverse=True)
        assert False in kinds

    @pytest.mark.needs("interleaved")
    def test_interleaved_has_changes_before_the_last_row(self, collection: Collection) -> None:
        source = ScannedCollection(collection)
        source.fill(40)
        kinds: list[bool] = []

        def between(number: int) -> None:
            source.put(f"new{number}", number)
            assert number < 200

        for page in walk(collection, INTERLEAVED, 2, between):
            kinds += [event.backfilled for event in page.events]
            if is_done(page):
                break
        last_row = len(kinds) - 1 - kinds[::-1].index(True)
        assert False in kinds[:last_row]
        assert kinds.count(True) >= 40

    def test_a_scan_goes_on_in_a_restarted_client_after_every_page(self, collection: Collection) -> None:
        source, sink = ScannedCollection(collection), Sink()
        source.fill(10)

        def between(number: int) -> None:
            if number < 4:
                source.put(f"k{number}", 100 + number)
            collection.restart()

        for page in walk(collection, Snapshot(), 1, between):
            sink.apply(page.events)
        until_equal(source, sink, page.continuation_token)

    @pytest.mark.parametrize("segments", [1, 2, 7])
    def test_the_number_of_segments_changes_nothing_else(self, collection: Collection, segments: int) -> None:
        source = ScannedCollection(collection)
        source.fill(10)
        wanted = Snapshot(SnapshotOrder.ORDERED, segments=segments)
        rows = [event for page in walk(collection, wanted, 3) for event in page.events if event.backfilled]
        assert len(rows) == 10
        assert {event.key for event in rows} == set(source.rows())

    def test_documents_are_left_out_on_request(self, collection: Collection) -> None:
        collection.fill(3)
        mode = NewItemStateMode.OMIT
        events = [
            event for page in walk(collection, ORDERED, new_item_state_mode=mode) for event in page.events
        ]
        assert [event.new_item_state for event in events if event.backfilled] == [None] * 3

    @pytest.mark.requires(_KEY)
    def test_one_partition_key_has_its_rows_only(self, collection: Collection) -> None:
        source = ScannedCollection(collection)
        source.fill(6)
        key = collection.harness.key("k3")
        scope = LogicalPartition(key)
        first = collection.page(Snapshot(), scope=scope)
        source.put("k3", 100)
        source.put("k4", 100)
        pages = list(walk(collection, first.continuation_token, 1, scope=scope))
        events = [event for page in pages for event in page.events]
        assert {event.key for event in events} == {key}
        assert [event.backfilled for event in events].count(True) == 1
        assert events[-1].new_item_state == source.rows()[key]
        assert any(map(is_done, pages))

    def test_one_physical_partition_is_refused(self, collection: Collection) -> None:
        for name in collection.partitions():
            scope = PhysicalPartition(name)
            for settings in ({"start": Snapshot()}, {"start": collection.begin, "on_expired": Resnapshot()}):
                error = _refused(collection, scope=scope, **settings)
                assert "EntireCollection()" in error.message

    def test_a_cluster_is_refused(self, collection: Collection) -> None:
        _refused(collection, scope=EntireCluster(), start=Snapshot(), address=ResourceAddress())

    @pytest.mark.needs("interleaved")
    def test_a_plan_spreads_the_scan_over_processes(self, collection: Collection) -> None:
        source, sink = ScannedCollection(collection), Sink()
        source.fill(20)
        wanted = Snapshot(SnapshotOrder.INTERLEAVED, segments=4)
        plan = collection.client.plan_partitions(collection.request(wanted), with_descendants=True)
        scans = [name for name, _ in plan if ":snapshot:" in name]
        assert 0 < len(scans) < len(plan)
        for number in range(5):
            source.put(f"k{number}", 100 + number)
        source.delete("k9")
        done, started, rows = [], list[bool](), 0
        for name, token in plan:
            scope = PhysicalPartition(name, with_descendants=True)
            for page in collection.pages(token, 3, scope=scope):
                sink.apply(page.events)
                rows += sum(event.backfilled for event in page.events)
                done += [notice for notice in page.notices if isinstance(notice, BackfillDone)]
                started += [each.whole for each in page.notices if isinstance(each, SnapshotStarted)]
            collection.restart()
        assert 19 <= rows <= 20
        assert len(done) == len(scans)
        assert started == [False] * len(scans)
        assert sink.rows() == source.rows()

    @pytest.mark.parametrize("order", [SnapshotOrder.ORDERED, SnapshotOrder.AUTO])
    def test_a_plan_is_refused_where_changes_would_wait(
        self, collection: Collection, order: SnapshotOrder
    ) -> None:
        with pytest.raises(MulticloudDbError) as caught:
            collection.client.plan_partitions(collection.request(Snapshot(order)))
        check_refusal(caught.value, ErrorCategory.INVALID_REQUEST)
        assert "INTERLEAVED" in caught.value.message


@pytest.mark.shows("Further 13")
@pytest.mark.refuses(_SNAPSHOT)
@pytest.mark.needs("alone")
class TestNoSnapshot:
    """Tests a database without snapshots."""

    def test_it_is_refused_with_the_way_out(self, collection: Collection) -> None:
        for settings in ({"start": Snapshot()}, {"start": collection.begin, "on_expired": Resnapshot()}):
            start: Any = settings.pop("start")
            request = attrs.evolve(collection.request(start, **settings), provider_options=None)
            with pytest.raises(MulticloudDbError) as caught:
                collection.client.read_changes(request)
            check_refusal(caught.value, ErrorCategory.UNSUPPORTED_CAPABILITY)
            assert "; " in caught.value.message


def _refused(collection: Collection, start: Any, **settings: Any) -> MulticloudDbError:
    with pytest.raises(MulticloudDbError) as caught:
        collection.page(start, **settings)
    return check_refusal(caught.value, ErrorCategory.UNSUPPORTED_CAPABILITY)
