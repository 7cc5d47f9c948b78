"""Tests that the seeds of `make test` stay, and that each night has others."""

import pytest

from testing.seeds import in_soak, seeds, tonight


@pytest.fixture
def start(monkeypatch):
    """Return a function that sets `SOAK_SEED`."""
    monkeypatch.delenv("SOAK_SEED", raising=False)
    return lambda first: monkeypatch.setenv("SOAK_SEED", first)


def split(found):
    """Return the values of `make test`, and those of `make soak`."""
    apart = [each.values for each in found if each.marks]
    return [each.values for each in found if not each.marks], apart


def test_the_first_night_goes_on_after_the_kept_seeds(start):
    assert split(seeds(2, 3)) == ([(0,), (1,)], [(2,), (3,), (4,)])
    assert split(seeds(range(3, 4), 2)) == ([(3,)], [(4,), (5,)])
    assert in_soak(300, 5) == range(300, 305)


def test_another_night_has_other_seeds_beside_the_kept_ones(start):
    start("7000")
    assert split(seeds(2, 3, "small")) == (
        [("small", 0), ("small", 1)],
        [("small", 7000), ("small", 7001), ("small", 7002)],
    )
    assert in_soak(300, 5) == range(7000, 7005)


def test_a_failed_seed_is_the_first_one_if_it_is_given(start):
    start("7002")
    assert split(seeds(2, 3))[1][0] == (7002,)


def test_no_kept_seed_is_a_seed_of_the_soak(start):
    start("1")
    assert split(seeds(2, 3))[1] == [(2,), (3,), (4,)]


def test_in_so_many_nights_each_value_has_its_turn(start):
    met = []
    for night in range(5, 8):
        start(f"{night}000")
        met += tonight("abcdefg", 3)
    assert sorted(met) == [*"abcdefg"]


def test_every_seed_of_a_night_names_the_same_share(start):
    start("5000")
    share = tonight("abcdefg", 3)
    start("5999")
    assert tonight("abcdefg", 3) == share


@pytest.mark.parametrize("given", ["", "-1", "today", "1.5", "\u0661"])
def test_what_is_no_seed_is_refused(start, given):
    start(given)
    with pytest.raises(pytest.UsageError, match=r"SOAK_SEED .* whole number"):
        seeds(1, 1)
