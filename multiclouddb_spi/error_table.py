"""Defines the rows of a provider's table of errors, and the fault for an unknown error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import attrs

from multiclouddb_api import ErrorCategory
from multiclouddb_spi.faults import Fault

__all__ = [
    "REPORT",
    "THROTTLED",
    "UNAVAILABLE",
    "Row",
    "one_line",
    "row_of_connection",
    "row_of_status",
    "unexpected",
]

REPORT: Final = "this should not happen; please report it with the text of this error"
"""The advice for an error that the user cannot avoid: report it."""

_RETRYABLE: Final = (ErrorCategory.THROTTLED, ErrorCategory.TRANSIENT_FAILURE)
_MOST_TEXT: Final = 300
# The words with which TLS libraries report a refusal. A connection that only ends early is not a refusal.
_TLS_REFUSED: Final = re.compile(
    "CERTIFICATE|UNKNOWN_CA|WRONG_VERSION_NUMBER|HANDSHAKE_FAILURE|PROTOCOL_VERSION|UNSUPPORTED_PROTOCOL"
    "|not in peer certificate",
    re.IGNORECASE,
)
# The words with which systems report that a name has no address. `Errno -3` is a failure of DNS itself.
_NO_ADDRESS: Final = re.compile(
    r"\[Errno (?:-2|-5|8|11001)\] |Name or service not known|No address associated with hostname"
    r"|Domain name not found",
)


@attrs.frozen
class Row:
    """The meaning of one of the service's error codes.

    Attributes:
        category: The kind of the failure.
        way_out: The library's advice for the user.
        confidential: True if the service's text may contain a secret; the text is then not shown in errors.
        retryable: True if the same call may succeed later; by default the category decides.
        unknown_host: True if the host of the service has no address; see `Fault`.
    """

    category: ErrorCategory
    way_out: str
    confidential: bool = attrs.field(default=False, kw_only=True)
    retryable: bool = attrs.field(
        default=attrs.Factory(lambda row: row.category in _RETRYABLE, takes_self=True), kw_only=True
    )
    unknown_host: bool = attrs.field(default=False, kw_only=True)

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
            self.unknown_host,
        )


UNAVAILABLE: Final = Row(
    ErrorCategory.TRANSIENT_FAILURE, "the service is not available at this moment; try again"
)
THROTTLED: Final = Row(
    ErrorCategory.THROTTLED, "the service is overloaded; read with fewer processes, or later"
)
_TLS: Final = Row(
    ErrorCategory.AUTHENTICATION_FAILED,
    "one side refuses the other's TLS certificate or version; check the certificates, the name of the host "
    "and the TLS options of the connection",
)
_UNKNOWN_HOST: Final = Row(
    ErrorCategory.TRANSIENT_FAILURE,
    "this host has no address; check its name in the connection, and DNS",
    unknown_host=True,
)


def row_of_connection(error: BaseException) -> Row | None:
    """Return the row for a connection that cannot be made: TLS is refused, or the host has no address.

    Return None for any other failure. The texts of the error and of its causes decide, because vendors'
    clients do not keep the system's own exceptions.
    """
    for text in _texts(error):
        if "ssl" in text.lower() and _TLS_REFUSED.search(text):
            return _TLS
        if _NO_ADDRESS.search(text):
            return _UNKNOWN_HOST
    return None


def _texts(error: BaseException) -> Iterator[str]:
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        yield str(found)
        seen.append(found)
        found = found.__cause__ or found.__context__


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
