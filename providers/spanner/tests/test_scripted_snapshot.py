"""Tests snapshots on the scripted server: long scans, deleted old versions of rows, network failures."""

from contextlib import contextmanager

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner

from multiclouddb_api import (
    BackfillDone,
    ErrorCategory,
    MulticloudDbError,
    MulticloudDbKey,
    Now,
    Snapshot,
    SnapshotOrder,
    connect,
)
from multiclouddb_conformance.sink import Sink
from multiclouddb_spanner import snapshots

from .feeds import HOUR, STREAM, TABLE, Opened, feed
from .scripted import PROJECT

ORDERED, AUTO, INTERLEAVED = SnapshotOrder.ORDERED, SnapshotOrder.AUTO, SnapshotOrder.INTERLEAVED
READ = "StreamingRead"


class Table:
    """A table, its expected rows, and a target that is filled by reading the table."""

    def __init__(self, items, count):
        self.items, self.server = items, items.server
        self.rows, self.sink, self.events, self.ends, self.idle = {}, Sink(), [], 0, False
        self.put(*((f"k{number:03}", number) for number in range(count)))

    def put(self, *rows):
        self.items.put(*rows)
        self.rows.update(rows)

    def delete(self, key):
        self.items.scripted.write("items", [key], kind="delete", names=("id",))
        del self.rows[key]

    def page(self, start, size=0):
        page = self.items.page(start, size)
        self.sink.apply(page.events)
        self.events += page.events
        self.ends += sum(isinstance(notice, BackfillDone) for notice in page.notices)
        self.idle = page.idle
        return page.continuation_token

    def check(self, token, size=0):
        """Read on until the feed is idle; compare the target, and return the rows of the snapshot."""
        while not self.idle:
            assert len(self.events) < 10_000
            token = self.page(token, size)
        assert {key.components["id"]: row["n"] for key, row in self.sink.rows().items()} == self.rows
        assert self.ends == 1
        rows = [event for event in self.events if event.backfilled]
        assert len(rows) == len({event.event_id for event in rows})
        return rows


@contextmanager
def table(count, **habits):
    with feed(**habits) as items:
        yield Table(items, count)


def test_nothing_is_written_and_the_client_of_the_application_stays_as_it_is():
    with feed() as items:
        items.put(("a", 1))
        own = spanner.Client(
            project=PROJECT,
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": items.server.host},
            disable_builtin_metrics=True,
        )
        before, key = {name: repr(value) for name, value in vars(own).items()}, MulticloudDbKey({"id": "a"})
        items.server.journal.clear()
        with connect(items.scripted.url, native_client=own) as client:
            token = items.page(Now(), client=client).continuation_token
            items.put(("b", 2))
            assert [event.key.components["id"] for event in items.drain(token, client=client)] == ["b"]
            rows = items.drain(Snapshot(), client=client)
            assert sorted(event.key.components["id"] for event in rows) == ["a", "b"]
            assert client.lookup(items.address, [key])[key].new_item_state["n"] == 1
            assert client.list_physical_partitions(items.address)
        sent = items.server.journal.counts()
        assert {*sent} == {"CreateSession", "ExecuteStreamingSql", "StreamingRead"}
        assert {name: repr(value) for name, value in vars(own).items()} == before
        database = own.instance("tests").database(items.scripted.name)
        with database.snapshot() as snapshot:
            assert len(list(snapshot.read("items", ("id",), spanner.KeySet(all_=True)))) == 2


@pytest.mark.parametrize(("order", "segments"), [(ORDERED, 3), (AUTO, 20), (INTERLEAVED, 1)])
def test_a_scan_beyond_the_version_retention_goes_on_later_and_loses_nothing(order, segments):
    """The database keeps old versions of rows for only an hour."""
    with table(20) as items:
        token = items.page(Snapshot(order, segments=segments))
        for number in range(4):
            token = items.page(token, 2)
            items.put((f"k{number * 4:03}", 100 + number), (f"new{number}", number))
            items.delete(f"k{number * 4 + 1:03}")
            items.server.advance(1.5 * HOUR)
            if number % 2:
                items.items.restart()
        rows = items.check(token, 3)
        assert len({(event.order_key, event.timestamp) for event in rows}) == 1


def test_within_the_hour_rows_are_as_they_were():
    with table(10) as items:
        before, token = dict(items.rows), items.page(Snapshot(ORDERED, segments=2))
        items.put(("k009", 99), ("new", 1))
        items.delete("k008")
        items.server.advance(0.9 * HOUR)
        rows = items.check(token, 3)
        assert {event.key.components["id"]: event.new_item_state["n"] for event in rows} == before


