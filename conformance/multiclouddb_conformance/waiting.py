"""Waits for another thread, process or server, and checks how long the wait takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Self, TypeVar

__all__ = ["SOON", "Beside", "assert_prompt", "wait_until"]

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


class Beside:
    """Repeats functions, each in a thread of its own, until the `with` block ends, which raises their error.

    Args:
        steps: The functions. Each gets the number of the repetition, from 1 on, and may return for how many
            seconds to wait before the next one.
    """

    def __init__(self, *steps: Callable[[int], float | None]) -> None:
        self._ends = threading.Event()
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, args=(step,)) for step in steps]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, step: Callable[[int], float | None]) -> None:
        number = 0
        try:
            while not self._ends.is_set():
                number += 1
                self._ends.wait(step(number) or 0)
        except BaseException as error:  # noqa: BLE001 - raised when the block ends
            self._error = error


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
