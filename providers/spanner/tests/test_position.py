"""Tests positions: their order, their form in a token, and the conversion of times to texts."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_spanner.position import (
    Place,
    compare,
    cursor_of,
    describe,
    fixed_text,
    micros_of,
    moment_of,
    place_of,
    text_at,
)
from multiclouddb_spi import InvalidCursor
from multiclouddb_spi.cursor import Cut

T = 1_700_000_000_000_000
PLACES = [
    Place.at(T),
    Place.at(T, T + 1),
    Place.at(T + 1, 0, T),
    Place(Cut(T, {"tx": ("00000000", 3), "ty": ("00000001", 1)})),
]


class TestCursor:
    @pytest.mark.parametrize("place", PLACES)
    def test_it_survives_and_is_told_with_its_time(self, place):
        assert place_of(cursor_of(place)) == place
        told = describe(place)
        assert "2023-11-14T22:13:20.00000" in told.text
        assert told.time == moment_of(place.first)

    def test_a_start_that_is_earlier_is_left_out(self):
        for since in (T, T - 5):
            assert Place.at(T, since) == Place.at(T) == place_of(cursor_of(Place.at(T, since)))
            assert cursor_of(Place.at(T, since)) == [T]

    @pytest.mark.parametrize(
        "cursor",
        [
            None, "x", [], ["h"], ["h", T], [-1], [2**60], [1, 1], [5, 0],
            [1, 2, 3],
            [1, {}], [1, {"t": ["0"]}], [1, {"t": [0, 0]}], [1, {"t": ["0", "1"]}], [1, {"t": ["0" * 65, 1]}],
            [1, {"t": ["0", True]}], [1.0], {"at": 1},
        ],
        ids=str,
    )  # fmt: skip
    def test_what_cannot_be_one_is_refused(self, cursor):
        with pytest.raises(InvalidCursor):
            place_of(cursor)


class TestOrder:
    def test_by_commit_timestamp_and_what_was_delivered(self):
        inside = [Place(Cut(T, {"a": ("0", 1)})), Place(Cut(T, {"a": ("0", 2)}))]
        places = [Place.at(T - 1), Place.at(T), *inside, Place.at(T + 1)]
        for (i, a), (j, b) in itertools.product(enumerate(places), repeat=2):
            assert compare(a, b) == (i > j) - (i < j)

    def test_of_what_neither_covers_nothing_is_known(self):
        assert compare(Place(Cut(T, {"a": ("0", 1)})), Place(Cut(T, {"b": ("0", 1)}))) is None

    def test_a_start_is_where_it_begins(self):
        assert compare(Place.at(T, T + 9), Place.at(T + 9)) == 0
        assert compare(Place.at(T, T + 9), Place.at(T + 5)) == 1


class TestMoments:
    @pytest.mark.parametrize(
        ("text", "down", "up"),
        [
            ("2023-11-14T22:13:20Z", T, T),
            ("2023-11-14T22:13:20.5Z", T + 500_000, T + 500_000),
            ("2023-11-14T22:13:20.000001+00:00", T + 1, T + 1),
            ("2023-11-14T22:13:20.000001001Z", T + 1, T + 2),
            ("2023-11-14T22:13:20.999999999Z", T + 999_999, T + 1_000_000),
            ("1970-01-01T00:00:00Z", 0, 0),
        ],
    )
    def test_of_the_service_in_microseconds(self, text, down, up):
        assert (micros_of(text), micros_of(text, up=True)) == (down, up)

    @pytest.mark.parametrize(
        "text", ["", "now", "2023-11-14T22:13:20.5+02:00", "2023-11-14T22:13:20,5Z", "2023-11-14"]
    )
    def test_others_are_refused(self, text):
        with pytest.raises(ValueError):  # noqa: PT011
            micros_of(text)

    @given(st.integers(0, 253_402_300_799_999_999))
    def test_texts_are_exact_and_of_one_length(self, micros):
        assert micros_of(text_at(micros)) == micros
        assert len(text_at(micros)) == 27
        short = text_at(micros).rstrip("Z").rstrip("0").rstrip(".") + "Z"
        assert fixed_text(short) == text_at(micros)
