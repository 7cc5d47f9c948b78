"""Uses heads (end positions for bounded reads) to plan a step; pure."""

from __future__ import annotations

import attrs

from multiclouddb_spi.abilities import Head
from multiclouddb_spi.batch import Continue, goes_on
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.planning.step import Target

__all__ = ["added", "clip", "is_news", "records_before", "within"]


def clip(feed: Feed, heads: dict[str, Head], target: Target | None) -> dict[str, Head]:
    """Return the heads; if a head is or may be after the target, return the target instead."""
    if target is None:
        return heads
    clipped = {}
    for name, head in heads.items():
        if name in target.cursors:
            bound = target.cursors[name]
            order = feed.compare(head.cursor, bound)
            if order != -1:
                # An end exactly at the target is also left for a later step, because its children lie after
                # the target.
                head = Head(bound, None if order != 0 and head.records else head.records, Continue())
        clipped[name] = head
    return clipped


def is_news(head: Head, moved: bool) -> bool:
    """Return True if there may be records or an end; False if only the position has moved."""
    return bool(head.records) or (head.records is None and moved) or not goes_on(head.outcome)


def records_before(head: Head, asked: Cursor, share: int) -> int:
    """Return the maximum number of records before a head."""
    if head.records is not None:
        return head.records
    return 0 if head.cursor == asked else share


def added(before: Head | None, head: Head) -> Head:
    """Combine two heads of one partition that were requested one after the other."""
    if before is None or before.records is None or head.records is None:
        return head if before is None else attrs.evolve(head, records=None)
    return attrs.evolve(head, records=before.records + head.records)


def within(feed: Feed, entry: Entry, target: Target | None) -> bool:
    """Return True if a partition may have records between its position and the target."""
    if target is None:
        return True
    if entry.partition_id not in target.cursors:
        return target.passed is None or entry.partition_id in target.passed
    bound = target.cursors[entry.partition_id]
    order = feed.compare(entry.cursor, bound)
    # If both positions are the same, only different hints matter, because they record what was already
    # scanned.
    return order in (-1, None) or (order == 0 and entry.cursor != bound and _hints(feed, entry.cursor, bound))


def _hints(feed: Feed, a: Cursor, b: Cursor) -> bool:
    """Return whether two cursors stand for the same position and differ only in their hints."""
    return bool(feed.without_hints(a) == feed.without_hints(b))
