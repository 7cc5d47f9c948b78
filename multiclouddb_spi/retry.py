"""How often and how soon a failed call to a service is made again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tenacity import RetryCallState, Retrying, stop_after_attempt, stop_before_delay

from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.fault import Fault

__all__ = ["ATTEMPTS", "retrying"]

ATTEMPTS: Final = 6
"""Tries of one call, the first included: about three seconds of waiting when none asks for more."""

_FIRST_SECONDS: Final = 0.1
_MOST_SECONDS: Final = 2.0


def retrying(
    classify: Callable[[Exception], Fault],
    deadline: Deadline,
    pause: Callable[[float], object],
    told: Callable[[int, float, Exception], None],
    *,
    attempts: int = ATTEMPTS,
) -> Retrying:
    """A policy with full jitter that ends before the deadline and raises the last failure.

    The service's `retry_after` is waited in full, with jitter on top. Nothing is tried again that
    is not retryable or that the vendor's client has retried already.

    Args:
        classify: What a failure means.
        deadline: No try begins behind it.
        pause: Waits that many seconds, shorter when the client is closed.
        told: Called before each wait with the number of the try, the seconds and the failure.
        attempts: Tries, the first included; 1 to leave retries to the application's own client.
    """

    def again(state: RetryCallState) -> bool:
        error = _error(state)
        if not isinstance(error, Exception):
            return False
        fault = classify(error)
        return fault.retryable and not fault.vendor_retried

    def wait(state: RetryCallState) -> float:
        error = _error(state)
        asked = classify(error).retry_after if isinstance(error, Exception) else None
        bound = min(_MOST_SECONDS, _FIRST_SECONDS * 2 ** (state.attempt_number - 1))
        return (asked or 0.0) + random.uniform(0, bound if not asked else bound / 4)

    def sleep(seconds: float) -> None:
        pause(seconds)

    def before_sleep(state: RetryCallState) -> None:
        error = _error(state)
        if isinstance(error, Exception):
            told(state.attempt_number, state.upcoming_sleep, error)

    return Retrying(
        retry=again,
        wait=wait,
        stop=stop_after_attempt(attempts) | stop_before_delay(deadline.remaining()),
        sleep=sleep,
        before_sleep=before_sleep,
        reraise=True,
    )


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None
