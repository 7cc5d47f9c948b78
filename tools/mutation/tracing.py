"""Runs the tests once without a defect: they must pass, and the lines that each test runs are recorded."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from mutation import tracer
from mutation.mutant import Mutant, lines_of
from mutation.settings import FOLDER as PACKAGE
from mutation.settings import Settings

__all__ = ["PYTEST", "FailingTestsError", "Traces", "python_path", "trace"]

PYTEST: Final = ("-q", "--no-header", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--tb=short")
_MOST_FAILED: Final = 0.01
_LINES: Final = 40

Kept: TypeAlias = dict[str, dict[str, Any]]


class FailingTestsError(Exception):
    """Raised if tests fail without a planted defect, because then a run proves nothing."""


@attrs.frozen
class Traces:
    """The lines that each test runs.

    Attributes:
        tests: Maps each test id to its seconds, in the order of the files in the settings.
        runs: Maps each file and line to the ids of the tests that run the line.
        failed: The tests that do not pass while they are traced; the run does not use them.
    """

    tests: dict[str, float]
    runs: dict[tuple[str, int], set[str]]
    failed: tuple[str, ...]

    def tests_of(self, mutant: Mutant, slowest: float, seconds: float) -> list[str]:
        """Return the tests that run the changed lines; a function's fastest test case comes first.

        If no test runs the changed lines, return the tests that run the surrounding code. For example, this
        happens if the lines run at import.

        Args:
            mutant: A defect.
            slowest: The maximum duration of a test; slower tests are omitted.
            seconds: The maximum duration of all tests together. The fastest tests are preferred, so that one
                slow test does not displace many fast tests.
        """
        levels: dict[str, int] = {}
        for level, lines in enumerate(lines_of(mutant)):
            for name in set[str]().union(*(self.runs.get((mutant.file, line), ()) for line in lines)):
                levels.setdefault(name, level)
            if levels and level == 0:
                break
        ranks: dict[str, int] = {}
        found = []
        for name in sorted(levels, key=lambda name: (self.tests[name], name)):
            function = name.partition("[")[0]
            ranks[function] = ranks.get(function, -1) + 1
            found.append((levels[name], ranks[function], self.tests[name], name))
        chosen, used = [], 0.0
        for *_, duration, name in sorted(found):
            if duration <= slowest and used + duration <= seconds:
                chosen.append(name)
                used += duration
        return chosen


def trace(settings: Settings, folder: Path, jobs: int) -> Traces:
    """Trace the tests in changed files, or all tests if any other file has changed since the last run.

    Args:
        settings: The settings, which name the files and tests.
        folder: The folder in which traces are stored between runs.
        jobs: The number of processes.

    Raises:
        FailingTestsError: Raised if more than a few tests fail.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / "traces.json"
    kept: Kept = json.loads(store.read_text()) if store.exists() else {}
    keys = _keys(settings)
    fresh = {file: entry for file, entry in kept.items() if keys.get(file) == entry["key"]}
    missing = [file for file in settings.tests if file not in fresh]
    if missing:
        for file, tests in _run(settings, missing, jobs, folder / "tests.txt").items():
            fresh[file] = {"key": keys[file], "tests": tests}
        store.write_text(json.dumps(fresh))
    return _traces(fresh[file]["tests"] for file in settings.tests)


def python_path(*first: Path) -> dict[str, str]:
    """Return `PYTHONPATH` with these folders first, for every Python process of a run.

    Args:
        first: The folders.
    """
    found = [*map(str, first), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(found)}


def _traces(files: Iterable[dict[str, Any]]) -> Traces:
    seconds: dict[str, float] = {}
    runs: dict[tuple[str, int], set[str]] = {}
    failed = []
    for tests in files:
        for name, test in tests.items():
            if not test["passed"]:
                failed.append(name)
                continue
            seconds[name] = test["seconds"]
            for file, lines in test["lines"].items():
                for line in lines:
                    runs.setdefault((file, line), set()).add(name)
    return Traces(seconds, runs, tuple(failed))


def _keys(settings: Settings) -> dict[str, str]:
    """Return, for each test file, a hash of its own text and of all Python files that are not tests."""
    shared = hashlib.sha256()
    ours = (PACKAGE, settings.root / ".venv")
    for path in sorted(settings.root.rglob("*.py")):
        if path.name.startswith("test_") or any(path.is_relative_to(folder) for folder in ours):
            continue
        shared.update(path.read_bytes())
    return {
        file: hashlib.sha256(shared.digest() + (settings.root / file).read_bytes()).hexdigest()
        for file in settings.tests
    }


def _run(settings: Settings, files: list[str], jobs: int, output: Path) -> dict[str, dict[str, Any]]:
    traced = {str(settings.root / name): name for name in settings.modules}
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        environment = os.environ | python_path(PACKAGE.parent)
        environment |= {tracer.FILES: json.dumps(traced), tracer.FOLDER: folder}
        command = [sys.executable, "-m", "pytest", *PYTEST, "-p", "mutation.tracer", "-n", str(jobs), *files]
        with open(output, "w") as file:
            ran = subprocess.run(
                command, cwd=settings.root, env=environment, stdout=file, stderr=file, check=False
            )
        found: dict[str, Any] = {}
        for path in Path(folder).glob("*.json"):
            found.update(json.loads(path.read_text()))
    failed = sum(not test["passed"] for test in found.values())
    if ran.returncode not in (0, 1) or not found or failed > max(2, _MOST_FAILED * len(found)):
        raise FailingTestsError(
            f"the tests have to pass before defects are planted, and {failed} of {len(found)} failed:\n"
            + "\n".join(output.read_text().splitlines()[-_LINES:])
        )
    by_file: dict[str, dict[str, Any]] = {file: {} for file in files}
    for name, test in found.items():
        by_file[name.partition("::")[0]][name] = test
    return by_file
