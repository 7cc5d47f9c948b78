"""The cyclic garbage collector, kept from running while records are parsed and mapped."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["collector_paused"]

_pausing: Final = threading.RLock()
# A child is not to inherit a pause of a thread that it does not have.
os.register_at_fork(
    before=_pausing.acquire, after_in_parent=_pausing.release, after_in_child=_pausing.release
)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector from running inside; meant for milliseconds.

    Mapping makes some ten containers an event and no cycle. The collector would look through them again and
    again while they are made: a quarter of the time that reading takes.

    One thread at a time pauses it; others run inside as if it were not there. So the collector has its turn
    whenever that thread leaves, however many come after one another.
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
