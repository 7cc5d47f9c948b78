"""Takes the steps of a loop over a feed in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from multiclouddb_api.errors import ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_api.pacing import Timer
from multiclouddb_api.steps import Call, Give, Step, Steps, Wait, advance

if TYPE_CHECKING:
    from multiclouddb_api.aio.threads import Threads
    from multiclouddb_api.page import ChangeFeedPage


class LoopTimer(Timer):
    """The clock of an iterator whose pauses do not occupy a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """End the current pause and all later ones. Any thread or signal handler may call this method."""
        super().stop()
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, so nothing waits in it
                self._loop.call_soon_threadsafe(self._stop.set)

    async def pause_until(self, due: float) -> bool:
        """Wait for this moment; return False if `stop` was called."""
        # `stop` first says so and then looks for the loop, and this sets the loop before it looks.
        self._loop = asyncio.get_running_loop()
        seconds = due - self.now()
        if seconds > 0 and not self.stopped:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
        return not self.stopped


class Driver:
    """Takes the steps of one loop.

    If a caller is cancelled, the current step stays as it is: its call continues in its thread, and the next
    caller first waits for this call. So no answer is lost, and no two calls of one loop run at the same time.

    Args:
        steps: The loop.
        threads: The threads that run the loop's calls.
        timer: Measures the pauses of the loop.
    """

    def __init__(self, steps: Steps[None], threads: Threads, timer: LoopTimer) -> None:
        self._steps: Final = steps
        self._threads, self._timer = threads, timer
        self._step: Step | None = None
        self._has_begun = self._has_given = False
        self._due = 0.0
        self._running: asyncio.Future[Any] | None = None

    @property
    def is_at_page(self) -> bool:
        """True if the application has a page that is not done yet, or if the loop is over."""
        return self._has_begun and (self._has_given or self._step is None)

    async def next(self) -> ChangeFeedPage | None:
        """Return the next page, after which the previous one is done; None at the end of the loop.

        Raises:
            MulticloudDbError: The error that ends the loop.
        """
        if self._has_given or not self._has_begun:
            self._has_begun, self._has_given = True, False
            self._go(self._steps.send, None)
        while (step := self._step) is not None:
            if isinstance(step, Give):
                self._has_given = True
                return step.page
            if isinstance(step, Wait):
                self._go(self._steps.send, await self._timer.pause_until(self._due))
            else:
                await self._call(step)
        return None

    def drop(self) -> None:
        """Drop the page that is not done; it will be delivered again."""
        self._has_begun, self._step = True, None
        self._steps.close()

    async def _call(self, step: Call) -> None:
        if self._running is None:
            coroutine = step.function(*step.arguments) if step.is_coroutine else None
            self._running = self._threads.start(step.run) if coroutine is None else _task(coroutine)
        await ended(self._running)
        done, self._running = self._running, None
        # A cancelled caller does not come here, so the store has cancelled its call itself.
        error = _cancelled_inside() if done.cancelled() else done.exception()
        if error is None:
            self._go(self._steps.send, done.result())
        else:
            self._go(self._steps.throw, error)

    def _go(self, resume: Callable[[Any], Step], answer: object) -> None:
        self._step = None
        self._step, _ = advance(resume, answer)
        if isinstance(self._step, Wait):
            self._due = self._timer.now() + self._step.seconds


async def ended(future: asyncio.Future[Any]) -> None:
    """Wait for a call, which goes on if this caller is cancelled; it is a faster `asyncio.wait`."""
    if not future.done():
        waiter = future.get_loop().create_future()

        def wake(_: object) -> None:
            if not waiter.done():
                waiter.set_result(None)

        future.add_done_callback(wake)
        try:
            await waiter
        finally:
            future.remove_done_callback(wake)


def _cancelled_inside() -> MulticloudDbError:
    return MulticloudDbError(
        "checkpoint_store: a coroutine of the store ended with CancelledError although nobody cancelled the "
        "iteration; iterate again: the previous position stays valid",
        ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, operation="checkpoint", retryable=True),
    )


def _task(coroutine: Any) -> asyncio.Future[Any]:
    task: asyncio.Future[Any] = asyncio.ensure_future(coroutine)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
