"""Tests snapshots on Google's emulator: all types of keys and values, resumed scans, and concurrent
changes."""

import itertools
import json

import attrs
import pytest
from google.cloud.spanner_admin_database_v1 import DatabaseDialect

from multiclouddb_api import (
    Beginning,
    ClientConfig,
    FromContinuationToken,
    Snapshot,
    SnapshotOrder,
)
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spi import Deadline, FeedSpec, InvalidCursor, Scanned, plan_id_of
from multiclouddb_spi.positions import open_reader
from multiclouddb_spi.rows import event_ids_of

from .servers.emulator import STILL
from .test_emulator import drained, page

pytestmark = pytest.mark.emulator(*STILL)

POSTGRES = DatabaseDialect.POSTGRESQL
NAN, INFINITE = float("nan"), float("inf")
GOOGLE_KEY = "a STRING(8), b FLOAT64, c INT64, d BOOL, e BYTES(8), f TIMESTAMP, g DATE, h NUMERIC"
POSTGRES_KEY = "a varchar, b float8, c bigint, d bool, e bytea, f timestamptz, g date"
SEVERAL = {
    "a": [None, "", "x", "y\U0001f600"],
    "b": [None, NAN, -INFINITE, -1.5, 0.0, INFINITE],
    "c": [None, 2**62],
}
ONE = {"d": True, "e": b"AP8=", "f": "2026-01-01T00:00:00.123456789Z", "g": "1969-12-31", "h": "1.5"}


def through_a_token(cursor):
    return json.loads(json.dumps(cursor))


@pytest.fixture
def provider(still):
    made = PLUGIN.connect(ClientConfig("spanner", {"url": still.url}), None)
    yield made
    made.close()


def planned(feed, segments, at_once=3):
    """Return a plan and its segments, which are taken from the plan a few at a time."""
    plan = feed.snapshot(segments, Deadline.after(60))
    found, rest = [], plan.rest
    while rest is not None:
        more, rest = feed.segments(plan.scan, through_a_token(rest), at_once, Deadline.after(60))
        found += more
    return plan, found


def rows_of(feed, segment, size):
    """Return the rows of a segment, read with a new reader for each batch."""
    found, cursor = [], segment.cursor
    while True:
        reader = open_reader(feed, segment.segment_id, through_a_token(cursor))
        batch = reader.fetch(size, 1 << 20, 0.0, Deadline.after(60))
        reader.close()
        found += batch.events(0, len(batch))
        for count in range(1, len(batch)):
            rest = open_reader(feed, segment.segment_id, through_a_token(batch.cursor_after(count)))
            again = rest.fetch(1, 1 << 20, 0.0, Deadline.after(60))
            rest.close()
            assert texts(again.events(0, 1)) == texts(batch.events(count, count + 1))
        cursor = batch.end
        if isinstance(batch.outcome, Scanned):
            return found


def texts(events):
    """Return the events by key. NaN is replaced, because NaN is not equal to itself."""
    return [(event.event_id, event.key.canonical()) for event in events]


