"""A pytest plugin that runs the chosen tests in order, and ends the process at the first failure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final, NoReturn

import pytest

__all__ = ["KILLED", "TESTS"]

TESTS: Final = "MULTICLOUDDB_CHOSEN_TESTS"
"""The environment variable with the path of a JSON file that lists test ids."""
KILLED: Final = 117
"""The exit code after a failed test; Python programs do not otherwise use it."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the chosen tests."""
    place = {name: number for number, name in enumerate(json.loads(Path(os.environ[TESTS]).read_text()))}
    unwanted = [item for item in items if item.nodeid not in place]
    items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])
    config.hook.pytest_deselected(items=unwanted)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Also end the process if a test module can no longer be imported."""
    if report.failed:
        _end(f"collection of {report.nodeid}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """End the process without tear-down, because a defect can make the tear-down run forever."""
    if report.failed:
        _end(report.nodeid)


def _end(by: str) -> NoReturn:
    Path(f"{os.environ[TESTS]}.killer").write_text(by)
    os._exit(KILLED)
