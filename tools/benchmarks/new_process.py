"""Runs a part of a benchmark in a new Python process."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any

__all__ = ["cpu_of", "report_of"]


def report_of(*arguments: str) -> Any:
    """Run Python with these arguments, and return the JSON value that the process prints.

    Raises:
        RuntimeError: The process failed; the message is the last line of its errors.
    """
    return json.loads(_run(arguments))


def cpu_of(*arguments: str) -> tuple[float, str]:
    """Run Python with these arguments; return the CPU seconds of the whole process, and what it printed.

    Raises:
        RuntimeError: The process failed; the message is the last line of its errors.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = _run(arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, said


def _run(arguments: tuple[str, ...]) -> str:
    # With byte code, as after an installation.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ran = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if ran.returncode:
        raise RuntimeError((ran.stderr.strip().splitlines() or ["the reading process failed"])[-1])
    return ran.stdout
