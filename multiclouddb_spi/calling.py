"""Calls to a provider that are tried again, and are over by a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import attrs

from multiclouddb_spi.contract import Provider
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.failure import fault_of, user_errors
from multiclouddb_spi.retry import ATTEMPTS, retrying

__all__ = ["Caller", "RetriedCalls"]

T = TypeVar("T")


class Caller(Protocol):
    """Makes calls to a provider or its feed, with retries."""

    def call(self, operation: str, ask: Callable[[Deadline], T]) -> T:
        """Ask.

        Args:
            operation: What is asked, for errors.
            ask: Gets the deadline; may be called several times.

        Raises:
            Exception: Of the last try.
        """
        ...


@attrs.frozen(eq=False)
class RetriedCalls:
    """Calls in the caller's own thread: for whoever works with a feed without an engine.

    Attributes:
        provider: Whose.
        seconds: For all tries of one call.
        attempts: Tries, the first included.
        told: Called before each wait with the number of the try, the seconds and the failure.
    """

    provider: Provider
    seconds: float
    attempts: int = ATTEMPTS
    told: Callable[[int, float, Exception], None] = lambda *_: None

    def call(self, operation: str, ask: Callable[[Deadline], T]) -> T:
        """As `Caller.call`.

        Raises:
            MulticloudDbError: By category.
        """
        deadline = Deadline.after(self.seconds)
        policy = retrying(
            lambda error: fault_of(self.provider, error),
            deadline,
            time.sleep,
            self.told,
            attempts=self.attempts,
        )
        with user_errors(self.provider, operation):
            return policy(ask, deadline)
