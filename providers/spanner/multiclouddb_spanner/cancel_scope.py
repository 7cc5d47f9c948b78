"""Keeps the running call of a caller, and makes the error for an answer that does not arrive in time."""

from __future__ import annotations

import threading
from typing import Any

from multiclouddb_api import ErrorCategory
from multiclouddb_spi import ProviderFault, cancelled

__all__ = ["CancelScope", "late"]


class CancelScope:
    """The running call of a caller, which another thread can cancel."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._call: Any = None

    def take(self, call: Any) -> None:
        """Store the call that is running now."""
        self._call = call
        if self._cancelled.is_set():
            call.cancel()

    def cancel(self) -> None:
        """Cancel the running call and every later call."""
        self._cancelled.set()
        call = self._call
        if call is not None:
            call.cancel()

    def check(self) -> None:
        """Raise an error if the call was cancelled."""
        if self._cancelled.is_set():
            raise cancelled()


def late() -> ProviderFault:
    """Make the fault for a service that has not answered by the deadline."""
    return ProviderFault.of(
        ErrorCategory.TRANSIENT_FAILURE,
        "the service gave no answer in time; try again, with a longer timeout_seconds if it happens again",
        retryable=True,
    )
