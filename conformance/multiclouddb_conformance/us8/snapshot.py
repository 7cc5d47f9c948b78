"""Snapshots: every row that exists, then every change, with nothing lost between."""
# ruff: noqa: D102 - a test's name says what it is about

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import attrs
import pytest

from multiclouddb_api import (
    BackfillDone,
    Capability,
    ChangeEvent,
    ChangeFeedPage,
    ChangeType,
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    Gap,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    PhysicalPartition,
    Resnapshot,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
    SnapshotStarted,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.sink import Sink

__all__ = ["TestNoSnapshot", "TestResnapshot", "TestSnapshot", "TestSnapshotUnderLoad"]

_SNAPSHOT: Final = Capability.CHANGE_FEED_SNAPSHOT
_KEY: Final = Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE
_ORDERS: Final = [pytest.param(order, id=order.value) for order in SnapshotOrder]
_ORDERED: Final = Snapshot(SnapshotOrder.ORDERED)
_INTERLEAVED: Final = Snapshot(SnapshotOrder.INTERLEAVED)

Between = Callable[[int], None]


class _Source:
    """A collection, and what has to be in it."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.fields: dict[str, dict[str, Any]] = {}

    def put(self, name: str, number: int) -> None:
        self.fields[name] = {"n": number}
        self.collection.put(name, n=number)

    def delete(self, name: str) -> None:
        if self.fields.pop(name, None) is not None:
            self.collection.delete(name)

    def fill(self, count: int) -> None:
        for number in range(count):
            self.put(f"k{number}", number)

    def rows(self) -> dict[MulticloudDbKey, Any]:
        harness = self.collection.harness
        return {harness.key(name): harness.document(name, fields) for name, fields in self.fields.items()}


def _nothing(number: int) -> None:
    del number


def _walk(
    collection: Collection, start: Snapshot | str, size: int = 0, between: Between = _nothing, **settings: Any
) -> Iterator[ChangeFeedPage]:
    """Pages from a start to the first that is idle; `between` is called after each, with its number."""
    idle = number = 0
    while idle < collection.harness.idle_pages:
        assert number < 5000, "neither idle nor over"
        page = collection.page(start, size, **settings)
        yield page
        between(number)
        idle, number, start = (idle + 1 if page.idle else 0), number + 1, page.continuation_token


def _started(page: ChangeFeedPage) -> SnapshotStarted:
    (notice,) = (each for each in page.notices if isinstance(each, SnapshotStarted))
    return notice


def _is_done(page: ChangeFeedPage) -> bool:
    return any(isinstance(notice, BackfillDone) for notice in page.notices)


def _until_equal(source: _Source, sink: Sink, token: str) -> None:
    """Read on until the sink has what the source has, as far as the harness waits."""
    for _ in range(100):
        if sink.rows() == source.rows():
            return
        page = source.collection.page(token, wait=0.1)
        sink.apply(page.events)
        token = page.continuation_token
    assert sink.rows() == source.rows()


@pytest.mark.requires(_SNAPSHOT)
@pytest.mark.needs("alone")
class TestSnapshot:
    """The rows, the notices and the token."""

    @pytest.mark.parametrize("order", _ORDERS)
    def test_the_first_page_pins_the_changes_and_has_no_rows(
        self, collection: Collection, order: SnapshotOrder
    ) -> None:
        collection.fill(5)
        page = collection.page(Snapshot(order))
        (notice,) = page.notices
        assert isinstance(notice, SnapshotStarted)
        assert notice.floor
        assert page.events == ()
        assert not page.idle
        assert page.diagnostics.snapshot is not None

    @pytest.mark.parametrize("size", [1, 3, 0])
    @pytest.mark.parametrize("order", _ORDERS)
    def test_every_row_comes_once_and_then_the_end(
        self, collection: Collection, order: SnapshotOrder, size: int
    ) -> None:
        source = _Source(collection)
        source.fill(12)
        pages = list(_walk(collection, Snapshot(order), size))
        rows = [event for page in pages for event in page.events if event.backfilled]
        assert len(rows) == len(set(ids(rows))) == 12
        assert {event.key: event.new_item_state for event in rows} == source.rows()
        assert [_is_done(page) for page in pages].count(True) == 1
        (last,) = (number for number, page in enumerate(pages) if _is_done(page))
        assert not any(event.backfilled for page in pages[last + 1 :] for event in page.events)

    def test_a_row_says_what_it_is(self, collection: Collection) -> None:
        collection.fill(5)
        first, *pages = _walk(collection, _ORDERED)
        rows = [event for page in pages for event in page.events if event.backfilled]
        assert len(rows) == 5
        for event in rows:
            assert event.type is ChangeType.CREATE
            assert event.order_key == _started(first).floor
            assert (event.old_item_state, event.by_expiry) == (None, False)
            assert event.address == collection.address
        assert len({event.timestamp for event in rows}) == 1

    def test_the_floor_lies_below_every_later_change(self, collection: Collection) -> None:
        collection.fill(5)
        first = collection.page(_ORDERED)
        for number in range(5):
            collection.put(f"k{number}", n=100 + number)
        later = [
            event
            for page in _walk(collection, first.continuation_token)
            for event in page.events
            if not event.backfilled
        ]
        assert len(later) >= 5
        assert all(event.order_key > _started(first).floor for event in later)

    def test_a_row_has_the_same_id_whenever_it_is_read(self, collection: Collection) -> None:
        collection.fill(8)
        first = collection.page(_ORDERED)
        runs = [
            {
                event.key: event.event_id
                for page in _walk(collection, first.continuation_token, size)
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
            {event.event_id for page in _walk(collection, _ORDERED) for event in page.events}
            for _ in range(2)
        ]
        assert not runs[0] & runs[1]

    @pytest.mark.parametrize("order", _ORDERS)
    def test_an_empty_collection_is_over_at_once(self, collection: Collection, order: SnapshotOrder) -> None:
        pages = list(_walk(collection, Snapshot(order)))
        assert [event for page in pages for event in page.events] == []
        assert [_is_done(page) for page in pages].count(True) == 1

    @pytest.mark.parametrize("order", _ORDERS)
    def test_no_page_is_idle_before_the_end_and_the_watermark_stays(
        self, collection: Collection, order: SnapshotOrder
    ) -> None:
        source = _Source(collection)
        source.fill(6)
        moments = set()
        for page in _walk(collection, Snapshot(order), 1, lambda number: source.put("x", number)):
            if _is_done(page):
                break
            assert not page.idle
            moments.add(page.diagnostics.watermark)
        assert len(moments) == 1
        assert None not in moments

    @pytest.mark.parametrize("size", [1, 4])
    def test_ordered_has_every_row_before_any_change(self, collection: Collection, size: int) -> None:
        source = _Source(collection)
        source.fill(8)

        def between(number: int) -> None:
            if number < 6:
                source.put(f"k{number}", 100 + number)

        kinds = [
            event.backfilled for page in _walk(collection, _ORDERED, size, between) for event in page.events
        ]
        assert kinds == sorted(kinds, reverse=True)
        assert False in kinds

    def test_interleaved_has_changes_before_the_last_row(self, collection: Collection) -> None:
        source = _Source(collection)
        source.fill(40)
        kinds: list[bool] = []

        def between(number: int) -> None:
            source.put(f"new{number}", number)
            assert number < 200

        for page in _walk(collection, _INTERLEAVED, 2, between):
            kinds += [event.backfilled for event in page.events]
            if _is_done(page):
                break
        last_row = len(kinds) - 1 - kinds[::-1].index(True)
        assert False in kinds[:last_row]
        assert kinds.count(True) >= 40

    def test_a_scan_goes_on_in_a_restarted_client_after_every_page(self, collection: Collection) -> None:
        source, sink = _Source(collection), Sink()
        source.fill(10)

        def between(number: int) -> None:
            if number < 4:
                source.put(f"k{number}", 100 + number)
            collection.restart()

        for page in _walk(collection, Snapshot(), 1, between):
            sink.apply(page.events)
        _until_equal(source, sink, page.continuation_token)

    @pytest.mark.parametrize("segments", [1, 2, 7])
    def test_the_number_of_segments_changes_nothing_else(self, collection: Collection, segments: int) -> None:
        source = _Source(collection)
        source.fill(10)
        wanted = Snapshot(SnapshotOrder.ORDERED, segments=segments)
        rows = [event for page in _walk(collection, wanted, 3) for event in page.events if event.backfilled]
        assert len(rows) == 10
        assert {event.key for event in rows} == set(source.rows())

    def test_documents_are_left_out_on_request(self, collection: Collection) -> None:
        collection.fill(3)
        mode = NewItemStateMode.OMIT
        events = [
            event for page in _walk(collection, _ORDERED, new_item_state_mode=mode) for event in page.events
        ]
        assert [event.new_item_state for event in events if event.backfilled] == [None] * 3

    @pytest.mark.requires(_KEY)
    def test_one_partition_key_has_its_rows_only(self, collection: Collection) -> None:
        source = _Source(collection)
        source.fill(6)
        key = collection.harness.key("k3")
        scope = LogicalPartition(key)
        first = collection.page(Snapshot(), scope=scope)
        source.put("k3", 100)
        source.put("k4", 100)
        pages = list(_walk(collection, first.continuation_token, 1, scope=scope))
        events = [event for page in pages for event in page.events]
        assert {event.key for event in events} == {key}
        assert [event.backfilled for event in events].count(True) == 1
        assert events[-1].new_item_state == source.rows()[key]
        assert any(map(_is_done, pages))

    def test_one_physical_partition_is_refused(self, collection: Collection) -> None:
        for name in collection.partitions():
            scope = PhysicalPartition(name)
            for settings in ({"start": Snapshot()}, {"start": collection.begin, "on_expired": Resnapshot()}):
                error = _refused(collection, scope=scope, **settings)
                assert "EntireCollection()" in error.message

    def test_wider_scopes_are_refused(self, collection: Collection) -> None:
        database = attrs.evolve(collection.address, collection=None)
        _refused(collection, scope=EntireDatabase(), start=Snapshot(), address=database)
        _refused(collection, scope=EntireCluster(), start=Snapshot(), address=ResourceAddress())

    def test_a_plan_spreads_the_scan_over_processes(self, collection: Collection) -> None:
        source, sink = _Source(collection), Sink()
        source.fill(20)
        wanted = Snapshot(SnapshotOrder.INTERLEAVED, segments=4)
        plan = collection.client.plan_partitions(collection.request(wanted), with_descendants=True)
        assert len(plan) > len(collection.partitions())
        for number in range(5):
            source.put(f"k{number}", 100 + number)
        source.delete("k9")
        done, rows = [], 0
        for name, token in plan:
            scope = PhysicalPartition(name, with_descendants=True)
            for page in collection.pages(token, 3, scope=scope):
                sink.apply(page.events)
                rows += sum(event.backfilled for event in page.events)
                done += [notice for notice in page.notices if isinstance(notice, BackfillDone)]
            collection.restart()
        assert 19 <= rows <= 20
        assert len(done) == len(plan) - len(collection.partitions())
        assert sink.rows() == source.rows()

    @pytest.mark.parametrize("order", [SnapshotOrder.ORDERED, SnapshotOrder.AUTO])
    def test_a_plan_is_refused_where_changes_would_wait(
        self, collection: Collection, order: SnapshotOrder
    ) -> None:
        with pytest.raises(MulticloudDbError) as caught:
            collection.client.plan_partitions(collection.request(Snapshot(order)))
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
        assert "INTERLEAVED" in caught.value.message


@pytest.mark.requires(_SNAPSHOT)
@pytest.mark.needs("alone")
class TestSnapshotUnderLoad:
    """A target that merges by key and `order_key` equals the source, whatever happens meanwhile."""

    @pytest.mark.parametrize("size", [1, 5])
    @pytest.mark.parametrize("order", _ORDERS)
    def test_updates_deletes_and_creates_during_the_scan(
        self, collection: Collection, order: SnapshotOrder, size: int
    ) -> None:
        source, sink = _Source(collection), Sink()
        source.fill(16)
        page = None
        for page in _walk(collection, Snapshot(order), size, _changes(source)):
            sink.apply(page.events)
        assert page is not None
        _until_equal(source, sink, page.continuation_token)

    @pytest.mark.parametrize("order", _ORDERS)
    def test_a_lost_token_repeats_and_loses_nothing(
        self, collection: Collection, order: SnapshotOrder
    ) -> None:
        source, sink = _Source(collection), Sink()
        source.fill(10)
        change = _changes(source)
        start: Snapshot | str = Snapshot(order)
        stored: str | None = None
        number = idle = 0
        while idle < collection.harness.idle_pages:
            page = collection.page(start, 2)
            sink.apply(page.events)
            change(number)
            idle, number = (idle + 1 if page.idle else 0), number + 1
            assert number < 2000
            if (
                number % 3 and stored is not None and number < 20
            ):  # the target has the page, the token is lost
                collection.restart()
                start = stored
                idle = 0
                stored = page.continuation_token if number % 2 else stored
            else:
                start = stored = page.continuation_token
        _until_equal(source, sink, str(start))

    @pytest.mark.needs("split", "merge")
    @pytest.mark.parametrize("order", _ORDERS)
    def test_splits_and_merges_during_the_scan(self, collection: Collection, order: SnapshotOrder) -> None:
        source, sink = _Source(collection), Sink()
        source.fill(12)
        change = _changes(source)

        def between(number: int) -> None:
            change(number)
            if number == 1:
                children.extend(collection.split())
            if number == 3:
                collection.merge(children)

        children: list[str] = []
        for page in _walk(collection, Snapshot(order), 2, between):
            sink.apply(page.events)
        _until_equal(source, sink, page.continuation_token)

    @pytest.mark.needs("split")
    def test_ordered_holds_the_changes_through_a_split(self, collection: Collection) -> None:
        source = _Source(collection)
        source.fill(10)

        def between(number: int) -> None:
            if number == 1:
                collection.split()
            if 1 < number < 6:
                source.put(f"k{number}", 100 + number)

        kinds = [
            event.backfilled for page in _walk(collection, _ORDERED, 1, between) for event in page.events
        ]
        assert kinds == sorted(kinds, reverse=True)
        assert kinds.count(True) >= 10


@pytest.mark.requires(_SNAPSHOT)
@pytest.mark.needs("alone")
class TestResnapshot:
    """A second snapshot heals a target whose position has expired, deletes included."""

    def test_a_second_snapshot_heals_stale_rows_and_missed_deletes(self, collection: Collection) -> None:
        source, sink = _Source(collection), Sink()
        source.fill(10)
        for page in _walk(collection, Snapshot(), 3):
            sink.apply(page.events)
        for number in range(3):
            source.put(f"k{number}", 200 + number)
            source.delete(f"k{number + 5}")
        _heal(source, sink, Snapshot())

    def test_a_target_that_had_later_changes_is_healed(self, collection: Collection) -> None:
        source, sink = _Source(collection), Sink()
        source.fill(6)
        token = collection.page(Snapshot()).continuation_token
        for number in range(4):
            source.put(f"k{number}", 100 + number)
        source.delete("k5")
        for page in _walk(collection, token, 2):
            sink.apply(page.events)
        source.put("k0", 300)
        source.delete("k1")
        source.put("k5", 300)
        _heal(source, sink, _INTERLEAVED)

    @pytest.mark.needs("trim", "read_past_trim")
    def test_an_expired_position_begins_another_snapshot(self, collection: Collection) -> None:
        source, sink = _Source(collection), Sink()
        source.fill(6)
        for page in _walk(collection, Snapshot(), 2):
            sink.apply(page.events)
        source.put("k0", 100)
        source.delete("k1")
        collection.trim()
        source.put("k2", 100)
        first = collection.page(page.continuation_token, on_expired=Resnapshot())
        gap, started = first.notices
        assert isinstance(gap, Gap)
        assert isinstance(started, SnapshotStarted)
        assert first.events == ()
        sink.begin_again()
        for page in _walk(collection, first.continuation_token, 2, on_expired=Resnapshot()):
            sink.apply(page.events)
            if _is_done(page):
                sink.end_backfill()
        _until_equal(source, sink, page.continuation_token)

    def test_a_position_that_has_not_expired_is_read_on(self, collection: Collection) -> None:
        collection.fill(4)
        events: list[ChangeEvent] = []
        for page in _walk(collection, collection.begin, on_expired=Resnapshot()):
            assert page.notices == ()
            events += page.events
        assert len(set(ids(events))) == 4


@pytest.mark.refuses(_SNAPSHOT)
@pytest.mark.needs("alone")
class TestNoSnapshot:
    """A database without snapshots."""

    def test_it_is_refused_with_the_way_out(self, collection: Collection) -> None:
        for settings in ({"start": Snapshot()}, {"start": collection.begin, "on_expired": Resnapshot()}):
            start: Any = settings.pop("start")
            request = attrs.evolve(collection.request(start, **settings), provider_options=None)
            with pytest.raises(MulticloudDbError) as caught:
                collection.client.read_changes(request)
            assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY
            assert "; " in caught.value.message


def _changes(source: _Source) -> Between:
    """Changes after the pages of a scan: updates, deletes, creates, and keys that come again."""

    def between(number: int) -> None:
        if number < 12:
            source.put(f"k{number * 5 % 16}", 1000 + number)
            source.delete(f"k{number * 3 % 16}")
            source.put(f"new{number % 4}", 1000 + number)
            if number % 3 == 2:
                source.delete(f"new{number % 4}")

    return between


def _heal(source: _Source, sink: Sink, wanted: Snapshot) -> None:
    """Read another snapshot into a target; one of its tokens is lost on the way."""
    collection = source.collection
    first = collection.page(wanted)
    sink.begin_again()
    saved = first.continuation_token
    for page in islice(_walk(collection, saved, 2), 2):
        sink.apply(page.events)
    source.put("k3", 500)
    source.delete("k4")
    for page in _walk(collection, saved, 2):
        sink.apply(page.events)
        if _is_done(page):
            sink.end_backfill()
    _until_equal(source, sink, page.continuation_token)


def _refused(collection: Collection, start: Any, **settings: Any) -> MulticloudDbError:
    with pytest.raises(MulticloudDbError) as caught:
        collection.page(start, **settings)
    assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY
    return caught.value
