"""Profiles a side that missed its goal, and shows which functions use its CPU time."""

from __future__ import annotations

import cProfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, Final

__all__ = ["where_time_goes"]

_SHOWN: Final = 5


def where_time_goes(side: Callable[[], Any]) -> str:
    """Run a side once more under the profiler, and return a sentence about its CPU time.

    The CPU time does not include waits. The profiler measures the calling thread and the threads
    that start during the run.
    """
    profiles = [cProfile.Profile(time.thread_time)]

    def begin(*_: object) -> None:
        profiles.append(cProfile.Profile(time.thread_time))
        profiles[-1].enable()  # the real profiler replaces this function

    threading.setprofile(begin)
    try:
        profiles[0].runcall(side)
    finally:
        threading.setprofile(None)
    spent: dict[str, float] = {}
    for profile in profiles:
        for name, own in _own_times(profile).items():
            spent[name] = spent.get(name, 0.0) + own
    total = sum(spent.values()) or 1.0
    most = sorted(spent.items(), key=lambda item: -item[1])[:_SHOWN]
    return f"Most CPU time of our side: {', '.join(f'`{name}` {own / total:.0%}' for name, own in most)}."


def _own_times(profile: cProfile.Profile) -> dict[str, float]:
    """Map each function to the CPU seconds spent in the function itself.

    The function ignores calls that have not returned. Their threads are still running, and a thread
    cannot read the CPU clock of another thread.
    """
    own: dict[str, float] = {}
    for entry in profile.getstats():
        name = _name(entry.code)
        own[name] = own.get(name, 0.0) + entry.inlinetime
    return own


def _name(code: CodeType | str) -> str:
    """Return a name like `reader.py:fetch`, or the name of a built-in function."""
    if isinstance(code, str):
        return code.strip("<>").removeprefix("built-in method ").removeprefix("method ")
    if code.co_filename.startswith("<attrs"):
        return f"{code.co_filename.rsplit('.', 1)[-1].rstrip('>')}.{code.co_name}"
    return f"{Path(code.co_filename).name}:{code.co_name}"
