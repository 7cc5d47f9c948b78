"""Tests that the suite finds defects: each deliberately broken reader fails the tests listed for it."""

from importlib import import_module

import pytest

import multiclouddb_conformance.us8 as us8
from multiclouddb_conformance.mutants import MUTANTS
from multiclouddb_conformance.simulated import SIMULATED

# Every mutant must pass this test: a mutant must fail the named tests, not every test.
BYSTANDER = "TestCapabilities::test_capabilities_and_their_notes_are_the_same_for_every_client"
MODULE = """
from multiclouddb_conformance.mutants import MUTANTS, harness_of
from multiclouddb_conformance.us8 import *

HARNESS = harness_of(next(each for each in MUTANTS if each.__name__ == {name!r}), sound={sound})
"""


@pytest.fixture
def outcomes(run_inside):
    """Run tests of the suite on a mutant in this process; return the names of the tests by outcome."""

    def run(mutant, names, *, sound):
        text = MODULE.format(name=mutant.__name__, sound=sound)
        return run_inside(text, "-p", "no:terminal", names=names).outcomes

    return run


@pytest.mark.shows("Plan 19")
class TestMutants:
    @pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
    def test_a_mutant_fails_what_is_named_for_it(self, outcomes, mutant):
        assert mutant.caught_by
        wanted = {"failed": set(mutant.caught_by), "passed": {BYSTANDER}}
        assert outcomes(mutant, [*mutant.caught_by, BYSTANDER], sound=False) == wanted

    # All other mutants use the harness of test_us8_simulation.py, in which the same tests pass.
    @pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.declared is not SIMULATED])
    def test_the_same_run_without_the_defect_passes(self, outcomes, mutant):
        names = [*mutant.caught_by, BYSTANDER]
        assert outcomes(mutant, names, sound=True) == {"passed": set(names)}


def test_every_mutant_has_a_row_and_names_tests_of_the_suite(capsys):
    import_module("multiclouddb_conformance.mutants.__main__")
    assert capsys.readouterr().out.count("\n") == len(MUTANTS) + 2 >= 17
    for mutant in MUTANTS:
        for name in mutant.caught_by:
            owner, _, test = name.partition("[")[0].partition("::")
            assert owner in us8.__all__
            assert callable(getattr(getattr(us8, owner), test))
