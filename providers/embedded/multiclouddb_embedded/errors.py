"""Maps each failure of SQLite or of the file to its category."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_spi import Fault, ProviderFault
from multiclouddb_spi.errors import to_error
from multiclouddb_spi.faults import REPORT, FaultRule, unexpected

PROVIDER_ID: Final = "embedded"

_RETRY: Final = "try again"
_DAMAGED: Final = (
    "the file is damaged; restore it from a copy, or recover it with the sqlite3 shell's .recover"
)
_RIGHTS: Final = "give this user the right to read and write the file and its folder"
_GONE: Final = "the file is gone or cannot be opened; EmbeddedStore(path) creates a store"
_FULL: Final = "nothing of this call was written; free space on the disk and call again"
_FOLDER: Final = (
    "the folder is read-only, but SQLite has to create files in it (-wal, -shm) even to read a store; give "
    "this user the right to write in the folder, or read while a writer has the store open, or read a copy"
)
_NO_HANDLE: Final = (
    f"the file exists but cannot be opened; check the limit on open files (ulimit -n) and {_RETRY}"
)

_BROKEN: Final = FaultRule(ErrorCategory.PERMANENT_FAILURE, REPORT)
_LOCKED_FOLDER: Final = FaultRule(ErrorCategory.AUTHORIZATION_FAILED, _FOLDER)
_DENIED: Final = FaultRule(ErrorCategory.AUTHORIZATION_FAILED, _RIGHTS)
_MISSING: Final = FaultRule(ErrorCategory.NOT_FOUND, _GONE)
_SPOILT: Final = FaultRule(ErrorCategory.PERMANENT_FAILURE, _DAMAGED)


_passing: Final = partial(FaultRule, ErrorCategory.TRANSIENT_FAILURE)
# Maps a primary result code to its meaning.
_CODES: Final[dict[int, FaultRule]] = {
    sqlite3.SQLITE_BUSY: _passing(f"another process holds the store; {_RETRY}"),
    sqlite3.SQLITE_LOCKED: _passing(f"another thread holds the store; {_RETRY}"),
    sqlite3.SQLITE_INTERRUPT: _passing(f"the read was cancelled; {_RETRY}"),
    sqlite3.SQLITE_PROTOCOL: _passing(f"a lock could not be taken; {_RETRY}"),
    sqlite3.SQLITE_SCHEMA: _passing(f"the store was changed in the meantime; {_RETRY}"),
    sqlite3.SQLITE_ABORT: _passing(f"the statement was rolled back; {_RETRY}"),
    sqlite3.SQLITE_NOMEM: _passing("memory ran out; read smaller pages"),
    sqlite3.SQLITE_IOERR: _passing("the disk failed; check the system log"),
    sqlite3.SQLITE_FULL: FaultRule(ErrorCategory.PERMANENT_FAILURE, _FULL),
    sqlite3.SQLITE_CORRUPT: _SPOILT,
    sqlite3.SQLITE_FORMAT: _SPOILT,
    sqlite3.SQLITE_NOTADB: FaultRule(
        ErrorCategory.INVALID_REQUEST, "the file is not a store; name another one"
    ),
    sqlite3.SQLITE_CANTOPEN: _MISSING,
    sqlite3.SQLITE_NOTFOUND: _MISSING,
    sqlite3.SQLITE_PERM: _DENIED,
    sqlite3.SQLITE_READONLY: _DENIED,
    sqlite3.SQLITE_AUTH: _DENIED,
    sqlite3.SQLITE_TOOBIG: FaultRule(ErrorCategory.PROVIDER_ERROR, "a record is larger than SQLite allows"),
}


def classify(error: Exception, path: str = "") -> Fault:
    """Classify a failure."""
    match error:
        case sqlite3.Error():
            return _sqlite_fault(error, path)
        case FileNotFoundError():
            return Fault(ErrorCategory.NOT_FOUND, _about(path, _GONE))
        case PermissionError():
            return Fault(ErrorCategory.AUTHORIZATION_FAILED, _about(path, _RIGHTS))
        case OSError() | MemoryError():
            return _passing(_RETRY).fault(_about(path, f"{type(error).__name__}: {error}"))
        case _:
            return unexpected(error)


def _about(path: str, text: str) -> str:
    return f"{path}: {text}" if path else text


def _sqlite_fault(error: sqlite3.Error, path: str) -> Fault:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        if isinstance(error, sqlite3.ProgrammingError):
            # The connection was closed while it was in use.
            return Fault(
                ErrorCategory.TRANSIENT_FAILURE, f"{error}; connect again and continue from the token"
            )
        return _BROKEN.fault(str(error))
    row = _CODES.get(code & 0xFF, _BROKEN)
    if code == sqlite3.SQLITE_READONLY_DIRECTORY:
        row = _LOCKED_FOLDER
    elif code & 0xFF == sqlite3.SQLITE_CANTOPEN and path:
        row = _unopened(path)
    return row.fault(_about(path, str(error)), error.sqlite_errorname)


def _unopened(path: str) -> FaultRule:
    """Return the reason why SQLite cannot open a file; SQLite itself does not report the reason."""
    folder = Path(path).parent
    locked = os.access(folder, os.F_OK) and not os.access(folder, os.W_OK, effective_ids=True)
    if not os.access(path, os.F_OK, effective_ids=True):
        return _DENIED if locked else _MISSING
    if not os.access(path, os.R_OK, effective_ids=True):
        return _DENIED
    return _LOCKED_FOLDER if locked else _passing(_NO_HANDLE)


def failure(category: ErrorCategory, message: str) -> MulticloudDbError:
    """Make the error for a problem that the store itself has detected."""
    return MulticloudDbError(message, ErrorDetail(category, provider=PROVIDER_ID))


def missing_file(path: str) -> ProviderFault:
    """Make the fault for a store that has not been created yet."""
    return ProviderFault.of(
        ErrorCategory.NOT_FOUND, f"there is no store at {path}; EmbeddedStore(path) creates it"
    )


@contextmanager
def store_errors(operation: str, path: str = "") -> Iterator[None]:
    """Convert every error inside the block to a `MulticloudDbError` that names the file."""
    try:
        yield
    except MulticloudDbError:
        raise
    except (sqlite3.Error, OSError, ProviderFault) as error:
        fault = error.fault if isinstance(error, ProviderFault) else classify(error, path)
        raise to_error(PROVIDER_ID, operation, fault, error) from error
