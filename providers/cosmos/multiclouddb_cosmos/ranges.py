"""Reads ranges that are split, and finds the oldest position from which a range can be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Final, TypeVar

import attrs
from attrs import define
from azure.cosmos.exceptions import CosmosHttpResponseError

from multiclouddb_api import ErrorCategory
from multiclouddb_cosmos.errors import GONE
from multiclouddb_cosmos.position import LIVE, KeyRange, Place, RangeMap, cursor_of
from multiclouddb_cosmos.records import lsn_of, seconds_of
from multiclouddb_cosmos.source import ReaderContext
from multiclouddb_cosmos.transport import MovedError
from multiclouddb_spi import Deadline, Partition, PartitionState, ProviderFault, Survey

T = TypeVar("T")
_EARLY_SECONDS: Final = 2
_TRIES: Final = 4


def stated(
    kept: Mapping[KeyRange, Sequence[KeyRange]], lost: Sequence[KeyRange], oldest: Mapping[KeyRange, Place]
) -> Survey:
    """State which ranges exist."""
    states = {
        span: PartitionState.OPEN if len(parts) == 1 else PartitionState.CLOSED
        for span, parts in kept.items()
    }
    present = [Partition(span.partition_id, (), state) for span, state in states.items()]
    whole = RangeMap(lost)
    for part, place in oldest.items():
        span = whole.holder(part)
        parents = () if part == span else (span.partition_id,)
        present.append(Partition(part.partition_id, parents, PartitionState.OPEN, cursor_of(place)))
    return Survey(tuple(present), {span.partition_id: None for span in lost if span not in oldest})


def read_settled(source: ReaderContext, place: KeyRange, read: Callable[[KeyRange], T]) -> dict[KeyRange, T]:
    """Divide a range by the current partitions and read each part."""
    # A read of a range that spans several partitions fails, and only then the range is divided.
    found: dict[KeyRange, T] = {}
    left, tries = [place], 0
    while left:
        piece = left.pop()
        seen = source.ranges()
        try:
            found[piece] = read(piece)
        except (MovedError, CosmosHttpResponseError) as error:
            tries += 1
            pieces = pieces_after(source, seen, piece, error, final=tries == _TRIES)
            left += pieces
    return found


def pieces_after(
    source: ReaderContext, seen: RangeMap, piece: KeyRange, error: Exception, *, final: bool = False
) -> list[KeyRange]:
    """Return the current parts of a range after a split has made a read of the range fail."""
    # The result `[piece]` means that the same range must be read again.
    moved = isinstance(error, MovedError)
    if not moved and getattr(error, "status_code", None) != GONE:
        raise error
    fresh = source.refreshed(seen)
    pieces = fresh.cut(piece)
    # If the partition of a range was merged, the range now lies in another partition.
    if final or (pieces == [piece] and fresh.holder(piece) == seen.holder(piece)):
        if moved:
            raise ProviderFault.of(
                ErrorCategory.TRANSIENT_FAILURE, "a partition is being split; try again", retryable=True
            ) from error
        raise error
    return pieces


def oldest_place(source: ReaderContext, place: KeyRange, since: datetime | None, deadline: Deadline) -> Place:
    """Find the oldest position from which a range can be read, by trial reads."""
    if source.is_latest:
        return Place(0, None, None, 0 if since is None else int(since.timestamp()))
    low, high = 0, source.end(place, deadline)
    wanted = None if since is None else since.timestamp() - _EARLY_SECONDS - source.late
    while low < high:
        middle = (low + high) // 2
        try:
            items = source.read(place, middle, 1, deadline).items
            seconds = seconds_of(items[0], bare=False) if items else None
            is_before = wanted is not None and seconds is not None and seconds < wanted
        except ProviderFault as error:
            if error.fault.category is not ErrorCategory.CHECKPOINT_EXPIRED:
                raise
            is_before = True
        low, high = (middle + 1, high) if is_before else (low, middle)
    return Place(low)


_AT_A_TIME: Final = 16


@define(eq=False)
class Resolution:
    """Collects the start positions during one call."""

    # If the call is tried again, only the positions that are still missing are read.

    source: ReaderContext  # the feed
    found: dict[KeyRange, Place] = attrs.field(factory=dict)  # the positions that have been found so far

    def at_now(self, wanted: list[KeyRange], deadline: Deadline) -> dict[KeyRange, Place]:
        """Divide the ranges by the current partitions, and return the end of each part."""

        def end(piece: KeyRange) -> Place:
            if piece not in self.found:
                # While the answer is on the way, other threads may learn a later time.
                seconds = self.source.seconds_before(self.source.calls.now())
                lsn = self.source.end(piece, deadline)
                self.found[piece] = Place(lsn, seconds, None, LIVE if self.source.is_latest else None)
            return self.found[piece]

        return self.each(wanted, end)

    def at_time(self, wanted: list[KeyRange], since: int, deadline: Deadline) -> dict[KeyRange, Place]:
        """Divide the ranges by the current partitions, and return a position of each part at a past time."""

        def before(piece: KeyRange) -> Place:
            if piece not in self.found:
                # After a merge, the times do not ascend, but no wanted item has a lower LSN than the first.
                answer = self.source.read(piece, 0, 1, deadline, since)
                lsns = [lsn_of(item, bare=True) or 1 for item in answer.items]
                lsn = min(lsns) - 1 if lsns else answer.etag
                self.found[piece] = Place(lsn, None, None, since)
            return self.found[piece]

        return self.each(wanted, before)

    def each(self, wanted: list[KeyRange], read: Callable[[KeyRange], T]) -> dict[KeyRange, T]:
        """Divide the ranges at the borders of the current partitions, and return an answer for each part."""
        if len(wanted) < 2:
            answers = [read_settled(self.source, each, read) for each in wanted]
        else:
            with ThreadPoolExecutor(min(_AT_A_TIME, len(wanted))) as pool:
                answers = list(pool.map(lambda each: read_settled(self.source, each, read), wanted))
        return {piece: place for answer in answers for piece, place in answer.items()}
