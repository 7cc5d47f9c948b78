"""The parts of every provider's table of errors: its rows, and the fault of an unknown error."""

from __future__ import annotations

from typing import Final

import attrs

from multiclouddb_api import ErrorCategory
from multiclouddb_spi.faults import Fault

__all__ = ["REPORT", "THROTTLED", "UNAVAILABLE", "Row", "one_line", "row_of_status", "unexpected"]

REPORT: Final = "this should not happen; please report it with the text of this error"
"""The advice for an error that the user cannot avoid."""

_RETRYABLE: Final = (ErrorCategory.THROTTLED, ErrorCategory.TRANSIENT_FAILURE)
_MOST_TEXT: Final = 300


@attrs.frozen
class Row:
    """The meaning of one of the service's codes.

    Attributes:
        category: The kind of the failure.
        way_out: The way out, in our words.
        confidential: True if the service's text may quote a secret; then no error shows that text.
        retryable: True if the same call may succeed later; by default the category decides.
    """

    category: ErrorCategory
    way_out: str
    confidential: bool = attrs.field(default=False, kw_only=True)
    retryable: bool = attrs.field(
        default=attrs.Factory(lambda row: row.category in _RETRYABLE, takes_self=True), kw_only=True
    )

    def fault(
        self,
        said: str,
        code: str | None = None,
        *,
        retry_after: float | None = None,
        vendor_retried: bool = False,
    ) -> Fault:
        """The fault of this row: the service's text, and the way out.

        Args:
            said: The text of the service or its client, on one line and without a secret.
            code: The vendor's own code.
            retry_after: Seconds that the service asked to wait.
            vendor_retried: True when the vendor's client retries such a call by itself.
        """
        return Fault(
            self.category,
            f"{said}; {self.way_out}",
            code,
            self.retryable,
            retry_after,
            self.retryable and vendor_retried,
            self.confidential,
        )


UNAVAILABLE: Final = Row(
    ErrorCategory.TRANSIENT_FAILURE, "the service is not available at this moment; try again"
)
THROTTLED: Final = Row(
    ErrorCategory.THROTTLED, "the service is overloaded; read with fewer processes, or later"
)


def row_of_status(status: int) -> Row | None:
    """The meaning of an HTTP status that has no code, as when a proxy answers for the service.

    None unless the status says that the same call may succeed later.
    """
    if status == 429:
        return THROTTLED
    return UNAVAILABLE if status >= 500 else None


def unexpected(error: BaseException) -> Fault:
    """The fault of an exception that no table knows."""
    said = one_line(f"{type(error).__name__}: {error}")
    return Fault(ErrorCategory.PERMANENT_FAILURE, f"{said}; {REPORT}")


def one_line(text: str) -> str:
    """A vendor's text for a message: on one line, without control characters, and not too long."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_MOST_TEXT]
