"""Records the calls of a scripted server, and the limits that a client exceeded."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

import attrs

from multiclouddb_dynamo_emulator.habits import Habits

__all__ = ["Call", "Journal", "Violation"]

_KEPT: Final = 100_000


@attrs.frozen
class Call:
    """One request that was answered, or whose connection was closed.

    Attributes:
        operation: For example `GetRecords`.
        shard: The id of the shard; None if the request names no shard.
        stream: The ARN of the stream; None if the request names no stream.
        code: The error code, `dropped` for a closed connection, or None if there was no error.
        records: The number of records in the answer.
        limit: The argument `Limit`, or None.
        iterator_type: The argument `ShardIteratorType`, or None.
        began: The start of the call, in monotonic seconds.
        seconds: How long the call took.
    """

    operation: str
    shard: str | None
    stream: str | None
    code: str | None
    records: int
    limit: int | None
    iterator_type: str | None
    began: float
    seconds: float


@attrs.frozen
class Violation:
    """A limit of the service that a client exceeded.

    Attributes:
        operation: `GetRecords` or `DescribeStream`.
        target: The id of the shard or the stream.
        count: The number of calls that ran at the same time, or came in one second.
    """

    operation: str
    target: str
    count: int


class Journal:
    """Counts every request, and keeps the last 100,000. Several threads can use this object.

    Args:
        habits: The settings of the server, which contain the limits.
        monotonic: A function that returns monotonic seconds.
    """

    def __init__(self, habits: Habits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._habits, self._monotonic = habits, monotonic
        self._lock = threading.Lock()
        self._reading: Counter[str] = Counter()
        self.clear()

    def clear(self) -> None:
        """Forget all calls except those that are still running."""
        with self._lock:
            self._calls: deque[Call] = deque(maxlen=_KEPT)
            self._counts: Counter[tuple[str, str | None]] = Counter()
            self._violations: list[Violation] = []
            self._describes: dict[str, deque[float]] = {}
            self._most_readers: Counter[str] = Counter()
            self._most_describes: Counter[str] = Counter()

    def calls(self, operation: str | None = None, shard: str | None = None) -> list[Call]:
        """Return the requests of an operation that have ended, oldest first; None means any operation."""
        with self._lock:
            calls = list(self._calls)
        return [call for call in calls if operation in (None, call.operation) and shard in (None, call.shard)]

    def count(self, operation: str | None = None, shard: str | None = None) -> int:
        """Return the number of received requests of an operation; None means any operation."""
        with self._lock:
            return sum(
                count
                for (its_operation, its_shard), count in self._counts.items()
                if operation in (None, its_operation) and shard in (None, its_shard)
            )

    @property
    def violations(self) -> list[Violation]:
        """Return the limits that were exceeded."""
        with self._lock:
            return list(self._violations)

    @property
    def most_readers(self) -> int:
        """Return the highest number of `GetRecords` calls for one shard that ran at the same time."""
        with self._lock:
            return max(self._most_readers.values(), default=0)

    @property
    def most_describes(self) -> int:
        """Return the highest number of `DescribeStream` calls for one stream within a second."""
        with self._lock:
            return max(self._most_describes.values(), default=0)

    def enter(self, operation: str, shard: str | None, stream: str | None) -> bool:
        """Record that a request begins. Return False if the request exceeds a limit."""
        with self._lock:
            self._counts[operation, shard] += 1
            if operation == "GetRecords" and shard is not None:
                self._reading[shard] += 1
                count = self._reading[shard]
                self._most_readers[shard] = max(count, self._most_readers[shard])
                return self._within(operation, shard, count, self._habits.readers_per_shard)
            if operation == "DescribeStream" and stream is not None:
                count = self._in_a_second(stream)
                self._most_describes[stream] = max(count, self._most_describes[stream])
                return self._within(operation, stream, count, self._habits.describes_per_second)
            return True

    def leave(self, call: Call) -> None:
        """Record that a request has ended."""
        with self._lock:
            self._calls.append(call)
            if call.operation == "GetRecords" and call.shard is not None:
                self._reading[call.shard] -= 1
                if not self._reading[call.shard]:
                    del self._reading[call.shard]

    def _within(self, operation: str, target: str, count: int, limit: int) -> bool:
        if count > limit:
            self._violations.append(Violation(operation, target, count))
        return count <= limit

    def _in_a_second(self, stream: str) -> int:
        now = self._monotonic()
        times = self._describes.setdefault(stream, deque())
        times.append(now)
        while times[0] <= now - 1.0:
            times.popleft()
        return len(times)
