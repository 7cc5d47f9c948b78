"""What a failure of SQLite or of the file means."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
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
    sqlite3.SQLITE_FULL: (ErrorCategory.PERMANENT_FAILURE, False, "the disk is full; make room"),
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


def classify(error: Exception) -> Fault:
    """Say what an exception means; pure, raises nothing, also for unknown exceptions."""
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
            return _sqlite_fault(error)
        case FileNotFoundError():
            return Fault(ErrorCategory.NOT_FOUND, _GONE)
        case PermissionError():
            return Fault(ErrorCategory.AUTHORIZATION_FAILED, _RIGHTS)
        case OSError() | MemoryError():
            text = f"{type(error).__name__}: {error}; {_RETRY}"
            return Fault(ErrorCategory.TRANSIENT_FAILURE, text, retryable=True)
        case _:
            return Fault(ErrorCategory.PERMANENT_FAILURE, f"{type(error).__name__}: {error}; {_OURS}")


def _sqlite_fault(error: sqlite3.Error) -> Fault:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        if isinstance(error, sqlite3.ProgrammingError):
            # A connection that was closed while it was in use.
            return Fault(ErrorCategory.TRANSIENT_FAILURE, f"{error}; connect again and go on from the token")
        return Fault(ErrorCategory.PERMANENT_FAILURE, f"{error}; {_OURS}")
    category, retryable, way_out = _CODES.get(code & 0xFF, (ErrorCategory.PERMANENT_FAILURE, False, _OURS))
    return Fault(category, f"{error}; {way_out}", error.sqlite_errorname, retryable)


def failure(category: ErrorCategory, message: str) -> MulticloudDbError:
    """The error for what the store found out itself."""
    return MulticloudDbError(message, ErrorDetail(category, provider=PROVIDER_ID))


def missing_file(path: str) -> ProviderFault:
    """The fault for a store that nobody has created yet."""
    return ProviderFault(
        Fault(ErrorCategory.NOT_FOUND, f"there is no store at {path}; EmbeddedStore(path) creates it")
    )


@contextmanager
def store_errors(operation: str) -> Iterator[None]:
    """Whatever goes wrong inside leaves as a `MulticloudDbError`."""
    try:
        yield
    except MulticloudDbError:
        raise
    except (sqlite3.Error, OSError, ProviderFault) as error:
        raise to_error(PROVIDER_ID, operation, classify(error), error) from error
