"""Maps each error of gRPC, of Google's libraries or of the service to its category."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError, TransportError
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo

from multiclouddb_api import ErrorCategory, ErrorReason
from multiclouddb_api.errors import DOCS_URL
from multiclouddb_spi import Fault
from multiclouddb_spi.faults import REPORT, START_AGAIN, UNAVAILABLE, FaultRule, one_line, row_of_connection
from multiclouddb_spi.machine_role import NO_GOOGLE_TOKENS, MachineRole, google_fails

PROVIDER_ID: Final = "spanner"

_Code: Final = grpc.StatusCode
_PAGE: Final = f"{DOCS_URL}databases/spanner/"
_RETRY_INFO: Final = "google.rpc.retryinfo-bin"


_OUT_OF_TIME: Final = FaultRule(
    ErrorCategory.TRANSIENT_FAILURE,
    "the service gave no answer in time; try again, with a longer timeout_seconds if it happens again",
)
_INTERRUPTED: Final = FaultRule(ErrorCategory.TRANSIENT_FAILURE, "the call was interrupted; try again")
_AUTHENTICATION: Final = FaultRule(
    ErrorCategory.AUTHENTICATION_FAILED,
    "check what Google's credential chain finds (gcloud auth application-default print-access-token)",
)
# The first look for credentials takes a metadata server that fails, or is slow, for none.
_ACCOUNT_LATE: Final = FaultRule(
    ErrorCategory.TRANSIENT_FAILURE,
    "the machine's metadata server, which has them, fails; try again; if that does not help, "
    f"{_AUTHENTICATION.way_out}",
)
_ACCOUNT: Final = MachineRole(google_fails)
# These statuses stand for many mistakes, and only the service's text says which.
_BAD_REQUEST: Final = FaultRule(
    ErrorCategory.INVALID_REQUEST,
    "correct what the service's message names; pass tokens and partition ids as they were returned",
)
_EXPIRED: Final = FaultRule(
    ErrorCategory.CHECKPOINT_EXPIRED,
    "the change stream no longer keeps the changes after this position, and a longer retention_period keeps "
    f"more; {START_AGAIN}",
    reason=ErrorReason.AGED_OUT,
)
_NO_STREAM: Final = FaultRule(
    ErrorCategory.NOT_FOUND,
    "the change stream was dropped; create it again (CREATE CHANGE STREAM … FOR …) and start again",
)
_UNKNOWN: Final = FaultRule(ErrorCategory.PERMANENT_FAILURE, REPORT)
# gRPC gives an answer of HTTP without a status one: PERMISSION_DENIED for 403, UNIMPLEMENTED for 404.
_NO_GRPC: Final = FaultRule(
    ErrorCategory.PERMANENT_FAILURE,
    "something else than Spanner has answered, for example a proxy; check the endpoint and the proxy",
)
_TOO_LARGE: Final = FaultRule(
    ErrorCategory.PROVIDER_ERROR,
    "Spanner sends no message of 64 MiB, so something else answers; check the endpoint and the proxy",
)

STATUSES: Final[Mapping[grpc.StatusCode, FaultRule]] = {
    _Code.CANCELLED: _INTERRUPTED,
    _Code.UNKNOWN: _UNKNOWN,
    _Code.INVALID_ARGUMENT: _BAD_REQUEST,
    _Code.DEADLINE_EXCEEDED: _OUT_OF_TIME,
    _Code.NOT_FOUND: FaultRule(
        ErrorCategory.NOT_FOUND,
        "check what the service's message names; the project, the instance and the database are in the "
        "connection and in the address",
    ),
    _Code.ALREADY_EXISTS: FaultRule(ErrorCategory.CONFLICT, REPORT),
    _Code.PERMISSION_DENIED: FaultRule(
        ErrorCategory.AUTHORIZATION_FAILED,
        f"do what the service's message says; if it names a permission, grant the roles in {_PAGE} to the "
        "identity that Google's credential chain found",
    ),
    _Code.UNAUTHENTICATED: _AUTHENTICATION,
    _Code.RESOURCE_EXHAUSTED: FaultRule(
        ErrorCategory.THROTTLED,
        "read with fewer processes, or give the instance more nodes, unless the service's message names "
        "another limit",
    ),
    _Code.FAILED_PRECONDITION: FaultRule(
        ErrorCategory.INVALID_REQUEST, "correct what the service's message names, and try again"
    ),
    _Code.ABORTED: _INTERRUPTED,
    _Code.OUT_OF_RANGE: _BAD_REQUEST,
    _Code.UNIMPLEMENTED: FaultRule(
        ErrorCategory.UNSUPPORTED_CAPABILITY,
        "the server does not support what its message names; if it is another server, use Cloud Spanner or "
        "its emulator",
        reason=ErrorReason.NOT_OFFERED,
    ),
    _Code.INTERNAL: _UNKNOWN,
    _Code.UNAVAILABLE: UNAVAILABLE,
    _Code.DATA_LOSS: _UNKNOWN,
}
"""Every status with which a call can end, except OK."""

# What the service says of a partition that has ended, and whose last change is older than the retention.
_STALE: Final = "have expired and have been deleted"
# In PostgreSQL, a query of a stream that does not exist names a function that does not exist.
_NO_FUNCTION: Final = re.compile(r"function spanner\.\"?read_json_.* does not exist", re.DOTALL)
_NO_STATUS: Final = "Received http2 header with status: "
# Maps a status and words in the error's text to their meaning.
_TEXTS: Final[tuple[tuple[grpc.StatusCode, str, FaultRule], ...]] = (
    (_Code.INVALID_ARGUMENT, "Table-valued function not found", _NO_STREAM),
    *((_Code.OUT_OF_RANGE, words, _EXPIRED) for words in ("too far in the past", _STALE)),
    (_Code.NOT_FOUND, "Session not found", _INTERRUPTED),
    (_Code.NOT_FOUND, "Session was concurrently deleted", _INTERRUPTED),
    (_Code.UNAVAILABLE, "Getting metadata from plugin failed", _AUTHENTICATION),
    (_Code.RESOURCE_EXHAUSTED, "essage larger than max", _TOO_LARGE),  # of gRPC in this process
)
# What gRPC and Google's front ends say about a broken connection, with a status that also stands for lasting
# failures. Google's own clients try these calls again.
_BROKEN: Final = re.compile(
    r"RST_STREAM|Rst Stream|unexpected EOS|HTTP/2 error code|Connection closed|Connection reset|Broken pipe"
    r"|Stream removed|Stream closed|Socket closed|Channel closed|Transport closed|GOAWAY"
    r"|Authentication backend internal server error|retriable error could not be retried",
    re.IGNORECASE,
)
_EARLIEST: Final = re.compile(r"earliest read timestamp: ([0-9T:.+Z-]+?)\.?(?:\s|$)")
_INTERVAL: Final = re.compile(r"start_timestamp within ([0-9T:.+Z-]+) and ([0-9T:.+Z-]+?)\.?(?:\s|$)")


def status_of(error: BaseException) -> grpc.StatusCode | None:
    """Return the status of a failed call; None if the error does not come from a call."""
    status = error.grpc_status_code if isinstance(error, GoogleAPICallError) else None
    if isinstance(error, grpc.RpcError):
        status = getattr(error, "code", lambda: None)()
    return status if isinstance(status, grpc.StatusCode) else None


def text_of(error: BaseException) -> str:
    """Return the text that the service sent with an error."""
    if isinstance(error, GoogleAPICallError):
        return str(error.message or "")
    if isinstance(error, grpc.RpcError):
        return str(getattr(error, "details", lambda: "")() or "")
    return str(error)


def _says(code: grpc.StatusCode, words: str, error: BaseException) -> bool:
    return status_of(error) is code and words in text_of(error)


# All changes of a partition are older than the retention.
is_stale: Final = partial(_says, _Code.OUT_OF_RANGE, _STALE)
# A query started before its partition started, or after it ended.
is_outside_partition: Final = partial(_says, _Code.OUT_OF_RANGE, "invalid for the partition")
# A partition token does not belong to this change stream.
is_foreign_partition: Final = partial(_says, _Code.INVALID_ARGUMENT, "partition_token is invalid")
# The database no longer keeps the data of the time that a read requests.
is_lost_version: Final = partial(_says, _Code.FAILED_PRECONDITION, "timestamp staleness")


def is_past(error: BaseException) -> bool:
    """Return True if a query started before the oldest change that the stream keeps."""
    return _row(status_of(error), text_of(error)) is _EXPIRED


def is_lost_session(error: BaseException) -> bool:
    """Return True if the service no longer knows the session of a call."""
    return status_of(error) is _Code.NOT_FOUND and _row(_Code.NOT_FOUND, text_of(error)) is _INTERRUPTED


def is_without_stream(error: BaseException) -> bool:
    """Return True if the change stream that a query names does not exist."""
    return _row(status_of(error), text_of(error)) is _NO_STREAM


def is_broken(error: Exception) -> bool:
    """Return True if the connection may have broken within an answer."""
    transient = classify(error).category is ErrorCategory.TRANSIENT_FAILURE
    return transient and status_of(error) is not _Code.CANCELLED


def earliest_of(error: BaseException) -> str | None:
    """Return the oldest time that can be read, in RFC 3339, if the text of an error contains it."""
    found = _EARLIEST.search(text_of(error))
    return found.group(1) if found else None


def interval_of(error: BaseException) -> tuple[str, str] | None:
    """Return the start and the end of a partition, if the text of an error contains them."""
    found = _INTERVAL.search(text_of(error))
    return (found.group(1), found.group(2)) if found else None


def classify(error: Exception) -> Fault:
    """Classify a failure."""
    status = status_of(error)
    if status is not None:
        text, name = text_of(error), status.name
        said = f"Spanner {name}" + (f" ({one_line(text)})" if text else "")
        refused = row_of_connection(error) if status is _Code.UNAVAILABLE else None
        return (refused or _row(status, text)).fault(said, name, retry_after=_retry_after(error))
    row, name = _UNKNOWN, type(error).__name__
    match error:
        case TransportError() | grpc.RpcError() | OSError():
            row = UNAVAILABLE
        case DefaultCredentialsError() if _ACCOUNT.is_down():
            row = _ACCOUNT_LATE
        case GoogleAuthError():
            passes = isinstance(error, RefreshError) and (
                error.retryable or NO_GOOGLE_TOKENS.search(str(error))
            )
            row = UNAVAILABLE if passes else _AUTHENTICATION
        case ValueError() if "closed channel" in str(error):
            row = _INTERRUPTED
    return row.fault(one_line(f"{name}: {error}"), name)


def _row(status: grpc.StatusCode | None, text: str) -> FaultRule:
    if status is _Code.UNAVAILABLE and NO_GOOGLE_TOKENS.search(text):
        return UNAVAILABLE
    if status is _Code.NOT_FOUND and _NO_FUNCTION.search(text):
        return _NO_STREAM
    if status is not _Code.UNAVAILABLE and _NO_STATUS in text:
        return _NO_GRPC
    for code, words, row in _TEXTS:
        if code is status and words in text:
            return row
    if status in (_Code.INTERNAL, _Code.UNKNOWN) and _BROKEN.search(text):
        return _INTERRUPTED
    return STATUSES.get(status, _UNKNOWN) if status is not None else _UNKNOWN


def _retry_after(error: Exception) -> float | None:
    """Return the number of seconds that the service asks the client to wait."""
    call: Any = error
    if isinstance(error, GoogleAPICallError):
        call = next((each for each in error.errors if isinstance(each, grpc.RpcError)), None)
    try:
        metadata = call.trailing_metadata() or ()
    except (AttributeError, NotImplementedError):
        return None
    for name, value in metadata:
        if name == _RETRY_INFO and isinstance(value, bytes):
            info = RetryInfo()
            try:
                info.ParseFromString(value)
            except DecodeError:
                return None
            return max(0.0, float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9))
    return None
