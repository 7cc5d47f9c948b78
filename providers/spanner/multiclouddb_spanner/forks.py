"""Refuses to read in a process that was forked after its parent had read.

gRPC may hang or crash in such a process. Without special environment variables, it supports a fork only
before the first call (see "gRPC fork support" in its documentation). In children of a parent whose threads
read, about one read of a thousand hung or crashed.
"""

from __future__ import annotations

import os

from multiclouddb_api import invalid_request

__all__ = ["begin_call", "check"]


class _Process:
    """What is known about this process."""

    has_called = False
    is_broken = False


def begin_call() -> None:
    """Record that this process calls the service."""
    _Process.has_called = True


def check() -> None:
    """Raise an error if gRPC may not work in this process.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if this process was forked after a parent had called the service.
    """
    if _Process.is_broken:
        raise invalid_request(
            "process",
            "it was forked after its parent had read from Cloud Spanner, and gRPC may hang or crash after "
            "such a fork",
            "start the process with multiprocessing's 'spawn' or 'forkserver' method, or fork it before the "
            "parent reads",
        )


def _after_fork_in_child() -> None:
    _Process.is_broken = _Process.has_called


os.register_at_fork(after_in_child=_after_fork_in_child)
