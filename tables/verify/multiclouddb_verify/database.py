"""Reads and writes the SQLite database of a comparison, and never quotes the texts that are stored in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from multiclouddb_api import MulticloudDbError
from multiclouddb_verify.state_folder import broken, unusable


class Cursor(sqlite3.Cursor):
    """A cursor that also tells what goes wrong when a row is fetched, and quotes nothing that is stored."""

    def __init__(self, database: sqlite3.Connection, folder: Path) -> None:
        super().__init__(database)
        self._folder = folder

    def __next__(self) -> Any:
        with self._told():
            return super().__next__()

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        with self._told():
            return super().fetchone()

    def fetchmany(self, size: int | None = 1) -> list[Any]:
        """Return the next rows, at most so many."""
        with self._told():
            return super().fetchmany(size)

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        with self._told():
            return super().fetchall()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # Python's message about a text that is not UTF-8 contains the text; it has no code of SQLite.
            if getattr(error, "sqlite_errorcode", None) is None:
                raise broken(self._folder, "a text in it is not UTF-8") from None
            raise unusable(self._folder, error) from error


def cursor_of(database: sqlite3.Connection, folder: Path) -> Cursor:
    """Return a new cursor.

    Only `Connection.cursor` removes the connection's references to cursors that are gone: of one that is
    made by its class, a connection keeps 88 bytes until it is closed.
    """
    return database.cursor(lambda of: Cursor(of, folder))


class Transaction:
    """All writes inside the block are made at once, or none of them."""

    def __init__(self, sql: Callable[[str], object]) -> None:
        self._sql = sql

    def __enter__(self) -> None:
        self._sql("BEGIN")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._sql("COMMIT")
            return
        # SQLite has rolled back already if the disk is full; the error of the block is the one to raise.
        with suppress(MulticloudDbError):
            self._sql("ROLLBACK")
