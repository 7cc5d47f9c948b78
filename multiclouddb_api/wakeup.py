"""Defines a signal that one thread waits for and any thread can send."""

from __future__ import annotations

import threading
from contextlib import suppress

__all__ = ["Wakeup"]


class Wakeup:
    """Wakes the one thread that waits for it. If no thread is waiting, the next wait ends at once.

    The signal can be sent from any thread, from a signal handler in the waiting thread, or from a
    finalizer. In a signal handler or a finalizer, the lock of a `threading.Event` or a
    `queue.Queue` could deadlock. A `queue.SimpleQueue` has no lock that could deadlock. However, in
    Python 3.11 to 3.13, the `get` of a `SimpleQueue` never returns if the timeout passes before the
    wait begins. On a busy machine, a short timeout can pass before the wait begins.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def send(self) -> None:
        """End the running wait, or the next wait if none is running."""
        with suppress(RuntimeError):  # the signal was already sent
            self._silent.release()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the signal; return True if the signal was sent."""
        return self._silent.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))
