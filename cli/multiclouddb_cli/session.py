"""Opens a database with its engine and one feed, to get information that a client does not provide."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import cached_property
from types import TracebackType
from typing import Final

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    Observer,
    OperationOptions,
)
from multiclouddb_spi import Engine, Feed, open_provider
from multiclouddb_spi.open_feed import OpenFeed
from multiclouddb_spi.request_check import spec_of
from multiclouddb_spi.retry import Tries

__all__ = ["CALL_SECONDS", "Session"]

CALL_SECONDS: Final = 30.0


class Session:
    """A connected database with the feed for a request; use it as a context manager.

    Args:
        config: The configuration for reaching the database.
        request: The request whose feed is opened.
        observer: The observer that the engine calls.
    """

    def __init__(
        self, config: ClientConfig, request: ChangeFeedRequest, observer: Observer | None = None
    ) -> None:
        self.provider = open_provider(config)
        self._engine = Engine(self.provider, config, observer)
        self._closing = ExitStack()
        self._closing.callback(self._engine.close)
        self._request = request

    @cached_property
    def opened(self) -> OpenFeed:
        """Return the request's feed.

        Raises:
            MulticloudDbError: Raised if the database does not support the request.
        """
        spec = spec_of(self.provider, self._request, "open")
        opened = OpenFeed(self.provider, spec, Tries(self.provider).call, CALL_SECONDS)
        return self._closing.enter_context(closing(opened))

    @property
    def feed(self) -> Feed:
        """The feed itself; it is opened when it is first used."""
        return self.opened.feed

    def read(self, request: ChangeFeedRequest, wait_seconds: float = 0.0) -> ChangeFeedPage:
        """Read one page.

        Raises:
            MulticloudDbError: Raised as by `MulticloudDbClient.read_changes`.
        """
        return self._engine.read_changes(request, OperationOptions(CALL_SECONDS, wait_seconds))

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()
