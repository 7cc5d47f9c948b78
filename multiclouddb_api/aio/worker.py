"""Follows a feed with one call of asyncio, and keeps the position in a file."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from multiclouddb_api.aio.client import AsyncMulticloudDbClient, connect
from multiclouddb_api.aio.iterator import AsyncChangeFeedIterator
from multiclouddb_api.config import ClientConfig
from multiclouddb_api.errors import invalid_request
from multiclouddb_api.worker import followed

if TYPE_CHECKING:
    from typing import Unpack

    from multiclouddb_api.event import ChangeEvent
    from multiclouddb_api.iterator import IteratorSettings
    from multiclouddb_api.request import ResourceAddress, StartPosition


def follow(
    source: str | os.PathLike[str] | ClientConfig,
    address: ResourceAddress | str,
    *,
    start: StartPosition | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    **settings: Unpack[IteratorSettings],
) -> Follower:
    """Connect to a database and iterate over the events of one collection, like `multiclouddb.follow`.

    Use the result in `async with`, which gives the iterator, or directly in `async for`. The connection is
    opened when the block or the loop begins, and closed when the block ends or the loop has come to its end.
    After a `break` out of a loop without the block, call `aclose`.

    Args:
        source: What `connect` takes: a URL, the path of a TOML file, or a `ClientConfig`.
        address: The collection, for example `"shop/orders"`.
        start: Where to start as long as there is no checkpoint. Once it exists, the read starts there
            instead.
        checkpoint: The file that keeps the position, or the URL of a checkpoint. Without it, nothing is
            saved.
        **settings: The settings of `ChangeFeedIterator`; `max_start_seconds` is 0 by default.

    Raises:
        MulticloudDbError: For the reasons of `multiclouddb.follow`, usually when the connection is opened and
            before anything is read.

    Examples:
        >>> async with follow(
        ...     "embedded:///tmp/store.db", "orders", start=Beginning(), checkpoint="o.checkpoint"
        ... ) as events:
        ...     async for event in events:
        ...         print(event.type, event.key["id"])
    """
    return Follower(connect(source), address, start, checkpoint, settings)


class Follower:
    """What `follow` returns: it opens the connection, and gives the iterator.

    Args:
        client: The client, which is not open yet.
        address: See `follow`.
        start: See `follow`.
        checkpoint: See `follow`.
        settings: See `follow`.
    """

    def __init__(
        self,
        client: AsyncMulticloudDbClient,
        address: ResourceAddress | str,
        start: StartPosition | None,
        checkpoint: str | os.PathLike[str] | None,
        settings: IteratorSettings,
    ) -> None:
        self._client = client
        self._arguments = (address, start, checkpoint, settings)
        self._changes: AsyncChangeFeedIterator | None = None

    async def __aenter__(self) -> AsyncChangeFeedIterator:
        changes = await self._opened()
        try:
            return await changes.__aenter__()
        except BaseException:  # it has closed itself, so the next try needs another connection
            self._changes, self._client = None, self._client._renewed()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._changes is not None:
            await self._changes.__aexit__(kind, error, trace)

    async def aclose(self) -> None:
        """Stop, save the position after the last page that is done, and close the connection."""
        if self._changes is not None:
            await self._changes.close()

    def __aiter__(self) -> AsyncIterator[ChangeEvent]:
        return _Opening(self)

    def __iter__(self) -> NoReturn:
        raise invalid_request("follow", "is iterated with for", "write async for")

    def __enter__(self) -> NoReturn:
        raise invalid_request("follow", "is entered with with", "write async with")

    def __exit__(self, *_: object) -> None: ...

    async def _opened(self) -> AsyncChangeFeedIterator:
        if self._changes is None:
            client = self._client
            try:
                await client
                request, settings, check = await client._open_threads.start(followed, *self._arguments)
                changes = client.iterate_changes(request, **settings)
                await client._open_threads.start(check)
            except BaseException:  # whatever ends it, also a cancellation
                # A client is opened once, so the next try, for example after a timeout, needs another.
                self._client = client._renewed()
                await client.close()
                raise
            changes._feed.at_close = client.close
            self._changes = changes
        return self._changes


class _Opening:
    """One iteration over the events, which first opens the connection."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._events: AsyncIterator[ChangeEvent] | None = None

    def __aiter__(self) -> _Opening:
        return self

    async def __anext__(self) -> ChangeEvent:
        if self._events is None:
            self._events = aiter(await self._follower._opened())
        return await anext(self._events)
