"""Defines the exceptions of the simulated vendor, and their classification.

    SimulationError
    ├── ThrottledError           too many requests; may say how long to wait
    ├── ConnectionDroppedError   lost in the middle of an answer
    ├── ServerError              a 5xx
    ├── SlowError                the vendor's own time limit
    ├── IteratorExpiredError     the reader is too old; a new one at the same cursor works
    ├── CancelledError           the reader was cancelled
    ├── TrimmedError             the position is older than what is kept
    ├── BadPositionError         the position is in the future
    ├── MissingError             the collection does not exist
    ├── DeniedError              not allowed
    └── CorruptError             a permanent failure

Like the exceptions of a real vendor, these exceptions use no class of this project. `classify`
assigns a category to each exception.
"""

from __future__ import annotations

from typing import Final

from multiclouddb_api import ErrorCategory, ErrorReason
from multiclouddb_spi.faults import Fault

__all__ = [
    "BadPositionError",
    "CancelledError",
    "ConnectionDroppedError",
    "CorruptError",
    "DeniedError",
    "IteratorExpiredError",
    "MissingError",
    "ServerError",
    "SimulationError",
    "SlowError",
    "ThrottledError",
    "TrimmedError",
    "classify",
]


class SimulationError(Exception):
    """Any error that the simulated service or its client raises."""

    def __init__(
        self, text: str = "", retry_after: float | None = None, vendor_retried: bool = False
    ) -> None:
        super().__init__(text, retry_after, vendor_retried)
        self.retry_after = retry_after
        self.vendor_retried = vendor_retried

    def __str__(self) -> str:
        return str(self.args[0]) or type(self).__name__


class ThrottledError(SimulationError):
    """Too many requests."""


class ConnectionDroppedError(SimulationError):
    """The connection was lost in the middle of an answer."""


class ServerError(SimulationError):
    """The service failed; a later call may work."""


class SlowError(SimulationError):
    """The service did not answer in time."""


class IteratorExpiredError(SimulationError):
    """The reader is too old; a new reader at the same cursor works."""


class CancelledError(SimulationError):
    """The reader was cancelled."""


class TrimmedError(SimulationError):
    """The position is older than what the service keeps."""


class BadPositionError(SimulationError):
    """The service has not reached the position yet."""


class MissingError(SimulationError):
    """The requested collection does not exist."""


class DeniedError(SimulationError):
    """The caller may not read this collection."""


class CorruptError(SimulationError):
    """The service cannot read its own log; no retry helps."""


_RETRYABLE: Final[dict[type[SimulationError], ErrorCategory]] = {
    ThrottledError: ErrorCategory.THROTTLED,
    ConnectionDroppedError: ErrorCategory.TRANSIENT_FAILURE,
    ServerError: ErrorCategory.TRANSIENT_FAILURE,
    SlowError: ErrorCategory.TRANSIENT_FAILURE,
    IteratorExpiredError: ErrorCategory.TRANSIENT_FAILURE,
    CancelledError: ErrorCategory.TRANSIENT_FAILURE,
}
_FINAL: Final[dict[type[SimulationError], ErrorCategory]] = {
    TrimmedError: ErrorCategory.CHECKPOINT_EXPIRED,
    BadPositionError: ErrorCategory.INVALID_REQUEST,
    MissingError: ErrorCategory.NOT_FOUND,
    DeniedError: ErrorCategory.AUTHORIZATION_FAILED,
    CorruptError: ErrorCategory.PERMANENT_FAILURE,
}


def classify(error: Exception) -> Fault:
    """Classify any exception, without side effects."""
    if not isinstance(error, SimulationError):
        return Fault(ErrorCategory.PERMANENT_FAILURE, f"unexpected {type(error).__name__}: {error}")
    kind = type(error)
    retryable = kind in _RETRYABLE
    category = _RETRYABLE.get(kind) or _FINAL.get(kind) or ErrorCategory.PERMANENT_FAILURE
    return Fault(
        category=category,
        message=str(error),
        code=kind.__name__,
        retryable=retryable,
        retry_after=error.retry_after,
        vendor_retried=error.vendor_retried,
        reason=ErrorReason.TRIMMED if kind is TrimmedError else None,
    )
