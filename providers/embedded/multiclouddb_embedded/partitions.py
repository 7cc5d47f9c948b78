"""Reads the partitions of a collection, their starts and their children."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Container, Sequence
from typing import Final

from attrs import frozen

from multiclouddb_api import ErrorCategory, ErrorReason, NewItemStateMode, OldItemStateMode
from multiclouddb_embedded.mapping import cursor_of, position_of
from multiclouddb_embedded.source import Scope
from multiclouddb_embedded.store.collection import (
    PARTITION_COLUMNS,
    Collection,
    PartitionRow,
    named_partitions,
    partition_rows,
)
from multiclouddb_embedded.store.log import ordinal_at
from multiclouddb_spi import (
    Child,
    Continue,
    Cursor,
    Drained,
    FeedSpec,
    Follows,
    Head,
    InvalidCursor,
    Outcome,
    Partition,
    PartitionState,
    ProviderFault,
    Seed,
    Survey,
    expired,
    unsupported,
)
from multiclouddb_spi.faults import START_ANEW

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


@frozen(eq=False, repr=False)
class Standing:
    """The newest change of the store and the state of one partition, read in one transaction."""

    head_seq: int  # the sequence number of the store's last change
    head_ts: int  # the time of the store's last commit
    before: int  # the sequence number of the store's last change before the requested time
    row: PartitionRow  # the partition

    @property
    def end(self) -> tuple[int, int]:
        """Return the sequence number and time up to which the partition's changes are known."""
        if self.row.end_seq is None or self.row.end_ts is None:
            return self.head_seq, self.head_ts
        return self.row.end_seq, self.row.end_ts


_STANDING = f"""
SELECT store.head_seq, store.head_ts,
    coalesce((SELECT seq FROM commits WHERE ts < :ts ORDER BY ts DESC LIMIT 1), 0),
    {", ".join(f"p.{name.strip()}" for name in PARTITION_COLUMNS.split(","))}
FROM store
    JOIN collections c ON c.id = :collection AND c.incarnation = :incarnation
    JOIN {{partitions}} p ON p.{{parent}} = c.id AND p.name = :name
"""
_STANDING_ONE = _STANDING.format(partitions="partitions", parent="collection")
_STANDING_WHOLE = _STANDING.format(partitions=WHOLE, parent="id")


def standing(connection: sqlite3.Connection, scope: Scope, name: str, position: tuple[int, int]) -> Standing:
    """Return the state of a partition for a reader that is at the given position."""
    seq, ts = position
    collection = scope.collection
    found = connection.execute(
        _STANDING_WHOLE if scope.whole else _STANDING_ONE,
        {
            "ts": ts,
            "collection": collection.id,
            "incarnation": collection.incarnation,
            "name": name,
            "hash": scope.hash,
        },
    ).fetchone()
    if found is None:
        check_there(connection, collection)
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"{collection.name!r} never had a partition {name!r}; list them with "
            "client.list_physical_partitions(address)",
        )
    head_seq, head_ts, before, *columns = found
    row = PartitionRow(*columns)
    if seq > head_seq:
        raise InvalidCursor(
            f"sequence {seq} is ahead of the store, so the store was probably restored from an older copy"
        )
    if seq < row.trimmed:
        raise expired(f"changes after sequence {seq} were trimmed, up to {row.trimmed}", ErrorReason.TRIMMED)
    return Standing(head_seq, head_ts, before, row)


def check_there(connection: sqlite3.Connection, collection: Collection) -> int:
    """Refuse to read a collection that was dropped; return the number up to which its log was trimmed."""
    found = connection.execute(
        "SELECT trimmed FROM collections WHERE id = ? AND incarnation = ?",
        (collection.id, collection.incarnation),
    ).fetchone()
    if found is None:
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"the collection {collection.database}/{collection.name} was dropped; a collection created later "
            f"under the same name is another one; {START_ANEW}",
        )
    trimmed: int = found[0]
    return trimmed


def outcome_of(
    connection: sqlite3.Connection, scope: Scope, row: PartitionRow, position: tuple[int, int]
) -> Outcome:
    """Return the outcome after the last change of a partition."""
    if row.is_open:
        return Continue()
    children = named_partitions(connection, scope.collection.id, row.children).values()
    wanted = [child for child in children if child.holds(scope.hash)]
    parents = {name: True for child in wanted for name in child.parents}
    if scope.hash is not None:
        found = named_partitions(connection, scope.collection.id, parents)
        parents = {name: other.holds(scope.hash) for name, other in found.items()}
    return Drained(
        tuple(
            Child(child.name, tuple(name for name in child.parents if parents[name]), _from(child, *position))
            for child in wanted
        )
    )


def _from(row: PartitionRow, seq: int, ts: int) -> Cursor:
    """Return the cursor after a position, or the cursor at the partition's start, whichever is later."""
    return cursor_of(max(seq, row.start_seq), max(ts, row.start_ts))


