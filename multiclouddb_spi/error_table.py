"""Defines the rows of a provider's table of errors, and the fault for an unknown error."""

from __future__ import annotations

from typing import Final

import attrs

from multiclouddb_api import ErrorCategory
from multiclouddb_spi.faults import Fault

__all__ = ["REPORT", "THROTTLED", "UNAVAILABLE", "Row", "one_line", "row_of_status", "unexpected"]

REPORT: Final = "this should not happen; please report it with the text of this error"
"""The advice for an error that the user cannot avoid: report it."""

_RETRYABLE: Final = (ErrorCategory.THROTTLED, ErrorCategory.TRANSIENT_FAILURE)
_MOST_TEXT: Final = 300


@attrs.frozen
class Row:
    """The meaning of one of the service's error codes.

    Attributes:
        category: The kind of the failure.
        way_out: The library's advice for the user.
        confidential: True if the service's text may contain a secret; the text is then not shown in errors.
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
        """Make a fault from this row and the service's text.

        Args:
            said: The error text of the service or its client, on one line and without a secret.
            code: The vendor's own error code.
            retry_after: The number of seconds that the service asked to wait.
            vendor_retried: True if the vendor's client itself retries failed calls.
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
    """Return the row for an HTTP status without an error code, for example from a proxy.

    Return None if the same call would fail again.
    """
    if status == 429:
        return THROTTLED
    return UNAVAILABLE if status >= 500 else None


def unexpected(error: BaseException) -> Fault:
    """Make the fault for an exception that is not in the provider's table."""
    said = one_line(f"{type(error).__name__}: {error}")
    return Fault(ErrorCategory.PERMANENT_FAILURE, f"{said}; {REPORT}")


def one_line(text: str) -> str:
    """Shorten a vendor's text for a message: one line, without control characters, and not too long."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_MOST_TEXT]
