"""Shows a collection as one partition, with all changes in commit order.

`profile="mongo"` uses this module. The store numbers the changes of all its partitions in one sequence, so a
position in this sequence is also a position in the collection. Splits and merges are invisible to a reader.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from typing import Final

from multiclouddb_embedded.store.layout import PARTITION_COLUMNS, PartitionRow, partition_rows
from multiclouddb_embedded.store.retention import ordinal_at

WHOLE_NAME: Final = "0"
"""The id of the only partition."""

WHOLE: Final = f"""(
SELECT collection AS id, '{WHOLE_NAME}' AS name, min(low) AS low, max(high) AS high,
    '[]' AS parents, '[]' AS children, min(start_seq) AS start_seq, min(start_ts) AS start_ts,
    NULL AS end_seq, NULL AS end_ts, max(last_seq) AS last_seq, sum(written) AS written,
    sum(volume) AS volume, sum(removed) AS removed, max(trimmed) AS trimmed
FROM partitions
WHERE collection = :collection AND (:hash IS NULL OR (low <= :hash AND :hash < high))
GROUP BY collection
)"""
"""A query that returns a row in the form of the table `partitions`, with the collection's id as `id`.

The parameters are `:collection` and `:hash`, which may be null.
"""

# These statements resemble the reader's own statements, but here `:partition` is the id of the collection. A
# change that comes after the `:most`th change of its partition cannot be among the first `:most` changes of
# the collection.
_PARTITIONS: Final = "SELECT id FROM partitions WHERE collection = :partition AND last_seq > :first"
_REACH: Final = """
SELECT min((
    SELECT seq FROM log {index} WHERE partition = p.id {hash} AND seq > :first
    ORDER BY seq LIMIT 1 OFFSET :most - 1
)) FROM partitions p WHERE collection = :partition AND last_seq > :first
"""
_BOUND: Final = f"""
SELECT max(seq) FROM (
    SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before FROM (
        SELECT seq, size FROM log {{index}}
        WHERE partition IN ({_PARTITIONS}) {{hash}} AND seq > :first AND seq <= :last
            AND seq <= coalesce(({_REACH}), :last)
        ORDER BY seq LIMIT :most
    )
) WHERE before < :bytes
"""
_ROWS: Final = f"""
SELECT count(*), max(ts), group_concat(seq), group_concat(ts), group_concat(type),
    CAST(group_concat(key, char(30)) AS BLOB), {{new}}, {{old}}
FROM (
    SELECT * FROM log {{filter}} AND partition IN ({_PARTITIONS}) AND seq > :first AND seq <= :last
    ORDER BY seq
)
"""
_MORE: Final = f"""
SELECT 1 FROM log {{filter}} AND partition IN ({_PARTITIONS}) AND seq > :first AND seq <= :last LIMIT 1
"""
WHOLE_STATEMENTS: Final = (
    _BOUND.format(index="", hash=""),
    _BOUND.format(index="INDEXED BY log_hash", hash="AND hash = :hash"),
    _ROWS,
    _MORE,
)
"""The statements that replace the reader's own statements.

The first two statements find the last row to read, without and with `:hash`. The third returns the rows by
column, and the fourth shows whether more rows follow.
"""


def whole_row(connection: sqlite3.Connection, collection: int, number: int | None) -> PartitionRow | None:
    """Return one partition that represents the whole collection, or all partitions that contain a hash."""
    row = connection.execute(
        f"SELECT {PARTITION_COLUMNS} FROM {WHOLE}", {"collection": collection, "hash": number}
    ).fetchone()
    return PartitionRow(*row) if row is not None else None


def count_whole(
    connection: sqlite3.Connection, row: PartitionRow, number: int | None, first: int, most: int | None
) -> tuple[int, tuple[int, int] | None]:
    """Count the changes after `first`."""
    # If `most` limits the count, also return the sequence number and time of the last counted change.
    if number is not None:
        return _count_hash(connection, row, number, first, most)
    rows = [each for each in partition_rows(connection, row.id) if each.last_seq > first]
    base = sum(ordinal_at(connection, each, first) for each in rows)
    count = sum(each.written for each in rows) - base
    if most is None or count <= most:
        return count, None

    def passed(seq: int) -> int:
        return sum(ordinal_at(connection, each, seq) for each in rows) - base

    seqs = range(first, row.last_seq + 1)
    last = seqs[bisect_left(seqs, most, key=passed)]
    found = connection.execute(
        "SELECT seq, ts FROM log WHERE partition IN (SELECT id FROM partitions WHERE collection = ?) "
        "AND seq = ?",
        (row.id, last),
    ).fetchone()
    return most, found


def _count_hash(
    connection: sqlite3.Connection, row: PartitionRow, number: int, first: int, most: int | None
) -> tuple[int, tuple[int, int] | None]:
    part = {"partition": row.id, "hash": number, "first": first, "most": most}
    later = (
        f"FROM log INDEXED BY log_hash WHERE hash = :hash AND partition IN ({_PARTITIONS}) AND seq > :first"
    )
    if most is not None:
        cut = connection.execute(
            f"SELECT seq, ts {later} ORDER BY seq LIMIT 2 OFFSET :most - 1", part
        ).fetchall()
        if len(cut) == 2:
            return most, cut[0]
    (count,) = connection.execute(f"SELECT count(*) {later}", part).fetchone()
    return count, None
