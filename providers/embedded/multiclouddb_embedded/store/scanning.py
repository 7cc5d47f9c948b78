"""Reads all documents of a collection as they were at one point in time."""

from __future__ import annotations

import sqlite3
import threading
from typing import Final

from multiclouddb_embedded.store.collection import find_collection
from multiclouddb_embedded.store.connection import connect
from multiclouddb_embedded.store.forking import Holder, inherited, using_sqlite

_ROWS: Final = 500
_KEPT_CHARACTERS: Final = 256 * 1024 * 1024

Row = tuple[str, str]
"""The key and the document, both as JSON."""


class Scan(Holder):
    """A cursor over the documents."""

    # If the process forks during the scan, the remaining rows are first read into memory.

    def __init__(self, path: str, database: str, collection: str) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._path, self._lost = path, False
        self._kept: list[list[Row]] = []
        with using_sqlite():
            self._connection: sqlite3.Connection | None = connect(path)
            try:
                self._connection.execute("BEGIN")
                found = find_collection(self._connection, database, collection)
                self._cursor = self._connection.execute(
                    "SELECT key, doc FROM documents WHERE collection = ? ORDER BY id", (found.id,)
                )
            except BaseException:
                self._connection.close()
                raise
        self.partition_components = found.partition_components

    def fetch(self) -> list[Row]:
        """Return the next rows; an empty list at the end."""
        with using_sqlite(), self._lock:
            if self._kept:
                return self._kept.pop(0)
            if self._lost:
                raise inherited(self._path)
            return self._cursor.fetchmany(_ROWS) if self._connection is not None else []

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        with using_sqlite(), self._lock:
            self._drop()

    def let_go(self) -> None:
        """Read the remaining rows and close the connection, unless there are too many rows."""
        if self._connection is None or not self._lock.acquire(blocking=False):
            return
        try:
            size = sum(len(key) + len(doc) for part in self._kept for key, doc in part)
            while size <= _KEPT_CHARACTERS:
                part = self._cursor.fetchmany(_ROWS)
                if not part:
                    self._drop()
                    return
                self._kept.append(part)
                size += sum(len(key) + len(doc) for key, doc in part)
        finally:
            self._lock.release()

    def begin_anew(self) -> list[object]:
        """After a fork without `let_go`, keep only the rows that are already in memory."""
        self._lock = threading.RLock()
        if self._connection is None:
            return []
        kept: list[object] = [self._connection, self._cursor]
        self._connection, self._lost = None, True
        return kept

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
