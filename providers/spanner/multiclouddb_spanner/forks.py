"""Prepares gRPC for a fork, so that the parent and the child process can continue to read.

gRPC prepares itself for a fork only if no thread is making a call. If a thread is making a call
during the fork, gRPC does not prepare itself. Without the preparation by gRPC, about one child
process in a thousand hangs or crashes at its first call. Therefore a fork cancels the running
calls, waits until gRPC's threads have ended, and keeps new calls waiting. After the fork, the
parent repeats the cancelled calls.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from weakref import WeakSet

from multiclouddb_api import ErrorCategory, invalid_request
from multiclouddb_spi import Fault, ProviderFault

_T = TypeVar("_T")
# The maximum time for which a fork waits until no thread is in gRPC.
_QUIET_SECONDS: Final = 2.0
# The same, if no object with calls is left.
_LEFT_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.001
# The maximum time for which a call waits for a fork. A hook that another library has for forks may wait for a
# lock that the caller holds.
_HELD_SECONDS: Final = 3.0
# For each channel that has calls, gRPC runs one of these functions in a thread of its own.
_GRPC_THREADS: Final = ("(channel_spin)", "(managed_target)")


class Interrupted(ProviderFault):
    """Raised by a call that a fork of the process cancelled. The caller can make the same call again."""

    def __init__(self) -> None:
        message = "a fork of the process interrupted the call; try again"
        super().__init__(Fault(ErrorCategory.TRANSIENT_FAILURE, message, None, retryable=True))


class _Process:
    """The calls, threads and forks of this process."""

    def __init__(self, *, broken: bool = False) -> None:
        self.changed = threading.Condition()
        self.starting: dict[object, int] = {}  # the threads of the calls that are being started
        self.receiving: dict[object, int] = {}  # the threads that wait for a message
        self.forking: list[int] = []  # the threads that are in `os.fork`
        self.forks = 0
        self.callers: WeakSet[Any] = WeakSet()  # the objects that make calls
        self.cancelled: list[Any] = []  # kept during a fork, so that no thread frees a call
        self.used = self.disturbed = False  # disturbed: a call was started during a fork
        self.broken = broken  # gRPC may not work in this process


class _Fork(threading.local):
    """The fork that this thread is making; in the child process, only this thread exists."""

    quiet = False


_process = _Process()
_fork = _Fork()
# Calls of the parent are kept forever, because the child must not free them.
_inherited: list[Any] = []


def watch(caller: Any) -> None:
    """Interrupt the calls of an object at each fork."""
    process = _process
    with process.changed:
        process.callers.add(caller)
        process.used = True


@contextmanager
def calling() -> Iterator[int]:
    """Make every fork wait while the `with` block starts a call; yield the number of forks so far."""
    # If a fork takes too long, the block starts anyway, and the child process cannot use gRPC.
    process, mark, thread = _process, object(), threading.get_ident()
    try:
        with process.changed:
            held = 0.0 if process.disturbed or thread in process.forking else _HELD_SECONDS
            if not process.changed.wait_for(lambda: not process.forking, timeout=held):
                process.disturbed = True
            process.starting[mark] = thread
            before = process.forks
        yield before
    finally:
        with process.changed:
            process.starting.pop(mark, None)
            process.changed.notify_all()


@contextmanager
def receiving() -> Iterator[None]:
    """Make every fork wait while the `with` block receives a message. The fork cancels the call."""
    process, mark = _process, object()
    try:
        with process.changed:
            process.receiving[mark] = threading.get_ident()
        yield
    finally:
        with process.changed:
            process.receiving.pop(mark, None)
            process.changed.notify_all()


def count() -> int:
    """Return the number of forks so far."""
    return _process.forks


def again(call: Callable[[], _T]) -> _T:
    """Make a call, and make it again each time that a fork interrupts it. Return its result."""
    while True:
        try:
            return call()
        except Interrupted:
            continue


def check() -> None:
    """Raise an error if gRPC may not work in this process."""
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
    _fork.quiet = False  # it stays False if a signal handler raises an error here
    with process.changed:
        process.disturbed = process.disturbed and bool(process.forking)
        process.forking.append(threading.get_ident())
        process.forks += 1
        callers = list(process.callers)
    seconds = _QUIET_SECONDS if callers else _LEFT_SECONDS if process.used else 0.0
    until = time.monotonic() + seconds
    _wait_for_others(process.starting, until)
    process.cancelled += [call for caller in callers for call in caller.interrupt()]
    _wait_for_others(process.receiving, until)
    while not (quiet := _is_quiet()) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
    _fork.quiet = quiet


def _wait_for_others(marks: dict[object, int], until: float) -> None:
    """Wait until no other thread is making a call."""
    process, thread = _process, threading.get_ident()
    with process.changed:
        process.changed.wait_for(
            lambda: all(each == thread for each in marks.values()), timeout=until - time.monotonic()
        )


def _is_quiet() -> bool:
    names = [thread.name for thread in threading.enumerate()]
    ours = _process.starting or _process.receiving
    return not ours and not any(name.endswith(_GRPC_THREADS) for name in names)


def _after_fork_in_parent() -> None:
    process, thread, over = _process, threading.get_ident(), []
    with process.changed:
        if thread in process.forking:
            process.forking.remove(thread)
        if not process.forking:
            over, process.cancelled = process.cancelled, []
        process.changed.notify_all()
    del over  # without the lock


def _after_fork_in_child() -> None:
    global _process
    process = _process
    _inherited.extend(process.cancelled)
    _process = _Process(broken=process.broken or process.disturbed or not _fork.quiet)


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
