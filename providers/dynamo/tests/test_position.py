"""Tests positions in a shard and their form in a token."""

import json
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_dynamo.position import (
    EARLY_SECONDS,
    MOST_LOOKS,
    After,
    Horizon,
    Latest,
    Start,
    Trail,
    compare,
    cursor_of,
    describe,
    join,
    place_of,
    seconds_at,
    without_trail,
)
from multiclouddb_spi import InvalidCursor

from .world import patiently

LAST = 253_402_300_799  # the end of the year 9999
OURS = 24  # the bytes of a cursor in addition to the service's data

seqs = st.text("0123456789", min_size=1, max_size=40)
times = st.integers(0, LAST)
iterators = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1, max_size=2048)
trails = st.none() | st.builds(Trail, iterators, st.integers(0, MOST_LOOKS - 1))
afters = st.builds(After, seqs, st.none() | times, trails)
starts = st.builds(Start, st.none() | times, trails)
horizons = st.builds(Horizon, st.none() | times, trails)
latests = (
    st.builds(Latest, st.none() | times)
    | st.builds(Latest, st.none() | times, iterators, looks=st.integers(0, MOST_LOOKS - 1))
    | st.builds(Latest, times, st.none(), seqs, trail=trails)
    | st.builds(Latest, times, trail=trails)
)

