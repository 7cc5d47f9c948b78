"""Retries failed calls, and decides whether, how soon and how often to retry."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from attrs import frozen

from multiclouddb_spi.abilities import SupportsRenewal
from multiclouddb_spi.errors import fault_of
from multiclouddb_spi.time_limits import CALL_SILENT_SECONDS, Arrival, Deadline, current

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying

    from multiclouddb_spi.contract import Provider

T = TypeVar("T")

ATTEMPTS: Final = 6
"""The number of attempts for one call, including the first.

The waits between the attempts are random. They add up to 1.6 s on average and to 3.1 s at most, unless the
service requests longer waits.
"""

MOST_SKIPS: Final = 3
"""How often in a row a partition continues at its oldest record because its position has expired.

Each oldest record may itself expire before it is read, and this must not be repeated forever.
"""


class Call(Protocol):
    """A function that makes a call to a provider or its feed: `Tries.call`, `Fetcher.call` or `directly`."""

    def __call__(self, ask: Callable[[], T], deadline: Deadline, /) -> T:
        """Make the call."""
        ...


def directly(ask: Callable[[], T], deadline: Deadline) -> T:
    """Call the function once and do not retry it, because the whole operation is retried."""
    del deadline
    return ask()


def _pause(seconds: float) -> None:
    time.sleep(seconds)


@frozen(eq=False, repr=False)
class Tries:
    """Repeats a failed call in the caller's own thread, with random waits, and raises the last failure.

    If the service returns `retry_after`, a random time is added to it. A failure is not retried if it is not
    retryable, or if the vendor's client has already retried it. If the service refuses the credentials and
    the provider can renew them, the call is made once more with new credentials, without a wait.
    """

    provider: Provider
    attempts: int = ATTEMPTS  # including the first; with 1, the application's own client retries
    pause: Callable[[float], Any] = _pause
    # Called before each wait with the number of the attempt, the seconds and the failure.
    on_retry: Callable[[int, float, Exception], None] = lambda _attempt, _seconds, _error: None
    limits: bool = True  # the time for each answer; with False, the function that is called sets the limits

    def call(self, ask: Callable[[], T], deadline: Deadline, /) -> T:
        """Make the call (see `Call`); no attempt starts after the deadline."""
        if self.limits and current() is None:
            with Arrival():
                return self.call(ask, deadline)
        once = self._renewing(partial(_limited, ask) if self.limits else ask, deadline)
        try:
            return once()
        except Exception as error:
            if not self._may_pass(error):
                raise
            failed, before = [error], error  # raised again below, where it is the first try of the policy

        def again() -> T:
            nonlocal before
            if failed:
                raise failed.pop()
            try:
                return once()
            except Exception as error:
                # The deadline may have cut off this attempt, so the failure before it explains more.
                if deadline.passed() and self._may_pass(error):
                    raise before from None
                before = error
                raise

        # Using the retry policy costs as much as an empty fetch, and importing its package takes a fifth of a
        # program's start-up time. Therefore, the policy is used only after a failure that may pass.
        try:
            policy = self._policy(deadline)
        except (ImportError, OSError):  # the package cannot be loaded if the system has no free file handles
            raise failed.pop() from None
        return policy(again)

    def _renewing(self, ask: Callable[[], T], deadline: Deadline) -> Callable[[], T]:
        """Return a function that renews the credentials once if the service refuses them."""
        has_renewed = False

        def once() -> T:
            nonlocal has_renewed
            began = monotonic()
            try:
                return ask()
            except Exception as error:
                provider = self.provider
                if has_renewed or not fault_of(provider, error).renewable:
                    raise
                has_renewed = True
                if not isinstance(provider, SupportsRenewal) or not provider.renew(began):
                    raise
                if deadline.passed():
                    raise
                self.on_retry(1, 0.0, error)
            return ask()

        return once

    def _policy(self, deadline: Deadline) -> Retrying:
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_before_delay

        return Retrying(
            retry=retry_if_exception(self._may_pass),
            wait=self._wait,
            stop=stop_after_attempt(self.attempts) | stop_before_delay(deadline.remaining()),
            sleep=self.pause,
            before_sleep=self._tell,
            reraise=True,
        )

    def _may_pass(self, error: BaseException) -> bool:
        if not isinstance(error, Exception):
            return False
        fault = fault_of(self.provider, error)
        return fault.retryable and not fault.vendor_retried

    def _wait(self, state: RetryCallState) -> float:
        from tenacity import wait_random_exponential

        asked = fault_of(self.provider, _failure(state)).retry_after
        jitter = wait_random_exponential(multiplier=0.1, max=2.0)(state)
        return asked + jitter / 4 if asked else jitter

    def _tell(self, state: RetryCallState) -> None:
        self.on_retry(state.attempt_number, state.upcoming_sleep, _failure(state))


def _limited(ask: Callable[[], T]) -> T:
    arrival = current()
    if arrival is not None:
        arrival.begin_call(silence=CALL_SILENT_SECONDS)
    return ask()


def _failure(state: RetryCallState) -> Exception:
    """Return the error of the failed attempt; `Tries` has classified the failure already."""
    error = state.outcome and state.outcome.exception()
    assert isinstance(error, Exception)
    return error
