"""Waits for a server that truncates its oplog, which happens when the oplog has grown too long."""

import time
from collections.abc import Callable
from typing import Final

_LOOKS: Final = 15
_PAUSE: Final = 0.01
_SECONDS: Final = 180


def wait_uncut(beginning: Callable[[], object]) -> None:
    """Wait until a server has finished truncating its oplog."""
    # During truncation, the server removes an entry of the oplog every few milliseconds. The test counts
    # requests instead of seconds, because a busy server delays both its oplog and its answers.
    found, looks, until = beginning(), 0, time.monotonic() + _SECONDS
    while looks < _LOOKS:
        if time.monotonic() > until:
            raise TimeoutError(f"the log is still cut after {_SECONDS} s")
        time.sleep(_PAUSE)
        before, found = found, beginning()
        looks = looks + 1 if found == before else 0
