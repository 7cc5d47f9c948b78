"""Handles the positions of partitions and of segments alike: opens a reader, compares, and describes them.

A feed is asked only about its partitions. What a position in a segment means to the engine is the same for
all providers: it cannot be compared or dated, and it does not expire.
"""

from __future__ import annotations

from multiclouddb_spi.contract import Feed, Position, Reader
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.segment import Segment, plan_id_of


def open_reader(feed: Feed, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> Reader:
    """Open a reader of a partition (`Feed.open`) or of a segment (`Feed.open_segment`), without I/O.

    Raises:
        InvalidCursor: Raised if the cursor does not belong to the partition or segment.
    """
    if plan_id_of(partition_id) is None:
        return feed.open(partition_id, cursor, until)
    return feed.open_segment(Segment.of(partition_id, cursor))


def compare(feed: Feed, partition_id: str, a: Cursor, b: Cursor) -> int | None:
    """Compare two positions; see `Feed.compare`. Only equal positions of a segment can be compared."""
    if plan_id_of(partition_id) is None:
        return feed.compare(a, b)
    return 0 if a == b else None


def describe(feed: Feed, partition_id: str, cursor: Cursor) -> Position:
    """Describe a position as text and time; see `Feed.describe`.

    Raises:
        InvalidCursor: Raised if the cursor does not belong to the partition or segment.
    """
    if plan_id_of(partition_id) is None:
        return feed.describe(cursor)
    segment = Segment.of(partition_id, cursor)
    return Position(
        f"in segment {segment.name} of the scan of {segment.scan.moment:%Y-%m-%dT%H:%M:%SZ}", None
    )


def without_hints(feed: Feed, partition_id: str, cursor: Cursor) -> Cursor:
    """Return a position without its hints; see `Feed.without_hints`. In a segment, there are none."""
    return feed.without_hints(cursor) if plan_id_of(partition_id) is None else cursor
