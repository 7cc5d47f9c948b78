"""Prepares gRPC for a fork, so that parent and child can both read on.

gRPC prepares itself for a fork only if no thread is in a call. If a thread is in a call during the fork, gRPC
skips this preparation. Then about one child process in a thousand hangs or crashes at its first call.
Therefore a fork cancels the running calls, waits until gRPC's threads have ended, and keeps new calls
waiting. After the fork, the parent repeats the cancelled calls.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from multiclouddb_api import ErrorCategory, invalid_request
from multiclouddb_spi import Fault, ProviderFault

__all__ = ["Caller", "Interrupted", "again", "calling", "check", "count", "receiving", "watch"]

_T = TypeVar("_T")
_QUIET_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.001
# For each channel that has calls, gRPC runs one of these functions in a thread of its own.
_GRPC_THREADS: Final = ("(channel_spin)", "(managed_target)")


class Caller(Protocol):
    """An object whose calls may still be running after its methods have returned."""

    def interrupt(self) -> list[Any]:
        """Cancel all calls, without waiting for their ends. Return the calls."""


class Interrupted(ProviderFault):
    """Raised by a call that a fork of the process cancelled. The caller can make the same call again."""

    def __init__(self) -> None:
        message = "a fork of the process interrupted the call; try again"
        super().__init__(Fault(ErrorCategory.TRANSIENT_FAILURE, message, None, retryable=True))


class _Process:
    """The calls, threads and forks of this process.

    Attributes:
        changed: Notified when one of the next three values changes. Its lock protects them.
        starting: The number of calls that are being started.
        receiving: The number of threads that wait for a message.
        forking: The number of threads that are in `os.fork`.
        forks: The number of forks so far.
        callers: The objects that make calls of gRPC.
        broken: True if gRPC may not work in this process.
    """

    def __init__(self, *, broken: bool = False) -> None:
        self.changed = threading.Condition()
        self.starting = self.receiving = self.forking = self.forks = 0
        self.callers: WeakSet[Caller] = WeakSet()
        self.broken = broken


class _Fork(threading.local):
    """The fork that this thread is making; in the child process, only this thread exists.

    Attributes:
        quiet: True if no thread was in gRPC.
        calls: The cancelled calls. They are kept here so that no other thread frees them during the fork.
    """

    quiet = True
    calls: list[Any] = []  # noqa: RUF012 - replaced, never changed


_process = _Process()
_fork = _Fork()
# Calls of the parent are kept for ever, because the child may not free them.
_inherited: list[Any] = []


def watch(caller: Caller) -> None:
    """Interrupt the calls of an object at each fork.

    Args:
        caller: The object that makes the calls. This module does not keep it alive.
    """
    _process.callers.add(caller)


@contextmanager
def calling() -> Iterator[None]:
    """Keep forks waiting during the block. A fork that is already running ends before the block starts."""
    process = _process
    with process.changed:
        process.changed.wait_for(lambda: not process.forking)
        process.starting += 1
    try:
        yield
    finally:
        with process.changed:
            process.starting -= 1
            process.changed.notify_all()


@contextmanager
def receiving() -> Iterator[None]:
    """Keep a fork waiting during the block, which receives a message. The fork cancels the message's call."""
    process = _process
    with process.changed:
        process.receiving += 1
    try:
        yield
    finally:
        with process.changed:
            process.receiving -= 1
            process.changed.notify_all()


def count() -> int:
    """Return the number of forks so far."""
    return _process.forks


def again(call: Callable[[], _T]) -> _T:
    """Make a call, and make it again each time that a fork interrupts it. Return its result.

    Args:
        call: The function that makes the call.
    """
    while True:
        try:
            return call()
        except Interrupted:
            continue


def check() -> None:
    """Raise an error if gRPC may not work in this process.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if this process was forked while other code, outside this
            library, was using gRPC.
    """
    if _process.broken:
        raise invalid_request(
            "process",
            "it was forked while other code in its parent had open gRPC calls, and gRPC may hang or crash "
            "after such a fork",
            "start the process with multiprocessing's 'spawn' or 'forkserver' method, or fork it before "
            "those calls",
        )


def _before_fork() -> None:
    process = _process
    until = time.monotonic() + _QUIET_SECONDS
    with process.changed:
        process.forking += 1
        process.forks += 1
        _fork.quiet, _fork.calls, callers = True, [], list(process.callers)
        if not callers:
            return
        process.changed.wait_for(lambda: not process.starting, timeout=_QUIET_SECONDS)
    _fork.calls = [call for caller in callers for call in caller.interrupt()]
    with process.changed:
        process.changed.wait_for(lambda: not process.receiving, timeout=until - time.monotonic())
    while not (quiet := _is_quiet()) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
    _fork.quiet = quiet


def _is_quiet() -> bool:
    names = [thread.name for thread in threading.enumerate()]
    ours = _process.starting or _process.receiving
    return not ours and not any(name.endswith(_GRPC_THREADS) for name in names)


def _after_fork_in_parent() -> None:
    process = _process
    _fork.calls = []
    with process.changed:
        process.forking -= 1
        process.changed.notify_all()


def _after_fork_in_child() -> None:
    global _process
    _inherited.extend(_fork.calls)
    _process = _Process(broken=_process.broken or not _fork.quiet)


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
