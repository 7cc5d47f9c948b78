"""What a thread waits on, and anybody may ring."""

from __future__ import annotations

import threading
from contextlib import suppress

__all__ = ["Bell"]


class Bell:
    """Wakes the one thread that waits for it; rung while nobody waits, it ends the next wait at once.

    Others ring it from any thread, from a signal handler in the thread that waits, or from a finalizer. The
    lock of a `threading.Event` or a `queue.Queue` would deadlock then. `queue.SimpleQueue` would not, but its
    `get` of Python 3.11 to 3.13 never ends when its timeout is over before it has begun to wait, as
    a short one may be on a busy machine.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """End the wait that runs, else the next one."""
        with suppress(RuntimeError):  # it rings already
            self._silent.release()

    def wait(self, seconds: float) -> bool:
        """Wait for so long at most; True when it was rung."""
        return self._silent.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))
