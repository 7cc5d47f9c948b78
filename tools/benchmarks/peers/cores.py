"""Divides the cores: two for the clients, and the others for the servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["divided", "divided_text", "on_cores"]

_CLIENTS: Final = 2


def divided(cores: set[int]) -> tuple[set[int], set[int]]:
    """Return the cores of the clients and the cores of the servers.

    If there are fewer than three cores, clients and servers share all cores.
    """
    ordered = sorted(cores)
    if len(ordered) <= _CLIENTS:
        return cores, cores
    return set(ordered[:_CLIENTS]), set(ordered[_CLIENTS:])


def _here() -> set[int]:
    return set(os.sched_getaffinity(0)) if sys.platform == "linux" else set()


def divided_text() -> str:
    """Return a sentence that says how the cores of this machine are divided."""
    clients, servers = divided(_here())
    if clients == servers:
        return "Clients and servers share all cores, because cores cannot be divided on this machine."
    return f"Clients run on {len(clients)} cores, and servers on {len(servers)} others."


@contextmanager
def on_cores(side: str) -> Iterator[None]:
    """Run this thread on the cores of `clients` or `servers`.

    Processes that this thread starts inside the block run on the same cores.
    """
    if not (mine := _here()):
        yield
        return
    os.sched_setaffinity(0, divided(mine)[side == "servers"])  # type: ignore[attr-defined,unused-ignore]
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)  # type: ignore[attr-defined,unused-ignore]
