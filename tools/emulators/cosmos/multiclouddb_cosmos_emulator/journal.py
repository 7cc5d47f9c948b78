"""Records the requests that the server received."""

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
    """A request and its result.

    Attributes:
        operation: The operation, for example `ReadItem`; `Unknown` if no route exists.
        method: For example `GET`.
        path: The path, as received.
        status: The HTTP status of the answer; 0 for a dropped connection.
        substatus: The substatus of the answer; 0 means none.
        headers: The headers of the request, with names in lower case, without `authorization`.
    """

    operation: str
    method: str
    path: str
    status: int
    substatus: int
    headers: dict[str, str]

    @classmethod
    def of(cls, operation: str, request: Request, status: int, substatus: int) -> Entry:
        """Return the entry of a request."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        headers.pop("authorization", None)
        return cls(operation, request.method, request.path, status, substatus, headers)

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as a JSON object."""
        return attrs.asdict(self)


class Journal:
    """Stores the last 10,000 requests. Several threads can use this object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Entries are made only when they are read, because making an entry costs more than a point read.
        self._ended: deque[tuple[str, Request, int, int]] = deque(maxlen=_KEPT)

    def note(self, operation: str, request: Request, status: int, substatus: int) -> None:
        """Record a request that has ended. The arguments are the same as for `Entry`."""
        with self._lock:
            self._ended.append((operation, request, status, substatus))

    def entries(self, operation: str | None = None) -> list[Entry]:
        """Return the requests of an operation that have ended, oldest first; None means any operation."""
        with self._lock:
            ended = [each for each in self._ended if operation in (None, each[0])]
        return [Entry.of(*each) for each in ended]

    def count(self, operation: str | None = None) -> int:
        """Return the number of requests of an operation that have ended; None means any operation."""
        with self._lock:
            return sum(operation in (None, each[0]) for each in self._ended)

    def clear(self) -> None:
        """Forget all requests."""
        with self._lock:
            self._ended.clear()
