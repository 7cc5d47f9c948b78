"""Opens a database with its engine and one feed, to get information that a client does not provide."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from types import FrameType
from typing import Any, Final

import attrs
import typer

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    MulticloudDbClient,
    MulticloudDbError,
    Observer,
    OperationOptions,
)
from multiclouddb_spi import Engine, Feed, open_provider
from multiclouddb_spi.computed_once import computed_once
from multiclouddb_spi.open_feed import OpenFeed
from multiclouddb_spi.request_check import spec_of
from multiclouddb_spi.retry import Tries

CALL_SECONDS: Final = 30.0
OUTAGE_SECONDS: Final = 300.0


class ConnectedFeed(ExitStack):
    """A connected database with the feed for a request; use it as a context manager."""

    def __init__(
        self, config: ClientConfig, request: ChangeFeedRequest, observer: Observer | None = None
    ) -> None:
        super().__init__()
        self._provider = open_provider(config)
        self._engine = Engine(self._provider, config, observer)
        self.callback(self._engine.close)
        self._request = request
        self.width = config.max_concurrency
        """The number of partitions that are read at once."""

    @computed_once
    def opened(self) -> OpenFeed:
        """Return the request's feed."""
        spec = spec_of(self._provider, self._request, "open")
        opened = OpenFeed(self._provider, spec, Tries(self._provider).call, CALL_SECONDS)
        return self.enter_context(closing(opened))

    @property
    def feed(self) -> Feed:
        """The feed itself; it is opened when it is first used."""
        return self.opened.feed

    def read(self, request: ChangeFeedRequest, wait_seconds: float = 0.0) -> ChangeFeedPage:
        """Read one page."""
        return self._engine.read_changes(request, OperationOptions(CALL_SECONDS, wait_seconds))


class Interrupt:
    """What a signal does in a block of `until_signal`: it calls `stop`, or ends the block at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.stop: Callable[[], None] | None = None
        self._reading = False

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

    def take(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        again, self.signal = self.signal is not None, number
        if self.stop is not None:
            self.stop()
        if again or self._reading or self.stop is None:
            raise KeyboardInterrupt


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def until_signal() -> Iterator[Interrupt]:
    """Run a block until it ends, or SIGINT or SIGTERM ends it; then exit as a shell does: 130 for ctrl-C."""
    interrupt, before = Interrupt(), dict[signal.Signals, Any]()
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, interrupt.take) for number in _SIGNALS}
    try:
        yield interrupt
    except KeyboardInterrupt:
        if interrupt.signal is None:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if interrupt.signal is not None:
        raise typer.Exit(128 + interrupt.signal)


# Errors that may disappear if somebody starts a server, creates a resource or grants a permission.
_MAY_COME: Final = (
    ErrorCategory.NOT_FOUND,
    ErrorCategory.AUTHENTICATION_FAILED,
    ErrorCategory.AUTHORIZATION_FAILED,
)


class Contact:
    """Reads pages like a client, but connects at the first read, and lets a signal interrupt a read."""

    def __init__(
        self,
        connect: Callable[[], MulticloudDbClient],
        interrupt: Interrupt,
        observer: Observer,
        *,
        waits: bool,
    ) -> None:
        self.observer = observer
        self._connect, self._interrupt, self._waits = connect, interrupt, waits
        self._client: MulticloudDbClient | None = None
        self._has_read = False

    @property
    def client(self) -> MulticloudDbClient:
        """The client; this object closes it."""
        if self._client is None:
            self._client = self._connect()
        return self._client

    def promise(self) -> str:
        """Say what happens next while the database does not answer."""
        if self._waits:
            return "trying again until it works"
        if self._has_read:
            return f"trying again for {OUTAGE_SECONDS / 60:.0f} minutes; --wait tries until it works"
        return "the command ends if there is no answer soon; --wait tries until it works"

    def read_changes(
        self, request: ChangeFeedRequest, options: OperationOptions | None = None
    ) -> ChangeFeedPage:
        """Read one page."""
        with self._interrupt.reading():
            try:
                # `--to` ends with an idle page.
                asked = attrs.evolve(options or OperationOptions(), ask_all=True)
                page = self.client.read_changes(request, asked)
            except MulticloudDbError as error:
                if self._has_read:
                    raise
                retryable = self._waits and (error.retryable or error.category in _MAY_COME)
                if error.retryable == retryable:
                    raise
                detail = attrs.evolve(error.detail, retryable=retryable)
                raise MulticloudDbError(error.message, detail) from error
        self._has_read = True
        return page

    def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            self._client.close()
