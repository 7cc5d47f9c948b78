"""Tests snapshots on the scripted server: long scans, deleted old versions of rows, network failures."""

from contextlib import contextmanager

import pytest

from multiclouddb_api import (
    BackfillDone,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
)
from multiclouddb_conformance.sink import Sink
from multiclouddb_spanner import snapshots

from .feeds import HOUR, feed

STATEMENTS = (
    "CREATE TABLE items (id STRING(MAX) NOT NULL, n INT64) PRIMARY KEY (id)",
    "CREATE CHANGE STREAM items_stream FOR items OPTIONS (value_capture_type = 'NEW_ROW')",
)
ORDERED, AUTO = SnapshotOrder.ORDERED, SnapshotOrder.AUTO
READ = "StreamingRead"


class Table:
    """A table, its expected rows, and a target that is filled by reading the table."""

    def __init__(self, scripted):
        self.scripted, self.server = scripted, scripted.server
        self.here = ResourceAddress(scripted.name, "items")
        self.client = scripted.connect()
        self.rows, self.sink, self.pages = {}, Sink(), []

    def put(self, *rows):
        self.scripted.write("items", *rows)
        self.rows.update(rows)

    def delete(self, *keys):
        self.scripted.write("items", *([key] for key in keys), kind="delete", names=("id",))
        for key in keys:
            del self.rows[key]

    def fill(self, count):
        self.put(*((f"k{number:03}", number) for number in range(count)))

    def page(self, start, size=0):
        start = FromContinuationToken(start) if isinstance(start, str) else start
        page = self.client.read_changes(ChangeFeedRequest(self.here, start, max_page_size=size))
        self.sink.apply(page.events)
        self.pages.append(page)
        return page.continuation_token

    def for_days(self, token):
        """Read a page of two rows every five hours of the server's time."""
        for _ in range(30):
            self.server.advance(5 * HOUR)
            token = self.page(token, 2)

    def restart(self):
        self.client.close()
        self.client = self.scripted.connect()

    def until_idle(self, token, size=0):
        while not self.pages[-1].idle:
            assert len(self.pages) < 2000
            token = self.page(token, size)
        return token

    def is_over(self):
        return [type(notice) for page in self.pages for notice in page.notices].count(BackfillDone)

    def backfilled(self):
        return [event for page in self.pages for event in page.events if event.backfilled]

    def check(self):
        assert {key.components["id"]: row["n"] for key, row in self.sink.rows().items()} == self.rows
        assert self.is_over() == 1


@contextmanager
def table(**habits):
    with feed(*STATEMENTS, **habits) as made:
        items = Table(made.scripted)
        yield items
        items.client.close()


class TestVersionRetention:
    """Tests a database that keeps old versions of rows for only an hour."""

    @pytest.mark.parametrize(
        ("order", "segments"), [(ORDERED, 3), (AUTO, 20), (SnapshotOrder.INTERLEAVED, 1)]
    )
    def test_a_longer_scan_goes_on_at_a_later_moment_and_loses_nothing(self, order, segments):
        with table() as items:
            items.fill(20)
            token = items.page(Snapshot(order, segments=segments))
            for number in range(4):
                token = items.page(token, 2)
                items.put((f"k{number * 4:03}", 100 + number), (f"new{number}", number))
                items.delete(f"k{number * 4 + 1:03}")
                items.server.advance(1.5 * HOUR)
                if number % 2:
                    items.restart()
            items.until_idle(token, 3)
            items.check()
            rows = items.backfilled()
            assert len(rows) == len({event.event_id for event in rows})
            assert len({(event.order_key, event.timestamp) for event in rows}) == 1

    def test_within_the_hour_rows_are_as_they_were(self):
        with table() as items:
            items.fill(10)
            token = items.page(Snapshot(ORDERED, segments=2))
            items.put(("k009", 99), ("new", 1))
            items.delete("k008")
            items.server.advance(0.9 * HOUR)
            items.until_idle(token, 3)
            rows = {event.key.components["id"]: event.new_item_state["n"] for event in items.backfilled()}
            assert rows == {f"k{number:03}": number for number in range(10)}
            items.check()


class TestRetention:
    """Tests a stream that keeps its changes for only a day."""

    def test_auto_lets_the_stream_go_when_half_of_it_is_used(self):
        with table() as items:
            items.fill(60)
            token = items.page(Snapshot(AUTO, segments=3))
            hours = 0
            while not items.is_over():
                if hours % 4 == 0:
                    items.restart()
                    items.put((f"k{hours // 4:03}", 100 + hours))
                items.server.advance(HOUR)
                token, hours = items.page(token, 1), hours + 1
            items.until_idle(token)
            items.check()
            assert hours > 2 * 24
            kinds = [event.backfilled for page in items.pages for event in page.events]
            assert False in kinds[: len(kinds) - 1 - kinds[::-1].index(True)]

    def test_ordered_expires_and_says_so(self):
        with table() as items:
            items.fill(30)
            token = items.page(Snapshot(ORDERED, segments=3))
            with pytest.raises(MulticloudDbError) as caught:
                items.for_days(token)
            assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED


class TestTroubles:
    @pytest.mark.parametrize("size", [1, 0])
    def test_reads_that_break_off_repeat_and_lose_nothing(self, size):
        with table(rows_per_message=2, chunk_characters=7, multiplexed=False) as items:
            items.fill(25)
            troubles = items.server.troubles
            troubles.fail(READ, "UNAVAILABLE", 4, every=2)
            troubles.fail(READ, "UNAVAILABLE", 6, after_rows=3, every=2)
            troubles.act(items.server.lose_sessions, 3, method=READ, after_rows=1)
            token = items.page(Snapshot(ORDERED, segments=4))
            items.until_idle(token, size)
            items.check()
            assert len(items.backfilled()) == 25

    def test_a_large_table_is_cut_while_it_is_read(self, monkeypatch):
        monkeypatch.setattr(snapshots, "_SMALL", 10)
        with table() as items:
            items.fill(137)
            token = items.page(Snapshot(ORDERED))
            while not items.is_over():
                items.restart()
                token = items.page(token, 9)
            items.until_idle(token)
            items.check()
            rows = items.backfilled()
            assert len(rows) == len({event.event_id for event in rows}) == 137
            assert len({event.partition_id for event in rows}) == 8
