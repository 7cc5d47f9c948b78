"""Tests positions of a scan: their contents, and values that are not positions."""

import bson
import pytest
from bson.raw_bson import RawBSONDocument

from multiclouddb_api import ResourceAddress
from multiclouddb_mongo.mapping import View
from multiclouddb_mongo.rows import RowMapper, rows_of
from multiclouddb_mongo.scan_position import (
    Range,
    Rest,
    as_field,
    describe_scan,
    floor_of,
    id_of,
    is_scan_cursor,
    range_of,
    rest_of,
)
from multiclouddb_mongo.values import CODEC
from multiclouddb_spi import InvalidCursor, snapshot_event_id

from .scanning import IDS

TIME, UUID, PLAN = "65F0000000000001", "0" * 32, "a" * 12
ONE = id_of(bson.encode({"_id": 1}))


def mapper(start):
    return RowMapper(View(ResourceAddress("d", "c"), "public"), PLAN, start)


@pytest.mark.parametrize("key", IDS, ids=repr)
def test_a_key_is_the_same_bit_by_bit(key):
    row = bson.encode({"_id": key, "more": 1}, codec_options=CODEC)
    document = as_field("$literal", id_of(row))
    assert isinstance(document, RawBSONDocument)
    assert bytes(document.raw) == bson.encode({"$literal": key}, codec_options=CODEC)


@pytest.mark.parametrize("key", IDS, ids=repr)
def test_an_event_has_the_id_of_its_key(key):
    (event,) = mapper(Range(TIME, UUID)).events([bson.encode({"_id": key}, codec_options=CODEC)], 0, 1)
    assert event.event_id == snapshot_event_id(PLAN, event.key)
    assert event.order_key == floor_of(TIME) == f"82{TIME}"


def test_an_id_that_does_not_come_first():
    assert id_of(bson.encode({"n": 1, "_id": "x"})) == id_of(bson.encode({"_id": "x"}))


@pytest.mark.parametrize(
    "part",
    [
        Range(TIME, UUID),
        Range(TIME, "", end=ONE),
        Range(TIME, UUID, f"[{ONE}", ONE),
        Range(TIME, UUID, f"({ONE}", "", ("region", "a.b"), ("00ff", "11")),
    ],
)
def test_a_segment_is_read_back(part):
    assert range_of(part.cursor()) == part
    assert is_scan_cursor(part.cursor())
    assert "65F" not in describe_scan(part.cursor()).text


def test_a_plan_is_read_back():
    rest = Rest(PLAN, TIME, UUID, 50_000, 7, ONE, 3, ("region",))
    assert rest_of(rest.cursor()) == rest
    assert "segment 3" in describe_scan(rest.cursor()).text


@pytest.mark.parametrize(
    "cursor",
    [
        None,
        [],
        ["s"],
        ["h", "82"],
        ["s", TIME, UUID, "", "", []],
        ["s", TIME.lower(), UUID, "", ""],
        ["s", TIME, "x", "", ""],
        ["s", TIME, UUID, ONE, ""],
        ["s", TIME, UUID, "[", ""],
        ["s", TIME, UUID, "[02ff000000", ""],
        ["s", TIME, UUID, "", f"{ONE}00"],
        ["s", TIME, UUID, "", "0b610000"],
        ["s", TIME, UUID, "", "zz"],
        ["s", TIME, UUID, "", "", [1], []],
        ["p", PLAN, TIME, UUID, "", 1, 1, True, []],
        ["p", PLAN, TIME, UUID, "", -1, 1, 1, []],
        ["p", PLAN, TIME, UUID, "", 1, 1, []],
        ["p", "short", TIME, UUID, "", 1, 1, 1, []],
    ],
)
def test_what_is_no_position_is_refused(cursor):
    for read in (range_of, rest_of):
        with pytest.raises(InvalidCursor):
            read(cursor)


def test_rows_of_two_shards_with_one_id_are_told_apart():
    rows = [bson.encode({"_id": key, "region": region}) for key in (1, 2) for region in ("eu", "us", "asia")]
    assert rows_of(b"".join(rows)) == rows
    start = Range(TIME, UUID, names=("region",))
    for count in range(1, 7):
        place = mapper(start).range_after(start, rows, count)
        again = [row for row in rows if bson.decode(row)["_id"] >= bson.decode(rows[count - 1])["_id"]]
        assert mapper(place).unread(place, again[::-1]) == rows[count:][::-1]
        for more in range(1, 7 - count):
            assert mapper(place).range_after(place, rows[count:], more) == mapper(start).range_after(
                start, rows, count + more
            )
