"""The threads in which a client of asyncio makes its calls, and the event loop that waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from multiclouddb_api.daemon_pool import DaemonPool
from multiclouddb_api.errors import invalid_request
from multiclouddb_api.process import Home

_Result = TypeVar("_Result")


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this thread; raise `INVALID_REQUEST` if none is running."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise invalid_request(
            "multiclouddb.aio",
            "is used where no asyncio event loop is running",
            "await it in a coroutine that asyncio.run runs, or use multiclouddb.connect",
        ) from None


class Threads:
    """The threads of one client. They belong to one event loop and one process.

    Args:
        most: The maximum number of calls that run at the same time; further calls wait for a thread.
    """

    def __init__(self, most: int) -> None:
        self._loop = running_loop()
        self._home = Home(
            self, "AsyncMulticloudDbClient", "async with connect(client.config) as client, in this process"
        )
        # The process must not wait for a long poll when ctrl-C has ended its event loop.
        self._pool = DaemonPool(most, "multiclouddb-aio")
        self._is_closed = False

    @property
    def is_here(self) -> bool:
        """True in the process of the client."""
        return self._home.is_here

    def check(self) -> None:
        """Raise `INVALID_REQUEST` if the client is used in another event loop or in another process."""
        if running_loop() is not self._loop:
            raise invalid_request(
                "AsyncMulticloudDbClient",
                "was opened in another event loop",
                "open a client in each loop: async with connect(client.config) as client",
            )
        self._home.check()

    def start(
        self, function: Callable[..., _Result], *arguments: Any, **named: Any
    ) -> asyncio.Future[_Result]:
        """Begin a call in a thread. Its exception is retrieved even if nobody waits for the call any more."""
        if self._is_closed:
            raise invalid_request(
                "AsyncMulticloudDbClient", "is closed", "open another: async with connect(url) as client"
            )
        future: asyncio.Future[_Result] = self._loop.create_future()
        # The call sees the context variables of its task, for example the span of a trace.
        call = partial(copy_context().run, function, *arguments, **named)
        self._pool.submit(self._run, future, call)
        return future

    def _run(self, future: asyncio.Future[_Result], call: Callable[[], _Result]) -> None:
        if future.cancelled():
            return
        try:
            answer = partial(_answer, future, call())
        except StopIteration as error:  # a future refuses it, so that nobody would get an answer
            failure = RuntimeError("a call raised StopIteration")
            failure.__cause__ = error
            answer = partial(_fail, future, failure)
        except BaseException as error:  # noqa: BLE001 - whoever awaits the call raises it
            answer = partial(_fail, future, error)
        with suppress(RuntimeError):  # the loop is closed, so nobody awaits the call
            self._loop.call_soon_threadsafe(answer)

    async def close(self, function: Callable[[], object], *, then: Callable[[], None] | None = None) -> None:
        """Call a function that ends the running calls, wait until all threads have ended, and call `then`.

        If the caller is cancelled, all this is still done, in a thread.
        The calls that still wait for a thread are made, so that each gets its answer.
        It has a thread of its own, because every other one may be in a call that it has to end.
        """
        self._is_closed = True
        last = DaemonPool(1, "multiclouddb-aio-close")
        try:
            future = self._loop.run_in_executor(last, _close, function, self._pool, then)
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait((future,))
            future.result()
        finally:
            last.shutdown(wait=False)  # whoever cancels this must not block the event loop


def _close(function: Callable[[], object], pool: DaemonPool, then: Callable[[], None] | None) -> None:
    try:
        function()
    finally:
        pool.shutdown()
        if then is not None:
            then()


def _answer(future: asyncio.Future[_Result], result: _Result) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # it counts as retrieved, even if the caller was cancelled
