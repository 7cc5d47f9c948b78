"""Waits for another thread, process or server, and checks how long the wait takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["SOON", "assert_prompt", "wait_until"]

SOON: Final = 60.0
"""A time limit in seconds: longer than any successful action takes on a slow machine."""

T = TypeVar("T")


def wait_until(condition: Callable[[], T], seconds: float = SOON) -> T:
    """Call a function until its result is true, and return the result.

    Raises:
        TimeoutError: Raised if the result did not become true in time.
    """
    end, pause = time.monotonic() + seconds, threading.Event()
    while not (answer := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not true within {seconds:g} seconds")
        pause.wait(0.02)
    return answer


def assert_prompt(seconds: float, attempt: Callable[[], float], *, at_most: float, tries: int = 5) -> None:
    """Assert that an action takes less than `seconds`, even on a busy machine.

    One quick attempt is enough, because an action that is itself slow is slow in every attempt.
    Each attempt must also end within `at_most`. This limit finds an action that hangs only
    sometimes.

    Args:
        seconds: The time within which the action must end.
        attempt: A function that performs the action and returns its duration in seconds.
        at_most: The time limit of each attempt in seconds. Even on a busy machine, the action takes
            less time. An action that hangs takes more time.
        tries: The number of attempts.
    """
    took: list[float] = []
    while not took or min(took) >= seconds:
        assert len(took) < tries, f"no attempt took less than {seconds:g} seconds: {took}"
        took.append(attempt())
        assert took[-1] < at_most, f"{took[-1]:.1f} seconds, more than the delay of a busy machine: it hung"
