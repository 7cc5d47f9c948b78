"""Traces and tests a small project. Each mutant runs in its own process, and no file is changed."""

import time

import pytest

from mutation.mutant import mutants_of
from mutation.running import KILLED, LATE, NOT_RUN, SURVIVED, Runner, module_name
from mutation.settings import Settings
from mutation.tracing import FailingTestsError, Traces, trace

MODULE = """
def found(items, wanted):
    for item in items:
        if item == wanted:
            return True
    return False


def untested(a, b):
    return a + b
"""
TESTS = """
import subprocess
import sys

from multiclouddb_small import found

def test_found():
    assert found([1, 2], 2)
    assert not found([1], 2)

def test_in_a_process_of_its_own():
    program = "from multiclouddb_small import untested; print(untested(2, 2))"
    assert subprocess.check_output([sys.executable, "-c", program]) == b"4\\\\n"
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Make a project that consists of one module, and return its settings."""
    (tmp_path / "multiclouddb_small.py").write_text(MODULE)
    (tmp_path / "test_small.py").write_text(TESTS.replace("\\\\n", "\\n"))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Settings(
        root=tmp_path, seed=1, number=20, minutes=5, goal=0.95, least=1, slowest_test_seconds=60,
        tests_seconds=600, modules=("multiclouddb_small.py",), tests=("test_small.py",),
    )  # fmt: skip


def mutant(settings, before, after):
    found = mutants_of(settings.root, settings.modules[0])
    return next(each for each in found if (each.before, each.after) == (before, after))


class TestTrace:
    def test_a_mutant_is_looked_for_by_the_tests_that_run_its_line(self, small, tmp_path):
        traces = trace(small, tmp_path / "kept", 1)
        wanted = mutant(small, "if item == wanted:", "if (item != wanted):")
        assert traces.tests_of(wanted, 60, 600) == ["test_small.py::test_found"]
        assert traces.tests_of(wanted, 60, 0) == []
        assert traces.tests_of(mutant(small, "return a + b", "return (a - b)"), 60, 600) != []

    def test_a_slow_test_does_not_displace_fast_ones(self, small):
        wanted = mutant(small, "return True", "return False")
        tests = {"slow": 7.0, "fast[1]": 1.0, "fast[2]": 2.0, "other": 3.0}
        traces = Traces(tests, {(wanted.file, line): {*tests} for line in range(1, 50)}, ())
        assert traces.tests_of(wanted, 10, 8) == ["fast[1]", "other", "fast[2]"]
        assert traces.tests_of(wanted, 10, 13) == ["fast[1]", "other", "slow", "fast[2]"]

    def test_only_what_has_changed_is_traced_again(self, small, tmp_path):
        first = trace(small, tmp_path / "kept", 1)
        assert trace(small, tmp_path / "kept", 1) == first
        (tmp_path / "test_small.py").write_text("def test_other(): ...")
        assert list(trace(small, tmp_path / "kept", 1).tests) == ["test_small.py::test_other"]

    def test_tests_that_fail_are_told(self, small, tmp_path):
        failing = "".join(f"def test_{number}(): assert False\n" for number in range(5))
        (tmp_path / "test_small.py").write_text(failing)
        with pytest.raises(FailingTestsError, match="5 of 5 failed"):
            trace(small, tmp_path / "kept", 1)


class TestRun:
    NAMES = ("test_small.py::test_found", "test_small.py::test_in_a_process_of_its_own")

    @pytest.fixture
    def runner(self, small):
        return Runner(small.root, dict.fromkeys(self.NAMES, 1.0))

    def test_a_defect_is_killed_by_the_first_test_that_fails(self, small, runner):
        before = (small.root / "multiclouddb_small.py").read_bytes()
        outcome = runner.run(mutant(small, "return True", "return False"), self.NAMES)
        assert (outcome.status, outcome.by) == (KILLED, self.NAMES[0])
        assert (small.root / "multiclouddb_small.py").read_bytes() == before

    def test_a_defect_is_in_the_processes_that_a_test_starts(self, small, runner):
        outcome = runner.run(mutant(small, "return a + b", "return (a - b)"), self.NAMES)
        assert (outcome.status, outcome.by) == (KILLED, self.NAMES[1])

    def test_a_defect_that_no_test_looks_at_survives(self, small, runner):
        defect = mutant(small, "return a + b", "return (a - b)")
        assert runner.run(defect, self.NAMES[:1]).status == SURVIVED
        assert runner.run(defect, ()).status == SURVIVED

    def test_a_test_that_never_ends_is_ended(self, small, runner, monkeypatch):
        monkeypatch.setattr("mutation.running._START_SECONDS", 0)
        monkeypatch.setattr("mutation.running._SLOWER", 0)
        assert runner.run(mutant(small, "return True", "return False"), self.NAMES).status == LATE

    def test_a_test_that_fails_by_itself_is_named(self, small, runner):
        assert runner.fails(self.NAMES) == ""
        (small.root / "test_small.py").write_text("def test_found(): assert False")
        assert runner.fails(self.NAMES[:1]) == self.NAMES[0]

    def test_when_the_time_is_over_no_further_one_is_started(self, small, runner):
        told = []
        defect = mutant(small, "return True", "return False")
        work = [(defect, list(self.NAMES))]
        found = runner.run_all(work, jobs=1, until=time.monotonic() - 1, done=lambda *args: told.append(args))
        assert found[defect.name].status == NOT_RUN
        assert told == [(defect, found[defect.name])]


class TestNames:
    @pytest.mark.parametrize(
        ("file", "name"),
        [
            ("multiclouddb_spi/engine.py", "multiclouddb_spi.engine"),
            ("providers/embedded/multiclouddb_embedded/reader.py", "multiclouddb_embedded.reader"),
        ],
    )
    def test_a_module_is_named_as_it_is_imported(self, file, name):
        assert module_name(file) == name
