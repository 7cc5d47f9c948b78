"""Throws away what is kept between calls if an interrupt ends one of them.

Ctrl-C raises `KeyboardInterrupt` between any two steps of the main thread, and a signal handler may raise
others there. The call that it ends may have left anything half changed, and any lock held. So nothing that
the call could have used is looked at again: the next call makes everything anew, from its token. No other
module deals with interrupts.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

from multiclouddb_api import ErrorCategory
from multiclouddb_spi.batch import resume_collector
from multiclouddb_spi.faults import ProviderFault

P = ParamSpec("P")
T = TypeVar("T")


class End(threading.Event):
    """Set when the calls that run must end."""

    _reason = (
        "the client was closed, or its process ended, while this call was running; nothing is lost: "
        "connect again and continue from the token of the request"
    )
    _may_pass = False

    def interrupt(self) -> None:
        """Set it because another call was interrupted."""
        self._reason = (
            "another call of this client was interrupted, which ends all its calls; nothing is lost: call "
            "again with the same token"
        )
        self._may_pass = True
        self.set()

    def fault(self, *, may_pass: bool = True) -> ProviderFault:
        """Make the fault for a call that must end; with `may_pass=False`, nobody tries again what it ends."""
        may_pass = may_pass and self._may_pass
        return ProviderFault.of(ErrorCategory.TRANSIENT_FAILURE, self._reason, retryable=may_pass)


class Endable(Protocol):
    """What is kept between calls."""

    @property
    def closed(self) -> End:
        """Set when it may not be used any more."""

    def interrupted(self) -> None:
        """Make what lives longer than this usable again, before another call begins."""

    def end(self) -> None:
        """Free it, except what calls of other threads use; they free that when they notice `closed`."""


K = TypeVar("K", bound=Endable)


class Renewed(Generic[K]):
    """Keeps something between calls, until it is closed or a call that uses it is interrupted.

    Args:
        make: Makes it, now and after each interrupt.
    """

    def __init__(self, make: Callable[[], K]) -> None:
        self._make = make
        self._lock: Final = threading.Lock()
        self._is_closed = False
        self.kept = make()

    def use(self, call: Callable[Concatenate[K, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a call with what is kept, and with these arguments."""
        kept, handled = self.kept, sys.exception()
        try:
            return call(kept, *args, **kwargs)
        except BaseException as error:  # this is the one place that deals with interrupts
            interrupt = _interrupt_of(error, handled)
            if interrupt is None:
                raise
            kept.closed.interrupt()
            kept.interrupted()
            with self._lock:
                if self.kept is kept and not self._is_closed:
                    self.kept = self._make()
            kept.end()
            resume_collector()
            if interrupt is error:
                raise
            raise interrupt from None

    def close(self) -> None:
        """End all calls, and free what is kept; nothing is made after this."""
        with self._lock:
            self._is_closed = True
        self.kept.closed.set()
        self.kept.end()


def _interrupt_of(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """Return the interrupt that has ended a call, or None.

    If it comes within a lock of the standard library, the release of that lock may raise another error, which
    hides the interrupt.

    Args:
        error: What the call has raised.
        handled: What the caller was handling before the call.
    """
    if not isinstance(error, Exception):
        return error
    hidden = error.__context__
    while hidden is not None and hidden is not handled:
        if isinstance(hidden, KeyboardInterrupt | SystemExit):
            return hidden
        hidden = hidden.__context__
    return None
