"""States which partitions exist, and from where those can be read whose position is too old."""

from __future__ import annotations

from collections.abc import Mapping, Set

from multiclouddb_spanner.client import CancelScope
from multiclouddb_spanner.position import Place, cursor_of, place_of
from multiclouddb_spanner.source import ReaderContext
from multiclouddb_spi import Cursor, Partition, PartitionState, Seed, Survey


def _needed(cursor: Cursor) -> int:
    """Return the earliest time that a read from a position may need."""
    place = place_of(cursor)
    return place.sure or place.cut.at


def survey_of(
    source: ReaderContext,
    asked: Mapping[str, Cursor],
    expired: Set[str],
    now: int,
    since: int,
    scope: CancelScope,
) -> Survey:
    """State which of the asked partitions existed at the oldest time that can be read, or began later."""
    # The service reports neither parents nor the end of a partition that is gone. A partition exists at its
    # own position. So a position at or after the oldest time shows that the partition exists, and a position
    # before it shows that the partition is gone, unless the partition was alive at the oldest time.
    oldest, alive_then = source.oldest(now, scope)
    alive_now = source.partitions(now, scope)
    # A partition that ends at the oldest time has changes of that time, but is not alive then.
    then, cut = set(alive_then), cursor_of(Place.at(oldest, max(since, oldest + 1)))
    present: dict[str, Cursor] = dict.fromkeys(alive_now)
    gone = list[str]()
    for name, cursor in asked.items():
        if name in then:
            present[name] = cut
        elif cursor is None and name in present:
            continue
        elif cursor is not None and _needed(cursor) >= oldest:
            present[name] = cursor
        elif cursor is not None and name not in present:
            gone.append(name)
        elif (interval := source.interval(name, now, scope)) is not None:
            begin, end = interval
            if end < oldest:
                gone.append(name)
            else:
                present[name] = cursor_of(Place.at(max(oldest, begin), since))
    if oldest <= source.resume_at and expired and not expired & set(gone):
        # Only the refused positions lie where the stream did not watch the table.
        present |= dict.fromkeys([name for name in asked if name not in expired])
        gone = []
    open_now = set(alive_now)
    return Survey(
        tuple(
            Partition(name, (), PartitionState.OPEN if name in open_now else PartitionState.CLOSED, place)
            for name, place in present.items()
        ),
        dict.fromkeys(gone),
        # If later changes expire before they are read, this is a new gap, which is reported.
        tuple(Seed(name, (), cut) for name in alive_then) if gone else None,
    )
