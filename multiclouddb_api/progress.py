"""Declares what a running call reports to, and what it asks whether it must end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """What `OperationOptions.progress` takes; a call uses it in the thread that has made the call."""

    def answered(self) -> None:
        """Record that the service has answered."""

    def waits(self, reason: Callable[[], str | None]) -> None:
        """Record that the call still waits for an answer, which it does several times a second.

        Args:
            reason: Returns why the last attempt has failed, or None.
        """

    def must_stop(self) -> bool:
        """Return whether the call must end, because its result is not wanted any more."""
        ...
