"""Waits for what another thread, process or server does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["SOON", "wait_until"]

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
