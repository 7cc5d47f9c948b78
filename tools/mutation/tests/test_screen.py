"""Tests the counts and the printed output."""

import io
import tomllib

import pytest
from rich.console import Console

from mutation.mutant import mutants_of
from mutation.running import KILLED, LATE, SURVIVED, Outcome
from mutation.screen import show, tally


@pytest.fixture
def mutants(tmp_path):
    (tmp_path / "module.py").write_text("def f(a, b):\n    return a < b, a + b, a in b, a('x') == \"it's\"\n")
    return mutants_of(tmp_path, "module.py")


class TestTally:
    def test_the_rate_is_of_those_that_ran_and_behave_differently(self, mutants):
        first, second, third, fourth, *_ = mutants
        outcomes = {
            first.name: Outcome(KILLED, "a test"),
            second.name: Outcome(LATE, "time"),
            third.name: Outcome(SURVIVED),
        }
        figures = tally(mutants[:4], {fourth.name}, outcomes)
        assert (figures.planted, figures.compile, figures.equivalent) == (4, 4, 1)
        assert (figures.killed, figures.late, figures.survived) == (2, 1, 1)
        assert figures.rate == pytest.approx(2 / 3)


class TestShow:
    def test_survivors_are_printed_as_entries_of_the_list(self, mutants):
        written = io.StringIO()
        outcomes = {each.name: Outcome(SURVIVED, tests=3) for each in mutants}
        show(Console(file=written, width=200), mutants, set(), outcomes)
        text, _, table = written.getvalue().rpartition('reason = ""')
        entries = tomllib.loads(f'{text}reason = ""')["equivalent"]
        assert [(entry["before"], entry["after"]) for entry in entries] == [
            (each.before, each.after) for each in mutants
        ]
        assert "0.0%" in table
