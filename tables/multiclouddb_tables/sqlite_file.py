"""Opens the file of a database of SQLite for one step, and says what SQLite's errors mean for a sink.

A connection lives as long as a step. During a merge, one that has only read is used by the next step, because
opening costs more than most steps. None stays open after it has written: its commit is in the file itself
only when SQLite has closed it, and until then a file that takes the place of this one gets the commit too.

The file may be replaced while it is open, and what is written then goes into a file without a name. So the
number of the file is compared before a connection is used, and before and after each commit.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError, invalid_request
from multiclouddb_api.validators import check_type, path_here
from multiclouddb_tables.layout import missing

__all__ = ["SqliteFile"]

_OLDEST: Final = (3, 37, 0)
"""The version of SQLite that brought `PRAGMA table_list`."""
_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_OF_PROGRAM: Final = ("no such function", "unknown function", "no such collation sequence", "no such module")
"""What SQLite says of an index, a computed column or a constraint that needs more than SQLite itself has."""
_UNUSABLE: Final = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
_SETTINGS: Final = (
    # With NORMAL, a loss of power may take back commits in WAL mode that the sink's position is ahead of.
    "synchronous = FULL",
    "fullfsync = ON",
    # A row of another table may neither remove nor refuse a row, because the source decides.
    "foreign_keys = OFF",
)


@attrs.define
class SqliteFile:
    """The file of a database, which does not have to exist."""

    given: str
    """The path, as the user has written it."""
    path: Path
    """The absolute path."""
    table: str
    """The name of the table and of the file, for messages."""
    patience_seconds: float
    """How long a step waits if another program writes."""
    _kept: list[tuple[int, sqlite3.Connection]] | None = attrs.field(default=None, init=False, repr=False)
    """During `kept_open`, the connection that no step uses, with the number of its file; else None."""

    @classmethod
    def of(cls, path: str | os.PathLike[str], table: str, patience_seconds: float) -> SqliteFile:
        """Return the file of a path.

        Args:
            path: The path.
            table: The name of the table.
            patience_seconds: How long a step waits.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the path names no file, or if SQLite is too old.
        """
        text = str(path_here("path", path))
        check_type("patience_seconds", patience_seconds, int, float)
        if text == ":memory:" or "\0" in text:
            raise invalid_request("path", f"is {text!r}, which is no file", "give the path of the database")
        if sqlite3.sqlite_version_info < _OLDEST:
            problem = f"needs SQLite 3.37, and Python has {sqlite3.sqlite_version}"
            raise invalid_request("path", problem, "install a newer Python")
        return cls(text, Path(text).absolute(), f"sqlite:{text}#{table}", patience_seconds)

    @property
    def exists(self) -> bool:
        """True unless there is certainly no file."""
        try:
            self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            pass  # a file that cannot be looked at is not absent; who opens it says why
        return True

    @property
    def number(self) -> int:
        """The number of the file that has the path now."""
        return self.path.stat().st_ino

    def make(self) -> None:
        """Make an empty database in WAL mode, unless the database has something in it."""
        try:
            self.path.touch()
        except OSError as error:
            raise self._told(error) from error
        with self._opened() as (_, database):
            if database.execute("SELECT 1 FROM sqlite_schema").fetchone() is None:
                database.execute("PRAGMA journal_mode = WAL")

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Let the steps that read share a connection, which holds no lock between them."""
        if self._kept is not None:
            yield
            return
        kept = self._kept = []
        try:
            yield
        finally:
            self._kept = None
            for _, database in kept:
                database.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read one version."""
        with self._opened() as (number, database):
            database.execute("BEGIN")
            yield database
            if self._kept == []:
                database.rollback()
                self._kept.append((number, database))

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Make one commit, into the file that has the path before it and after it."""
        with self._opened() as (number, database):
            database.execute("BEGIN IMMEDIATE")
            yield database
            self._check(number)
            database.execute("COMMIT")
            self._check(number)

    @contextmanager
    def _opened(self) -> Iterator[tuple[int, sqlite3.Connection]]:
        """Open the file, which has to exist; what is not committed at the end is rolled back."""
        try:
            number = self.number
            database = self._connection(number)
            try:
                self._check(number)
                self._check_names()
                yield number, database
            finally:
                if (number, database) not in (self._kept or ()):
                    database.close()
        except (sqlite3.Error, OSError) as error:
            raise self._told(error) from error

    def _connection(self, number: int) -> sqlite3.Connection:
        """Return the connection that is kept, if its file still has this number; else a new one."""
        if self._kept:
            of, database = self._kept.pop()
            if of == number:
                return database
            database.close()
        database = sqlite3.connect(
            self.path.as_uri() + "?mode=rw",
            uri=True,
            timeout=self.patience_seconds,
            isolation_level=None,
            # A generator that reads may be closed by another thread.
            check_same_thread=False,
        )
        try:
            database.text_factory = _text
            for each in _SETTINGS:
                database.execute(f"PRAGMA {each}")
            # SQLite opens the file for the first statement that reads it.
            database.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except BaseException:
            database.close()
            raise
        return database

    def _check(self, number: int) -> None:
        try:
            is_same = self.number == number
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise MulticloudDbError(
                f"path: the file of {self.table} was replaced or removed meanwhile; try again",
                ErrorDetail(ErrorCategory.CONFLICT, retryable=True, reason=ErrorReason.OTHER_WRITER),
            )

    def _check_names(self) -> None:
        """Refuse a file with several names, because SQLite has a log of commits for each of them.

        What was committed by one name is not read by the other, and is lost when that one writes too. SQLite
        itself follows symbolic links.
        """
        if self.path.stat().st_nlink > 1:
            raise invalid_request(
                "path",
                f"{self.given} is a file with several names (hard links), each of which has a log of commits "
                "of its own, so that commits would be lost",
                "copy the file in place of a link to it: a backup that is a link is none",
            )

    def _told(self, error: Exception) -> MulticloudDbError:
        """Return the error of the contract for one of SQLite."""
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not self.path.parent.is_dir():
            return self._unusable("there is no such folder")
        if isinstance(error, FileNotFoundError):
            return missing(self.table)
        if isinstance(error, OSError):
            return self._unusable(error.strerror or type(error).__name__)
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest is a detail
        if code in _LOCKED:
            problem = f"was locked by another program for {self.patience_seconds:g} s; try again"
            detail = ErrorDetail(ErrorCategory.CONFLICT, retryable=True, reason=ErrorReason.OTHER_WRITER)
            return MulticloudDbError(f"path: {self.table} {problem}", detail)
        if code == sqlite3.SQLITE_CONSTRAINT:
            return invalid_request(
                "table",
                f"{self.table} has a constraint that does not allow the rows: {error}",
                "drop the constraint, because the source decides which rows there are",
                ErrorReason.MISFIT,
            )
        if code == sqlite3.SQLITE_NOTADB:
            return invalid_request("path", f"{self.given} is no database of SQLite", "correct the path")
        if code in _UNUSABLE:
            return self._unusable(str(error))
        if any(words in str(error) for words in _OF_PROGRAM):
            return invalid_request(
                "table",
                f"{self.table} has an index, a computed column or a constraint with a function or a "
                f"collation that only the program has which has made it ({error})",
                "drop it, or make it with what SQLite has itself",
            )
        way_out = "check the disk, the space on it and the limits of this process, and try again"
        if code == sqlite3.SQLITE_CORRUPT:
            way_out = "the file is damaged: bring it back from a backup, or fill a new one from a snapshot"
        return MulticloudDbError(
            f"path: SQLite reports of {self.table}: {error}; {way_out}",
            ErrorDetail(ErrorCategory.PERMANENT_FAILURE),
        )

    def _unusable(self, problem: str) -> MulticloudDbError:
        return invalid_request(
            "path",
            f"{self.given} cannot be used: {problem}",
            "give a file in a folder that exists, and let this process read and write both",
        )


def _text(raw: bytes) -> str | bytes:
    """Return a stored text; the bytes if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
