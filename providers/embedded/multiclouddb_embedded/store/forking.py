"""Handles forks, so that a child process never inherits a connection to SQLite.

SQLite keeps a table of the file locks that its process holds. A child process inherits the table of
file locks, but not the locks themselves. Therefore the child could wait for locks that no process
holds. The parent also removes files when it closes its connections, and the child could still write
into these files. In the child process, a new connection would use the same table of locks.
Therefore a fork waits until no thread is using SQLite, and idle connections are closed before the
fork. Parent and child open the file again when they need it.
"""

from __future__ import annotations

import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from weakref import WeakSet

from multiclouddb_api import MulticloudDbError, invalid_request

_PATIENCE_SECONDS: Final = 10.0

Identity = tuple[int, int]
"""The device and inode number of a file."""


class Holder(ABC):
    """Keeps connections open between calls."""

    def __init__(self) -> None:
        _gate.register(self)

    @abstractmethod
    def let_go(self) -> None:
        """Close every connection that no thread is using, without waiting."""

    @abstractmethod
    def begin_anew(self) -> list[object]:
        """In the child, make new locks, and return the connections that the parent was still using."""
        # The child never uses these connections. The connections are kept open, because closing a connection
        # could remove locks that the parent needs.


class _Gate:
    """Lets threads use SQLite except during a fork."""

    def __init__(self) -> None:
        self._holders: WeakSet[Holder] = WeakSet()
        self._kept: list[object] = []
        self._hanging = False
        self._files: dict[int, Identity] = {}
        self._begin({})

    def _begin(self, inside: dict[int, int]) -> None:
        # The lock is reentrant, because a signal handler may fork.
        self._changed = threading.Condition(threading.RLock())
        self._inside = inside
        self._forking: int | None = None
        self._pid = os.getpid()

    def register(self, holder: Holder) -> None:
        with self._changed:
            self._holders.add(holder)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Prevent forks inside the block, for a limited time."""
        # The blocks of one thread may be nested. A connection that is opened inside the block must be closed
        # before the block ends, or belong to a `Holder`.
        if self._pid != os.getpid():
            self.after_in_child()  # C code has forked without the knowledge of Python.
        me = threading.get_ident()
        with self._changed:
            while self._forking not in (None, me) and me not in self._inside:
                self._changed.wait()
            self._inside[me] = self._inside.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[me] -= 1
                if not self._inside[me]:
                    del self._inside[me]
                    if self._forking is not None:
                        self._changed.notify_all()

    def before(self) -> None:
        me = threading.get_ident()
        with self._changed:
            while self._forking is not None:
                self._changed.wait()
            self._forking = me
            self._changed.wait_for(lambda: not self._inside.keys() - {me}, _PATIENCE_SECONDS)
            holders = list(self._holders)
        for holder in holders:
            # If a connection cannot be closed, the child detects this later.
            with suppress(Exception):
                holder.let_go()

    def after_in_parent(self) -> None:
        with self._changed:
            self._forking = None
            self._changed.notify_all()

    def after_in_child(self) -> None:
        me = threading.get_ident()
        inside = dict(self._inside)
        self._hanging = self._hanging or bool(inside.keys() - {me})
        self._files = _open_files()
        self._begin({me: inside[me]} if me in inside else {})
        for holder in list(self._holders):
            self._kept += holder.begin_anew()

    def check(self, path: str) -> None:
        """Refuse a file that was open when this process was forked."""
        if not self._hanging and not self._files:
            return
        with suppress(FileNotFoundError):
            if self._hanging or self._is_inherited(file_identity(path)):
                raise inherited(path)

    def _is_inherited(self, identity: Identity) -> bool:
        return any(
            known == identity and _identity_of(handle) == identity for handle, known in self._files.items()
        )


_gate: Final = _Gate()
os.register_at_fork(
    before=_gate.before, after_in_parent=_gate.after_in_parent, after_in_child=_gate.after_in_child
)


using_sqlite: Final = _gate.inside
check_inherited: Final = _gate.check


def inherited(path: str) -> MulticloudDbError:
    """Make the error for a file that a child process cannot use."""
    return invalid_request(
        path,
        "was in use in the parent process when it forked, and SQLite cannot use it in such a child",
        "open the file in a process that multiprocessing starts with the method 'spawn' or 'forkserver', "
        "or fork when no call, no scan and no connection of your own uses the file",
    )


def file_identity(path: str) -> Identity:
    """Return the identity of a file."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _identity_of(handle: int) -> Identity | None:
    try:
        found = os.fstat(handle)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _open_files() -> dict[int, Identity]:
    """Return every file that is open in this process, including the application's own files."""
    try:
        handles = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return {}
    found = {handle: _identity_of(handle) for handle in handles}
    return {handle: identity for handle, identity in found.items() if identity is not None}
