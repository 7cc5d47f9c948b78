"""Explores every small history of each kind of service; `make explore` goes further."""

import gc
import os
import time
from itertools import count

import pytest

from multiclouddb_conformance.explore.__main__ import main
from multiclouddb_conformance.explore.search import (
    GROUPS,
    NEXT,
    Violation,
    bounds_of,
    explore,
    random_bounds,
    replay,
    said,
    shortened,
    test_of,
    wander,
)
from multiclouddb_conformance.explore.world import Bounds, BrokenError, ListingKind, Scope
from multiclouddb_spi.continuation.lineage import Lineage
from testing.seeds import in_soak

pytestmark = pytest.mark.shows("Promise 14")

test_of.__test__ = False
KINDS = [pytest.param(kind, id=kind.value) for kind in ListingKind]
SECONDS = int(os.environ.get("MULTICLOUDDB_WANDER_SECONDS", "300"))


@pytest.mark.slow
@pytest.mark.parametrize("more", [0, pytest.param(1, marks=pytest.mark.soak)], ids=["near", "far"])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_small_history_keeps_every_promise(kind, group, more):
    """`make soak` goes one step further, mostly two if children are named late; then comes `make explore`."""
    bounds, most = bounds_of(kind, group), 2 if kind is ListingKind.LATE and group != "empty" else 1
    result = explore(bounds, 3 + (group == "reduced") + more * most)
    assert not result.violations, "\n".join(test_of(bounds, each, 1) for each in result.violations)
    assert result.complete
    assert result.states > 100


@pytest.mark.parametrize("seeds", [range(2), pytest.param(in_soak(2, 200), marks=pytest.mark.soak)])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", KINDS)
def test_some_long_histories_keep_every_promise(kind, group, seeds):
    bounds = random_bounds(kind, group)
    for seed in seeds:
        violation = wander(bounds, 16, seed)
        assert violation is None, f"seed {seed}\n{test_of(bounds, shortened(bounds, violation), 1)}"


@pytest.mark.soak
def test_random_histories_keep_every_promise():
    pairs = [(kind, group) for kind in ListingKind for group in GROUPS]
    until = time.monotonic() + SECONDS
    for seed in count(1000 * in_soak(2, 1).start):  # more than one of a night's thousand have their turn
        bounds = random_bounds(*pairs[seed % len(pairs)])
        violation = wander(bounds, 16, seed)
        assert violation is None, f"seed {seed}\n{test_of(bounds, shortened(bounds, violation), 1)}"
        if time.monotonic() > until:
            break


class TestSearch:
    def test_it_gives_the_same_figures_again(self):
        bounds = Bounds(ListingKind.LATE, crash=True)
        first, second = explore(bounds, 3), explore(bounds, 3)
        assert (first.states, first.transitions) == (second.states, second.transitions)

    def test_it_tells_each_depth_that_is_passed(self):
        passed = []
        last = explore(Bounds(ListingKind.LATE), 3, passed=passed.append)
        assert [result.depth for result in passed] == [1, 2]
        assert passed[0].states < passed[1].states < last.states

    def test_it_leaves_the_garbage_collector_on(self):
        running = []
        explore(Bounds(ListingKind.LATE), 2, passed=lambda result: running.append(gc.isenabled()))
        assert running == [False]
        assert gc.isenabled()

    def test_it_stops_when_the_time_is_over(self):
        result = explore(Bounds(ListingKind.LATE), 9, seconds=0.1)
        assert not result.complete
        assert result.depth < 9
        assert "time was over" in said("late base", result)

    def test_a_step_that_is_not_possible_is_named(self):
        with pytest.raises(LookupError, match="'show 7' is not possible"):
            replay(Bounds(ListingKind.LATE), ("show 7",))

    def test_a_printed_violation_can_be_run(self, monkeypatch):
        bounds = Bounds(ListingKind.LATE, Scope.KEY, crash=True)
        monkeypatch.setattr(Lineage, "took", lambda self, name, cursor: None)
        violation = explore(bounds, 4, most=1).violations[0]
        names = {"replay": replay, "Bounds": Bounds, "ListingKind": ListingKind, "Scope": Scope}
        exec(test_of(bounds, violation, 1), names)
        with pytest.raises(BrokenError):
            names["test_history_1"]()
        monkeypatch.undo()
        names["test_history_1"]()

    def test_a_violation_is_shortened(self, monkeypatch):
        bounds = Bounds(ListingKind.LISTED)
        monkeypatch.setattr(Lineage, "took", lambda self, name, cursor: None)
        long = Violation(("roll 1", "fetch 0", "roll 0", "read 0", "trim", NEXT), "")
        short = shortened(bounds, long)
        assert len(short.history) < len(long.history)
        with pytest.raises(BrokenError):
            replay(bounds, short.history)


class TestCommand:
    def test_it_prints_what_was_explored(self, capsys):
        assert main(["--depth", "2", "--kind", "late", "--group", "base", "--group", "key"]) == 0
        base, key, together = capsys.readouterr().out.splitlines()
        assert base.startswith("late base:")
        assert "all histories of at most 2 steps over at most 9 partitions" in base
        assert "0 violations" in key
        assert together.startswith("together:")

    def test_it_fails_with_a_test_for_each_violation(self, capsys, monkeypatch):
        monkeypatch.setattr(Lineage, "took", lambda self, name, cursor: None)
        assert main(["--depth", "2", "--kind", "listed", "--group", "crash"]) == 1
        assert "Bounds(ListingKind.LISTED, crash=True)" in capsys.readouterr().out

    def test_it_follows_random_histories(self, capsys, monkeypatch):
        assert main(["--random", "6", "0"]) == 0
        assert "1 random histories of 6 steps from seed 0: 0 violations" in capsys.readouterr().out
        monkeypatch.setattr(Lineage, "took", lambda self, name, cursor: None)
        assert main(["--random", "12", "20", "--seed", "5"]) == 1
        printed = capsys.readouterr().out
        assert printed.startswith("seed 5")
        assert "replay(" in printed
