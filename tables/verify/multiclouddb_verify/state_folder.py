"""Defines the folder that one comparison uses alone: its lock, who may read its files, and its errors."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import sqlite3
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError, invalid_request

FILES: Final = re.compile(r"state\.db(-wal|-shm|-journal)?|lock|\d{6,}\.run")
"""The names of the files of a comparison."""
FILE_MODE: Final = 0o600
"""The files contain keys and digests of documents, so only their owner may read them."""
_FOLDER_MODE: Final = 0o700


def private(path: str, flags: int) -> int:
    """Open a file that only its owner may read; for `open`."""
    return os.open(path, flags, FILE_MODE)


def locked(folder: Path, files: re.Pattern[str] = FILES) -> IO[str]:
    """Create the folder, and return the file that no other process can lock meanwhile.

    Args:
        folder: The folder.
        files: The names of the files that may be in it.
    """
    with translated(folder):
        while True:
            folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
            foreign = sorted(each.name for each in folder.iterdir() if not files.fullmatch(each.name))
            if foreign:
                raise invalid_request(
                    "state",
                    f"{folder} contains other files, such as {foreign[0]}",
                    "give a folder for this comparison alone; it is removed at the end",
                )
            with suppress(FileNotFoundError):
                # Another process may have removed the folder, or the file, when it had ended.
                lock = os.fdopen(os.open(folder / "lock", os.O_CREAT | os.O_RDWR, FILE_MODE), "a")
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(os.fstat(lock.fileno()), (folder / "lock").stat()):
                        if stat.S_IMODE(folder.stat().st_mode) != _FOLDER_MODE:
                            folder.chmod(_FOLDER_MODE)
                        return lock
                except BlockingIOError as error:
                    lock.close()
                    raise MulticloudDbError(
                        f"state: {folder} is in use by another verify; wait for its end, or give another "
                        "folder",
                        ErrorDetail(ErrorCategory.CONFLICT, retryable=True, reason=ErrorReason.OTHER_WRITER),
                    ) from error
                except BaseException:  # whatever ends it: nobody else can free the lock
                    lock.close()
                    raise
                lock.close()


class translated:  # noqa: N801 - used as a function
    """Say what a person can do about an error of the file system."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError | sqlite3.Error):
            raise unusable(self._folder, error) from error


def unusable(folder: Path, error: OSError | sqlite3.Error) -> MulticloudDbError:
    """Make the error for a folder that cannot be read or written."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "sqlite_errorcode", None)
    if isinstance(error, sqlite3.Error):
        if code == sqlite3.SQLITE_FULL:
            return _refused(folder, "has no space left on its disk", "make space, or give another folder")
        if code is not None and code & 0xFF in (
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_PERM,
        ):
            return _refused(folder, f"cannot be written ({error})", "give another folder")
        return broken(folder, str(error))
    match code:
        case errno.ENOSPC | errno.EDQUOT:
            return _refused(folder, "has no space left on its disk", "make space, or give another folder")
        case errno.EEXIST | errno.ENOTDIR:
            return _refused(folder, "is a file", "give a folder, or remove it")
        case errno.ENOENT | errno.EISDIR:
            return broken(folder, str(error.strerror or error))
        case _:
            problem = f"cannot be read or written ({error.strerror or error})"
            return _refused(folder, problem, "give another folder")


def _refused(folder: Path, problem: str, advice: str) -> MulticloudDbError:
    return invalid_request("state", f"{folder} {problem}", advice)


def broken(folder: Path, problem: str) -> MulticloudDbError:
    """Make the error for a folder whose files do not fit together."""
    return _refused(
        folder, f"is broken ({problem})", "remove it, or run without resume (--resume), which removes it"
    )


def default_folder(identity: Mapping[str, str]) -> Path:
    """Return the folder for the state of a comparison, in the user's cache."""
    import hashlib

    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).hexdigest()[:20]
    return Path(cache) / "multiclouddb" / "verify" / name
