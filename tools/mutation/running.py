"""Runs the tests of each mutant in its own process, several at the same time."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from mutation import chosen, warm
from mutation.mutant import Mutant
from mutation.settings import FOLDER
from mutation.tracing import PYTEST, python_path

__all__ = ["KILLED", "LATE", "NOT_RUN", "SURVIVED", "Outcome", "Runner"]

KILLED: Final = "killed"
LATE: Final = "killed by the time limit"
SURVIVED: Final = "survived"
NOT_RUN: Final = "not run"

_ARGUMENTS: Final = (*PYTEST, "-p", "mutation.chosen", "-p", "no:xdist", "--timeout=25")
"""The time limit for one test. Without a defect, a test takes a few seconds."""
_BROKEN: Final = (2, 3, 4)
"""The exit codes of pytest if the defect makes the run fail before the first test, for example in a conftest.

Exit codes for signals are negative.
"""
_FORKS: Final = multiprocessing.get_context("forkserver")
# These modules are loaded once for all mutants. None of them imports a module of the project.
_FORKS.set_forkserver_preload([warm.__name__, *warm.LOADED])
_START_SECONDS: Final = 60
_SLOWER: Final = 4
_FIRST_TESTS: Final = 40
_FIRST_FILES: Final = 3


@attrs.frozen
class Outcome:
    """The result of a mutant.

    Attributes:
        status: The status, which is one of the constants of this module.
        by: The test that failed, or another reason why the run ended; empty for a survivor.
        seconds: The duration of the run, in seconds.
        tests: The number of tests that were chosen to find the defect.
    """

    status: str
    by: str = ""
    seconds: float = 0.0
    tests: int = 0

    @property
    def killed(self) -> bool:
        """True if a test found the defect, or if a test or a process took too long."""
        return self.status in (KILLED, LATE)


class Runner:
    """Starts pytest with one module replaced by its mutant.

    Args:
        root: The folder that contains the tests.
        tests: Maps each test id to the seconds that the test takes.
    """

    def __init__(self, root: Path, tests: Mapping[str, float]) -> None:
        self._root, self._tests = root, tests

    def run_all(
        self,
        mutants: Sequence[tuple[Mutant, list[str]]],
        *,
        jobs: int,
        until: float,
        done: Callable[[Mutant, Outcome], object],
    ) -> dict[str, Outcome]:
        """Return the outcomes, by the names of the mutants.

        Args:
            mutants: The mutants, each with the tests that should find it.
            jobs: The number of processes that run at the same time.
            until: The time on the monotonic clock after which no further mutant is started.
            done: A function that is called for each result.
        """
        found: dict[str, Outcome] = {}

        def run(item: tuple[Mutant, list[str]]) -> None:
            mutant, names = item
            outcome = (
                Outcome(NOT_RUN, "the time limit was reached")
                if time.monotonic() > until
                else self.run(*item)
            )
            found[mutant.name] = attrs.evolve(outcome, tests=len(names))
            done(mutant, found[mutant.name])

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(run, mutants))
        return found

    def run(self, mutant: Mutant, names: Sequence[str]) -> Outcome:
        """Try to find one defect. The first run is fast, because it has only a few tests from a few files.

        Args:
            mutant: The defect.
            names: The ids of the tests, in order.
        """
        began = time.monotonic()
        first = _few(names)
        left = [name for name in names if name not in set(first)]
        outcome = Outcome(SURVIVED)
        for some in (first, left):
            if some and not outcome.killed:
                outcome = self._look(mutant, some)
        return attrs.evolve(outcome, seconds=time.monotonic() - began)

    def control(self, work: Sequence[tuple[Mutant, list[str]]]) -> str:
        """Run tests of one mutant without its defect; return the test that fails, or "" if all pass.

        Args:
            work: The mutants with their tests.
        """
        for mutant, names in work:
            if names:
                sound = (self._root / mutant.file).read_text(encoding="utf-8")
                return self._look(attrs.evolve(mutant, source=sound), _few(names)).by
        return ""

    def fails(self, names: Sequence[str]) -> str:
        """Run these tests without any defect; return the first that fails, or "" if all of them pass.

        Args:
            names: The ids of the tests.
        """
        outcome = self._look(None, names) if names else Outcome(SURVIVED)
        return outcome.by if outcome.killed else ""

    def _look(self, mutant: Mutant | None, names: Sequence[str]) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
            tests = Path(folder, "tests.json")
            tests.write_text(json.dumps(names))
            environment = python_path(FOLDER.parent)
            environment |= {chosen.TESTS: str(tests), "TMPDIR": folder}
            if mutant is not None:
                source = Path(folder, "source.py")
                source.write_text(mutant.source, encoding="utf-8")
                environment |= python_path(FOLDER / "site", FOLDER.parent)
                environment |= {
                    "MULTICLOUDDB_MUTANT_MODULE": module_name(mutant.file),
                    "MULTICLOUDDB_MUTANT_SOURCE": str(source),
                }
            limit = _START_SECONDS + _SLOWER * sum(self._tests[name] for name in names)
            return _judged(self._finished(names, environment, limit), tests)

    def _finished(self, names: Sequence[str], environment: Mapping[str, str], seconds: float) -> int | None:
        """Run pytest; return its exit code, or None if it took too long.

        All processes that pytest started are then ended.
        """
        files = sorted({name.partition("::")[0] for name in names})
        process = _FORKS.Process(target=warm.run, args=(self._root, environment, [*_ARGUMENTS, *files]))
        process.start()
        process.join(seconds)
        code = process.exitcode
        assert process.pid is not None
        with suppress(ProcessLookupError):  # all processes have ended
            os.killpg(process.pid, signal.SIGKILL)
        if code is None:
            process.kill()  # the process may have ended before it became a group leader
        process.join()
        process.close()
        return code


def module_name(file: str) -> str:
    """Return the dotted name with which `import` finds a module.

    Args:
        file: The path of the module from the root of the repository. The dotted name begins with the folder
            `multiclouddb_…`, because the folders before it are not packages.
    """
    parts = Path(file).with_suffix("").parts
    start = next(index for index, part in enumerate(parts) if part.startswith("multiclouddb_"))
    return ".".join(parts[start:])


def _few(names: Sequence[str]) -> list[str]:
    files: set[str] = set()
    few: list[str] = []
    for name in names:
        file = name.partition("::")[0]
        if len(few) < _FIRST_TESTS and (file in files or len(files) < _FIRST_FILES):
            files.add(file)
            few.append(name)
    return few


def _judged(code: int | None, tests: Path) -> Outcome:
    killer = Path(f"{tests}.killer")
    by = killer.read_text() if killer.exists() else ""
    match code:
        case None:
            return Outcome(LATE, "the process took too long")
        case chosen.KILLED:
            return Outcome(KILLED, by)
        case warm.PYTEST_ENDED:
            return Outcome(SURVIVED)
        case int() if code < 0 or code - warm.PYTEST_ENDED in _BROKEN:
            return Outcome(KILLED, f"pytest ended with exit code {code}")
        case _:
            raise RuntimeError(f"pytest ended with exit code {code}, which is not the result of a test")