places = afters | starts | horizons | latests
# There are only a few different values, so that some values are equal.
close = st.one_of(
    st.builds(After, st.sampled_from(["9", "10", "010", "11"]), st.sampled_from([None, 1, 2])),
    st.builds(After, st.just("9"), st.none(), st.builds(Trail, st.sampled_from("xy"), st.just(1))),
    st.builds(Latest, st.none(), st.sampled_from([None, "x", "y"])),
    st.builds(Start, st.sampled_from([None, 1, 2])),
    st.builds(Horizon, st.sampled_from([1, 2])),
    st.builds(Latest, st.sampled_from([1, 2]), st.sampled_from([None, "x"])),
    st.builds(Latest, st.sampled_from([1, 2]), st.none(), st.sampled_from(["9", "10"])),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from("shn7"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


class TestForm:
    @patiently
    @given(places)
    def test_there_and_back(self, place):
        cursor = cursor_of(place)
        assert place_of(cursor) == place
        assert place_of(orjson.loads(orjson.dumps(cursor))) == place
        assert json.loads(json.dumps(cursor)) == cursor

    @patiently
    @given(places)
    def test_it_has_little_beside_what_the_service_gave(self, place):
        given_ = sum(len(getattr(place, name, None) or "") for name in ("seq", "iterator"))
        given_ += len(place.trail.iterator) if place.trail is not None else 0
        # Seconds have ten digits until the year 2286.
        spare = max(0, len(str(seconds_since(place) or 0)) - 10)
        assert len(orjson.dumps(cursor_of(place))) - given_ - spare <= OURS + iterator_escapes(place)

    @patiently
    @given(anything)
    def test_anything_else_is_refused(self, cursor):
        try:
            place = place_of(cursor)
        except InvalidCursor:
            return
        assert cursor_of(place) == cursor

    @pytest.mark.parametrize(
        "cursor",
        [
            None, True, 7, "7", [], {}, ["7"], [7, 7], ["", 7], ["7", True], ["7", -1], ["7", 1.0],
            ["7", "7"], ["7", LAST + 1], ["7", 7, 7], ["\u0667", 7], ["-7", 7], ["7" * 41, 7], [" 7", 7],
            ["x", 7],
            ["s"], ["s", True], ["s", -1], ["s", 7, 7], ["h"], ["h", False], ["h", 7, 7],
            ["n"], ["n", 7, ""], ["n", 7, None], ["n", 7, "a\nb"], ["n", 7, "é"],
            ["n", 7, "x" * 2049], ["n", 7, "x", "7"], ["n", 7, None, ""], ["n", 7, None, "x"],
            ["n", 7, None, "7", 7], ["n", True],
            ["7", 7, "x"], ["7", 7, "x", True], ["7", 7, "x", 10], ["7", 7, "x", -1], ["7", 7, "", 1],
            ["7", 7, "x", 1, 1], ["s", 7, None, 1], ["h", 7, "x", "7"], ["n", 7, "x", 0], ["n", 7, "x", 10],
            ["w", 7], ["w", 7, "x"], ["w", 7, "x", 1, None], ["w", 7, "x", 1, "x"], ["w", 7, None, 1, "7"],
        ],
        ids=repr,
    )  # fmt: skip
    def test_what_is_none(self, cursor):
        with pytest.raises(InvalidCursor):
            place_of(cursor)

    @pytest.mark.parametrize("opening", ["[", '{"a":'])
    def test_one_that_is_nested_deeply(self, opening):
        closing = "]" if opening == "[" else "}"
        deep = orjson.loads(opening * 1000 + "7" + closing * 1000)
        for cursor in (deep, ["n", 7, deep], [deep, 7]):
            with pytest.raises(InvalidCursor):
                place_of(cursor)

    def test_an_iterator_is_not_shown(self):
        assert "secret" not in repr(Latest(7, "secret"))
        assert "secret" not in describe(Latest(7, "secret")).text


def seconds_since(place):
    return place.time if isinstance(place, After | Start) else place.since


def iterator_escapes(place):
    """Count the characters that JSON adds to escape quotes and backslashes.

    Real iterators contain neither quotes nor backslashes.
    """
    iterator = getattr(place, "iterator", None) or (place.trail.iterator if place.trail is not None else "")
    return iterator.count('"') + iterator.count("\\")


class TestCompare:
    @patiently
    @given(close, close)
    def test_it_is_antisymmetric(self, a, b):
        forth, back = compare(a, b), compare(b, a)
        assert (forth is None) is (back is None)
        assert forth is None or forth == -back

    @patiently
    @given(close, close, close)
    def test_it_is_transitive(self, a, b, c):
        first, second, both = compare(a, b), compare(b, c), compare(a, c)
        if None not in (first, second, both) and first <= 0 and second <= 0:
            assert both <= 0
            assert both == -1 if -1 in (first, second) else both == 0

    @patiently
    @given(afters, afters)
    def test_sequence_numbers_are_integers(self, a, b):
        difference = int(a.seq) - int(b.seq)
        assert compare(a, b) == (difference > 0) - (difference < 0)

    @patiently
    @given(afters, starts | horizons | latests)
    def test_a_record_is_behind_every_start(self, after, start):
        assert compare(after, start) == 1

    def test_what_only_the_service_knows(self):
        assert compare(Latest(7), Latest(8)) is None
        assert compare(Latest(7), Start(7)) is None
        assert compare(Horizon(7), Latest(7)) is None
        assert compare(Latest(7, "x"), Latest(7, None, "5")) == 0
        assert compare(Horizon(7), Start(None)) == 0


class TestTrail:
    """Tests the iterator of an empty answer, which only saves calls."""

    @patiently
    @given(afters | starts | horizons)
    def test_a_place_is_the_same_without_it(self, place):
        bare = place_of(without_trail(cursor_of(place)))
        assert bare.trail is None
        assert compare(place, bare) == 0
        assert seconds_at(place) == seconds_at(bare)
        assert describe(place) == describe(bare)

    @patiently
    @given(latests)
    def test_a_now_keeps_it(self, place):
        """`Now` positions keep their iterators, because positions of the same second differ only in these."""
        assert place_of(without_trail(cursor_of(place))) == place


class TestTime:
    @patiently
    @given(places)
    def test_nothing_behind_a_place_is_older_than_it_says(self, place):
        match place:
            case After(_, time) | Start(time):
                assert seconds_at(place) == time
            case Latest(None):
                assert seconds_at(place) is None
            case Latest(since):
                assert seconds_at(place) == max(0, since - EARLY_SECONDS)
            case Horizon():
                assert seconds_at(place) is None

    @patiently
    @given(places)
    def test_it_is_described_for_a_person(self, place):
        told = describe(place)
        assert told.text.isprintable()
        seconds = seconds_at(place)
        moment = None if seconds is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        assert told.time == moment

    def test_descriptions(self):
        assert describe(After("4711", 7)).text == "sequence 4711"
        assert describe(Start(None)).text == "the start of the shard"
        assert describe(Horizon(0)).text == "oldest record of the shard as of 1970-01-01T00:00:00Z"
        assert describe(Latest(86_400)).text == "end of the shard as of 1970-01-02T00:00:00Z"


class TestJoin:
    def test_who_knows_more_about_the_age_is_right(self):
        assert join([Horizon(7), Start(5)]) == Start(5)
        assert join([Start(5), Horizon(7)]) == Start(5)
        assert join([Start(5), Start(9)]) == Start(9)
        assert join([Start(None), Start(9)]) == Start(9)
        assert join([Horizon(7), Start(None)]) == Start(None)
        assert join([Latest(5000), Start(9)]) == Start(9)
        assert join([Horizon(7)]) == Horizon(7)