class TestRetention:
    def test_auto_lets_the_stream_go_when_half_of_it_is_used(self):
        with table(40) as items:
            token, hours = items.page(Snapshot(AUTO, segments=3)), 0
            while not items.ends:
                if hours % 8 == 0:
                    items.items.restart()
                    items.put((f"k{hours // 8:03}", 100 + hours))
                items.server.advance(2 * HOUR)
                token, hours = items.page(token, 1), hours + 2
            items.check(token)
            assert hours > 2 * 24
            kinds = [event.backfilled for event in items.events]
            assert False in kinds[: len(kinds) - 1 - kinds[::-1].index(True)]

    def test_ordered_expires_and_says_so(self):
        with table(30) as items:
            token = items.page(Snapshot(ORDERED, segments=3))
            items.server.advance(25 * HOUR)
            items.items.refused(ErrorCategory.CHECKPOINT_EXPIRED, token)


@pytest.mark.parametrize("size", [1, 0])
def test_reads_that_break_off_repeat_and_lose_nothing(size):
    with table(25, rows_per_message=2, chunk_characters=7, multiplexed=False) as items:
        troubles = items.server.troubles
        troubles.fail(READ, "UNAVAILABLE", 4, every=2)
        troubles.fail(READ, "UNAVAILABLE", 6, after_rows=3, every=2)
        troubles.act(items.server.lose_sessions, 3, method=READ, after_rows=1)
        assert len(items.check(items.page(Snapshot(ORDERED, segments=4)), size)) == 25


def test_a_large_table_is_cut_while_it_is_read(monkeypatch):
    monkeypatch.setattr(snapshots, "_SMALL", 10)
    with table(137) as items:
        token = items.page(Snapshot(ORDERED))
        while not items.ends:
            items.items.restart()
            token = items.page(token, 9)
        rows = items.check(token)
        assert len(rows) == 137
        assert len({event.partition_id for event in rows}) == 8


@pytest.mark.parametrize("count", [1, 2, 4, 5, 6])
def test_a_plan_gives_as_many_segments_as_are_wanted(monkeypatch, count):
    monkeypatch.setattr(snapshots, "_SMALL", 1)
    with feed(initial_partitions=1) as items, Opened(items) as opened:
        items.put(*((f"k{number:02}", number) for number in range(20)))
        plan = opened.feed.snapshot(5, opened.soon())
        found, rest = [], plan.rest
        while rest is not None:
            more, rest = opened.feed.segments(plan.scan, rest, count, opened.soon())
            assert len(more) == min(count, 5 - len(found))
            found += more
    assert len({each.segment_id for each in found}) == 5


def test_rows_received_before_the_watched_columns_change_are_read_again(monkeypatch):
    """The answer of a scan has other columns than the answer before it, and both are open in one reader."""
    monkeypatch.setattr(snapshots, "_KEPT_SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "_LATELY_SECONDS", 0.0)
    with feed(initial_partitions=1, rows_per_message=5) as items, Opened(items) as opened:
        items.put(*((f"k{number:02}", number) for number in range(12)))
        plan = opened.feed.snapshot(1, opened.soon())
        (segment,) = opened.feed.segments(plan.scan, plan.rest, 1, opened.soon())[0]
        reader, found = opened.feed.open_segment(segment), []
        for watch in ("items", "items(n)", "items"):
            items.run(f"ALTER CHANGE STREAM items_stream SET FOR {watch}")
            batch = reader.fetch(4, 1 << 20, 0.0, opened.soon())
            found += batch.events(0, len(batch))
        reader.close()
    assert [event.key.components["id"] for event in found] == [f"k{number:02}" for number in range(12)]
    rows = [event.new_item_state and event.new_item_state["n"] for event in found]
    assert rows == [0, 1, 2, 3, *[None] * 4, 8, 9, 10, 11]


DROP = ("DROP CHANGE STREAM items_stream", "DROP TABLE items")


@pytest.mark.parametrize(
    ("statements", "category"),
    [
        (DROP[:1], ErrorCategory.NOT_FOUND),
        (DROP, ErrorCategory.NOT_FOUND),
        ((*DROP, TABLE, STREAM), ErrorCategory.INVALID_REQUEST),
    ],
    ids=["stream", "table", "recreated"],
)
def test_what_was_dropped_is_told_although_its_rows_can_still_be_read(statements, category):
    with table(6) as items:
        token = items.page(items.page(Snapshot(ORDERED)), 2)
        items.items.run(*statements)
        items.items.restart()
        items.items.refused(category, token, size=1)


def test_a_check_of_a_new_snapshot_does_not_count_for_an_earlier_one():
    with table(6) as items:
        token = items.page(items.page(Snapshot(ORDERED)), 2)
        items.items.run(DROP[0], STREAM)
        items.items.restart()
        items.items.page(Snapshot(ORDERED))
        with pytest.raises(MulticloudDbError) as caught:
            items.items.page(token, 1)
        assert caught.value.category == ErrorCategory.INVALID_REQUEST


def test_a_column_without_a_value_is_none_in_a_row():
    with feed() as items:
        items.put(("a", None), ("b", 0.0), names=("id", "f"))
        rows = [event for event in items.drain(Snapshot()) if event.backfilled]
        assert {row.key.components["id"]: row.new_item_state["f"] for row in rows} == {"a": None, "b": 0.0}
