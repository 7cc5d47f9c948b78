"""Runs in a mutant's process. The parent of this process has loaded pytest, but no module of the project."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

__all__ = ["LOADED", "PYTEST_ENDED", "run"]

PYTEST_ENDED: Final = 200
"""This number is added to pytest's exit code.

A process that fails before pytest runs never ends with such an exit code.
"""
LOADED: Final = (
    "attrs",
    "hypothesis.stateful",
    "orjson",
    "pytest",
    "pytest_timeout",
    "sqlite3",
    "tenacity",
    "xdist.scheduler",
)


def run(root: Path, environment: Mapping[str, str], arguments: Sequence[str]) -> NoReturn:
    """Run pytest and end the process with its exit code; nothing is printed.

    Args:
        root: The working folder.
        environment: Additional environment variables.
        arguments: The arguments for pytest.
    """
    os.setsid()
    os.chdir(root)
    os.environ.update(environment)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    sys.path[:0] = [str(root), *environment["PYTHONPATH"].split(os.pathsep)]
    if "MULTICLOUDDB_MUTANT_MODULE" in environment:
        # Python imports this module only when it starts, but this process was forked from a running Python
        # process.
        sys.modules.pop("sitecustomize", None)
        __import__("sitecustomize")
    import pytest

    # pytest warns that modules are already loaded, and a warning makes a test fail.
    code = pytest.main([*arguments, "-W", "ignore:Module already imported"])
    os._exit(PYTEST_ENDED + code)
