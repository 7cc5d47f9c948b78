"""Waits for what another thread, process or server does, and bounds on how long that takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["SOON", "assert_prompt", "wait_until"]

SOON: Final = 60.0
"""Seconds: longer than anything that works takes on a slow machine."""

T = TypeVar("T")


def wait_until(condition: Callable[[], T], seconds: float = SOON) -> T:
    """Ask again and again until the answer is true, and return that.

    Raises:
        TimeoutError: It did not become true in time.
    """
    end, pause = time.monotonic() + seconds, threading.Event()
    while not (answer := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not true within {seconds:g} seconds")
        pause.wait(0.02)
    return answer


def assert_prompt(seconds: float, attempt: Callable[[], float], *, at_most: float, tries: int = 5) -> None:
    """Assert that something takes less than so many seconds, on a machine that has other work too.

    What is slow by itself is slow each time, so that one quick attempt is enough. What hangs now and then
    is found by the other bound, which every attempt has to keep.

    Args:
        seconds: What is promised.
        attempt: Does it, and returns how many seconds it took.
        at_most: More than a busy machine adds, and less than it takes when nothing ends it.
        tries: How many attempts there are.
    """
    took: list[float] = []
    while not took or min(took) >= seconds:
        assert len(took) < tries, f"not once in {seconds:g} seconds: {took}"
        took.append(attempt())
        assert took[-1] < at_most, f"{took[-1]:.1f} seconds, which is no delay of a busy machine: it hung"
