"""Represents one shard: its place in the lineage and its part of the log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import attrs
import orjson

from multiclouddb_dynamo_emulator.habits import Remains

__all__ = ["Numbers", "Page", "Shard"]

_STEP: Final = 7
_AHEAD: Final = 6 * _STEP
_MOST_DIGITS: Final = 38


class Numbers:
    """The sequence numbers of a stream, which have 21 digits or more.

    The numbers are in ascending order as integers, but not as texts, because their length varies. In each
    generation of shards, the sequence numbers start just before the next power of ten.
    """

    def __init__(self) -> None:
        self.last = 10**20
        self.leap()

    def next(self) -> int:
        """Return a greater number."""
        self.last += _STEP
        return self.last

    def leap(self) -> None:
        """Increase the last number, so that it is just below the next power of ten."""
        digits = len(str(self.last))
        if digits < _MOST_DIGITS:
            self.last = max(self.last, 10**digits - _AHEAD)


@attrs.frozen
class Page:
    """Some of the records of a shard.

    Attributes:
        bodies: The records as JSON.
        last: The sequence number of the last record; None for an empty page.
        more: True if more records follow.
    """

    bodies: Sequence[bytes]
    last: int | None
    more: bool


class Shard:
    """A shard, which the store's lock protects.

    Attributes:
        shard_id: The id of the shard, 37 characters as in the service.
        parent: The id of the parent, even if the parent no longer exists.
        low: The start of the shard's range of hashes.
        high: The end of the shard's range of hashes; the range does not include this hash.
        start: `StartingSequenceNumber`.
        end: `EndingSequenceNumber`; None while the shard is open.
        closed_at: The time at which the shard was closed.
        trimmed_to: The sequence number of the last record that was trimmed; 0 if none was trimmed.
        remains: How the server answers requests about the shard if the shard itself was trimmed;
            otherwise None.
    """

    def __init__(self, shard_id: str, parent: str | None, low: int, high: int, start: int) -> None:
        self.shard_id, self.parent = shard_id, parent
        self.low, self.high = low, high
        self.start = start
        self.end: int | None = None
        self.closed_at: float | None = None
        self.trimmed_to = 0
        self.remains: Remains | None = None
        self._numbers: list[int] = []
        self._bodies: list[bytes] = []
        self._times: list[float] = []
        self._ends: list[int] = []  # the end of each record, in bytes since the shard began
        self._trimmed_bytes = 0
        self._described: bytes | None = None

    @property
    def records(self) -> int:
        """Return the number of remaining records."""
        return len(self._numbers)

    @property
    def first(self) -> int | None:
        """Return the sequence number of the oldest remaining record."""
        return self._numbers[0] if self._numbers else None

    def first_since(self, time: float) -> int | None:
        """Return the number of the first record with this `ApproximateCreationDateTime` or a later one."""
        for number, body in zip(self._numbers, self._bodies, strict=True):
            found = orjson.loads(body)["dynamodb"].get("ApproximateCreationDateTime")
            if found is not None and found >= time:
                return number
        return None

    @property
    def last(self) -> int | None:
        """Return the sequence number of the newest remaining record."""
        return self._numbers[-1] if self._numbers else None

    def append(self, number: int, body: bytes, now: float) -> None:
        """Add a record."""
        self._ends.append((self._ends[-1] if self._ends else self._trimmed_bytes) + len(body))
        self._numbers.append(number)
        self._bodies.append(body)
        self._times.append(now)

    def close(self, numbers: Numbers, now: float) -> None:
        """Close the shard, so that it accepts no more records.

        If no record was written to the shard, `end` is equal to `start`, as in the real service.
        """
        written = bool(self._numbers) or self.trimmed_to > 0
        self.end = numbers.next() if written else self.start
        self.closed_at = now
        self._described = None

    def page(self, after: int, limit: int, most_bytes: int) -> Page:
        """Return records after a sequence number.

        At least one record is returned if the shard contains a record after the sequence number.
        """
        first = bisect_right(self._numbers, after)
        if first == len(self._numbers):
            return Page((), None, more=False)
        sent = self._ends[first - 1] if first else self._trimmed_bytes
        fitting = bisect_right(self._ends, sent + most_bytes)
        stop = min(first + limit, max(fitting, first + 1), len(self._numbers))
        return Page(self._bodies[first:stop], self._numbers[stop - 1], stop < len(self._numbers))

    def trim_to(self, number: int) -> None:
        """Delete the records up to and including a sequence number."""
        self._forget(bisect_right(self._numbers, number))

    def trim_before(self, cutoff: float) -> None:
        """Delete the records that were written at or before the given time."""
        self._forget(bisect_right(self._times, cutoff))

    def trim_all(self) -> None:
        """Forget every record."""
        self._forget(len(self._numbers))

    def clear(self) -> None:
        """Remove all records of the shard, and set `trimmed_to` to 0.

        A later read therefore reports the end of the shard, and raises no error about trimmed
        records.
        """
        self.trim_all()
        self.trimmed_to = 0

    def described(self) -> bytes:
        """Return the description that `DescribeStream` returns for the shard."""
        if self._described is None:
            numbers = {"StartingSequenceNumber": str(self.start)}
            if self.end is not None:
                numbers["EndingSequenceNumber"] = str(self.end)
            shard: dict[str, Any] = {"ShardId": self.shard_id, "SequenceNumberRange": numbers}
            if self.parent is not None:
                shard["ParentShardId"] = self.parent
            self._described = orjson.dumps(shard)
        return self._described

    def _forget(self, count: int) -> None:
        if count:
            self.trimmed_to = self._numbers[count - 1]
            self._trimmed_bytes = self._ends[count - 1]
            for column in (self._numbers, self._bodies, self._times, self._ends):
                del column[:count]
