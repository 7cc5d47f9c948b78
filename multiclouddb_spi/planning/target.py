"""Defines the position at which a planned run ends by itself, and cuts what lies behind it."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from multiclouddb_spi.abilities import Follows, Head
from multiclouddb_spi.batch import Continue
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.positions import compare, without_hints


@frozen
class Target:
    """The end position of a run that ends by itself.

    Attributes:
        cursors: Maps a partition to the position at which to stop reading it.
        passed: Partitions that ended before the target; a run reads them to their ends. None means
            that every partition without a cursor is read to its end. If a partition has no cursor
            and is not in `passed`, the partition appeared after the target.
    """

    cursors: Mapping[str, Cursor]
    passed: frozenset[str] | None


def clip(feed: Feed, name: str, head: Head, target: Target | None) -> Head:
    """Return a head; if it is or may be after the target, return the target instead."""
    if target is None or name not in target.cursors:
        return head
    bound = target.cursors[name]
    order = compare(feed, name, head.cursor, bound)
    if order == -1:
        return head
    # An end exactly at the target is also left for a later step, because its children lie after the target.
    told = head.notices if order == 0 else ()
    records = None if order != 0 and head.records else head.records
    return Head(bound, records, Continue(), Follows.END, notices=told)


def within(feed: Feed, entry: Entry, target: Target | None) -> bool:
    """Return True if a partition may have records between its position and the target."""
    if target is None:
        return True
    if entry.partition_id not in target.cursors:
        return target.passed is None or entry.partition_id in target.passed
    bound = target.cursors[entry.partition_id]
    order = compare(feed, entry.partition_id, entry.cursor, bound)
    if order != 0 or entry.cursor == bound:
        return order in (-1, None)
    # At the same position, only different hints matter, because they record what was already scanned.
    name = entry.partition_id
    return without_hints(feed, name, entry.cursor) == without_hints(feed, name, bound)
