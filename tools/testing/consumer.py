"""A consumer of a feed whose items have a number as a marker, for the tests of a provider."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from multiclouddb_api import (
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    FromContinuationToken,
    MulticloudDbClient,
    Notice,
    OperationOptions,
    ResourceAddress,
    StartPosition,
)

__all__ = ["Consumer", "markers"]


@attrs.define
class Consumer:
    """A consumer that resumes from its token.

    Attributes:
        address: The collection.
        connect: Makes another client, for `restart`.
        client: The client.
        start: Where the next page begins.
        request: Further fields of each request.
        pause: The seconds to wait after a page without events, as an application waits between polls.
    """

    address: ResourceAddress
    connect: Callable[[], MulticloudDbClient]
    client: MulticloudDbClient
    start: StartPosition
    request: dict[str, Any]
    pause: float = 0.0
    events: list[ChangeEvent] = attrs.field(factory=list)
    notices: list[Notice] = attrs.field(factory=list)
    pages: list[ChangeFeedPage] = attrs.field(factory=list)

    def read(self, options: OperationOptions | None = None) -> ChangeFeedPage:
        """Read one page."""
        page = self.client.read_changes(ChangeFeedRequest(self.address, self.start, **self.request), options)
        self.start = FromContinuationToken(page.continuation_token)
        self.events += page.events
        self.notices += page.notices
        self.pages.append(page)
        return page

    def until_idle(self, most: int = 2000) -> list[Any]:
        """Read pages until a page is idle; return the markers that were delivered."""
        before = len(self.events)
        for _ in range(most):
            if self._next().idle:
                return markers(self.events[before:])
        raise AssertionError(f"not idle after {most} pages")

    def until_found(self, wanted: Iterable[Any], at_most: float = 30) -> None:
        """Read pages until all the given markers have been delivered, even if a page before them is idle."""
        until = time.monotonic() + at_most
        while missing := set(wanted) - set(self.markers):
            assert time.monotonic() < until, f"{sorted(missing)} are missing"
            self._next()

    def _next(self) -> ChangeFeedPage:
        waits = self.pages and not self.pages[-1].events
        return self.read(OperationOptions(wait_seconds=self.pause if waits else 0.0))

    def restart(self) -> Consumer:
        """Continue as a new process that has the same token."""
        self.client.close()
        self.client = self.connect()
        return self

    @property
    def token(self) -> str:
        """The token after the last page."""
        assert isinstance(self.start, FromContinuationToken)
        return self.start.token

    @property
    def markers(self) -> list[Any]:
        """The markers of all events."""
        return markers(self.events)

    @property
    def kinds(self) -> list[type[Notice]]:
        """The classes of all notices."""
        return [type(notice) for notice in self.notices]


def markers(events: Iterable[ChangeEvent]) -> list[Any]:
    """Return the markers of events, in order."""
    return [event.new_item_state["n"] for event in events if event.new_item_state is not None]
