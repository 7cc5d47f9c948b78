"""What a caller has in flight, and what is said when it was given up."""

from __future__ import annotations

import threading
from typing import Any

from multiclouddb_api import ErrorCategory
from multiclouddb_spanner.errors import fault
from multiclouddb_spi import ProviderFault

__all__ = ["Hold", "late"]


class Hold:
    """What a caller has in flight, for another thread to cancel."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._call: Any = None

    def take(self, call: Any) -> None:
        """This call is in flight now.

        Args:
            call: The call of gRPC.
        """
        self._call = call
        if self._cancelled.is_set():
            call.cancel()

    def cancel(self) -> None:
        """End what is in flight, and let nothing begin."""
        self._cancelled.set()
        call = self._call
        if call is not None:
            call.cancel()

    def check(self) -> None:
        """Raise when it was cancelled.

        Raises:
            ProviderFault: `TRANSIENT_FAILURE`.
        """
        if self._cancelled.is_set():
            raise fault(ErrorCategory.TRANSIENT_FAILURE, "the read was cancelled; try again", retryable=True)


def late() -> ProviderFault:
    """What to raise when the service has not answered by the deadline."""
    return fault(
        ErrorCategory.TRANSIENT_FAILURE,
        "the service gave no answer in time; try again, with a longer timeout_seconds if that goes on",
        retryable=True,
    )