class Family:
    """The partitions that a feed covers at one point in time."""

    def __init__(self, rows: Sequence[PartitionRow], created: int = 0, trimmed: int = 0) -> None:
        self._rows = {row.name: row for row in rows}
        self.created, self.trimmed = created, trimmed

    def survey(self, asked: Container[str], since: tuple[int, int]) -> Survey:
        """State which partitions exist, and which no longer do."""
        # All its ancestors ended earlier, so they are gone too.
        there, gone = list[Partition](), dict[str, tuple[str, ...] | None]()
        for row in self._rows.values():
            seed = self._oldest(row)
            if self.trimmed and row.end_seq is not None and row.end_seq <= self.trimmed:
                gone[row.name] = seed.parents
                continue
            oldest = position_of(seed.cursor)
            cursor = cursor_of(*(oldest if row.name in asked else max(oldest, since)))
            state = PartitionState.OPEN if row.is_open else PartitionState.CLOSED
            there.append(Partition(row.name, seed.parents, state, cursor))
        return Survey(tuple(there), gone)

    def unread(self) -> list[PartitionRow]:
        """Return the partitions that contain unread changes or may still receive changes."""
        # The result includes an empty partition if its parent is in the result, because the children of the
        # partition wait for the parent.
        found: dict[str, PartitionRow] = {}
        for row in self._rows.values():
            if row.is_open or row.remaining or not found.keys().isdisjoint(row.parents):
                found[row.name] = row
        return list(found.values())

    def beginning(self) -> list[Seed]:
        """Return a start at the oldest change of each unread partition."""
        return [self._oldest(row) for row in self.unread()]

    def at(self, seq: int, ts: int) -> list[Seed]:
        """Return a start after the given position for each partition that was open at this position."""
        return [
            self._seed(row, seq, ts)
            for row in self._rows.values()
            if row.start_seq <= seq and (row.end_seq is None or row.end_seq > seq)
        ]

    def one(self, name: str, position: tuple[int, int] | None) -> list[Seed]:
        """Return a start at `position` or at the oldest change; [] if the partition is unknown."""
        row = self._rows.get(name)
        if row is None:
            return []
        return [self._oldest(row) if position is None else self._seed(row, *position)]

    def _oldest(self, row: PartitionRow) -> Seed:
        return self._seed(row, row.trimmed, row.start_ts)

    def _seed(self, row: PartitionRow, seq: int, ts: int) -> Seed:
        parents = tuple(name for name in row.parents if name in self._rows)
        return Seed(row.name, parents, _from(row, seq, ts))


def read_family(connection: sqlite3.Connection, scope: Scope) -> Family:
    """Return the partitions that a feed covers."""
    collection = scope.collection
    trimmed = check_there(connection, collection)
    if scope.whole:
        # One partition represents the whole collection, or all partitions that contain the hash.
        found = connection.execute(
            f"SELECT {PARTITION_COLUMNS} FROM {WHOLE}", {"collection": collection.id, "hash": scope.hash}
        )
        rows = [PartitionRow(*row) for row in found]
    else:
        rows = [row for row in partition_rows(connection, collection.id) if row.holds(scope.hash)]
    return Family(rows, collection.created_seq, trimmed)


def read_head(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the sequence number of the store's last change, and the time of the store's last commit."""
    seq, ts = connection.execute("SELECT head_seq, head_ts FROM store").fetchone()
    return seq, ts


def read_shape(connection: sqlite3.Connection, scope: Scope) -> tuple[object, ...] | None:
    """Return a value that changes at a split, merge or trim of the collection; None after a drop."""
    found: tuple[object, ...] | None = connection.execute(
        "SELECT * FROM collections WHERE id = ?", (scope.collection.id,)
    ).fetchone()
    return found


def find_head(
    connection: sqlite3.Connection, scope: Scope, name: str, position: tuple[int, int], most: int | None
) -> Head:
    """Return the current end of a partition, or the position `most` records after a given one."""
    state = standing(connection, scope, name, position)
    row, first = state.row, max(position[0], state.before)
    count, last = _count(connection, scope, row, first, most)
    if last is not None:
        return Head(cursor_of(*last), count, Continue(), Follows.MORE)
    end_seq, end_ts = state.end
    end = max(end_seq, position[0]), max(end_ts, position[1])
    return Head(cursor_of(*end), count, outcome_of(connection, scope, row, end), Follows.END)


def _count(
    connection: sqlite3.Connection, scope: Scope, row: PartitionRow, first: int, most: int | None
) -> tuple[int, tuple[int, int] | None]:
    """Count up to `most` records; if more exist, also return the last counted record's position."""
    rows = [row]
    if scope.whole:
        rows = [each for each in partition_rows(connection, row.id) if each.last_seq > first]
    if not rows:
        return 0, None
    place = f"partition IN ({', '.join(str(each.id) for each in rows)})"
    if scope.hash is not None:
        later = f"FROM log INDEXED BY log_hash WHERE hash = ? AND {place} AND seq > ?"
        if most is not None:
            cut = connection.execute(
                f"SELECT seq, ts {later} ORDER BY seq LIMIT 2 OFFSET ?", (scope.hash, first, most - 1)
            ).fetchall()
            if len(cut) == 2:
                return most, cut[0]
        return connection.execute(f"SELECT count(*) {later}", (scope.hash, first)).fetchone()[0], None

    def passed(seq: int) -> int:
        return sum(ordinal_at(connection, each, seq) for each in rows)

    base = passed(first)
    count = sum(each.written for each in rows) - base
    if most is None or count <= most:
        return count, None
    seqs = range(first, row.last_seq + 1)
    last = seqs[bisect_left(seqs, base + most, key=passed)]
    return most, connection.execute(f"SELECT seq, ts FROM log WHERE {place} AND seq = ?", (last,)).fetchone()


def check_images(collection: Collection, spec: FeedSpec) -> None:
    """Refuse a request for documents that the log does not contain."""
    new = spec.new_item_state_mode is NewItemStateMode.REQUIRE and collection.images == "keys"
    old = spec.old_item_state_mode is OldItemStateMode.REQUIRE and collection.images != "new_and_old"
    if new or old:
        field, images = ("new_item_state_mode", "new") if new else ("old_item_state_mode", "new_and_old")
        raise unsupported(
            f"{field}=REQUIRE: {collection.name!r} was created with images={collection.images!r}, so its log "
            "does not contain these documents",
            f"create the collection with images={images!r}, or read with INCLUDE_IF_AVAILABLE",
        )
