"""Tests snapshots of a database: the rows of all its collections, and then every change of them."""
# ruff: noqa: D102 - a test's name says what it is about

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import pytest

from multiclouddb_api import (
    BackfillDone,
    Capability,
    ChangeEvent,
    ChangeFeedPage,
    EntireDatabase,
    FeedEnded,
    Gap,
    Notice,
    Resnapshot,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
    SnapshotStarted,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.sink import Sink
from multiclouddb_conformance.snapshots import (
    ORDERED,
    ORDERS,
    Between,
    ScannedCollection,
    changes,
    is_done,
    started_of,
    walk,
)

__all__ = ["TestDatabaseSnapshot"]

_NAMES: Final = ("b", "d", "f")
_ROWS: Final = 4

Make: TypeAlias = Callable[..., Collection]


class _Database:
    """A database with some collections, of which each has the same keys, and a target for all of them."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self.sources: dict[ResourceAddress, ScannedCollection] = {}
        self.sinks: dict[ResourceAddress | None, Sink] = defaultdict(Sink)
        for name in _NAMES:
            self.add(name)
        self.reader = next(iter(self.sources.values())).collection
        self.whole: dict[str, Any] = {
            "address": ResourceAddress(database=self.reader.address.database),
            "scope": EntireDatabase(),
        }

    def add(self, name: str) -> ScannedCollection:
        """Create a collection."""
        made = ScannedCollection(self._make(name))
        self.sources[made.collection.address] = made
        return made

    def fill(self) -> None:
        """Create the same keys in each collection."""
        for source in self.sources.values():
            source.fill(_ROWS)

    def walk(
        self, start: Snapshot | str, size: int = 0, between: Between = lambda _: None
    ) -> Iterator[ChangeFeedPage]:
        """Return the pages up to the first idle page."""
        return walk(self.reader, start, size, between, **self.whole)

    def apply(self, events: Iterable[ChangeEvent]) -> None:
        """Merge events into the targets of their collections."""
        for event in events:
            self.sinks[event.address].apply([event])

    def until_equal(self, token: str) -> None:
        """Continue reading until each target equals its collection."""
        for _ in range(100):
            if self._differences() == []:
                return
            page = self.reader.page(token, wait=0.1, **self.whole)
            self.apply(page.events)
            token = page.continuation_token
        assert self._differences() == []

    def _differences(self) -> list[object]:
        return [
            (address, self.sinks[address].rows(), source.rows())
            for address, source in self.sources.items()
            if self.sinks[address].rows() != source.rows()
        ]


def _rows(pages: Iterable[ChangeFeedPage]) -> list[ChangeEvent]:
    return [event for page in pages for event in page.events if event.backfilled]


@pytest.mark.shows("Further 13")
@pytest.mark.requires(Capability.CHANGE_FEED_DATABASE_SCOPE, Capability.CHANGE_FEED_SNAPSHOT)
class TestDatabaseSnapshot:
    """Tests the rows, the notices and the tokens of a database's snapshot."""

    @pytest.fixture
    def database(self, make_collection: Make) -> _Database:
        """Provide a database of three empty collections."""
        return _Database(make_collection)

    @pytest.mark.parametrize("size", [1, 3, 0])
    @pytest.mark.parametrize("order", ORDERS)
    def test_every_row_comes_once_with_the_address_of_its_collection(
        self, database: _Database, order: SnapshotOrder, size: int
    ) -> None:
        database.fill()
        first, *pages = database.walk(Snapshot(order), size)
        started = started_of(first)
        assert started.whole
        assert first.events == ()
        rows = _rows(pages)
        assert len(rows) == len(set(ids(rows))) == _ROWS * len(_NAMES)
        assert {(event.address, event.key): event.new_item_state for event in rows} == {
            (address, key): document
            for address, source in database.sources.items()
            for key, document in source.rows().items()
        }
        assert {event.order_key for event in rows} == {started.floor}
        assert len({event.timestamp for event in rows}) == 1
        done = [notice for page in pages for notice in page.notices if isinstance(notice, BackfillDone)]
        assert done == [BackfillDone(started.partition_id, started.floor)]

    @pytest.mark.parametrize("size", [1, 2])
    def test_another_process_goes_on_after_any_page(self, database: _Database, size: int) -> None:
        """Pages end within a segment, between two segments, and between two collections."""
        database.fill()
        pages = list(database.walk(Snapshot(SnapshotOrder.ORDERED, segments=2), size))
        wanted = ids(_rows(pages))
        assert len(wanted) == _ROWS * len(_NAMES)
        for number, page in enumerate(pages):
            database.reader.restart()
            before = ids(_rows(pages[: number + 1]))
            after = ids(_rows(database.walk(page.continuation_token)))
            assert sorted([*before, *after]) == sorted(wanted)

    @pytest.mark.parametrize("order", ORDERS)
    def test_changes_in_all_collections_during_the_scan(
        self, database: _Database, order: SnapshotOrder
    ) -> None:
        database.fill()
        writers = [changes(source) for source in database.sources.values()]

        def between(number: int) -> None:
            for write in writers:
                write(number)
            database.reader.restart()

        for page in database.walk(Snapshot(order), 2, between):
            database.apply(page.events)
            token = page.continuation_token
        database.until_equal(token)

    def test_a_collection_that_is_created_during_the_scan_has_its_rows(self, database: _Database) -> None:
        database.fill()

        def between(number: int) -> None:
            if number < 4:
                database.add("aceg"[number]).fill(2)

        for page in database.walk(ORDERED, 3, between):
            database.apply(page.events)
            token = page.continuation_token
        assert len(database.sources) == len(_NAMES) + 4
        database.until_equal(token)

    @pytest.mark.parametrize("order", ORDERS)
    def test_without_rows_it_is_over_at_once(self, database: _Database, order: SnapshotOrder) -> None:
        pages = list(database.walk(Snapshot(order)))
        assert [event for page in pages for event in page.events] == []
        assert [is_done(page) for page in pages].count(True) == 1

    @pytest.mark.requires(Capability.CHANGE_FEED_ROWS)
    def test_the_rows_alone_end_the_feed(self, database: _Database) -> None:
        database.fill()
        pages = list(database.walk(Snapshot(changes=False), 5))
        assert len(_rows(pages)) == _ROWS * len(_NAMES)
        assert any(isinstance(notice, FeedEnded) for notice in pages[-1].notices)

    @pytest.mark.needs("trim")
    def test_a_position_that_has_expired_begins_another_snapshot(self, database: _Database) -> None:
        database.fill()
        for page in database.walk(ORDERED):
            database.apply(page.events)
            token = page.continuation_token
        for source in database.sources.values():
            source.put("k1", 100)
            source.delete("k2")
        database.reader.harness.trim(database.reader.address)
        database.reader.restart()
        again: dict[str, Any] = {"on_expired": Resnapshot(ORDERED), **database.whole}
        notices = list[Notice]()
        for page in walk(database.reader, token, 3, **again):
            notices += page.notices
            if any(isinstance(notice, SnapshotStarted) for notice in page.notices):
                for sink in database.sinks.values():
                    sink.begin_again()
            database.apply(page.events)
            if is_done(page):
                for sink in database.sinks.values():
                    sink.end_backfill()
        assert [type(notice) for notice in notices] == [Gap, SnapshotStarted, BackfillDone]
        (started,) = (notice for notice in notices if isinstance(notice, SnapshotStarted))
        assert started.whole
        database.until_equal(page.continuation_token)
