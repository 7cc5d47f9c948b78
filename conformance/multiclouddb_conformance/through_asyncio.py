"""The blocking face over the client of asyncio, so that the same tests run through both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import cache, partial
from types import TracebackType
from typing import Any, TypeVar

from multiclouddb_api import (
    CapabilitySet,
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    MulticloudDbClient,
    ProviderOptions,
)
from multiclouddb_api.aio import AsyncChangeFeedIterator, AsyncMulticloudDbClient

__all__ = ["AsyncioClient", "AsyncioIterator", "run"]

_Result = TypeVar("_Result")
_BLOCKING = ("capabilities", "config", "observer")
_END = object()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="multiclouddb loop of the tests", daemon=True).start()
    return loop


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine in the event loop of the tests, and return its result.

    Args:
        coroutine: The coroutine.
    """
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()


class AsyncioClient:
    """Has the methods of `MulticloudDbClient`, and makes each call through the client of asyncio.

    Args:
        make: Makes the client below.
    """

    def __init__(self, make: Callable[[], MulticloudDbClient]) -> None:
        self._client = AsyncMulticloudDbClient(make)
        run(self._client._open())

    def iterate_changes(self, request: ChangeFeedRequest, **settings: Any) -> AsyncioIterator:
        """Return an iterator; see `MulticloudDbClient.iterate_changes`.

        Args:
            request: The request.
            **settings: The settings of the iterator.
        """
        return AsyncioIterator(run(_made(partial(self._client.iterate_changes, request, **settings))))

    def capabilities(self, provider_options: ProviderOptions | None = None) -> CapabilitySet:
        """See `MulticloudDbClient.capabilities`.

        Args:
            provider_options: The provider's options of the request, or None.
        """
        return run(_made(partial(self._client.capabilities, provider_options)))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if name in _BLOCKING:
            return value
        return lambda *arguments, **named: run(value(*arguments, **named))

    def close(self) -> None:
        """See `MulticloudDbClient.close`."""
        run(self._client.close())

    def __reduce__(self) -> Any:
        return self._client.__reduce__()

    def __enter__(self) -> AsyncioClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _made(make: Callable[[], _Result]) -> _Result:
    return make()


class AsyncioIterator:
    """Has the methods of `ChangeFeedIterator`, over an iterator of asyncio.

    Args:
        changes: The iterator of asyncio.
    """

    def __init__(self, changes: AsyncChangeFeedIterator) -> None:
        self._changes = changes

    @property
    def _feed(self) -> Any:
        return self._changes._feed

    @property
    def continuation_token(self) -> str | None:
        """See `ChangeFeedIterator.continuation_token`."""
        return self._changes.continuation_token

    def pages(self) -> Iterator[ChangeFeedPage]:
        """See `ChangeFeedIterator.pages`."""
        pages = self._changes.pages()
        while (page := run(_next(pages))) is not _END:
            yield page

    def __iter__(self) -> Iterator[ChangeEvent]:
        events = aiter(self._changes)
        while (event := run(_next(events))) is not _END:
            yield event

    def __next__(self) -> ChangeEvent:
        event = run(_next(self._changes))
        if event is _END:
            raise StopIteration
        return event  # type: ignore[no-any-return]

    def stop(self) -> None:
        """See `ChangeFeedIterator.stop`."""
        self._changes.stop()

    def close(self) -> None:
        """See `ChangeFeedIterator.close`."""
        run(self._changes.close())

    def __enter__(self) -> AsyncioIterator:
        run(self._changes.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._changes.__aexit__(kind, error, trace))


async def _next(iterator: Any) -> Any:
    return await anext(iterator, _END)
