"""Runs a test on a few generated examples, and under `soak` on a hundred times as many."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FEW = 20


def fuzzed(*strategies):
    """Make a function or a method a test that takes a value of each strategy."""

    def made(test):
        def run(examples, *itself):
            def one(drawn):
                test(*itself, *drawn)

            # A slow machine must not fail the test.
            settings(deadline=None, max_examples=examples)(given(st.tuples(*strategies))(one))()

        def method(self, examples):
            run(examples, self)

        found = method if "." in test.__qualname__ else lambda examples: run(examples)
        functools.update_wrapper(found, test, ("__name__", "__qualname__", "__doc__", "__module__"))
        del found.__wrapped__  # pytest must not look for the values of the strategies as fixtures
        counts = [FEW, pytest.param(100 * FEW, marks=pytest.mark.soak)]
        return pytest.mark.parametrize("examples", counts)(found)

    return made
