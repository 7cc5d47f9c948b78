"""Building blocks for each provider's table of errors: its rows, and the fault for an unknown error."""

from __future__ import annotations

from typing import Final

import attrs

from multiclouddb_api import ErrorCategory
from multiclouddb_spi.faults import Fault

__all__ = ["REPORT", "THROTTLED", "UNAVAILABLE", "Row", "one_line", "row_of_status", "unexpected"]

REPORT: Final = "this should not happen; please report it with the text of this error"
"""The advice to report an error that the user cannot avoid."""

_RETRYABLE: Final = (ErrorCategory.THROTTLED, ErrorCategory.TRANSIENT_FAILURE)
_MOST_TEXT: Final = 300


@attrs.frozen
class Row:
    """The meaning of one of the service's error codes.

    Attributes:
        category: The kind of the failure.
        way_out: What the user can do, in the library's words.
        confidential: True if the service's text may contain a secret; then errors do not show the text.
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
        """Make the fault of this row from the service's text and the advice.

        Args:
            said: The error text of the service or its client, on one line and without a secret.
            code: The vendor's own error code.
            retry_after: The number of seconds that the service asked to wait.
            vendor_retried: True if the vendor's client itself retries such a call.
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
    """Return the meaning of an HTTP status without a code, for example from a proxy before the service.

    Return None unless the same call may succeed later.
    """
    if status == 429:
        return THROTTLED
    return UNAVAILABLE if status >= 500 else None


def unexpected(error: BaseException) -> Fault:
    """Make the fault for an exception that no table contains."""
    said = one_line(f"{type(error).__name__}: {error}")
    return Fault(ErrorCategory.PERMANENT_FAILURE, f"{said}; {REPORT}")


def one_line(text: str) -> str:
    """Shorten a vendor's text for a message: one line, without control characters, and not too long."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_MOST_TEXT]
