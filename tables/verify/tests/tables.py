"""A collection of the embedded store that pages copy into a Delta table, and faults in the table."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    FileCheckpointStore,
    FromContinuationToken,
    Now,
    connect,
    encode_json,
)
from multiclouddb_conformance.waiting import Beside
from multiclouddb_embedded import Delete, EmbeddedStore, Put
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_tables.delta_log import committed
from multiclouddb_tables.rules import PLACES
from multiclouddb_verify import DeltaTarget, DifferenceKind, stored_position, verify
from pyspark_multiclouddb import live_rows, merge_into_delta

NAME = "sink"
VALUES = (
    1, 1.0, True, None, "é\u2028", [1, {"a": None}], Decimal("1.50"), b"\x00\xff", {"$x": 1}, float("inf"),
    datetime(2026, 1, 2, 3, 4, 5, 678, UTC), UUID(int=7), 2**70, -0.0, {"b": 1, "a": 2},
)  # fmt: skip


def quick():
    """Return what to set so that nobody waits until a slow transaction of the store must have ended."""
    return EmbeddedFeed, "visible_after", lambda feed: 0.02


def key_of(name):
    return encode_json({"id": name}).decode()


class Shop:
    """A store, a sink that reads pages, and the table.

    Args:
        folder: An empty folder.
        count: The number of documents.
        transform: Makes the columns of a table without documents.
        columns: The declaration of the table's columns.
    """

    def __init__(self, folder, count=60, transform=None, columns=None):
        self.folder, self.table, self.transform = folder, folder / "table", transform
        self.columns = columns
        self.store = EmbeddedStore(folder / "shop.db", durable=False)
        self.address = self.store.create_collection("orders", partitions=2)
        self.names = [f"o-{number:06d}" for number in range(count)]
        for start in range(0, count, 5000):
            rows = [
                Put(name, {"n": start + at, "v": VALUES[at % len(VALUES)]})
                for at, name in enumerate(self.names[start : start + 5000])
            ]
            self.store.batch("orders", rows)
        self.checkpoints = FileCheckpointStore(folder / "checkpoints")
        self.url = f"embedded://{self.store.path}"
        self.client = connect(self.url)
        self.follow()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.store.close()

    def follow(self, size=0):
        """Merge until the feed is idle."""
        while not self.step(size).idle:
            pass

    def reshape(self, dice):
        """Split a partition, or merge two."""
        parts = [each.partition_id for each in self.store.partitions("orders")]
        if len(parts) < 4:
            self.store.split("orders", dice.choice(parts))
        else:
            first = dice.randrange(len(parts) - 1)
            self.store.merge("orders", *parts[first : first + 2])

    def step(self, size=0):
        saved = self.checkpoints.load(NAME)
        start = Beginning() if saved is None else FromContinuationToken(saved.token)
        page = self.client.read_changes(ChangeFeedRequest(self.address, start, max_page_size=size))
        batch = page
        if self.transform is not None:
            rows = pa.Table.from_batches([page.to_arrow()])
            states = [event.new_item_state for event in page.events]
            made = [{} if state is None else self.transform(state) for state in states]
            names = ["event_id", "key", "type", "order_key", "timestamp", "backfilled", *PLACES]
            batch = rows.select(names)
            for name, kind in (("n", pa.int64()), ("kind", pa.string())):
                batch = batch.append_column(name, pa.array([each.get(name) for each in made], kind))
        merge_into_delta(batch, None, self.table, None, columns=self.columns)
        self.checkpoints.save(NAME, page.continuation_token, None if saved is None else saved.version)
        return page

    def pass_over(self):
        """Expire all changes, and let the sink go on at the end of the feed."""
        self.store.trim("orders", max_count=0)
        token = self.client.read_changes(ChangeFeedRequest(self.address, Now())).continuation_token
        self.checkpoints.save(NAME, token, self.checkpoints.load(NAME).version)

    def verify(self, **settings):
        settings = {"state": self.folder / "state", "patience_seconds": 30.0, **settings}
        position = stored_position(self.checkpoints, NAME)
        settings = {"position": position, **settings}
        target = settings.pop("target", None) or DeltaTarget(self.table)
        return verify(self.client, self.address, target, **settings)

    def plant(self, *names, kinds=tuple(DifferenceKind)):
        """Damage a row of each kind; return the kinds by key."""
        faults = {}
        for name, kind in zip(names, kinds, strict=False):
            key = key_of(f"ghost-{name}" if kind is DifferenceKind.GHOST else name)
            if kind is DifferenceKind.FOREIGN:
                key = json.dumps(json.loads(key))
            plant(self.table, key, kind)
            faults[key] = kind
        return faults

    def damage(self, table, name, column="doc"):
        """Cut the texts of a document off, in the store itself.

        Args:
            table: The store's own table: `documents`, or `log` for its changes.
            name: The document.
            column: `doc`, or `key`.
        """
        with closing(sqlite3.connect(self.store.path)) as database, database:
            update = f"UPDATE {table} SET {column} = '{{\"n\":' WHERE key LIKE ?"
            assert database.execute(update, (f'%"{name}"%',)).rowcount

    def truth(self):
        return {key.components["id"]: value for key, value in self.store.scan("orders")}

    def documents(self):
        return documents(self.table)

    def check_equal(self):
        ours = {name: encode_json(value) for name, value in self.truth().items()}
        assert {name: text.encode() for name, text in self.documents().items()} == ours


def documents(table):
    rows = live_rows(table).read_all().to_pylist()
    found = {json.loads(row["key"])["id"]: row["new_item_state"] for row in rows}
    assert len(found) == len(rows), "a key has several rows"
    return found


def plant(path, key, kind):
    """Damage the row of a key, or add one that should not be there."""
    table = DeltaTable(path)
    this = "key = '" + key.replace("'", "''") + "'"

    def update(**values):
        committed(table, lambda: table.update(predicate=this, updates=values))

    match kind:
        case DifferenceKind.MISSING:
            committed(table, lambda: table.delete(this))
        case DifferenceKind.STALE:
            update(new_item_state="""'{"n":"other"}'""")
        case DifferenceKind.UNREADABLE:
            update(new_item_state="'{not json'")
        case DifferenceKind.TOMBSTONE:
            update(new_item_state="NULL", _deleted_at="to_timestamp_micros(1)")
        case DifferenceKind.BLOCKED:
            update(order_key="'~'")
        case DifferenceKind.DUPLICATE | DifferenceKind.GHOST | DifferenceKind.FOREIGN:
            rows = table.to_pyarrow_dataset().scanner(use_threads=False).to_table().to_pylist()
            schema = table.to_pyarrow_dataset().schema
            if kind is DifferenceKind.DUPLICATE:
                row = next(row for row in rows if row["key"] == key)
            else:
                # A copy of a row that is blocked already would be blocked too.
                row = next(row for row in rows if row["order_key"] < "~")
                row |= {"new_item_state": '{"v":1}', "_deleted_at": None}
            added = pa.Table.from_pylist([row | {"key": key}], schema=schema)
            committed(table, lambda: write_deltalake(table, added, mode="append"))


class Busy(Beside):
    """Changes documents and merges the changes, until the block ends; with `dice`, partitions change too."""

    def __init__(self, shop, names, size=200, dice=None):
        super().__init__(self._write, self._sink)
        self.shop, self.names, self.size, self.dice = shop, names, size, dice

    def _write(self, number):
        name = self.names[number % len(self.names)]
        deletes = number % 7 == 0
        self.shop.store.batch("orders", [Delete(name) if deletes else Put(name, {"n": number})])
        if self.dice is not None and self.dice.random() < 0.02:
            self.shop.reshape(self.dice)
        return 0.002

    def _sink(self, number):
        self.shop.step(self.size)
