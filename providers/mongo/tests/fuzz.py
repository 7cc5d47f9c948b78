"""Runs a test on a few generated examples, and under `soak` on a hundred times as many."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FEW = 20


def fuzzed(*strategies):
    """Make a function or a method a test that takes a value of each strategy."""

    def wrapped(test):
        def wrap(run):
            functools.update_wrapper(run, test, ("__name__", "__qualname__", "__doc__", "__module__"))
            del run.__wrapped__  # pytest must not look for the values of the strategies as fixtures
            return pytest.mark.parametrize(
                "examples", [FEW, pytest.param(100 * FEW, marks=pytest.mark.soak)]
            )(run)

        return wrap

    def repeated(one, examples):
        # A slow machine must not fail the test.
        settings(deadline=None, max_examples=examples)(given(st.tuples(*strategies))(one))()

    def made(test):
        @wrapped(test)
        def run(self, examples):
            def one(drawn):
                test(self, *drawn)

            repeated(one, examples)

        @wrapped(test)
        def run_function(examples):
            repeated(lambda drawn: test(*drawn), examples)

        return run if "." in test.__qualname__ else run_function

    return made
