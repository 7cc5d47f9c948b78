"""Records the calls that a scripted server received."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from multiclouddb_spanner_emulator.reading import StreamQuery

__all__ = ["Call", "Journal"]


@attrs.define(eq=False)
class Call:
    """One call.

    Attributes:
        method: For example `ExecuteStreamingSql`.
        session: The session that the call names, or "".
        sql: The statement of the call, or "".
        query: The arguments of a change stream query, or None.
        rows: The number of rows that were sent.
        status: The status with which the call ended, for example `OK`; "" while the call runs.
    """

    method: str
    session: str = ""
    sql: str = ""
    query: StreamQuery | None = None
    rows: int = 0
    status: str = ""


class Journal:
    """The calls of a server, in the order of their arrival. Several threads can use this object.

    Attributes:
        calls: All calls.
        most_streams: The highest number of change stream queries that ran at the same time.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.most_streams = 0
        self._streams = 0
        self._lock = threading.Lock()

    @property
    def open_streams(self) -> int:
        """Return the number of running change stream queries."""
        return self._streams

    def counts(self) -> Counter[str]:
        """Return the number of calls of each method."""
        with self._lock:
            return Counter(call.method for call in self.calls)

    def queries(self) -> list[Call]:
        """Return the change stream queries."""
        with self._lock:
            return [call for call in self.calls if call.query is not None]

    def clear(self) -> None:
        """Forget the calls."""
        with self._lock:
            self.calls.clear()
            self.most_streams = self._streams

    def note(self, call: Call) -> None:
        """Record that a call has arrived."""
        with self._lock:
            self.calls.append(call)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Record that a change stream query is running."""
        with self._lock:
            self._streams += 1
            self.most_streams = max(self.most_streams, self._streams)
        try:
            yield
        finally:
            with self._lock:
                self._streams -= 1
