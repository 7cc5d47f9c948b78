"""Refuses what was made in another process.

A forked child inherits the connections and the locks of its parent. It must not use a connection, because two
processes would read each other's answers, and a lock may be held by a thread that does not exist in the
child. Therefore everything with a connection has a `Home`, and is refused in any other process. The child
never frees what it has inherited, because that could close or even use a connection of its parent.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

from multiclouddb_api.errors import MulticloudDbError, invalid_request

__all__ = ["Home"]

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


def _after_fork_in_child() -> None:
    # A list would be freed when the interpreter ends.
    for owner in list(_owners):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


os.register_at_fork(after_in_child=_after_fork_in_child)
