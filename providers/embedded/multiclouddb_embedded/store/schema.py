"""Defines the tables of a store, and the marks that distinguish a store from any other file."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import Final

from multiclouddb_api import ErrorCategory
from multiclouddb_spi import ProviderFault

SCHEMA_VERSION: Final = 1
_APPLICATION_ID: Final = 0x6D636462  # "mcdb"

# The page size is larger than SQLite's default of 4 KiB. With this size, scans take a third less time per
# row, and documents of up to 4 KB are stored in their row.
_PAGE_BYTES: Final = 16384

_TABLES: Final = """
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    version INTEGER NOT NULL,
    head_seq INTEGER NOT NULL,            -- the last change, split or merge
    head_ts INTEGER NOT NULL              -- the last commit, in microseconds since 1970; never goes back
);
CREATE TABLE collections (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    database TEXT NOT NULL,
    name TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    images TEXT NOT NULL,
    partition_key TEXT,                   -- names of components, as JSON; null = the first, whatever its name
    retention INTEGER,                    -- microseconds, or null
    created_seq INTEGER NOT NULL,
    trimmed INTEGER NOT NULL DEFAULT 0,   -- the highest seq that was removed
    partitions INTEGER NOT NULL DEFAULT 0, -- how many it ever had
    UNIQUE (database, name)
);
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    collection INTEGER NOT NULL,
    name TEXT NOT NULL,
    low INTEGER NOT NULL,                 -- hashes in [low, high)
    high INTEGER NOT NULL,
    parents TEXT NOT NULL,                -- names as JSON
    children TEXT NOT NULL DEFAULT '[]',
    start_seq INTEGER NOT NULL,           -- holds changes in (start_seq, end_seq]
    start_ts INTEGER NOT NULL,
    end_seq INTEGER,
    end_ts INTEGER,
    last_seq INTEGER NOT NULL,            -- its last change, or start_seq
    written INTEGER NOT NULL DEFAULT 0,   -- changes ever
    volume INTEGER NOT NULL DEFAULT 0,    -- bytes ever
    removed INTEGER NOT NULL DEFAULT 0,   -- changes removed by trim
    trimmed INTEGER NOT NULL DEFAULT 0,   -- the highest seq that was removed
    UNIQUE (collection, name)
);
CREATE UNIQUE INDEX partitions_open ON partitions (collection, low) WHERE end_seq IS NULL;
CREATE TABLE log (
    partition INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    ts INTEGER NOT NULL,
    type INTEGER NOT NULL,                -- 0 create, 1 update, 2 delete
    hash INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,             -- counts the partition's changes from 1
    volume INTEGER NOT NULL,              -- bytes of the partition up to and with this change
    size INTEGER NOT NULL,
    key TEXT NOT NULL,
    doc TEXT,
    old TEXT,
    PRIMARY KEY (partition, seq)
) WITHOUT ROWID;
CREATE INDEX log_hash ON log (partition, hash);
CREATE TABLE documents (
    collection INTEGER NOT NULL,
    id BLOB NOT NULL,                     -- the key's canonical JSON
    key TEXT NOT NULL,
    doc TEXT NOT NULL,
    PRIMARY KEY (collection, id)
) WITHOUT ROWID;
CREATE TABLE commits (
    ts INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL                  -- the last change committed then
);
"""


def create_store(connection: sqlite3.Connection, path: str, patience: float) -> None:
    """Create the tables in an empty file."""
    # If the file is already a store, do nothing. Several processes may call this function at the same time.
    if not _is_empty(connection, path):
        check_store(connection, path)
        return
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    enter_wal_mode(connection, patience)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_empty(connection, path):
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            for statement in _TABLES.split(";\n"):
                connection.execute(statement)
            connection.execute("INSERT INTO store VALUES (1, ?, 0, 0)", (SCHEMA_VERSION,))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    check_store(connection, path)


def check_store(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a file that is not a store, or is a store in a later format version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != _APPLICATION_ID:
        if _is_empty(connection, path):
            raise ProviderFault.of(
                ErrorCategory.NOT_FOUND,
                f"the file {path} is empty; EmbeddedStore(path) turns it into a store",
            )
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"the file {path} contains other data and is not an embedded store; name another file",
        )
    (version,) = connection.execute("SELECT version FROM store").fetchone()
    if version > SCHEMA_VERSION:
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"the store {path} has schema version {version}, but this multiclouddb-embedded supports "
            f"{SCHEMA_VERSION}; run: pip install --upgrade multiclouddb-embedded",
        )


def _is_empty(connection: sqlite3.Connection, path: str) -> bool:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    # SQLite mistakes a file of one byte for an empty file and would overwrite it.
    return bool(tables == 0) and os.stat(path).st_size != 1


def enter_wal_mode(connection: sqlite3.Connection, patience: float) -> None:
    """Switch to WAL mode, in which readers and a writer can work at the same time."""
    # If several processes switch to WAL mode at the same time, SQLite may give up at once, despite its busy
    # timeout. Therefore this function retries.
    until = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(0.005)
        else:
            return
