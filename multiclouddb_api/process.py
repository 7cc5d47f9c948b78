"""Refuses what was made in another process.

A forked child inherits the connections and the locks of its parent. It must not use a connection, because two
processes would read each other's answers, and a lock may be held by a thread that does not exist in the
child. Therefore everything with a connection has a `Home`, and is refused in any other process. The child
never frees what it has inherited, because that could close or even use a connection of its parent.
"""

from __future__ import annotations

import os
import weakref
from datetime import datetime, tzinfo
from typing import Any

from multiclouddb_api.errors import MulticloudDbError, invalid_request

__all__ = ["Home", "Unforkable"]

_owners: weakref.WeakSet[Any] = weakref.WeakSet()


class Home:
    """The process in which an object was made.

    Args:
        owner: The object; a forked child keeps it for ever.
        name: What to call the object in an error.
        way_out: What to do in the other process.
    """

    __slots__ = ("_name", "_process", "_way_out")

    def __init__(self, owner: object, name: str, way_out: str) -> None:
        self._process, self._name, self._way_out = os.getpid(), name, way_out
        _owners.add(owner)

    @property
    def is_here(self) -> bool:
        """True in the process that made the object."""
        return os.getpid() == self._process

    def check(self) -> None:
        """Refuse the object in any other process; no lock is taken and nothing is sent."""
        if not self.is_here:
            raise self.refusal()

    def refusal(self) -> MulticloudDbError:
        """Make the error for the use in another process."""
        return invalid_request(self._name, "was made in another process: connect here", self._way_out)


class Unforkable:
    """A library of others that may hang in a child that was forked after its parent had used it.

    Args:
        name: What to call the library in an error.
    """

    __slots__ = ("_name", "_process")

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: int | None = None

    def used(self) -> None:
        """Record that this process uses the library."""
        if self._process is None:
            self._process = os.getpid()

    def check(self) -> None:
        """Refuse to connect if an ancestor of this process had used the library before it forked."""
        if self._process not in (None, os.getpid()):
            raise invalid_request(
                "process",
                f"was forked after its parent had used {self._name}, which may hang in such a child",
                "start it with multiprocessing's 'spawn' or 'forkserver' method, or fork it before the "
                "parent reads",
            )


class _Kept(tzinfo):
    """Keeps objects for ever, even when the interpreter ends and frees what modules refer to."""

    def __init__(self, owners: list[Any]) -> None:
        self._owners = owners
        # Python's collector does not look into a datetime, so this cycle is never found.
        self._cycle = datetime.min.replace(tzinfo=self)


def _after_fork_in_child() -> None:
    _Kept(list(_owners))  # type: ignore[abstract]  # nobody asks it for a time


os.register_at_fork(after_in_child=_after_fork_in_child)
