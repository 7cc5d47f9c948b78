"""A collection, a table that follows it, and a mirror that is killed at a chosen moment."""

import json
import shutil
import sqlite3
from contextlib import closing

import psycopg
import pytest
from deltalake import DeltaTable

import multiclouddb_postgres.checkpoints
import multiclouddb_postgres.sink
from multiclouddb_api import connect
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_mirror import mirror, mirroring
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.sqlite import SqliteTable

from .kills import Steps

KINDS = ("delta", "sqlite", "postgres")
KILLED = ("sqlite", *(pytest.param(each, marks=pytest.mark.soak) for each in KINDS if each != "sqlite"))
"""The tables of a test that kills a mirror at every step. `make test` does it on the one that costs least,
because the mirror and the rules of a merge decide which step follows which, for all tables."""
OWN = ("delta", "postgres")
"""The others. They decide only what one step writes, so a step of each kind is enough for them."""
STEPS = (
    "prepare", "set_feed_mark", "redeclare", "store", "outdate", "bury", "merge", "claim", "store_position",
)  # fmt: skip
"""The methods of a table that write, each in one commit or transaction."""


class World(Steps):
    """A collection, a table of one kind, and a mirror that is killed at a chosen moment."""

    def __init__(self, folder, kind, server, monkeypatch):
        self.folder, self.kind, self.server = folder, kind, server
        super().__init__()
        self.is_made = False
        self.store = EmbeddedStore(folder / "shop.db")
        self.client = connect(f"embedded://{folder}/shop.db")
        # So that a run has several pages.
        monkeypatch.setattr(mirroring, "_PAGE_EVENTS", 3)
        for table in (DeltaTarget, SqliteTable):
            for name in STEPS:
                monkeypatch.setattr(table, name, self.mortal(getattr(table, name)))
        for module in (multiclouddb_postgres.sink, multiclouddb_postgres.checkpoints):
            monkeypatch.setattr(module, "repeated", self.mortal(module.repeated, module.__name__))

    def begin(self):
        """Make the collection and forget the table."""
        if self.is_made:
            self.store.drop_collection("orders")
        self.is_made = True
        self.store.create_collection("orders", partitions=2)
        for number in range(7):
            self.put(f"o-{number}", number)
        if self.kind == "delta":
            shutil.rmtree(self.folder / "table", ignore_errors=True)
        elif self.kind == "sqlite":
            (self.folder / "table.db").unlink(missing_ok=True)
        else:
            with psycopg.connect(self.server.dsn) as database:
                database.execute("DROP SCHEMA public CASCADE")
                database.execute("CREATE SCHEMA public")

    @property
    def target(self):
        if self.kind == "delta":
            return f"delta:{self.folder}/table"
        return (
            f"sqlite:{self.folder}/table.db#orders"
            if self.kind == "sqlite"
            else f"postgres:{self.server.dsn}#orders"
        )

    def put(self, key, total):
        self.store.put("orders", key, {"total": total})

    def change(self):
        self.put("o-0", 100)
        self.put("o-7", 7)
        self.put("o-1", 101)
        self.store.delete("orders", "o-2")
        self.put("o-8", 8)

    def run(self, dies_at=None, failure=None, **settings):
        self.begin_steps(dies_at, failure)
        try:
            return mirror(self.client, "main/orders", self.target, **settings)
        finally:
            self.dies_at = None

    def rows(self):
        """Return the documents of the live rows by key, read without this library."""
        return {key: json.loads(text)["total"] for key, text in self.values("new_item_state").items()}

    def values(self, column):
        """Return a column of the live rows by key, read without this library."""
        query = f"SELECT key, {column} FROM orders WHERE _deleted_at IS NULL"
        if self.kind == "delta":
            found = DeltaTable(self.folder / "table").to_pyarrow_table().to_pylist()
            rows = [(row["key"], row[column]) for row in found if row["_deleted_at"] is None]
        elif self.kind == "sqlite":
            with closing(sqlite3.connect(self.folder / "table.db")) as database:
                rows = database.execute(query).fetchall()
        else:
            with psycopg.connect(self.server.dsn) as database:
                rows = database.execute(query.replace("new_item_state", "new_item_state::text")).fetchall()
        return {json.loads(key)["id"]: value for key, value in rows}


FIRST = {f"o-{number}": number for number in range(7)}
CHANGED = {**{k: v for k, v in FIRST.items() if k != "o-2"}, "o-0": 100, "o-1": 101, "o-7": 7, "o-8": 8}
