"""Tests what the engine owns of a scan: the cursor of a segment, and the stamp on its rows."""

import json
from datetime import UTC, datetime

import attrs
import pytest

from multiclouddb_api import ChangeType, MulticloudDbKey, ResourceAddress
from multiclouddb_spi import (
    Feed,
    InvalidCursor,
    RecordFault,
    RowMapper,
    Rows,
    Scan,
    Segment,
    View,
    looked_up,
    plan_id_of,
)
from multiclouddb_spi.positions import compare, describe, open_reader, without_hints

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SCAN = Scan("floor", MOMENT, ["rid", 7], "plan")
SEGMENT = SCAN.segment("0-1f", "a", "b", 100)


@pytest.mark.parametrize("shared", [None, 7, "x", [], {"a": None}, 0, False])
def test_a_segment_comes_back_from_its_id_and_cursor(shared):
    segment = attrs.evolve(SEGMENT, scan=attrs.evolve(SCAN, shared=shared), name="1:2")
    again = Segment.of(segment.segment_id, json.loads(json.dumps(segment.cursor)))
    assert again == attrs.evolve(segment, records=None)
    assert again.cursor == segment.cursor


@pytest.mark.parametrize("collection", ["orders", "a/b:c", "/", "é \n", "snapshot:"])
def test_a_segment_of_a_database_comes_back_with_its_collection(collection):
    segment = SCAN.segment("0-1f", "a", "b", collection=collection)
    assert Segment.of(segment.segment_id, json.loads(json.dumps(segment.cursor))) == segment
    assert plan_id_of(segment.segment_id) == "plan"
    assert segment.piece("1", "a", "b").collection == segment.at("x").collection == collection
    assert segment.segment_id != attrs.evolve(segment, collection="other").segment_id


@pytest.mark.parametrize(
    ("name", "cursor"),
    [
        ("shard-1", SEGMENT.cursor),
        ("snapshot:plan", SEGMENT.cursor),
        (SEGMENT.segment_id, None),
        (SEGMENT.segment_id, ["floor", 5]),
        (SEGMENT.segment_id, ["floor", True, "a", "b"]),
        (SEGMENT.segment_id, ["floor", 2**62, "a", "b"]),
        (SEGMENT.segment_id, ["floor", 5, "a", None]),
        (SEGMENT.segment_id, ["floor", 5, 1, "b"]),
        (SEGMENT.segment_id, [None, 5, "a", "b"]),
        (SEGMENT.segment_id, ["floor", 5, "a", "b", 1, 2]),
    ],
)
def test_what_is_no_position_in_a_segment_is_refused(name, cursor):
    with pytest.raises(InvalidCursor):
        Segment.of(name, cursor)


def test_a_plan_id_is_told_from_a_partition():
    assert plan_id_of(SEGMENT.segment_id) == plan_id_of(SCAN.partition_id) == "plan"
    assert plan_id_of("shard-1") is None
    assert Scan("f", MOMENT).plan_id != Scan("f", MOMENT).plan_id


def test_its_keys_are_not_shown():
    segment = SCAN.segment("1", "the key of a person", "of another person")
    assert "person" not in repr(segment)


class Streams(Feed):
    """A feed that knows only positions of its stream, which are numbers."""

    def __init__(self):
        self.opened = []

    def open(self, partition_id, cursor, until=None):
        self.opened.append((partition_id, cursor, until))

    def open_segment(self, segment):
        self.opened.append(segment)

    def compare(self, a, b):
        return (a > b) - (a < b)

    def describe(self, cursor):
        return f"sequence {cursor + 0}"

    def without_hints(self, cursor):
        return cursor // 10


Streams.__abstractmethods__ = frozenset()


def test_a_provider_is_asked_only_about_positions_of_its_stream():
    feed, name, here = Streams(), SEGMENT.segment_id, SEGMENT.cursor
    there = SEGMENT.at("aa").cursor
    open_reader(feed, "p", 5, 7)
    open_reader(feed, name, here)
    assert feed.opened == [("p", 5, 7), attrs.evolve(SEGMENT, records=None)]
    assert (compare(feed, "p", 5, 7), compare(feed, name, here, there)) == (-1, None)
    assert compare(feed, name, here, SEGMENT.cursor) == 0
    assert describe(feed, "p", 5) == "sequence 5"
    assert describe(feed, name, there).text == "in segment 0-1f of the scan of 2026-01-02T03:04:05Z"
    assert (without_hints(feed, "p", 57), without_hints(feed, name, here)) == (5, here)
    with pytest.raises(InvalidCursor):
        describe(feed, name, 5)


@attrs.frozen(eq=False)
class Mapper(RowMapper):
    view: View
    segment: Segment
    own: bool = False

    def rows(self, records, start, stop, *, texts):
        part = records[start:stop]
        keys = [MulticloudDbKey({"id": name + ""}) for name in part]
        orders = [f"{name}{name}" for name in part] if self.own else None
        return None if texts else Rows(keys, [{"id": name} for name in part], order_keys=orders)

    def place_after(self, records, count):
        return records[count - 1]


VIEW = View(ResourceAddress("d", "c"), "segment")


def test_rows_are_stamped_with_their_scan():
    mapper = Mapper(VIEW, SEGMENT)
    events = mapper.events(["x", "y", "z"], 1, 3)
    assert [(each.key["id"], each.new_item_state, each.order_key) for each in events] == [
        ("y", {"id": "y"}, "floor"),
        ("z", {"id": "z"}, "floor"),
    ]
    for each in events:
        assert (each.type, each.timestamp, each.backfilled) == (ChangeType.CREATE, MOMENT, True)
        assert (each.old_item_state, each.by_expiry, each.native) == (None, False, None)
        assert (each.address, each.partition_id) == (VIEW.address, VIEW.partition_id)
        assert each.event_id.startswith("snapshot:plan:")
    assert len({each.event_id for each in events}) == 2
    assert mapper.cursor_after(["x", "y", "z"], 2) == SEGMENT.at("y").cursor


def test_rows_keep_order_keys_of_their_own():
    mapper = Mapper(VIEW, SEGMENT, own=True)
    assert [each.order_key for each in mapper.events(["x", "y"], 0, 2)] == ["xx", "yy"]


def test_rows_that_were_looked_up_have_no_order_key():
    (event,) = Mapper(VIEW, looked_up(MOMENT)).events(["x"], 0, 1)
    assert (event.order_key, event.timestamp, event.backfilled) == ("", MOMENT, True)
    assert event.event_id.startswith("snapshot:lookup:")


def test_a_row_that_cannot_be_decoded_is_named_by_its_place():
    with pytest.raises(RecordFault, match=r"row 1 of the batch.*TypeError") as caught:
        Mapper(VIEW, SEGMENT).events(["x", 5, "z"], 0, 3)
    assert caught.value.skip_cursor == SEGMENT.at(5).cursor
