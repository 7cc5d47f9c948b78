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
    Since,
    Start,
    Trail,
    compare,
    cursor_of,
    describe,
    headroom,
    join,
    looks_at,
    place_of,
    seconds_at,
    without_trail,
)
from multiclouddb_spi import InvalidCursor

from .world import HOUR, patiently

LAST = 253_402_300_799  # the end of the year 9999
NOW = 1_800_000_000
OURS = 24  # the bytes of a cursor in addition to the service's data

seqs = st.text("0123456789", min_size=1, max_size=56)
times = st.integers(0, LAST)
iterators = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=2048)
trails = st.none() | st.builds(Trail, iterators, st.integers(0, MOST_LOOKS - 1))
ids = st.text("0123456789abcdef-", max_size=36)
afters = st.builds(After, seqs, st.none() | times, trails) | st.builds(
    After, seqs, st.none() | times, st.none(), st.integers(1, 999), ids
)
starts = st.builds(Start, st.none() | times, trails)
horizons = st.builds(Horizon, st.none() | times, trails)
latests = (
    st.builds(Latest, st.none() | times)
    | st.builds(Latest, st.none() | times, iterators, looks=st.integers(0, MOST_LOOKS - 1))
    | st.builds(Latest, times, st.none(), seqs, trail=trails)
    | st.builds(Latest, times, trail=trails)
)

