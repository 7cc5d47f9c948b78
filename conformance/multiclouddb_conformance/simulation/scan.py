"""Reads records from a simulated partition in one pass over its log.

This module causes no random faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from multiclouddb_conformance.simulation.batch import Slice, poison_fault
from multiclouddb_conformance.simulation.partition_log import Commit, PartitionLog, Written
from multiclouddb_conformance.simulation.position import Place, place_after
from multiclouddb_spi import Reached

__all__ = ["Bounds", "earlier", "scan"]


@attrs.frozen
class Bounds:
    """The limits of one fetch."""

    records: int
    bytes: int | None = None
    commits: int | None = None
    until: Place | None = None
    stop_at_poison: bool = False


def scan(
    partition: PartitionLog, place: Place, head: int, wanted: Callable[[Written], bool], bounds: Bounds
) -> Slice:
    """Read from a position."""
    available = place_after(head if partition.closed is None else partition.closed)
    stop = available if bounds.until is None else min(available, bounds.until)
    found = Slice(begin=place, end=place)
    if not _take(partition, found, stop, wanted, bounds):
        return found
    found.seen = found.end
    found.end = max(found.end, stop)
    if bounds.until is not None and bounds.until <= available:
        found.outcome = Reached()
    found.exhausted = True
    return found


def _take(
    partition: PartitionLog, found: Slice, stop: Place, wanted: Callable[[Written], bool], bounds: Bounds
) -> bool:
    """Collect the records that come before the position `stop`; return True if all were read."""
    size = 0
    for looked, commit in enumerate(_commits(partition, found.begin, stop)):
        if looked == bounds.commits:
            return False
        skip = found.end[1] if commit.number == found.end[0] else 0
        for index in range(skip, len(commit.records)):
            if (commit.number, index) >= stop:
                return True
            written = commit.records[index]
            after = (
                place_after(commit.number) if index + 1 == len(commit.records) else (commit.number, index + 1)
            )
            if wanted(written):
                size += written.size
                if _full(found, size, bounds):
                    return False
                if written.poison and bounds.stop_at_poison:
                    if found.records:
                        return False
                    raise poison_fault(0, written, after)
                found.records.append(written)
                found.places.append(after)
            found.end = after
        found.notices.extend(commit.notices)
        found.end = max(found.end, place_after(commit.number))
        if commit.notices:
            return False
    return True


def _full(found: Slice, size: int, bounds: Bounds) -> bool:
    """Return True if another record would exceed the bounds; `size` is the total size with that record."""
    if not found.records:
        return False
    return len(found.records) >= bounds.records or (bounds.bytes is not None and size > bounds.bytes)


def _commits(partition: PartitionLog, place: Place, stop: Place) -> Iterator[Commit]:
    index = partition.find(place[0])
    while (commit := partition.commit(index)) is not None and (commit.number, 0) < stop:
        yield commit
        index += 1


def earlier(
    partition: PartitionLog, place: Place, wanted: Callable[[Written], bool], count: int
) -> list[Written]:
    """Return at most `count` records that come directly before a position, oldest first."""
    records: list[Written] = []
    index = partition.find(place[0])
    current = partition.commit(index)
    if current is not None and current.number == place[0]:
        records = _sound(current.records[: place[1]], wanted)
    while len(records) < count and (commit := partition.commit(index - 1)) is not None:
        records = _sound(commit.records, wanted) + records
        index -= 1
    return records[-count:] if count else []


def _sound(records: tuple[Written, ...], wanted: Callable[[Written], bool]) -> list[Written]:
    return [written for written in records if wanted(written) and not written.poison]
