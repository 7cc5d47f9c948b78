"""Tests the rows alone, without the changes: every row comes once, whatever changes meanwhile."""
# ruff: noqa: D102 - a test's name says what it is about

from __future__ import annotations

from typing import Final

import pytest

from multiclouddb_api import (
    BackfillDone,
    Capability,
    ChangeFeedPage,
    FeedEnded,
    LogicalPartition,
    PhysicalPartition,
    Snapshot,
    SnapshotOrder,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.snapshots import Source, changes, is_done, started_of, walk

__all__ = ["TestRowsAlone"]

_SNAPSHOT: Final = Capability.CHANGE_FEED_SNAPSHOT
_KEY: Final = Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE
_ROWS: Final = Snapshot(changes=False)


def _has_ended(page: ChangeFeedPage) -> bool:
    return any(isinstance(notice, FeedEnded) for notice in page.notices)


@pytest.mark.shows("Further 14")
@pytest.mark.requires(_SNAPSHOT)
@pytest.mark.needs("alone")
class TestRowsAlone:
    """Tests `Snapshot(changes=False)`."""

    @pytest.mark.parametrize("size", [1, 3, 0])
    def test_every_row_comes_once_and_then_the_feed_ends(self, collection: Collection, size: int) -> None:
        source = Source(collection)
        source.fill(12)
        expected = source.rows()
        pages = list(
            walk(
                collection, _ROWS, size, lambda number: source.put(f"new{number}", number) if number else None
            )
        )
        assert pages[0].events == ()
        started = started_of(pages[0])
        assert started.whole
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
        source = Source(collection)
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
        source = Source(collection)
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
        source = Source(collection)
        source.fill(6)
        key = collection.harness.key("k3")
        pages = list(walk(collection, _ROWS, 1, scope=LogicalPartition(key)))
        rows = [event for page in pages for event in page.events]
        assert {row.key: row.new_item_state for row in rows} == {key: source.rows()[key]}
        assert _has_ended(pages[-1])