sinces = st.builds(Since, times, trails)
places = afters | starts | horizons | sinces | latests
# There are only a few different values, so that some values are equal.
close = st.one_of(
    st.builds(After, st.sampled_from(["9", "10", "010", "11"]), st.sampled_from([None, 1, 2])),
    st.builds(After, st.sampled_from(["9", "10"]), st.none(), st.none(), st.sampled_from([1, 2])),
    st.builds(After, st.just("9"), st.none(), st.builds(Trail, st.sampled_from("xy"), st.just(1))),
    st.builds(Latest, st.none(), st.sampled_from([None, "x", "y"])),
    st.builds(Start, st.sampled_from([None, 1, 2])),
    st.builds(Horizon, st.sampled_from([1, 2])),
    st.builds(Latest, st.sampled_from([1, 2]), st.sampled_from([None, "x"])),
    st.builds(Latest, st.sampled_from([1, 2]), st.none(), st.sampled_from(["9", "10"])),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from("shtn7"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)
NONE = [
    None, True, 7, "7", [], {}, ["7"], [7, 7], ["", 7], ["7", True], ["7", -1], ["7", 1.0],
    ["7", "7"], ["7", LAST + 1], ["7", 7, 7], ["\u0667", 7], ["-7", 7], ["7" * 57, 7], [" 7", 7], ["x", 7],
    ["s"], ["s", True], ["s", -1], ["s", 7, 7], ["h"], ["h", False], ["h", 7, 7],
    ["t"], ["t", None], ["t", True], ["t", -1], ["t", 7, 7], ["t", 7, "x"], ["t", 7, "x", 10],
    ["n"], ["n", 7, ""], ["n", 7, None], ["n", 7, "a\nb"], ["n", 7, "é"],
    ["n", 7, "x" * 2049], ["n", 7, "x", "7"], ["n", 7, None, ""], ["n", 7, None, "x"],
    ["n", 7, None, "7", 7], ["n", True],
    ["7", 7, "x"], ["7", 7, "x", True], ["7", 7, "x", 10], ["7", 7, "x", -1], ["7", 7, "", 1],
    ["7", 7, "x", 1, 1], ["7", 7, 0, ""], ["7", 7, True, ""], ["7", 7, 1, None], ["7", 7, 1, "x", 1],
    ["s", 7, 1, ""], ["s", 7, None, 1], ["h", 7, "x", "7"], ["n", 7, "x", 0], ["n", 7, "x", 10],
    ["w", 7], ["w", 7, "x"], ["w", 7, "x", 1, None], ["w", 7, "x", 1, "x"], ["w", 7, None, 1, "7"],
]  # fmt: skip


class TestForm:
    @patiently
    @given(places)
    def test_a_place_has_a_short_form_that_is_read_back(self, place):
        cursor = cursor_of(place)
        assert place_of(cursor) == place
        assert place_of(orjson.loads(orjson.dumps(cursor))) == place
        assert json.loads(json.dumps(cursor)) == cursor
        of_service = sum(len(getattr(place, name, None) or "") for name in ("seq", "iterator", "event_id"))
        of_service += len(place.trail.iterator) if place.trail is not None else 0
        seconds = place.time if isinstance(place, After | Since | Start) else place.since
        late = max(0, len(str(seconds or 0)) - 10)  # seconds have ten digits until the year 2286
        assert len(orjson.dumps(cursor)) - of_service - late <= OURS

    @patiently
    @given(anything)
    def test_anything_else_is_refused(self, cursor):
        try:
            place = place_of(cursor)
        except InvalidCursor:
            return
        assert cursor_of(place) == cursor

    def test_known_damage_is_refused(self):
        nests = [orjson.loads("[" * 1000 + "]" * 1000), orjson.loads('{"a":' * 1000 + "7" + "}" * 1000)]
        for cursor in [*NONE, *nests, *(["n", 7, deep] for deep in nests), *([deep, 7] for deep in nests)]:
            with pytest.raises(InvalidCursor):
                place_of(cursor)

    def test_an_iterator_is_not_shown(self):
        assert "secret" not in repr(Latest(7, "secret"))
        assert "secret" not in describe(Latest(7, "secret")).text


class TestCompare:
    @patiently
    @given(close, close, close)
    def test_it_is_an_order(self, a, b, c):
        first, second, both, back = compare(a, b), compare(b, c), compare(a, c), compare(b, a)
        assert back == (None if first is None else -first)
        if None not in (first, second, both) and first <= 0 and second <= 0:
            assert both == -1 if -1 in (first, second) else both == 0

    @patiently
    @given(afters, afters, starts | horizons | latests)
    def test_sequence_numbers_are_integers_and_behind_every_start(self, a, b, start):
        difference = int(a.seq) - int(b.seq) or (a.count or 1000) - (b.count or 1000)
        assert compare(a, b) == (difference > 0) - (difference < 0)
        assert compare(a, start) == 1

    @patiently
    @given(close.filter(lambda place: not isinstance(place, Latest)), st.integers(0, 3))
    def test_a_time_is_before_the_first_record_since_then(self, place, time):
        order = compare(place, Since(time))
        assert compare(Since(time), place) == (None if order is None else -order)
        if isinstance(place, After):
            assert order == (None if place.time is None else 1 if place.time >= time else -1)
        else:
            assert order == -1
        assert compare(Since(time), Since(time, Trail("x", 1))) == 0
        assert compare(Since(time), Since(time + 1)) == -1
        assert [compare(Latest(since), Since(time)) for since in (None, time, time + 1)] == [None, -1, 1]

    def test_what_only_the_service_knows(self):
        assert compare(Latest(7), Latest(8)) is None
        assert compare(Latest(7), Start(7)) is None
        assert compare(Horizon(7), Latest(7)) is None
        assert compare(Latest(7, "x"), Latest(7, None, "5")) == 0
        assert compare(Horizon(7), Start(None)) == 0


@patiently
@given(places)
def test_without_the_iterator_of_an_empty_answer_a_place_is_the_same(place):
    bare = place_of(without_trail(cursor_of(place)))
    if isinstance(place, Latest):  # positions of the same second differ only in their iterators
        assert bare == place
    else:
        assert (bare.trail, looks_at(bare)) == (None, 0)
        assert compare(place, bare) == 0
        assert (seconds_at(place), describe(place)) == (seconds_at(bare), describe(bare))


@patiently
@given(places)
def test_nothing_behind_a_place_is_older_than_it_says(place):
    match place:
        case After(_, time) | Start(time) | Since(time):
            assert seconds_at(place) == time
        case Latest(int() as since):
            assert seconds_at(place) == max(0, since - EARLY_SECONDS)
        case _:
            assert seconds_at(place) is None
    told, seconds = describe(place), seconds_at(place)
    assert told.text.isprintable()
    moment = None if seconds is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    assert told.time == moment


@pytest.mark.parametrize(
    ("places", "joined"),
    [
        ([Horizon(7), Start(5)], Start(5)),
        ([Start(5), Horizon(7)], Start(5)),
        ([Start(5), Start(9)], Start(9)),
        ([Start(None), Start(9)], Start(9)),
        ([Horizon(7), Start(None)], Start(None)),
        ([Latest(5000), Start(9)], Start(9)),
        ([Horizon(7)], Horizon(7)),
        ([Since(7), Start(5)], Start(5)),
        ([Since(7)], Since(7)),
    ],
)
def test_of_several_starts_the_one_that_knows_more_about_the_age_is_right(places, joined):
    assert join(places) == joined


@pytest.mark.parametrize(
    ("place", "left"),
    [
        (After("1", NOW - HOUR), 23 * HOUR),
        (Start(NOW - 25 * HOUR), 0),
        (After("1", NOW + HOUR), 24 * HOUR),
        (Latest(NOW), 24 * HOUR - 120),
        (Horizon(NOW), None),
        (Since(NOW - HOUR), 23 * HOUR),
        (After("1", None), None),
    ],
)
def test_headroom(place, left):
    assert headroom(place, datetime.fromtimestamp(NOW, UTC)) == left