class TestKeys:
    @pytest.mark.parametrize(("postgres", "segments"), [(False, 5), (True, 100)], ids=["google", "postgres"])
    def test_rows_with_any_key_come_once_wherever_the_scan_goes_on(self, made, provider, postgres, segments):
        columns = POSTGRES_KEY if postgres else GOOGLE_KEY
        key = "a, b, c, d, e, f, g" if postgres else "a, b DESC, c, d DESC, e, f, g DESC, h"
        table, here = made(columns=columns, key=key, dialect=POSTGRES if postgres else None)
        values = [[each for each in of if each is not None or not postgres] for of in SEVERAL.values()]
        rest = [value for name, value in ONE.items() if not (postgres and name == "h")]
        rows = [[*parts, *rest] for parts in itertools.product(*values)]
        table.put(*rows, names=tuple("abcdefg" if postgres else "abcdefgh"))
        feed = provider.open_feed(FeedSpec(here), Deadline.after(60))
        plan, found = planned(feed, segments)
        assert plan.records == len(rows)
        assert plan.segments == len(found) <= segments
        events = [event for segment in found for event in rows_of(feed, segment, 7)]
        assert len({event.key.canonical() for event in events}) == len(events) == len(rows)
        assert {event.event_id for event in events} == set(
            event_ids_of(plan.scan, [event.key.canonical() for event in events])
        )
        assert len({event.event_id for event in events}) == len(rows)

    def test_a_cursor_of_another_shape_is_refused(self, provider, made):
        _, here = made()
        feed = provider.open_feed(FeedSpec(here), Deadline.after(60))
        plan, (segment, *_) = planned(feed, 1)
        assert plan_id_of(segment.segment_id) == plan.scan.plan_id
        for text in ("[", "{}", "7", "x"):
            for bad in (segment.at(text), attrs.evolve(segment, last=text)):
                with pytest.raises(InvalidCursor):
                    feed.open_segment(bad)
            with pytest.raises(InvalidCursor):
                feed.segments(plan.scan, [0, text, [""]], 1, Deadline.after(60))
        for rest in ([1], [], None, [-1, "", [""]], [0, "", []], [0, "", [7]], [0, "", ""]):
            with pytest.raises(InvalidCursor):
                feed.segments(plan.scan, rest, 1, Deadline.after(60))


class TestRows:
    GOOGLE = (
        "id STRING(MAX), o BOOL, i INT64, f FLOAT64, r FLOAT32, n NUMERIC, s STRING(MAX), y BYTES(MAX), "
        "d DATE, t TIMESTAMP, j JSON, x ARRAY<INT64>, z ARRAY<STRING(MAX)>, made INT64 AS (i + 1) STORED"
    )
    POSTGRES = (
        "id varchar, o bool, i bigint, f float8, r float4, n numeric, s varchar, y bytea, d date, "
        "t timestamptz, j jsonb, x bigint[], z varchar[]"
    )
    # The emulator's change stream omits fractions of a second.
    VALUES = (True, 2**62, 1.5, 0.25, "12.50", "\u00e9", b"AP8=", "2026-01-31", "2026-01-01T00:00:01Z")

    @pytest.mark.parametrize("dialect", ["googlesql", "postgresql"])
    def test_a_row_is_as_the_stream_has_it(self, made, ours, dialect):
        postgres = dialect == "postgresql"
        columns = self.POSTGRES if postgres else self.GOOGLE
        table, here = made(columns=columns, dialect=POSTGRES if postgres else None)
        names = ("id", "o", "i", "f", "r", "n", "s", "y", "d", "t", "j", "x", "z")
        text = json.dumps({"b": [1, None, {"$bytes": "x"}], "a": 1.5})
        table.put(
            ["all", *self.VALUES, text, [1, -2], ["", "NULL"]],
            ["none", *[None] * 12],
            ["empty", False, 0, 0.0, -0.0, "0", "", b"", "0001-01-01", "9999-12-31T23:59:59Z",
             "null", [], []],
            names=names,
        )  # fmt: skip
        changes = {event.key: event.new_item_state for event in drained(ours, here, Beginning())}
        rows = [event for event in drained(ours, here, Snapshot()) if event.backfilled]
        assert {event.key: event.new_item_state for event in rows} == changes
        assert len(rows) == 3
        assert {name for row in changes.values() for name in row} == set(names)
        mine = [event for event in drained(ours, here, Snapshot(), include_native=True) if event.backfilled]
        assert {event.native["i"] for event in mine} == {str(2**62), "0", None}

    def test_columns_are_those_of_the_moment_of_the_snapshot(self, made, ours):
        table, here = made()
        table.put(*([f"k{number}", number, "x"] for number in range(4)))
        first = page(ours, here, Snapshot(SnapshotOrder.ORDERED))
        table.ddl("ALTER TABLE items DROP COLUMN text", "ALTER TABLE items ADD COLUMN more STRING(MAX)")
        table.put(["k1", 7, "y"], names=("id", "n", "more"))
        events = drained(ours, here, FromContinuationToken(first.continuation_token))
        rows = [event for event in events if event.backfilled]
        assert [set(event.new_item_state) for event in rows] == [{"id", "n", "text"}] * 4
        assert events[-1].new_item_state == {"id": "k1", "n": 7, "more": "y"}
