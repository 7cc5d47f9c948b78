"""Calls to a provider in the caller's own thread: for whoever works with a feed without an engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from multiclouddb_spi.contract import Provider
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.failure import fault_of, user_errors
from multiclouddb_spi.retry import ATTEMPTS, retrying

__all__ = ["call"]

T = TypeVar("T")


def call(
    provider: Provider,
    operation: str,
    ask: Callable[[Deadline], T],
    seconds: float,
    *,
    attempts: int = ATTEMPTS,
    told: Callable[[int, float, Exception], None] = lambda *_: None,
) -> T:
    """Ask a provider or its feed, with retries.

    Args:
        provider: Whose.
        operation: What is asked, for errors.
        ask: Gets the deadline; may be called several times.
        seconds: For all of it.
        attempts: Tries, the first included.
        told: Called before each wait with the number of the try, the seconds and the failure.

    Raises:
        MulticloudDbError: By category.
    """
    deadline = Deadline.after(seconds)
    policy = retrying(lambda error: fault_of(provider, error), deadline, time.sleep, told, attempts=attempts)
    with user_errors(provider, operation):
        return policy(ask, deadline)
