"""Defines partitions and the positions that they cover.

A partition is a range of hashes, which can split and merge.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import attrs
import orjson

from multiclouddb_api import ErrorCategory, MulticloudDbKey, ResourceAddress, invalid_request
from multiclouddb_api.validators import check_type, suggestion, utf8
from multiclouddb_embedded.errors import PROVIDER_ID
from multiclouddb_embedded.store.collection import MAIN, Collection
from multiclouddb_spi import ProviderFault, encode_partition_id

HASH_END: Final = 2**62
"""Hashes are in `[0, HASH_END)`.

Hashes have 62 bits, so that the end also fits into SQLite's signed integers.
"""


def partition_identity(key: MulticloudDbKey) -> bytes:
    """Return the canonical JSON of a key's partition key."""
    if len(key.components) > key.partition_components:
        key = MulticloudDbKey(key.partition_key, key.partition_components)
    return key.canonical()


def partition_hash(identity: bytes) -> int:
    """Return the hash of a partition key, which is computed from its `partition_identity`."""
    return int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "big") >> 2


def even_ranges(count: int) -> list[tuple[int, int]]:
    """Return `count` adjacent ranges `[low, high)` of about equal size, which together cover every hash."""
    bounds = [HASH_END * number // count for number in range(count + 1)]
    return list(pairwise(bounds))


PARTITION_COLUMNS: Final = (
    "id, name, low, high, parents, children, start_seq, start_ts, end_seq, end_ts, "
    "last_seq, written, volume, removed, trimmed"
)


def _names(text: str) -> tuple[str, ...]:
    return tuple(orjson.loads(text))


@attrs.frozen
class PartitionRow:
    """A row of the table `partitions`; the partition contains the changes in `(start_seq, end_seq]`."""

    id: int  # the number of the partition in the file
    name: str  # the id of the partition in the collection, for example `p0`
    low: int  # the first hash of the partition
    high: int  # the first hash after the partition
    parents: tuple[str, ...] = attrs.field(converter=_names)
    children: tuple[str, ...] = attrs.field(converter=_names)
    start_seq: int  # the number of the store's newest change, split or merge when the partition was made
    start_ts: int  # the time at which the partition was made
    end_seq: int | None
    end_ts: int | None  # the time at which the partition was closed
    last_seq: int  # the number of the partition's last change, or `start_seq`
    written: int  # the number of changes in the partition so far
    volume: int  # the total size in bytes of all changes in the partition so far
    removed: int  # the number of changes that were trimmed
    trimmed: int  # the highest sequence number that was trimmed, or 0

    @property
    def is_open(self) -> bool:
        """True while the partition accepts writes."""
        return self.end_seq is None

    @property
    def remaining(self) -> int:
        """Return the number of changes that have not been trimmed."""
        return self.written - self.removed

    def holds(self, number: int | None) -> bool:
        """Return True if the partition contains the hash, or if the hash is None."""
        return number is None or self.low <= number < self.high


def partition_rows(connection: sqlite3.Connection, collection: int) -> list[PartitionRow]:
    """Return every partition that the collection ever had, parents before children."""
    rows = connection.execute(
        f"SELECT {PARTITION_COLUMNS} FROM partitions WHERE collection = ? ORDER BY id", (collection,)
    )
    return [PartitionRow(*row) for row in rows]


def named_partitions(
    connection: sqlite3.Connection, collection: int, names: Iterable[str]
) -> dict[str, PartitionRow]:
    """Return the partitions with these names; unknown names are ignored."""
    rows = connection.execute(
        f"SELECT {PARTITION_COLUMNS} FROM partitions "
        "WHERE collection = ? AND name IN (SELECT value FROM json_each(?)) ORDER BY id",
        (collection, orjson.dumps(list(names)).decode()),
    )
    return {row[1]: PartitionRow(*row) for row in rows}


def open_partition(connection: sqlite3.Connection, collection: Collection, name: str) -> PartitionRow:
    """Return an open partition, which the caller will split or merge."""
    row = named_partitions(connection, collection.id, [name]).get(name)
    if row is None:
        known = [other.name for other in partition_rows(connection, collection.id) if other.is_open]
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"{collection.name!r} has no partition {name!r}; {suggestion(name, known)}",
        )
    if not row.is_open:
        raise invalid_request(
            "partition_id",
            f"{name!r} was closed and continues in {', '.join(row.children)}",
            "name an open partition",
        )
    return row


def add_partitions(
    connection: sqlite3.Connection,
    collection: int,
    ranges: Sequence[tuple[int, int]],
    parents: Sequence[PartitionRow],
    start: tuple[int, int],
) -> list[str]:
    """Open partitions that replace their parents."""
    (number,) = connection.execute(
        "SELECT partitions FROM collections WHERE id = ?", (collection,)
    ).fetchone()
    connection.execute(
        "UPDATE collections SET partitions = partitions + ? WHERE id = ?", (len(ranges), collection)
    )
    names = [f"p{number + index}" for index in range(len(ranges))]
    connection.executemany(
        "UPDATE partitions SET end_seq = ?, end_ts = ?, children = ? WHERE id = ?",
        [(*start, orjson.dumps(names).decode(), parent.id) for parent in parents],
    )
    origin = orjson.dumps([parent.name for parent in parents]).decode()
    connection.executemany(
        "INSERT INTO partitions (collection, name, low, high, parents, start_seq, start_ts, last_seq) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (collection, name, *bounds, origin, *start, start[0])
            for name, bounds in zip(names, ranges, strict=True)
        ],
    )
    return names


def native_id(partition_id: str, collection: Collection) -> str:
    """Return the store's own id, such as `p0`; the given id may be this id or a public id."""
    check_type("partition_id", partition_id, str)
    native = utf8("partition_id", partition_id).rpartition(":")[2]
    if native == partition_id:
        return native
    places = [ResourceAddress(collection.database, collection.name)]
    if collection.database == MAIN:
        places.append(ResourceAddress(None, collection.name))
    ids = [encode_partition_id(PROVIDER_ID, place, collection.incarnation, native) for place in places]
    if partition_id not in ids:
        raise invalid_request(
            "partition_id",
            f"{partition_id!r} belongs to another resource",
            f"pass a partition of {collection.name!r}",
        )
    return native
