"""Tests positions inside a commit: a page may end anywhere, and resuming there delivers everything once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_spi import InvalidCursor
from multiclouddb_spi.cursor import Cut

# Each change is (commit, transaction, sequence, change in the transaction), as a service sends it.
CHANGES = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 3)), unique=True
)


def in_order(changes):
    """Return True if the changes of each transaction are in order."""
    return sorted(changes, key=lambda each: (each[0], each[2], each[3]))


def resumed(changes, cut):
    """Return the changes that a reader at this position delivers if the service sends the given changes
    again.
    """
    return [each for each in changes if each[0] >= cut.at and not cut.has(each[0], each[1], each[2:])]


class TestReading:
    @given(CHANGES)
    def test_a_reader_that_stops_at_every_change_delivers_each_once(self, changes):
        changes, cut, seen = in_order(changes), Cut(0), []
        while left := resumed(changes, cut):
            seen.append(left[0])
            at, name, *mark = left[0]
            # Each time, the position is written to a token and read back.
            cut = Cut.from_json(json.loads(json.dumps(cut.advanced(at, name, tuple(mark)).to_json())))
        assert seen == changes

    @given(CHANGES)
    def test_changes_without_an_order_are_named_one_by_one(self, changes):
        """The service sends the changes in a different order each time."""
        cut, seen, turn = Cut(0), [], 0
        while left := [each for each in changes if not cut.has(each[0], str(each))]:
            first = min(each[0] for each in left)
            mine = [each for each in left if each[0] == first]
            turn += 1
            chosen = mine[turn % len(mine)]
            seen.append(chosen)
            cut = cut.advanced(first, str(chosen))
        assert sorted(seen) == sorted(changes)

    def test_what_lies_before_the_commit_was_delivered_and_what_lies_behind_was_not(self):
        cut = Cut(5, {"a": ("00", 2)})
        assert cut.has(4, "z", ("99", 0))
        assert not cut.has(6, "a", ("00", 0))
        assert [cut.has(5, "a", mark) for mark in [("00", 2), ("00", 3), ("01", 0)]] == [True, False, False]
        assert not cut.has(5, "b", ("00", 0))

    def test_another_commit_forgets_the_one_before(self):
        assert Cut(5, {"a": (1,)}).advanced(6, "b", (0,)) == Cut(6, {"b": (0,)})
        assert Cut(5, {"a": (1,)}).advanced(5, "b", (0,)) == Cut(5, {"a": (1,), "b": (0,)})


class TestOrder:
    @pytest.mark.parametrize(
        ("a", "b", "order"),
        [
            (Cut(1), Cut(1), 0),
            (Cut(1), Cut(2), -1),
            (Cut(2), Cut(1, {"a": (9,)}), 1),
            (Cut(1), Cut(1, {"a": (0,)}), -1),
            (Cut(1, {"a": (1,)}), Cut(1, {"a": (0,)}), 1),
            (Cut(1, {"a": (1,)}), Cut(1, {"a": (1,), "b": (0,)}), -1),
            (Cut(1, {"a": (1,)}), Cut(1, {"b": (1,)}), None),
            (Cut(1, {"a": (1,), "b": (0,)}), Cut(1, {"a": (0,), "b": (1,)}), None),
        ],
    )
    def test_of_two_positions(self, a, b, order):
        assert a.compare(b) == order
        assert b.compare(a) == (None if order is None else -order)


class TestJson:
    @pytest.mark.parametrize("cut", [Cut(0), Cut(2**63 - 1), Cut(7, {"a": ("00000000", 3), "": ()})])
    def test_it_survives(self, cut):
        assert Cut.from_json(json.loads(json.dumps(cut.to_json()))) == cut

    @pytest.mark.parametrize(
        "cursor",
        [
            None, [], [None], ["5"], [-1], [2**63], [True], [1.0], [1, {}], [1, []], [1, {"a": 5}],
            [1, {"a": [None]}], [1, {"a": [[1]]}], [1, {"a": [True]}], [1, {"a": list(range(9))}],
            [1, {"a": [1]}, 2],
        ],
        ids=str,
    )  # fmt: skip
    def test_what_cannot_be_one_is_refused(self, cursor):
        with pytest.raises(InvalidCursor):
            Cut.from_json(cursor)
