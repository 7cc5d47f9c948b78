"""Tests snapshots under load, and snapshots that repair a target: the target must equal the source."""
# ruff: noqa: D102 - a test's name says what it is about

from __future__ import annotations

from itertools import islice
from typing import Final

import pytest

from multiclouddb_api import (
    Capability,
    ChangeEvent,
    Gap,
    Resnapshot,
    Snapshot,
    SnapshotOrder,
    SnapshotStarted,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.sink import Sink
from multiclouddb_conformance.snapshots import (
    INTERLEAVED,
    ORDERED,
    ORDERS,
    ScannedCollection,
    changes,
    is_done,
    until_equal,
    walk,
)

__all__ = ["TestResnapshot", "TestSnapshotUnderLoad"]

_SNAPSHOT: Final = Capability.CHANGE_FEED_SNAPSHOT


@pytest.mark.shows("Further 13")
@pytest.mark.requires(_SNAPSHOT)
@pytest.mark.needs("alone")
class TestSnapshotUnderLoad:
    """A target that merges by key and `order_key` equals the source, whatever happens during the scan."""

    @pytest.mark.parametrize("size", [1, 5])
    @pytest.mark.parametrize("order", ORDERS)
    def test_updates_deletes_and_creates_during_the_scan(
        self, collection: Collection, order: SnapshotOrder, size: int
    ) -> None:
        source, sink = ScannedCollection(collection), Sink()
        source.fill(16)
        page = None
        for page in walk(collection, Snapshot(order), size, changes(source)):
            sink.apply(page.events)
        assert page is not None
        until_equal(source, sink, page.continuation_token)

    @pytest.mark.parametrize("order", ORDERS)
    def test_a_lost_token_repeats_and_loses_nothing(
        self, collection: Collection, order: SnapshotOrder
    ) -> None:
        source, sink = ScannedCollection(collection), Sink()
        source.fill(10)
        change = changes(source)
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
            ):  # the target has stored the page, but the token is lost
                collection.restart()
                start = stored
                idle = 0
                stored = page.continuation_token if number % 2 else stored
            else:
                start = stored = page.continuation_token
        until_equal(source, sink, str(start))

    @pytest.mark.needs("split", "merge")
    @pytest.mark.parametrize("order", ORDERS)
    def test_splits_and_merges_during_the_scan(self, collection: Collection, order: SnapshotOrder) -> None:
        source, sink = ScannedCollection(collection), Sink()
        source.fill(12)
        change = changes(source)

        def between(number: int) -> None:
            change(number)
            if number == 1:
                children.extend(collection.split())
            if number == 3:
                collection.merge(children)

        children: list[str] = []
        for page in walk(collection, Snapshot(order), 2, between):
            sink.apply(page.events)
        until_equal(source, sink, page.continuation_token)

    @pytest.mark.needs("split")
    def test_ordered_holds_the_changes_through_a_split(self, collection: Collection) -> None:
        source = ScannedCollection(collection)
        source.fill(10)

        def between(number: int) -> None:
            if number == 1:
                collection.split()
            if 1 < number < 6:
                source.put(f"k{number}", 100 + number)

        kinds = [event.backfilled for page in walk(collection, ORDERED, 1, between) for event in page.events]
        assert kinds == sorted(kinds, reverse=True)
        assert kinds.count(True) >= 10


@pytest.mark.shows("Further 13")
@pytest.mark.requires(_SNAPSHOT)
@pytest.mark.needs("alone")
class TestResnapshot:
    """A second snapshot repairs a target whose position has expired, including deletes."""

    def test_a_second_snapshot_heals_stale_rows_and_missed_deletes(self, collection: Collection) -> None:
        source, sink = ScannedCollection(collection), Sink()
        source.fill(10)
        for page in walk(collection, Snapshot(), 3):
            sink.apply(page.events)
        for number in range(3):
            source.put(f"k{number}", 200 + number)
            source.delete(f"k{number + 5}")
        _heal(source, sink, Snapshot())

    @pytest.mark.needs("interleaved")
    def test_a_target_that_had_later_changes_is_healed(self, collection: Collection) -> None:
        source, sink = ScannedCollection(collection), Sink()
        source.fill(6)
        token = collection.page(Snapshot()).continuation_token
        for number in range(4):
            source.put(f"k{number}", 100 + number)
        source.delete("k5")
        for page in walk(collection, token, 2):
            sink.apply(page.events)
        source.put("k0", 300)
        source.delete("k1")
        source.put("k5", 300)
        _heal(source, sink, INTERLEAVED)

    @pytest.mark.needs("trim", "read_past_trim")
    def test_an_expired_position_begins_another_snapshot(self, collection: Collection) -> None:
        source, sink = ScannedCollection(collection), Sink()
        source.fill(6)
        for page in walk(collection, Snapshot(), 2):
            sink.apply(page.events)
        source.put("k0", 100)
        source.delete("k1")
        collection.trim()
        source.put("k2", 100)
        first = collection.page(page.continuation_token, on_expired=Resnapshot())
        while first.events:  # partitions that have not expired may be read first
            sink.apply(first.events)
            first = collection.page(first.continuation_token, on_expired=Resnapshot())
        gap, started = first.notices
        assert isinstance(gap, Gap)
        assert isinstance(started, SnapshotStarted)
        assert started.whole
        assert first.events == ()
        sink.begin_again()
        for page in walk(collection, first.continuation_token, 2, on_expired=Resnapshot()):
            sink.apply(page.events)
            if is_done(page):
                sink.end_backfill()
        until_equal(source, sink, page.continuation_token)

    def test_a_position_that_has_not_expired_is_read_on(self, collection: Collection) -> None:
        collection.fill(4)
        events: list[ChangeEvent] = []
        for page in walk(collection, collection.begin, on_expired=Resnapshot()):
            assert page.notices == ()
            events += page.events
        assert len(set(ids(events))) == 4


def _heal(source: ScannedCollection, sink: Sink, wanted: Snapshot) -> None:
    collection = source.collection
    first = collection.page(wanted)
    sink.begin_again()
    saved = first.continuation_token
    for page in islice(walk(collection, saved, 2), 2):
        sink.apply(page.events)
    source.put("k3", 500)
    source.delete("k4")
    for page in walk(collection, saved, 2):
        sink.apply(page.events)
        if is_done(page):
            sink.end_backfill()
    until_equal(source, sink, page.continuation_token)
