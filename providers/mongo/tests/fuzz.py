"""Runs a test on a few generated examples, and under `soak` on a hundred times as many."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FEW = 20


def fuzzed(*strategies):
    """Make a method a test that takes a value of each strategy."""

    def made(test):
        @pytest.mark.parametrize("examples", [FEW, pytest.param(100 * FEW, marks=pytest.mark.soak)])
        @functools.wraps(test, assigned=("__name__", "__qualname__", "__doc__", "__module__"))
        def run(self, examples):
            def one(drawn):
                test(self, *drawn)

            # A slow machine must not fail the test.
            settings(deadline=None, max_examples=examples)(given(st.tuples(*strategies))(one))()

        del run.__wrapped__  # pytest must not look for the values of the strategies as fixtures
        return run

    return made
