"""Defines applications that read a feed in steps, so that they can be killed after each step.

A consumer is a generator. A kill happens only between two steps, never during a step. Only the tokens named
in a `Stored` step survive a kill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import attrs

from multiclouddb_api import (
    ChangeEvent,
    ChangeFeedIterator,
    ChangeFeedPage,
    ChangeFeedRequest,
    Checkpoint,
    ErrorCategory,
    ErrorDetail,
    FromContinuationToken,
    MulticloudDbError,
    OperationOptions,
)
from multiclouddb_api.iterator import ReadsChanges

__all__ = [
    "Consumer",
    "ConsumerStep",
    "Delivered",
    "Failed",
    "Pause",
    "ReadsChanges",
    "Received",
    "Stored",
    "iterator_consumer",
    "page_consumer",
    "page_consumer_with",
]


@attrs.frozen
class Received:
    """A page has arrived, and none of its events has been processed yet.

    Attributes:
        page: The page.
    """

    page: ChangeFeedPage


@attrs.frozen
class Delivered:
    """The application has processed an event.

    Attributes:
        event: The event.
    """

    event: ChangeEvent


@attrs.frozen
class Stored:
    """A token has been stored; the next consumer starts from this token.

    Attributes:
        token: The token.
    """

    token: str = attrs.field(repr=False)


@attrs.frozen
class Failed:
    """A read has failed and will be retried.

    Attributes:
        error: The error.
    """

    error: MulticloudDbError


@attrs.frozen
class Pause:
    """The page has been processed; the next step requests another page.

    The script may change the database at this point.

    Attributes:
        idle: The value of `idle` in the page.
    """

    idle: bool


ConsumerStep: TypeAlias = Received | Delivered | Stored | Failed | Pause

Consumer: TypeAlias = Callable[[ReadsChanges, ChangeFeedRequest, str | None], Iterator[ConsumerStep]]
"""A function that takes a client, a request and the stored token (or None), and yields the steps of an
application that never ends.
"""


def starting_at(request: ChangeFeedRequest, token: str | None) -> ChangeFeedRequest:
    """Return the request, with the stored token as start position if there is one."""
    if token is None:
        return request
    return attrs.evolve(request, start_position=FromContinuationToken(token))


def page_consumer_with(options: OperationOptions | None = None) -> Consumer:
    """Make an application that processes page after page, and stores the token after each page."""

    def consume(
        client: ReadsChanges, request: ChangeFeedRequest, token: str | None
    ) -> Iterator[ConsumerStep]:
        while True:
            try:
                page = client.read_changes(starting_at(request, token), options)
            except MulticloudDbError as error:
                if not error.retryable:
                    raise
                yield Failed(error)
                continue
            yield Received(page)
            for event in page.events:
                yield Delivered(event)
            token = page.continuation_token
            yield Stored(token)
            yield Pause(page.idle)

    return consume


page_consumer: Consumer = page_consumer_with()
"""The consumer that `page_consumer_with` makes with the default options."""


def iterator_consumer(**settings: Any) -> Consumer:
    """Make a worker that loops over a `ChangeFeedIterator`'s pages; the iterator stores the checkpoint."""
    chosen = {"idle_backoff_seconds": 0.001, "max_idle_backoff_seconds": 0.001, **settings}

    def consume(
        client: ReadsChanges, request: ChangeFeedRequest, token: str | None
    ) -> Iterator[ConsumerStep]:
        store = _MemoryStore(token)
        changes = ChangeFeedIterator(
            client, request, checkpoint_store=store, checkpoint_name="consumer", **chosen
        )
        for page in changes.pages():
            yield from store.saved()
            yield Received(page)
            for event in page.events:
                yield Delivered(event)
            yield Pause(page.idle)
        yield from store.saved()

    return consume


class _MemoryStore:
    """A checkpoint store in memory that reports which tokens were saved."""

    def __init__(self, token: str | None) -> None:
        self._checkpoint = None if token is None else Checkpoint(token, "0")
        self._news: list[Stored] = []

    def load(self, name: str) -> Checkpoint | None:
        del name
        return self._checkpoint

    def save(self, name: str, token: str, expected: str | None) -> Checkpoint:
        version = None if self._checkpoint is None else self._checkpoint.version
        if version != expected:
            raise MulticloudDbError(f"{name} was changed", ErrorDetail(ErrorCategory.CONFLICT))
        self._checkpoint = Checkpoint(token, str(int(version or "0") + 1))
        self._news.append(Stored(token))
        return self._checkpoint

    def saved(self) -> list[Stored]:
        """Return the tokens that were saved since the last call."""
        news, self._news = self._news, []
        return news
