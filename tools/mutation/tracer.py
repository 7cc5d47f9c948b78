"""A pytest plugin that records which lines of which modules each test runs, and how long each test takes."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias

import pytest

__all__ = ["FILES", "FOLDER"]

FILES: Final = "MULTICLOUDDB_TRACED_FILES"
FOLDER: Final = "MULTICLOUDDB_TRACES"

# If one test runs a function more often than this, the function is traced no further, because tracing is
# slow.
_MOST_CALLS: Final = 100

Tracer: TypeAlias = Callable[[FrameType, str, Any], Any]


class _Traces:
    """Collects the lines that the tests run, within one process."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files
        self._lines: set[tuple[str, int]] = set()
        self._calls: Counter[CodeType] = Counter()
        self._tests: dict[str, dict[str, Any]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def tracer(self) -> Tracer:
        files, traces = self._files, self

        def line(frame: FrameType, event: str, argument: Any) -> Tracer:
            traces._lines.add((frame.f_code.co_filename, frame.f_lineno))
            return line

        def call(frame: FrameType, event: str, argument: Any) -> Tracer | None:
            if frame.f_code.co_filename not in files or traces._calls[frame.f_code] > _MOST_CALLS:
                return None
            traces._calls[frame.f_code] += 1
            traces._lines.add((frame.f_code.co_filename, frame.f_lineno))
            return line

        return call

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._lines.clear()
        self._calls.clear()
        tracer = self.tracer()
        threading.settrace(tracer)
        sys.settrace(tracer)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        test = self._tests.setdefault(report.nodeid, {"passed": True})
        test["passed"] = test["passed"] and report.passed
        test["seconds"] = round(self._seconds[report.nodeid], 4)
        if report.when == "teardown":
            lines = defaultdict(list)
            for path, number in sorted(self._lines.copy()):
                lines[self._files[path]].append(number)
            test["lines"] = lines

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        path = Path(os.environ[FOLDER], f"{os.getpid()}.json")
        path.write_text(json.dumps(self._tests))


def pytest_configure(config: pytest.Config) -> None:
    """Collect lines only in the processes that run tests, not in the process that starts them."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(_Traces(json.loads(os.environ[FILES])), "multiclouddb-traces")
