"""What was asked of the server."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final

import attrs

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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return attrs.asdict(self)


class Journal:
    """Remembers the last 10,000 requests; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque(maxlen=_KEPT)

    def note(self, entry: Entry) -> None:
        """A request has ended."""
        with self._lock:
            self._entries.append(entry)

    def entries(self, operation: str | None = None) -> list[Entry]:
        """The requests that ended, oldest first; None stands for any operation."""
        with self._lock:
            return [entry for entry in self._entries if operation in (None, entry.operation)]

    def count(self, operation: str | None = None) -> int:
        """How many requests ended; None stands for any operation."""
        return len(self.entries(operation))

    def clear(self) -> None:
        """Forget them."""
        with self._lock:
            self._entries.clear()
