"""What was asked of the server."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final

import attrs

from multiclouddb_cosmos_emulator.message import Request

__all__ = ["Entry", "Journal"]

_KEPT: Final = 10_000


@attrs.frozen
class Entry:
    """A request and how it ended.

    Attributes:
        operation: As `ReadItem`; `Unknown` for what could not be routed.
        method: As `GET`.
        path: As it came.
        status: Of the answer; 0 for a connection that was dropped.
        substatus: Of the answer; 0 for none.
        headers: Of the request, names in lower case, without `authorization`.
    """

    operation: str
    method: str
    path: str
    status: int
    substatus: int
    headers: dict[str, str]

    @classmethod
    def of(cls, operation: str, request: Request, status: int, substatus: int) -> Entry:
        """The entry of a request."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        headers.pop("authorization", None)
        return cls(operation, request.method, request.path, status, substatus, headers)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return attrs.asdict(self)


class Journal:
    """Remembers the last 10,000 requests; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Entries are made when they are looked at: that costs more than a point read.
        self._ended: deque[tuple[str, Request, int, int]] = deque(maxlen=_KEPT)

    def note(self, operation: str, request: Request, status: int, substatus: int) -> None:
        """A request has ended; the arguments are as in `Entry`."""
        with self._lock:
            self._ended.append((operation, request, status, substatus))

    def entries(self, operation: str | None = None) -> list[Entry]:
        """The requests that ended, oldest first; None stands for any operation."""
        with self._lock:
            ended = [each for each in self._ended if operation in (None, each[0])]
        return [Entry.of(*each) for each in ended]

    def count(self, operation: str | None = None) -> int:
        """How many requests ended; None stands for any operation."""
        with self._lock:
            return sum(operation in (None, each[0]) for each in self._ended)

    def clear(self) -> None:
        """Forget them."""
        with self._lock:
            self._ended.clear()
