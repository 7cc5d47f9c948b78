"""Ctrl-C that ends between two pages, so that the checkpoint is behind what was printed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

from multiclouddb_api import ChangeFeedPage, ChangeFeedRequest, MulticloudDbClient, OperationOptions

__all__ = ["Interrupt", "InterruptibleReader"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Takes SIGINT and SIGTERM while it is entered.

    The first one asks the loop to stop, and breaks off a read that is waiting. The second one breaks
    off whatever goes on: printing into a pipe that nobody empties, for instance.
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
        """As a shell counts it: 130 for ctrl-C; None when there was no signal."""
        return None if self.signal is None else 128 + self.signal

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Breaking off here loses nothing."""
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


class InterruptibleReader:
    """A client whose reads a signal may break off.

    Args:
        client: Reads the pages.
        interrupt: Takes the signals.
    """

    def __init__(self, client: MulticloudDbClient, interrupt: Interrupt) -> None:
        self._client, self._interrupt = client, interrupt

    def read_changes(
        self, request: ChangeFeedRequest, options: OperationOptions | None = None
    ) -> ChangeFeedPage:
        """One page."""
        with self._interrupt.reading():
            return self._client.read_changes(request, options)
