"""Tests positions in a change stream, their text in a token, and their order."""

import itertools
import json
import struct
from datetime import UTC, datetime, timedelta

import bson
import orjson
import pytest
from hypothesis import strategies as st

from multiclouddb_mongo.position import (
    After,
    At,
    change_text,
    compare,
    cursor_of,
    describe,
    is_reached,
    place_of,
    seconds_at,
    start_of,
    ticks_at,
    token_text,
)
from multiclouddb_spi import InvalidCursor

from .fuzz import fuzzed

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
texts_with_bits = st.builds(str.__add__, texts, bits)
# Tokens that other kinds of servers may return.
names = st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=4)
foreign = st.dictionaries(names, st.integers(0, 9) | st.text(max_size=9), max_size=3).map(token_text)
kinds = st.sampled_from("ehir")
afters = st.builds(After, kinds, texts_with_bits)
ats = st.builds(At, times, times)
places = afters | ats | st.builds(After, kinds, foreign)
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


class TestForm:
    @fuzzed(places, st.none() | ticks)
    def test_there_and_back(self, place, start):
        cursor = cursor_of(place, start)
        assert place_of(cursor) == place
        assert place_of(orjson.loads(orjson.dumps(cursor))) == place
        assert json.loads(json.dumps(cursor)) == cursor

    @fuzzed(places, ticks)
    def test_the_start_is_kept_as_long_as_it_lies_ahead(self, place, start):
        ahead = (ticks_at(place) or 0) < start
        assert start_of(cursor_of(place, start)) == (start if ahead else None)
        assert start_of(cursor_of(place)) is None

    @fuzzed(anything)
    def test_anything_else_is_refused(self, cursor):
        try:
            place, start = place_of(cursor), start_of(cursor)
        except InvalidCursor:
            return
        assert place_of(cursor_of(place, start)) == place

    @pytest.mark.parametrize(
        "cursor",
        [
            None,
            [],
            "e",
            ["e"],
            ["x", "82"],
            ["e", ""],
            ["e", 82],
            ["e", "82-6"],
            ["e", "82 6"],
            ["e", "8²"],
            ["e", "82.4"],
            ["e", "82.zz"],
            ["e", "82.40.40"],
            ["e", "82\n"],
            ["e", "b:"],
            ["e", "b:AAAA"],
            ["e", "b:!"],
            ["e", "82", -1],
            ["e", "82", 2**64],
            ["e", "82", True],
            ["e", "82", 1, 1],
            ["t"],
            ["t", 1],
            ["t", -1, 0],
            ["t", 2**32, 0],
            ["t", 0, 2**32],
            ["t", True, 0],
            ["t", 1.0, 0],
            ["t", "1", 0],
            ["t", 1, 0, "1"],
            {"e": "82"},
        ],
        ids=repr,
    )
    def test_what_we_cannot_have_made_is_refused(self, cursor):
        with pytest.raises(InvalidCursor):
            place_of(cursor)


class TestTokens:
    """Tests that the server gets back exactly the token that it sent."""

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
    @pytest.mark.parametrize("kind", "ehir")
    def test_every_token_comes_back_as_it_was(self, token, kind):
        place = place_of(cursor_of(After(kind, token_text(token))))
        assert place.token() == token
        assert bson.encode(place.token()) == bson.encode(token)

    @fuzzed(texts, st.binary(max_size=3))
    def test_type_bits_do_not_change_what_names_a_change_nor_its_order(self, text, found):
        token = {"_data": text, "_typeBits": found}
        assert change_text(token) == text == change_text({"_data": text})
        assert compare(After("e", token_text(token)), After("e", text)) == 0


class TestOrder:
    @fuzzed(close, close)
    def test_one_is_before_the_other_or_nobody_knows(self, a, b):
        order = compare(a, b)
        assert order in (-1, 0, 1, None)
        assert compare(b, a) == (None if order is None else -order)
        assert compare(a, a) == 0

    @fuzzed(close, close, close)
    def test_it_is_an_order(self, a, b, c):
        if compare(a, b) == compare(b, c) == -1:
            assert compare(a, c) in (-1, None)
            if ticks_at(a) < ticks_at(c):
                assert compare(a, c) == -1
        if compare(a, b) == 0:
            assert compare(a, c) == compare(b, c)

    @fuzzed(afters | ats, afters | ats)
    def test_the_earlier_time_comes_first(self, a, b):
        if ticks_at(a) != ticks_at(b):
            assert compare(a, b) == (-1 if ticks_at(a) < ticks_at(b) else 1)

    @fuzzed(st.lists(afters, max_size=6))
    def test_tokens_sort_by_their_text(self, found):
        by_text = sorted(found, key=lambda place: place.data.partition(".")[0])
        assert all(compare(a, b) in (-1, 0) for a, b in itertools.pairwise(by_text))

    def test_a_mark_comes_before_the_changes_of_its_moment(self):
        assert compare(mark(5, 1), change(5, 1)) == -1
        assert compare(change(5, 1), mark(5, 2)) == -1

    def test_a_time_and_a_token_of_that_time_are_not_compared(self):
        assert compare(At(5, 1), change(5, 1)) is None
        assert compare(mark(5, 1), At(5, 1)) is None

    def test_of_foreign_tokens_only_equal_ones_are_known(self):
        one, other = (After("e", token_text({"token": number})) for number in (1, 2))
        assert compare(one, one) == 0
        assert compare(one, other) is None
        assert compare(one, change(1, 1)) is None
        assert compare(one, At(1)) is None
        assert (seconds_at(one), ticks_at(one)) == (None, None)

    def test_a_token_with_no_time_where_one_belongs_has_none(self):
        assert ticks_at(After("e", "82xyz")) is None
        assert ticks_at(After("e", "82")) is None


class TestBound:
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
        ],
    )
    def test_it_is_reached_at_and_behind_it(self, place, until, reached, at_end):
        assert is_reached(place, until, at_end=at_end) is reached

    def test_a_mark_one_tick_ahead_of_the_end_of_the_log_is_reached_there(self):
        """A mark at the end of the log contains the time of an operation that has not happened yet."""
        assert is_reached(change(5, 1), mark(5, 2), at_end=True)
        assert not is_reached(change(5, 1), mark(5, 2), at_end=False)
        assert not is_reached(change(5, 1), mark(5, 3), at_end=True)


class TestDescription:
    @fuzzed(places)
    def test_it_tells_the_time_and_no_key(self, place):
        position = describe(place)
        moment = seconds_at(place)
        assert position.time == (
            None if moment is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=moment)
        )
        if isinstance(place, After):
            assert place.data not in position.text
            assert place.data not in repr(place)
