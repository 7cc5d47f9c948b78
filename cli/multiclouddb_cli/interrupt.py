"""Lets Ctrl-C take effect only between two pages, so that the checkpoint covers all printed events."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

import typer

__all__ = ["Interrupt", "until_signal"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Handles SIGINT and SIGTERM inside its `with` block.

    The first signal asks the loop to stop, and interrupts a waiting read. The second signal interrupts any
    operation, for example a write to a pipe that nobody reads.

    Python discards an exception that is raised in a finalizer or in the callback of a weak
    reference. An import calls callbacks of weak references, so Python can discard the interrupt.
    Therefore a loop enters `reading` in each round, and `reading` raises the interrupt again.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.stop: Callable[[], None] | None = None
        self._reading = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code that a shell uses, for example 130 for Ctrl-C; None if there was no signal."""
        return None if self.signal is None else 128 + self.signal

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Mark a block that may be interrupted, because an interruption inside the block loses nothing."""
        if self.signal is not None:
            raise KeyboardInterrupt
        self._reading = True
        try:
            yield
        finally:
            self._reading = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        again, self.signal = self.signal is not None, number
        if self.stop is not None:
            self.stop()
        if again or self._reading or self.stop is None:
            raise KeyboardInterrupt


@contextmanager
def until_signal() -> Iterator[Interrupt]:
    """Run a block until it ends or a signal ends it.

    Raises:
        typer.Exit: Raised after the block if there was a signal, with the exit code that a shell uses.
    """
    with Interrupt() as interrupt:
        try:
            yield interrupt
        except KeyboardInterrupt:
            if interrupt.exit_code is None:
                raise
    if interrupt.exit_code is not None:
        raise typer.Exit(interrupt.exit_code)
