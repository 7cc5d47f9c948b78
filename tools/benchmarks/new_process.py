"""Runs a part of a benchmark in a new Python process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

__all__ = ["report_of"]


def report_of(*arguments: str) -> Any:
    """Run Python with these arguments, and return the JSON value that the process prints.

    Raises:
        RuntimeError: The process failed; the message is the last line of its errors.
    """
    ran = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError((ran.stderr.strip().splitlines() or ["the reading process failed"])[-1])
    return json.loads(ran.stdout)
