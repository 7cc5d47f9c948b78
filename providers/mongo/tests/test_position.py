"""Tests positions in a change stream, their text in a token, and their order."""

import json
import struct
from datetime import UTC, datetime, timedelta

import attrs
import bson
import orjson
import pytest
from bson.raw_bson import RawBSONDocument
from hypothesis import strategies as st

from multiclouddb_api import ResourceAddress
from multiclouddb_mongo.mapping import MongoView
from multiclouddb_mongo.position import (
    After,
    At,
    Rest,
    UnreadRange,
    as_field,
    change_text,
    compare,
    cursor_of,
    describe,
    floor_of,
    id_of,
    is_reached,
    place_of,
    range_of,
    rest_of,
    scan_at,
    seconds_at,
    start_of,
    ticks_at,
    time_text,
    token_text,
)
from multiclouddb_mongo.rows import DocumentMapper, rows_of
from multiclouddb_mongo.values import CODEC
from multiclouddb_spi import InvalidCursor
from multiclouddb_spi.rows import event_ids_of

from .fuzz import fuzzed
from .test_snapshot import IDS

MARK = "2B0229296E04"  # the end of the text of a high-water mark from the server
CHANGE = "2B022C0100296E5A1004D8A1D840830C4F4FB169DC2CD309027D461E5F6964002B"

times = st.integers(0, 2**32 - 1)
ticks = st.integers(0, 2**64 - 1)
tails = st.sampled_from([MARK, CHANGE + "0204", CHANGE + "0304", CHANGE + "02"])


def text_of(seconds, ordinal, tail):
    """Return the text of a token as the server would write it."""
    return "82" + struct.pack(">II", seconds, ordinal).hex().upper() + tail


