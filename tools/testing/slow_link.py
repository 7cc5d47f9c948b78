"""Reads a feed over a slow or failing network, as an application does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs

from multiclouddb_api import (
    ChangeEvent,
    ChangeFeedIterator,
    ChangeFeedPage,
    ChangeFeedRequest,
    FromContinuationToken,
    MulticloudDbClient,
    MulticloudDbError,
    OperationOptions,
    ResourceAddress,
    StartPosition,
)

__all__ = ["SlowConsumer", "seconds_to_close", "seconds_to_stop"]


def seconds_to_close(client: MulticloudDbClient, read: Callable[[], object], after: float = 0.3) -> float:
    """Close a client while a thread reads; return how long it takes until both have ended."""
    return _seconds_to_end(read, client.close, after)


def seconds_to_stop(changes: ChangeFeedIterator, after: float = 0.3) -> float:
    """Stop an iterator while a thread iterates; return how long it takes until the iteration has ended."""
    return _seconds_to_end(lambda: list(changes), changes.stop, after)


def _seconds_to_end(run: Callable[[], object], end: Callable[[], object], after: float) -> float:
    def running() -> None:
        with suppress(MulticloudDbError):
            run()

    thread = threading.Thread(target=running)
    thread.start()
    thread.join(after)
    assert thread.is_alive(), "the read has ended by itself"
    began = time.monotonic()
    end()
    thread.join()
    return time.monotonic() - began


@attrs.define
class SlowConsumer:
    """Reads page after page, and reads again after each failure that is retryable."""

    client: MulticloudDbClient
    address: ResourceAddress
    start: StartPosition
    timeout: float = 30.0
    wait: float = 0.0
    request: dict[str, Any] = attrs.field(factory=dict)
    events: list[ChangeEvent] = attrs.field(factory=list)
    calls: int = 0

    def begin(self) -> SlowConsumer:
        """Resolve the start position without a time limit, and forget the events of this call."""
        self._take(self._page(OperationOptions()))
        self.events.clear()
        return self

    def read(self) -> ChangeFeedPage | None:
        """Read one page; return None after a failure that is retryable."""
        self.calls += 1
        try:
            page = self._page(OperationOptions(self.timeout, self.wait))
        except MulticloudDbError as error:
            if error.retryable:
                return None
            raise
        return self._take(page)

    def until(self, count: int, at_most: float) -> float:
        """Read until there are `count` events; return how many seconds this took."""
        began = time.monotonic()
        while len(self.events) < count:
            self.read()
            if time.monotonic() - began > at_most:
                raise TimeoutError(f"{len(self.events)} of {count} events after {at_most:g} s")
        return time.monotonic() - began

    def attempt(self, seconds: float) -> None:
        """Read for some seconds, whatever fails."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(MulticloudDbError):
                self.read()

    def _page(self, options: OperationOptions) -> ChangeFeedPage:
        return self.client.read_changes(ChangeFeedRequest(self.address, self.start, **self.request), options)

    def _take(self, page: ChangeFeedPage) -> ChangeFeedPage:
        self.start = FromContinuationToken(page.continuation_token)
        self.events += page.events
        return page
