"""A pytest plugin: runs the chosen tests in their order, and ends the process at the first that fails."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final, NoReturn

import pytest

__all__ = ["KILLED", "TESTS"]

TESTS: Final = "MULTICLOUDDB_CHOSEN_TESTS"
"""The variable that names a JSON file with a list of node ids."""
KILLED: Final = 117
"""The exit code that says that a test failed, and no Python program's own."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the chosen ones."""
    place = {name: number for number, name in enumerate(json.loads(Path(os.environ[TESTS]).read_text()))}
    unwanted = [item for item in items if item.nodeid not in place]
    items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])
    config.hook.pytest_deselected(items=unwanted)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be imported any more ends it too."""
    if report.failed:
        _end(f"collection of {report.nodeid}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Without tearing anything down: a defect may make that wait without end."""
    if report.failed:
        _end(report.nodeid)


def _end(by: str) -> NoReturn:
    Path(f"{os.environ[TESTS]}.killer").write_text(by)
    os._exit(KILLED)