texts = st.builds(text_of, times, times, tails)
bits = st.binary(max_size=4).map(lambda found: "." + found.hex()) | st.just("")
# Tokens that other kinds of servers may return.
names = st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=4)
foreign = st.dictionaries(names, st.integers(0, 9) | st.text(max_size=9), max_size=3).map(token_text)
kinds = st.sampled_from("ehir")
afters = st.builds(After, kinds, st.builds(str.__add__, texts, bits))
places = afters | st.builds(At, times, times) | st.builds(After, kinds, foreign)
# There are only a few different values, so that some times are equal.
near = st.sampled_from([0, 1, 2])
near_texts = st.builds(text_of, near, near, tails)
close = st.builds(After, kinds, st.builds(str.__add__, near_texts, st.sampled_from(["", ".40"])))
close |= st.builds(At, near, near)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from("ehirt8"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def change(seconds, ordinal, extra=""):
    return After("e", text_of(seconds, ordinal, CHANGE + "0204" + extra))


def mark(seconds, ordinal):
    return After("h", text_of(seconds, ordinal, MARK))


@fuzzed(places, st.none() | ticks)
def test_a_position_is_read_back(place, start):
    cursor = cursor_of(place, start)
    assert place_of(cursor) == place
    assert place_of(orjson.loads(orjson.dumps(cursor))) == place
    assert json.loads(json.dumps(cursor)) == cursor
    ahead = start is not None and (ticks_at(place) or 0) < start
    assert start_of(cursor) == (start if ahead else None)
    assert start_of(cursor_of(place, ticks_at(place) or 0)) is None


@fuzzed(anything)
def test_anything_else_is_refused(cursor):
    try:
        place, start = place_of(cursor), start_of(cursor)
    except InvalidCursor:
        return
    assert place_of(cursor_of(place, start)) == place


def test_what_we_cannot_have_made_is_refused():
    texts = ["", 82, "82-6", "82 6", "8²", "82.4", "82.zz", "82.40.40", "82\n", "b:", "b:AAAA", "b:!"]
    wrong = [None, [], "e", ["e"], ["x", "82"], {"e": "82"}, *(["e", text] for text in texts)]
    wrong += [["e", "82", start] for start in (-1, 2**64, True)] + [["e", "82", 1, 1]]
    wrong += [["t"], ["t", 1], ["t", -1, 0], ["t", 2**32, 0], ["t", 0, 2**32], ["t", True, 0], ["t", 1.0, 0]]
    for cursor in [*wrong, ["t", "1", 0], ["t", 1, 0, "1"]]:
        with pytest.raises(InvalidCursor):
            pytest.fail(f"{cursor!r} is taken for {place_of(cursor)}")


@pytest.mark.parametrize(
    "token",
    [
        {"_data": "826B004E5A" + MARK},
        {"_data": "826B004E5A" + CHANGE, "_typeBits": b"\x40"},
        {"_data": "826B004E5A" + CHANGE, "_typeBits": b""},
        {"_data": ""},
        {"_data": "82 6"},
        {"_data": b"\x82\x6b"},
        {"_data": "82", "_typeBits": "40"},
        {"_data": "82", "more": 1},
        {"_data": "b:AAAA"},
        {"_data": {"deep": [1, None]}},
        {"token": 7},
        {},
    ],
    ids=repr,
)
def test_the_server_gets_back_exactly_its_token(token):
    for kind in "ehir":
        place = place_of(cursor_of(After(kind, token_text(token))))
        assert place.token() == token
        assert bson.encode(place.token()) == bson.encode(token)


@fuzzed(texts, st.binary(max_size=3))
def test_type_bits_do_not_change_what_names_a_change_nor_its_order(text, found):
    token = {"_data": text, "_typeBits": found}
    assert change_text(token) == text == change_text({"_data": text})
    assert compare(After("e", token_text(token)), After("e", text)) == 0


@fuzzed(close, close, close)
def test_positions_have_an_order_where_it_is_known(a, b, c):
    order = compare(a, b)
    assert order in (-1, 0, 1, None)
    assert compare(b, a) == (None if order is None else -order)
    assert compare(a, a) == 0
    if order == compare(b, c) == -1:
        assert compare(a, c) in (-1, None)
        if ticks_at(a) < ticks_at(c):
            assert compare(a, c) == -1
    if order == 0:
        assert compare(a, c) == compare(b, c)
    if ticks_at(a) != ticks_at(b):
        assert order == (-1 if ticks_at(a) < ticks_at(b) else 1)
    elif isinstance(a, After) and isinstance(b, After):
        left, right = (place.data.partition(".")[0] for place in (a, b))
        assert order == (left > right) - (left < right)


ONE, OTHER = (After("e", token_text({"token": number})) for number in (1, 2))


@pytest.mark.parametrize(
    ("a", "b", "order"),
    [
        (mark(5, 1), change(5, 1), -1),
        (change(5, 1), mark(5, 2), -1),
        (At(5, 1), change(5, 1), None),
        (mark(5, 1), At(5, 1), None),
        (ONE, ONE, 0),
        (ONE, OTHER, None),
        (ONE, change(1, 1), None),
        (ONE, At(1), None),
    ],
)
def test_two_positions_are_compared(a, b, order):
    assert compare(a, b) == order


def test_a_cluster_time_comes_back_from_its_ticks():
    latest = At(2**32 - 1, 2**32 - 1)
    assert At.of(ticks_at(latest)) == latest


@pytest.mark.parametrize("place", [ONE, After("e", "82xyz"), After("e", "82")])
def test_a_token_with_no_time_where_one_belongs_has_none(place):
    assert (seconds_at(place), ticks_at(place)) == (None, None)
    assert time_text(place) == "an unknown cluster time"


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(
    ("place", "until", "reached"),
    [
        (change(5, 1), change(5, 1), True),
        (change(5, 2), change(5, 1), True),
        (change(5, 1), change(5, 2), False),
        (change(5, 1), change(5, 3), False),
        (mark(5, 1), change(5, 1), False),
        (change(5, 2), mark(5, 2), True),
        (change(5, 2, ".40"), change(5, 2), True),
        (At(5, 1), change(5, 2), False),
        (At(6, 0), change(5, 2), True),
        (change(6, 0), At(5, 9), True),
        (change(5, 1), mark(5, 3), False),
        # A mark at the end of the log contains the time of an operation that has not happened yet.
        (change(5, 1), mark(5, 2), "at the end"),
    ],
)
def test_a_bound_is_reached_at_and_behind_it(place, until, reached, at_end):
    assert is_reached(place, until, at_end=at_end) is (at_end if reached == "at the end" else reached)


@fuzzed(places)
def test_a_description_tells_the_time_and_no_key(place):
    position, moment = describe(place), seconds_at(place)
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    assert position.time == (None if moment is None else begin + timedelta(seconds=moment))
    if isinstance(place, After):
        assert place.data not in position.text
        assert place.data not in repr(place)


BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
TIME, UUID = "65F0000000000001", "0" * 32
VIEW = MongoView(ResourceAddress("d", "c"), "public")
ONE = id_of(bson.encode({"_id": 1}))


def mapper(start):
    return DocumentMapper(VIEW, scan_at(TIME, BEGAN, UUID, start.names).segment("0", start.text), start)


@pytest.mark.parametrize("key", IDS, ids=repr)
def test_a_key_is_the_same_bit_by_bit_and_an_event_has_its_id(key):
    row = bson.encode({"_id": key, "more": 1}, codec_options=CODEC)
    document = as_field("$literal", id_of(row))
    assert isinstance(document, RawBSONDocument)
    assert bytes(document.raw) == bson.encode({"$literal": key}, codec_options=CODEC)
    made = mapper(UnreadRange(TIME, UUID))
    (event,) = made.events([bson.encode({"_id": key}, codec_options=CODEC)], 0, 1)
    assert [event.event_id] == event_ids_of(made.segment.scan, [event.key.canonical()])
    assert event.order_key == floor_of(TIME) == f"82{TIME}"


def test_an_id_that_does_not_come_first():
    assert id_of(bson.encode({"n": 1, "_id": "x"})) == id_of(bson.encode({"_id": "x"}))


def test_a_segment_and_a_plan_are_read_back():
    parts = [UnreadRange(TIME, UUID), UnreadRange(TIME, "", end=ONE), UnreadRange(TIME, UUID, f"[{ONE}", ONE)]
    for part in [*parts, UnreadRange(TIME, UUID, f"({ONE}", "", ("region", "a.b"), ("00ff", "11"))]:
        scan = scan_at(TIME, BEGAN, part.uuid, part.names)
        assert range_of(scan.segment("0", part.text, part.end)) == part
    for uuid, names in ((UUID, ("region",)), ("", ())):
        scan = scan_at(TIME, BEGAN, uuid, names)
        for rest in (Rest(scan, uuid, 50_000, 7, ONE, 3, names), Rest(scan, uuid, 0, names=names)):
            assert rest_of(scan, rest.cursor()) == rest
            assert rest.until(ONE).name == str(rest.number)
            assert range_of(rest.until(ONE)).end == ONE


@pytest.mark.parametrize("names", [(), ("region", "a b/c")])
@pytest.mark.parametrize("end", ["", ONE])
def test_a_segment_of_a_database_has_the_uuid_and_the_shard_key_of_its_collection(names, end):
    scan = scan_at(TIME, BEGAN, "", ())
    rest = Rest(scan, UUID, 50_000, 7, ONE, 3, names, "a/b")
    assert rest_of(scan, rest.cursor()) == rest
    segment = rest.until(end)
    assert (segment.name, segment.collection) == (f"3-{UUID}", "a/b")
    assert range_of(segment) == UnreadRange(TIME, UUID, f"[{ONE}", end, names)


@pytest.mark.parametrize(
    "last",
    ["", "[", "{}", "7", "[]", '[""]', '["", ""]', f'["zz", "{UUID}"]', f'["", "{UUID}", 1]', "[1, 2]"],
)
def test_what_is_no_segment_of_a_database_is_refused(last):
    scan = scan_at(TIME, BEGAN, "", ())
    with pytest.raises(InvalidCursor):
        range_of(scan.segment("0", "", last, collection="c"))


@pytest.mark.parametrize(
    ("begin", "names", "operator"), [("[", (), "$gte"), ("(", (), "$gt"), ("(", ("region",), "$gte")]
)
def test_rows_of_other_shards_with_the_last_id_are_asked_for_again(begin, names, operator):
    """They may not have been sent yet; without a shard key, only one row has an `_id`."""
    (bound,) = UnreadRange(TIME, UUID, f"{begin}{ONE}", "", names).filter()["$expr"]["$and"]
    assert list(bound) == [operator]


@pytest.mark.parametrize(
    ("after", "last"),
    [(ONE, ""), ("[", ""), ("[02ff000000", ""), (f"({ONE}00", ""), ("[0b610000", ""), ("[zz", ""), (" ", ""),
     (f" [{ONE}", ""), ("", "["), ("", f"[{ONE}"), ("", f"{ONE}00"), ("", "0b610000"), ("", "zz"), ("", " ")],
)  # fmt: skip
def test_what_is_no_position_is_refused(after, last):
    with pytest.raises(InvalidCursor):
        range_of(scan_at(TIME, BEGAN, UUID, ()).segment("0", after, last))


@pytest.mark.parametrize(
    "rest",
    [
        None,
        [],
        ["", 1, 1, True],
        ["", -1, 1, 1],
        ["", 1, 1],
        ["zz", 1, 1, 1],
        ["", 1, 1, 1, "c"],
        ["", 1, 1, 1, "c", ""],
        ["", 1, 1, 1, "", UUID],
        ["", 1, 1, 1, "c", UUID, 1],
    ],
)
def test_what_is_no_plan_is_refused(rest):
    with pytest.raises(InvalidCursor):
        rest_of(scan_at(TIME, BEGAN, UUID, ()), rest)


@pytest.mark.parametrize(
    "changes",
    [{"floor": TIME.lower()}, {"floor": "x"}, {"shared": None}, {"shared": []}, {"shared": ["x"]},
     {"shared": [UUID, 1]}, {"shared": UUID}],
)  # fmt: skip
def test_what_is_no_scan_is_refused(changes):
    scan = attrs.evolve(scan_at(TIME, BEGAN, UUID, ()), **changes)
    with pytest.raises(InvalidCursor):
        rest_of(scan, ["", 1, 1, 1])
    with pytest.raises(InvalidCursor):
        range_of(scan.segment("0"))


def test_rows_of_two_shards_with_one_id_are_told_apart():
    rows = [bson.encode({"_id": key, "region": region}) for key in (1, 2) for region in ("eu", "us", "asia")]
    assert rows_of(b"".join(rows)) == rows
    start = UnreadRange(TIME, UUID, names=("region",))
    for count in range(1, 7):
        place = mapper(start).range_after(start, rows, count)
        again = [row for row in rows if bson.decode(row)["_id"] >= bson.decode(rows[count - 1])["_id"]]
        assert mapper(place).unread(place, again[::-1]) == rows[count:][::-1]
        for more in range(1, 7 - count):
            assert mapper(place).range_after(place, rows[count:], more) == mapper(start).range_after(
                start, rows, count + more
            )
