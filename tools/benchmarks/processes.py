"""Starts servers in other processes, and assigns cores to the servers and the client."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

__all__ = ["on_client_core", "on_core", "on_server_core", "served"]

_START_SECONDS: Final = 120.0


# -- Two cores: one for the client, one for the server


@contextmanager
def on_core(place: int) -> Iterator[None]:
    """Run this thread, and the threads and processes that it starts inside the block, on one core.

    If a process cannot choose its core, or the machine has only one core, the cores are not limited.
    """
    if sys.platform != "linux" or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        yield
        return
    os.sched_setaffinity(0, {cores[place]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def on_client_core() -> Any:
    """Use the core for the readers."""
    return on_core(0)


def on_server_core() -> Any:
    """Use the core for a server and the process that starts it."""
    return on_core(-1)


# -- A server has a process of its own; otherwise the server and the client would wait for the same lock


@contextmanager
def served(serve: Callable[..., None], *arguments: Any) -> Iterator[tuple[Any, Connection]]:
    """Run a server in another process, on the core for servers.

    Args:
        serve: A function of a module, which gets the other end of the pipe first. It sends where the server
            is when it has started, and returns when the pipe is closed.
        *arguments: The other arguments of `serve`.

    Yields:
        What `serve` has sent first, and the pipe.
    """
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, *arguments))
    with on_server_core():
        process.start()
    theirs.close()
    try:
        if not ours.poll(_START_SECONDS):
            raise TimeoutError("the server did not start")
        yield ours.recv(), ours
    finally:
        ours.close()  # this ends the server
        process.join()
