"""What a failure of SQLite or of the file means."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_spi import Fault, InvalidCursor, ProviderFault
from multiclouddb_spi.failure import to_error

__all__ = ["PROVIDER_ID", "classify", "failure", "missing_file", "store_errors"]

PROVIDER_ID: Final = "embedded"

_RETRY: Final = "try again"
_DAMAGED: Final = (
    "the file is damaged; restore it from a copy, or recover it with the sqlite3 shell's .recover"
)
_RIGHTS: Final = "give this user the right to read and write the file and its folder"
_GONE: Final = "the file is gone or cannot be opened; EmbeddedStore(path) creates a store"
_FULL: Final = "nothing of this call was written; free space on the disk and call again"
_FOLDER: Final = (
    "the folder is read-only, and SQLite needs files beside the store (-wal, -shm) also to read it; give "
    "this user the right to write the folder, or read while a writer has the store open, or read a copy"
)
_NO_HANDLE: Final = f"the file is there; look at the limit of open files (ulimit -n) and {_RETRY}"

# Primary result code → category, retryable, way out.
_CODES: Final[dict[int, tuple[ErrorCategory, bool, str]]] = {
    sqlite3.SQLITE_BUSY: (
        ErrorCategory.TRANSIENT_FAILURE,
        True,
        f"another process holds the store; {_RETRY}",
    ),
    sqlite3.SQLITE_LOCKED: (
        ErrorCategory.TRANSIENT_FAILURE,
        True,
        f"another thread holds the store; {_RETRY}",
    ),
    sqlite3.SQLITE_INTERRUPT: (ErrorCategory.TRANSIENT_FAILURE, True, f"the read was cancelled; {_RETRY}"),
    sqlite3.SQLITE_PROTOCOL: (ErrorCategory.TRANSIENT_FAILURE, True, f"a lock could not be taken; {_RETRY}"),
    sqlite3.SQLITE_SCHEMA: (
        ErrorCategory.TRANSIENT_FAILURE,
        True,
        f"the store was changed meanwhile; {_RETRY}",
    ),
    sqlite3.SQLITE_ABORT: (ErrorCategory.TRANSIENT_FAILURE, True, f"the statement was rolled back; {_RETRY}"),
    sqlite3.SQLITE_NOMEM: (ErrorCategory.TRANSIENT_FAILURE, True, "memory ran out; read smaller pages"),
    sqlite3.SQLITE_IOERR: (
        ErrorCategory.TRANSIENT_FAILURE,
        True,
        "the disk failed; look at the system's log",
    ),
    sqlite3.SQLITE_FULL: (ErrorCategory.PERMANENT_FAILURE, False, _FULL),
    sqlite3.SQLITE_CORRUPT: (ErrorCategory.PERMANENT_FAILURE, False, _DAMAGED),
    sqlite3.SQLITE_FORMAT: (ErrorCategory.PERMANENT_FAILURE, False, _DAMAGED),
    sqlite3.SQLITE_NOTADB: (ErrorCategory.INVALID_REQUEST, False, "the file is no store; name another one"),
    sqlite3.SQLITE_CANTOPEN: (ErrorCategory.NOT_FOUND, False, _GONE),
    sqlite3.SQLITE_NOTFOUND: (ErrorCategory.NOT_FOUND, False, _GONE),
    sqlite3.SQLITE_PERM: (ErrorCategory.AUTHORIZATION_FAILED, False, _RIGHTS),
    sqlite3.SQLITE_READONLY: (ErrorCategory.AUTHORIZATION_FAILED, False, _RIGHTS),
    sqlite3.SQLITE_AUTH: (ErrorCategory.AUTHORIZATION_FAILED, False, _RIGHTS),
    sqlite3.SQLITE_TOOBIG: (ErrorCategory.PROVIDER_ERROR, False, "a record is larger than SQLite allows"),
}
_OURS: Final = "this should not happen; please report it with the text of this error"


def classify(error: Exception, path: str = "") -> Fault:
    """Say what an exception means; raises nothing, also for unknown exceptions.

    Args:
        error: The exception.
        path: The file that it is about. It goes into the message, and it is looked at where SQLite does not
            say why it cannot be opened; without it this is pure.
    """
    match error:
        case ProviderFault():
            return error.fault
        case MulticloudDbError():
            return Fault(error.category, error.message, retryable=error.retryable)
        case InvalidCursor():
            return Fault(
                ErrorCategory.INVALID_REQUEST, f"a position that this store cannot have made: {error}"
            )
        case sqlite3.Error():
            return _sqlite_fault(error, path)
        case FileNotFoundError():
            return Fault(ErrorCategory.NOT_FOUND, _about(path, _GONE))
        case PermissionError():
            return Fault(ErrorCategory.AUTHORIZATION_FAILED, _about(path, _RIGHTS))
        case OSError() | MemoryError():
            text = f"{type(error).__name__}: {error}; {_RETRY}"
            return Fault(ErrorCategory.TRANSIENT_FAILURE, _about(path, text), retryable=True)
        case _:
            return Fault(ErrorCategory.PERMANENT_FAILURE, f"{type(error).__name__}: {error}; {_OURS}")


def _about(path: str, text: str) -> str:
    return f"{path}: {text}" if path else text


def _sqlite_fault(error: sqlite3.Error, path: str) -> Fault:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        if isinstance(error, sqlite3.ProgrammingError):
            # A connection that was closed while it was in use.
            return Fault(ErrorCategory.TRANSIENT_FAILURE, f"{error}; connect again and go on from the token")
        return Fault(ErrorCategory.PERMANENT_FAILURE, f"{error}; {_OURS}")
    category, retryable, way_out = _CODES.get(code & 0xFF, (ErrorCategory.PERMANENT_FAILURE, False, _OURS))
    if code == sqlite3.SQLITE_READONLY_DIRECTORY:
        way_out = _FOLDER
    elif code & 0xFF == sqlite3.SQLITE_CANTOPEN and path:
        category, retryable, way_out = _unopened(path)
    return Fault(category, _about(path, f"{error}; {way_out}"), error.sqlite_errorname, retryable)


def _unopened(path: str) -> tuple[ErrorCategory, bool, str]:
    """Why SQLite cannot open a file, which it does not say."""
    folder = Path(path).parent
    locked = os.access(folder, os.F_OK) and not os.access(folder, os.W_OK, effective_ids=True)
    if not os.access(path, os.F_OK, effective_ids=True):
        if locked:
            return ErrorCategory.AUTHORIZATION_FAILED, False, _RIGHTS
        return ErrorCategory.NOT_FOUND, False, _GONE
    if not os.access(path, os.R_OK, effective_ids=True):
        return ErrorCategory.AUTHORIZATION_FAILED, False, _RIGHTS
    if locked:
        return ErrorCategory.AUTHORIZATION_FAILED, False, _FOLDER
    return ErrorCategory.TRANSIENT_FAILURE, True, _NO_HANDLE


def failure(category: ErrorCategory, message: str) -> MulticloudDbError:
    """The error for what the store found out itself."""
    return MulticloudDbError(message, ErrorDetail(category, provider=PROVIDER_ID))


def missing_file(path: str) -> ProviderFault:
    """The fault for a store that nobody has created yet."""
    return ProviderFault(
        Fault(ErrorCategory.NOT_FOUND, f"there is no store at {path}; EmbeddedStore(path) creates it")
    )


@contextmanager
def store_errors(operation: str, path: str = "") -> Iterator[None]:
    """Whatever goes wrong inside leaves as a `MulticloudDbError` that names the file."""
    try:
        yield
    except MulticloudDbError:
        raise
    except (sqlite3.Error, OSError, ProviderFault) as error:
        raise to_error(PROVIDER_ID, operation, classify(error, path), error) from error
