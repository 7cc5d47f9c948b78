"""Pauses the cyclic garbage collector while records are parsed and mapped."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["collector_paused"]

_pausing: Final = threading.RLock()
# A forked child must not inherit the pause, because the thread that would end the pause does not exist in the
# child.
os.register_at_fork(
    before=_pausing.acquire, after_in_parent=_pausing.release, after_in_child=_pausing.release
)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector from running inside the block, which should last only milliseconds.

    Mapping a record to an event creates about ten containers and no reference cycle. Without the
    pause, the collector would scan these objects again and again, which would take a quarter of the
    time of a read.

    Only one thread at a time pauses the collector; in other threads, the block has no effect. As
    soon as the thread that paused the collector leaves its block, the collector can run again, even
    if other threads are inside their blocks.
    """
    if not gc.isenabled() or not _pausing.acquire(blocking=False):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _pausing.release()
