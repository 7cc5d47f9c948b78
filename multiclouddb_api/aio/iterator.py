"""Reads changes in a loop that is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Protocol
from weakref import ref

from multiclouddb_api.aio.driver import Driver, LoopTimer
from multiclouddb_api.errors import invalid_request
from multiclouddb_api.iterator import ChangeFeedIterator

if TYPE_CHECKING:
    from typing import Unpack

    from multiclouddb_api.aio.threads import Threads
    from multiclouddb_api.checkpoint import Checkpoint
    from multiclouddb_api.client import MulticloudDbClient
    from multiclouddb_api.event import ChangeEvent
    from multiclouddb_api.iterator import IteratorSettings
    from multiclouddb_api.page import ChangeFeedPage
    from multiclouddb_api.request import ChangeFeedRequest
    from multiclouddb_api.steps import Steps


class AsyncCheckpointStore(Protocol):
    """A `CheckpointStore` with coroutine methods, which are awaited in the event loop."""

    async def load(self, name: str) -> Checkpoint | None:
        """See `CheckpointStore.load`.

        Args:
            name: The name of the checkpoint.
        """
        ...

    async def save(self, name: str, token: str, expected: str | None) -> Checkpoint:
        """See `CheckpointStore.save`.

        Args:
            name: The name of the checkpoint.
            token: The token to keep.
            expected: The version that `load` or the last `save` returned, or None.
        """
        ...


class OpensThreads(Protocol):
    """The part of an `AsyncMulticloudDbClient` that an iterator needs."""

    @property
    def blocking(self) -> MulticloudDbClient:
        """The blocking client."""
        ...

    @property
    def _open_threads(self) -> Threads: ...

    def _check(self, operation: str) -> None: ...


class AsyncChangeFeedIterator:
    """Reads a feed page by page, like `ChangeFeedIterator`, without blocking a thread of the application.

    Iterate over events (`async for event in it`, `await anext(it)`) or over pages
    (`async for page in it.pages()`), in one task. As with `ChangeFeedIterator`, no event is skipped, and the
    page that a crash, an exception or a `break` has interrupted is delivered again. Nothing is read ahead, so
    a slow consumer slows down the reads.

    A task that waits for a page may be cancelled: `CancelledError` is raised at once, and the read goes on in
    its thread, at most until its time limit. The next `anext` waits for this read and goes on with its page.

    Args:
        client: The client.
        request: The request. A stored checkpoint takes precedence over its `start_position`.
        **settings: The settings of `ChangeFeedIterator`. `checkpoint_store` may have coroutine methods.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` with a message that names the setting.

    Examples:
        >>> async with client.iterate_changes(request, until_idle=True) as changes:
        ...     async for event in changes:
        ...         print(event.type, event.key)

    Portability:
        See `ChangeFeedIterator`.
    """

    def __init__(
        self,
        client: OpensThreads,
        request: ChangeFeedRequest,
        **settings: Unpack[IteratorSettings],
    ) -> None:
        self._client, self._threads = client, client._open_threads
        self._settings = ChangeFeedIterator(client.blocking, request, **settings)
        _check_wait(self._settings)
        self._feed = self._settings._feed
        self._feed.timer = self._timer = LoopTimer()
        self._lock = asyncio.Lock()
        self._driver: Driver | None = None
        self._finishes = False  # the driver does not read for a loop: it fixes the start, saves or closes
        self._current: _Pages | None = None
        self._stepping: _Events | None = None
        self._loop: ref[_Events] | None = None

    @property
    def request(self) -> ChangeFeedRequest:
        """The request."""
        return self._settings.request

    @property
    def continuation_token(self) -> str | None:
        """The token after the last page that is done; None if there is no token yet."""
        return self._settings.continuation_token

    def pages(self) -> AsyncIterator[ChangeFeedPage]:
        """Iterate over pages, including empty and idle ones, starting after the last page that is done.

        Raises:
            MulticloudDbError: See `ChangeFeedIterator.pages`.
        """
        self._feed.check_pages()
        return _Pages(self)

    def handling(
        self, event: ChangeEvent, *errors: type[Exception]
    ) -> AbstractAsyncContextManager[ChangeEvent]:
        """Return a block of `async with` in which an event is handled; see `ChangeFeedIterator.handling`.

        A task that is cancelled in the block sets nothing aside, and the page comes again.

        Args:
            event: An event of this iteration.
            *errors: See `ChangeFeedIterator.handling`.

        Raises:
            MulticloudDbError: See `ChangeFeedIterator.handling`.
        """
        from multiclouddb_api.handling import Handled  # few programs need it

        return Handled(self._settings._handling, event, errors, self._threads.start)

    def __aiter__(self) -> AsyncIterator[ChangeEvent]:
        stepping, self._stepping = self._stepping, None
        if stepping is None or stepping.is_over:
            stepping = self._events()
        self._loop = ref(stepping)
        return stepping

    async def __anext__(self) -> ChangeEvent:
        if self._stepping is None:
            loop = None if self._loop is None else self._loop()
            self._stepping = self._events() if loop is None or loop.is_over else loop
        try:
            return await anext(self._stepping)
        except (StopAsyncIteration, asyncio.CancelledError):
            raise
        except BaseException:
            self._stepping = None  # it is over, and the next call has to read again
            raise

    def stop(self) -> None:
        """End the iteration permanently; any thread or signal handler may call this method.

        A pause ends at once and a read within a second, whose page is then not delivered. Events that were
        already returned are still yours to handle.
        """
        self._timer.stop()

    async def close(self) -> None:
        """Stop the iteration, and save the position after the last page that is done."""
        await self._close(save=True)

    async def aclose(self) -> None:
        """Do what `close` does; `contextlib.aclosing` needs this name."""
        await self._close(save=True)

    async def __aenter__(self) -> AsyncChangeFeedIterator:
        try:
            async with self._lock:
                await self._finish(self._feed.start_now())
        except BaseException:  # whatever ends it: nobody else closes the connection of `follow`
            if self._feed.at_close is not None:
                await self._close(save=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception nothing is saved, so the next run may read pages without events again.
        await self._close(save=error is None)

    def __iter__(self) -> NoReturn:
        raise invalid_request("AsyncChangeFeedIterator", "is iterated with for", "write async for")

    def __enter__(self) -> NoReturn:
        raise invalid_request("AsyncChangeFeedIterator", "is entered with with", "write async with")

    def __exit__(self, *_: object) -> None: ...

    def _events(self) -> _Events:
        self._feed.check_events()
        return _Events(self)

    async def _take(self, mine: _Pages) -> ChangeFeedPage | None:
        """Return the next page of this iteration, or None at its end."""
        if not self._feed.closed:
            self._client._check("iterate_changes")
        # Of a stopped iterator, another task may be saving the position: this one waits for its end.
        is_in_use = self._lock.locked() and not self._timer.stopped
        is_replaced = mine.has_begun and mine is not self._current
        if is_in_use or is_replaced:
            mine.is_over = is_replaced  # another task's loop goes on
            raise invalid_request("AsyncChangeFeedIterator", "is iterated twice", "iterate in one task")
        async with self._lock:
            if self._finishes and self._driver is not None and not self._feed.closed:
                await _settle(self._driver)
                self._driver, self._finishes = None, False
            try:
                page = await self._begun(mine).next()
            except asyncio.CancelledError:
                raise
            except BaseException:  # what it was read with is over, whatever has ended it
                mine.is_over = True
                raise
            mine.is_over = page is None
            return page

    def _begun(self, mine: _Pages) -> Driver:
        """Return the driver of this iteration.

        If an earlier iteration was cancelled while it waited, its driver goes on, because its page comes
        next.
        """
        driver = self._driver
        if mine is not self._current:
            self._current, mine.has_begun = mine, True
            if driver is not None and driver.is_at_page:
                driver.drop()
                driver = None
        if driver is None:
            self._driver = driver = self._driven(self._feed.steps())
            self._finishes = False
        return driver

    async def _end(self) -> None:
        async with self._lock:
            await self._finish(self._feed.end())

    async def _close(self, *, save: bool) -> None:
        self.stop()
        try:
            async with self._lock:
                await self._finish(self._feed.close(save=save))
        except asyncio.CancelledError:
            # Perhaps nobody calls `close` again, so the connection of `follow` is closed now.
            if self._feed.at_close is not None:
                await self._feed.at_close()
            raise

    async def _finish(self, steps: Steps[None]) -> None:
        """Take the last steps, after the call that a cancelled task has left."""
        if self._driver is not None and not self._driver.is_at_page:
            await _settle(self._driver)
        # If this task is cancelled in a call, the next one finds it here and waits for it.
        self._driver, self._finishes = self._driven(steps), True
        await self._driver.next()

    def _driven(self, steps: Steps[None]) -> Driver:
        return Driver(steps, self._threads, self._timer)


async def _settle(driver: Driver) -> None:
    """Wait for the call that a cancelled task has left; whatever it failed with, nothing is lost by it."""
    with suppress(Exception):
        await driver.next()


def _check_wait(settings: ChangeFeedIterator) -> None:
    if settings.wait_seconds > settings.timeout_seconds:
        raise invalid_request(
            "AsyncChangeFeedIterator.wait_seconds",
            f"is {settings.wait_seconds}, longer than timeout_seconds={settings.timeout_seconds}",
            "pass a longer timeout_seconds, or wait_seconds=0: a pause of the event loop costs no thread",
        )


class _Pages:
    """One iteration over the pages."""

    def __init__(self, iterator: AsyncChangeFeedIterator) -> None:
        self.iterator = iterator
        self.has_begun = False
        self.is_over = False

    def __aiter__(self) -> _Pages:
        return self

    async def __anext__(self) -> ChangeFeedPage:
        if self.is_over:
            raise StopAsyncIteration
        if (page := await self.iterator._take(self)) is None:
            raise StopAsyncIteration
        return page

    async def aclose(self) -> None:
        """End this iteration; the page that is not done comes again."""
        self.is_over = True


class _Events:
    """One iteration over the events."""

    def __init__(self, iterator: AsyncChangeFeedIterator) -> None:
        self._pages = _Pages(iterator)
        self._events: Iterator[ChangeEvent] = iter(())
        self._handling = iterator._settings._handling
        if self._handling is not None:
            self._handling.begin()
        # What is here, a cancelled task has left to the next `anext`.
        self._page: ChangeFeedPage | None = None
        self._event: ChangeEvent | None = None

    @property
    def is_over(self) -> bool:
        return self._pages.is_over

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> ChangeEvent:
        iterator = self._pages.iterator
        while True:
            if self._handling is not None and self._page is not None:
                await iterator._threads.start(self._handling.skipped, self._page)
            self._page = None
            if self._event is None:
                self._event = next(self._events, None)
            if self._event is None:
                page = await anext(self._pages)
                self._events = iter(page.events)
                self._page = page if page.notices else None
                continue
            if iterator._timer.stopped:
                self._pages.is_over = True
                await iterator._end()
                raise StopAsyncIteration
            event = self._event
            if self._handling is None or self._handling.is_free(event):
                is_held = False
            else:
                is_held = await iterator._threads.start(self._handling.holds, event)
            self._event = None
            if not is_held:
                return event

    async def aclose(self) -> None:
        """End this iteration; the page that is not done comes again."""
        self._events = iter(())
        await self._pages.aclose()
