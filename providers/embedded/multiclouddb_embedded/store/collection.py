"""Defines the fixed properties of collections, and finds collections."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Final, Literal, TypeAlias, get_args

import attrs
import orjson
from attrs import frozen

from multiclouddb_api import (
    ErrorCategory,
    MulticloudDbKey,
    ResourceAddress,
    decode_json,
    encode_json,
    invalid_request,
)
from multiclouddb_api.validators import check_type, suggestion, utf8
from multiclouddb_embedded.errors import PROVIDER_ID, failure
from multiclouddb_spi import ProviderFault, encode_partition_id

MAIN: Final = "main"
"""The database to use if the caller does not name one."""

Images: TypeAlias = Literal["keys", "new", "new_and_old"]
"""What a change in the log contains: only the key, the key and the new document, or the key and both
documents."""

IMAGES: Final = get_args(Images)
MAX_PARTITIONS: Final = 100_000

_NUMBER: Final = [(b"-", b"-"), (b"0", b"9")]
# Maps the first character of a JSON value to the ranges of first characters that values of the same kind can
# have.
_KINDS: Final = dict.fromkeys((b"-", *(b"%d" % digit for digit in range(10))), _NUMBER) | {
    b"t": [(b"f", b"f"), (b"t", b"t")],
    b"f": [(b"f", b"f"), (b"t", b"t")],
}
_COLUMNS: Final = "id, database, name, incarnation, images, partition_key, retention, created_seq, trimmed"


@frozen
class Collection:
    """A row of the table `collections`."""

    id: int  # the number of the collection in the file
    database: str  # the database of the collection
    name: str  # the name of the collection
    incarnation: str  # an id that changes if the collection is deleted and created again under the same name
    images: Images  # the content of a change in the log
    partition_key: tuple[str, ...] | None
    retention: int | None
    created_seq: int  # the newest change of the store when the collection was created
    trimmed: int  # the highest sequence number that was removed from the collection's log

    @property
    def partition_components(self) -> int:
        """The number of leading components of a key that form the partition key."""
        return len(self.partition_key) if self.partition_key else 1

    def check_key(self, key: MulticloudDbKey) -> None:
        """Refuse a key whose components do not form the partition key of this collection."""
        names = tuple(key.components)[: key.partition_components]
        wanted = self.partition_key or names[:1]
        if names != wanted:
            raise invalid_request(
                "key",
                f"has the partition key ({', '.join(names)}), but {self.name!r} is partitioned by "
                f"({', '.join(wanted)})",
                "begin the key with those components, in that order, and give partition_components to match",
            )


def list_collections(connection: sqlite3.Connection, database: str | None) -> list[ResourceAddress]:
    """Return the addresses of all collections, or of the collections in one database."""
    rows = connection.execute("SELECT database, name FROM collections ORDER BY database, name").fetchall()
    return [ResourceAddress(*row) for row in rows if database is None or row[0] == database]


def find_collection(connection: sqlite3.Connection, database: str, name: str) -> Collection:
    """Return the collection with the given name."""
    check_type("database", database, str)
    check_type("collection", name, str)
    utf8("database", database)
    utf8("collection", name)
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM collections WHERE database = ? AND name = ?", (database, name)
    ).fetchone()
    if row is None:
        known = [f"{a}/{b}" for a, b in connection.execute("SELECT database, name FROM collections")]
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"there is no collection {database}/{name} ({suggestion(f'{database}/{name}', known)}); "
            "EmbeddedStore.create_collection(name) creates it",
        )
    number, database, name, incarnation, images, names, *rest = row
    partition_key = tuple(orjson.loads(names)) if names is not None else None
    return Collection(number, database, name, incarnation, images, partition_key, *rest)


def check_kind(connection: sqlite3.Connection, collection: Collection, key: MulticloudDbKey) -> None:
    """Refuse a partition key whose first component does not fit any document."""
    # The feed of a partition key that fits no document would be empty, without an error. If the collection
    # contains no documents, every partition key is accepted.
    row = connection.execute(
        "SELECT key FROM documents WHERE collection = ? LIMIT 1", (collection.id,)
    ).fetchone()
    if row is None:
        return
    ((name, value), *_) = key.components.items()
    # The text up to and including the first character of the value, because this character shows the kind of
    # the value.
    end = 1 + len(encode_json([key.partition_components, [[name]]])) - len("]]]")
    prefix = key.canonical()[: end + 1]
    kind = bytes(prefix[-1:])
    for first, last in _KINDS.get(kind, [(kind, kind)]):
        low, high = prefix[:-1] + first, prefix[:-1] + bytes([last[0] + 1])
        if connection.execute(
            "SELECT 1 FROM documents WHERE collection = ? AND id >= ? AND id < ? LIMIT 1",
            (collection.id, low, high),
        ).fetchone():
            return
    ((known, sample), *_) = decode_json(row[0]).items()
    raise invalid_request(
        "LogicalPartition.key",
        f"has the first component {name!r} with a value of type {type(value).__name__}; no document of "
        f"{collection.name!r} has such a key",
        f"write it like the key of a document, whose first component is {known!r} with a value of type "
        f"{type(sample).__name__}",
    )


def remove_collection(connection: sqlite3.Connection, collection: int) -> None:
    """Delete a collection with all its documents and changes."""
    connection.execute(
        "DELETE FROM log WHERE partition IN (SELECT id FROM partitions WHERE collection = ?)", (collection,)
    )
    for table in ("partitions", "documents"):
        connection.execute(f"DELETE FROM {table} WHERE collection = ?", (collection,))
    connection.execute("DELETE FROM collections WHERE id = ?", (collection,))


def make_room(
    connection: sqlite3.Connection,
    address: ResourceAddress,
    images: Images,
    partition_key: str | None,
    *,
    recreate: bool,
    exist_ok: bool,
) -> bool:
    """Prepare the creation of a collection."""
    # If the collection must be recreated, drop it and return False.
    check_type("recreate", recreate, bool)
    check_type("exist_ok", exist_ok, bool)
    if recreate and exist_ok:
        raise invalid_request("exist_ok", "is given together with recreate", "pass one of them")
    row = connection.execute(
        "SELECT id, images, partition_key FROM collections WHERE database = ? AND name = ?",
        (address.database, address.collection),
    ).fetchone()
    if row is None:
        return False
    if recreate:
        remove_collection(connection, row[0])
    elif not exist_ok:
        raise failure(
            ErrorCategory.CONFLICT,
            f"the collection {address} already exists; pass exist_ok=True to keep it, or recreate=True to "
            f"drop it and its changes",
        )
    elif row[1:] != (images, partition_key):
        raise failure(
            ErrorCategory.CONFLICT,
            f"the collection {address} already exists, with images={row[1]!r} and partition_key={row[2]}; "
            "pass the same values, or recreate=True to drop it and its changes",
        )
    return exist_ok


def check_shape(
    address: ResourceAddress,
    partitions: object,
    images: object,
    partition_key: Sequence[str] | None,
    retention: object,
) -> None:
    """Refuse invalid arguments for the creation of a collection."""
    if not (address.database and address.collection):
        raise invalid_request(
            "name", "is None, or the database is None", "name both; the database is 'main' by default"
        )
    if not (type(partitions) is int and 1 <= partitions <= MAX_PARTITIONS):
        raise invalid_request(
            "partitions", f"is {partitions!r}", f"pass a number from 1 to {MAX_PARTITIONS:,}"
        )
    if images not in IMAGES:
        raise invalid_request("images", f"is {images!r}", f"pass one of {', '.join(map(repr, IMAGES))}")
    if partition_key is not None and not (
        isinstance(partition_key, list | tuple)
        and partition_key
        and all(isinstance(name, str) and name for name in partition_key)
    ):
        raise invalid_request("partition_key", f"is {partition_key!r}", "pass a list of component names")
    for name in partition_key or ():
        utf8("partition_key", name)
    if retention is not None and not (isinstance(retention, timedelta) and retention > timedelta(0)):
        raise invalid_request("retention", f"is {retention!r}", "pass a timedelta of more than 0")


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


@frozen(eq=False, repr=False)
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
