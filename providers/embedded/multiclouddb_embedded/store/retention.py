"""Removes old changes from the log, but no documents."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Sequence
from datetime import timedelta

from multiclouddb_api import invalid_request
from multiclouddb_embedded.store.collection import Collection
from multiclouddb_embedded.store.layout import PartitionRow, partition_rows


def check_bounds(max_age: object, max_count: object) -> None:
    """Refuse bounds that have the wrong type or are negative."""
    if max_age is not None and not (isinstance(max_age, timedelta) and max_age >= timedelta(0)):
        raise invalid_request("max_age", f"is {max_age!r}", "pass a timedelta that is not negative")
    if max_count is not None and not (type(max_count) is int and max_count >= 0):
        raise invalid_request("max_count", f"is {max_count!r}", "pass a whole number; 0 removes all changes")


def seq_before(connection: sqlite3.Connection, ts: int) -> int:
    """Return the number of the last change that was committed before a time, or 0 if none is known."""
    row = connection.execute(
        "SELECT seq FROM commits WHERE ts < ? ORDER BY ts DESC LIMIT 1", (ts,)
    ).fetchone()
    return row[0] if row is not None else 0


def ordinal_at(connection: sqlite3.Connection, row: PartitionRow, seq: int) -> int:
    """Count all changes that the partition has ever received, up to and including `seq`."""
    if seq >= row.last_seq:
        return row.written
    found = connection.execute(
        "SELECT ordinal FROM log WHERE partition = ? AND seq <= ? ORDER BY seq DESC LIMIT 1", (row.id, seq)
    ).fetchone()
    return found[0] if found is not None else row.removed


def count_bound(
    connection: sqlite3.Connection, rows: Sequence[PartitionRow], keep: int, head_seq: int
) -> int:
    """Return the last sequence number to trim, so that at most `keep` changes remain."""
    rows = [row for row in rows if row.remaining]

    def gone(seq: int) -> int:
        return sum(ordinal_at(connection, row, seq) - row.removed for row in rows)

    excess = sum(row.remaining for row in rows) - keep
    return bisect_left(range(head_seq + 1), excess, key=gone) if excess > 0 else 0


def trim_log(connection: sqlite3.Connection, collection: Collection, bound: int) -> int:
    """Remove every change up to and including `bound`."""
    # All partitions are trimmed up to the same bound. Therefore, if a parent still has changes, no change of
    # its children has been removed.
    highest, total = 0, 0
    for row in partition_rows(connection, collection.id):
        count = ordinal_at(connection, row, bound) - row.removed if row.remaining else 0
        if not count:
            continue
        (last,) = connection.execute(
            "SELECT max(seq) FROM log WHERE partition = ? AND seq <= ?", (row.id, bound)
        ).fetchone()
        connection.execute("DELETE FROM log WHERE partition = ? AND seq <= ?", (row.id, bound))
        connection.execute(
            "UPDATE partitions SET removed = removed + ?, trimmed = ? WHERE id = ?", (count, last, row.id)
        )
        highest, total = max(highest, last), total + count
    if total:
        connection.execute("UPDATE collections SET trimmed = ? WHERE id = ?", (highest, collection.id))
        _forget_commits(connection)
    return total


def _forget_commits(connection: sqlite3.Connection) -> None:
    """Delete commit times that are no longer needed as start times of any collection."""
    # A start before the kept time would need changes that were removed.
    connection.execute(
        "DELETE FROM commits WHERE seq < (SELECT max(seq) FROM commits WHERE seq <= "
        "(SELECT min(max(trimmed, created_seq)) FROM collections))"
    )
