"""Provides a factory of benchmark rows that do no real work: both measured sides only count."""

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.row import Done, Row, Section, Sides

# The benchmarks are not a distribution: Python finds them from the repository's root.
ROOT = Path(__file__).parents[3]


@pytest.fixture
def make_row():
    """Return a function that makes a row of two sides: `make_row(ours, baseline, goal=…)`."""

    def make(ours, baseline=lambda: Done(10), name="row", goal=1.0, **settings):
        @contextmanager
        def setup(bench):
            yield Sides(ours, baseline)

        words = (f"The row {name}", "How long?", goal, "About.", "Against.")
        return Row(name, Section.RATES, *words, setup, **settings)

    return make


@pytest.fixture
def run_benchmarks():
    """Run the command as a user would, with its output in pipes."""
    import subprocess

    def run(*arguments):
        command = [sys.executable, "-m", "benchmarks", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    return run
