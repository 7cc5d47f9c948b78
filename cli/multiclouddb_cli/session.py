"""One database with its engine and one opened feed, for what a client does not show."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, TypeVar

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    Observer,
    OperationOptions,
)
from multiclouddb_spi import Deadline, Engine, Feed, open_provider
from multiclouddb_spi.calling import call
from multiclouddb_spi.gate import spec_of

__all__ = ["CALL_SECONDS", "Session"]

T = TypeVar("T")

CALL_SECONDS: Final = 30.0


class Session:
    """A connected database and the feed that a request needs; a context manager.

    Args:
        config: How to reach it.
        request: Whose feed it is.
        observer: Told what the engine does.
    """

    def __init__(
        self, config: ClientConfig, request: ChangeFeedRequest, observer: Observer | None = None
    ) -> None:
        self.provider = open_provider(config)
        self._engine = Engine(self.provider, config, observer)
        self._feed: Feed | None = None
        self._request = request

    @property
    def feed(self) -> Feed:
        """The feed, opened at the first use."""
        if self._feed is None:
            spec = spec_of(self.provider, self._request, "open")
            self._feed = self.call("open", lambda deadline: self.provider.open_feed(spec, deadline))
        return self._feed

    def read(self, request: ChangeFeedRequest, wait_seconds: float = 0.0) -> ChangeFeedPage:
        """One page.

        Raises:
            MulticloudDbError: As `MulticloudDbClient.read_changes` does.
        """
        return self._engine.read_changes(request, OperationOptions(CALL_SECONDS, wait_seconds))

    def call(self, operation: str, ask: Callable[[Deadline], T]) -> T:
        """Ask provider or feed, with retries.

        Raises:
            MulticloudDbError: By category.
        """
        return call(self.provider, operation, ask, CALL_SECONDS)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._feed is not None:
                self._feed.close()
        finally:
            self._engine.close()
