"""Finds positions that the service no longer keeps before ranges are planned from these positions."""

from __future__ import annotations

from typing import Final

from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.deadline import Deadline

__all__ = ["check_kept"]

_BYTES: Final = 1 << 20


def check_kept(feed: Feed, lineage: Lineage, deadline: Deadline, *, surely: bool = False) -> None:
    """Read from every position that may be older than the service's retention.

    A provider may plan up to the current end without reading. Without this check, a loss would be
    found only when the range is read. When the range is read, it is too late to plan another start.

    Args:
        feed: The opened feed.
        lineage: The positions.
        deadline: The time limit.
        surely: True to read from every position of the stream, for example because the service does not say
            how long it keeps a position.

    Raises:
        Exception: The provider's error for a position that has expired.
    """
    now = feed.clock(deadline)
    for entry in lineage.active():
        left = feed.headroom(entry.cursor, now) if entry.listed and now is not None else None
        if entry.listed and (surely or (left is not None and left <= 0)):
            reader = feed.open(entry.partition_id, entry.cursor)
            try:
                reader.fetch(1, _BYTES, 0.0, deadline)
            finally:
                reader.close()
