"""Stores checkpoints of many workers in one SQLite file."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from multiclouddb_api import Checkpoint, MulticloudDbError, invalid_request
from multiclouddb_api.checkpoint import (
    MOST_BYTES,
    broken,
    broken_disk,
    check_name,
    conflict,
    local_path_of,
    make_folder,
    newer,
    next_version,
    sync_folder,
    unusable,
)
from multiclouddb_api.validators import check_type, path_here
from multiclouddb_embedded.store.connection import connect
from multiclouddb_embedded.store.forking import using_sqlite

_VERSION: Final = 1
_APPLICATION_ID: Final = 0x6D636470  # "mcdp"
_BUSY_SECONDS: Final = 30.0
_DAMAGE: Final = (
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR
)  # fmt: skip
_TABLE: Final = """
CREATE TABLE checkpoints (
    name TEXT PRIMARY KEY,
    version TEXT NOT NULL,
    token TEXT NOT NULL,
    sha256 TEXT NOT NULL
) WITHOUT ROWID
"""


class SqliteCheckpointStore:
    """Stores checkpoints by name in one SQLite file on a local disk; it implements `CheckpointStore`.

    Several threads and processes can share the file: each call opens it, and each save is flushed to disk.
    Only the owner can read it, because a token may contain the key of a document.

    Args:
        path: The path of the file, which must not be that of an `EmbeddedStore`; the first `save` creates the
            file and its folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path_here("path", path).absolute()

    @property
    def path(self) -> Path:
        """The absolute path of the file."""
        return self._path

    def load(self, name: str) -> Checkpoint | None:
        """Return the checkpoint, or None if no checkpoint has that name or the file does not exist yet.

        Args:
            name: The name of the checkpoint.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the file is damaged, empty, of another kind or in a newer
                format version; `PERMANENT_FAILURE` if the file cannot be read; `TRANSIENT_FAILURE` if the
                file stays locked. The message names the file.
        """
        check_name(name)
        with self._opened("read") as connection:
            if connection is None:
                return None
            connection.execute("BEGIN")
            return self._find(connection, name)

    def save(self, name: str, token: str, expected: str | None) -> Checkpoint:
        """Replace the checkpoint if it still has the expected version.

        The checkpoint is durable when the call returns.

        Args:
            name: The name of the checkpoint.
            token: The token to keep.
            expected: The version that `load` or the last `save` returned; None if no checkpoint with this
                name may exist yet.

        Raises:
            MulticloudDbError: `CONFLICT` if another worker has written the checkpoint; the errors of `load`
                if the file cannot be used; `PERMANENT_FAILURE` if the disk refuses the write. After such an
                error, the stored checkpoint is unchanged.
        """
        check_name(name)
        Checkpoint(token, "1")
        check_type("expected", expected, str, type(None))
        with self._opened("written", create=True) as connection:
            assert connection is not None
            connection.execute("BEGIN IMMEDIATE")
            found = self._find(connection, name)
            if (None if found is None else found.version) != expected:
                raise conflict(self._path, name, expected, found)
            checkpoint = Checkpoint(token, next_version(found))
            row = (name, checkpoint.version, token, _checksum(name, checkpoint.version, token))
            connection.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?)", row)
            connection.execute("COMMIT")
            return checkpoint

    def delete(self, name: str) -> bool:
        """Delete a checkpoint, even a damaged one; return False if there is none.

        A later `save` that expects it gets `CONFLICT`.

        Args:
            name: The name of the checkpoint.

        Raises:
            MulticloudDbError: The errors of `load` if the file cannot be used, or if it is damaged and the
                checkpoint is not found.
        """
        check_name(name)
        with self._opened("written") as connection:
            if connection is None:
                return False
            found = connection.execute("DELETE FROM checkpoints WHERE name = ?", (name,)).rowcount > 0
            if not found:
                self._check_whole(connection, thoroughly=True)
            return found

    def __repr__(self) -> str:
        return f"SqliteCheckpointStore({str(self._path)!r})"

    @contextmanager
    def _opened(self, verb: str, *, create: bool = False) -> Iterator[sqlite3.Connection | None]:
        """Open a connection for one call, in autocommit mode."""
        with using_sqlite(), self._errors(verb):
            if not self._path.exists():
                if not create:
                    yield None
                    return
                self._make()
            with closing(connect(str(self._path), busy_seconds=_BUSY_SECONDS)) as connection:
                _make_durable(connection)
                # Damaged text may no longer be UTF-8. It is still returned, because its checksum then shows
                # the damage, whereas SQLite's own error would quote the text.
                connection.text_factory = lambda raw: raw.decode(errors="replace")
                self._check(connection)
                yield connection

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Convert every error inside the block to a `MulticloudDbError` that names the file."""
        try:
            yield
        except OSError as error:
            raise broken_disk(self._path, verb, error) from error
        except UnicodeDecodeError:
            # SQLite quotes a damaged schema. The error is not made the cause, because it contains the text.
            raise self._unusable("is damaged (a text in it is not UTF-8)") from None
        except sqlite3.Error as error:
            if _code(error) in _DAMAGE:
                raise self._unusable(f"is damaged or not a checkpoint file ({error})") from error
            busy = _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            name: str | None = getattr(error, "sqlite_errorname", None)
            raise broken(self._path, verb, error, str(error), name, busy=busy) from error

    def _make(self) -> None:
        """Create the file with all its contents, unless another process has already created it."""
        # The file is created with all its contents; therefore an empty file is always a damaged file.
        folder = self._path.parent
        make_folder(folder)
        draft = folder / f".{self._path.name}.{os.urandom(4).hex()}.tmp"
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            with closing(connect(str(draft))) as connection:
                _make_durable(connection)
                connection.execute("BEGIN")
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
                connection.execute(_TABLE)
                connection.execute("COMMIT")
            with suppress(FileExistsError):
                os.link(draft, self._path)
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(folder)

    def _check(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION_ID:
            empty = self._path.stat().st_size == 0
            raise self._unusable("is empty" if empty else "is a SQLite database but contains no checkpoints")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise newer(self._path, version, _VERSION, "multiclouddb")

    def _find(self, connection: sqlite3.Connection, name: str) -> Checkpoint | None:
        # The caller holds a transaction, so that no other process changes the file.
        row = connection.execute(
            "SELECT version, substr(token, 1, ?), sha256 FROM checkpoints WHERE name = ?",
            (MOST_BYTES + 1, name),
        ).fetchone()
        self._check_whole(connection, thoroughly=row is None)
        if row is None:
            return None
        version, token, checksum = row
        if isinstance(token, str) and len(token) > MOST_BYTES:
            raise self._unusable(f"has a checkpoint {name!r} of more than {MOST_BYTES >> 20} MiB")
        if not _matches(name, version, token, checksum):
            raise invalid_request(
                f"checkpoint file {self._path}",
                f"{name!r} does not match its checksum: it was changed or damaged",
                f"restore the file from a backup, or call delete({name!r}) to begin again at the request's "
                "start_position",
            )
        return Checkpoint(token, version)

    def _check_whole(self, connection: sqlite3.Connection, *, thoroughly: bool) -> None:
        """Refuse a truncated file, which SQLite may read as a complete one with missing rows."""
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        if self._path.stat().st_size % page_size:
            raise self._unusable("is truncated")
        if thoroughly:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise self._unusable(f"is damaged ({' '.join(found.split())})")
            # If its name is damaged, a checkpoint must not look as if it was never saved.
            every = connection.execute(
                "SELECT name, version, substr(token, 1, ?), sha256 FROM checkpoints", (MOST_BYTES + 1,)
            )
            for name, version, token, checksum in every:
                if not _matches(name, version, token, checksum):
                    raise self._unusable("is damaged (a checkpoint in it does not match its checksum)")

    def _unusable(self, problem: str) -> MulticloudDbError:
        return unusable(self._path, problem, "name another file, restore it from a backup")


def open_sqlite(url: str) -> SqliteCheckpointStore:
    """Open the store that `sqlite:///path` names."""
    return SqliteCheckpointStore(local_path_of(url))


def _make_durable(connection: sqlite3.Connection) -> None:
    """Make each commit return only after its data has reached the disk, also on macOS."""
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.execute("PRAGMA fullfsync = 1")


def _matches(name: object, version: object, token: object, checksum: object) -> bool:
    """Return True if a row is unchanged since it was written."""
    # Damage to the file can also change the types of values.
    if not (isinstance(name, str) and isinstance(version, str) and isinstance(token, str)):
        return False
    return checksum == _checksum(name, version, token)


def _code(error: sqlite3.Error) -> int | None:
    """Return the primary result code of SQLite, or None for an error that Python itself raised."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _checksum(name: str, version: str, token: str) -> str:
    return hashlib.sha256("\n".join((name, version, token)).encode()).hexdigest()
