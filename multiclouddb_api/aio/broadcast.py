"""Passes the changes of one follower on to many listeners."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from multiclouddb_api.errors import ErrorCategory, ErrorDetail, MulticloudDbError, check_type, invalid_request

if TYPE_CHECKING:
    from multiclouddb_api.aio.iterator import AsyncChangeFeedIterator
    from multiclouddb_api.event import ChangeEvent

_QUEUE: Final = 1000


class Broadcast:
    """Gives every event of one iterator to all listeners, with one poll of the database for all.

    Like a loop over events, a broadcast does not pass on notices: only the log and the observer report a
    `Gap`.

    Each listener has a queue of its own. A page counts as done when all its events are in the queues. If a
    listener's queue is full, `on_slow` decides what happens. With `"end"`, this listener gets the events in
    its queue and then a `THROTTLED` error, and the others continue. With `"wait"`, the follower waits, and so
    do all the others.

    Use it as `async with Broadcast(changes) as broadcast`. At the end of the block it stops the iterator and
    ends all listeners.

    Args:
        changes: The iterator; the broadcast closes it.
        queue_size: The maximum number of events in one queue; 1000 by default.
        on_slow: What happens if a queue is full: `"end"`, the default, or `"wait"`.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` with a message that names the argument.

    Examples:
        >>> async with Broadcast(client.iterate_changes(request)) as broadcast:
        ...     async for event in broadcast.listen():
        ...         print(event.key)
    """

    def __init__(
        self,
        changes: AsyncChangeFeedIterator,
        *,
        queue_size: int = _QUEUE,
        on_slow: Literal["end", "wait"] = "end",
    ) -> None:
        check_type("queue_size", queue_size, int)
        if queue_size < 1:
            raise invalid_request("queue_size", f"is {queue_size}, below 1", "give the events of one queue")
        if on_slow not in ("end", "wait"):
            raise invalid_request("on_slow", f"is {on_slow!r}", 'pass "end" or "wait"')
        self._changes, self._size, self._on_slow = changes, queue_size, on_slow
        self._listeners: dict[Listener, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._space = asyncio.Event()

    def listen(self) -> Listener:
        """Return a new listener, which gets the events that are read from now on.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` before the broadcast has begun. If the broadcast has ended,
                the listener ends at once, with the error that ended the broadcast, if any.
        """
        if self._task is None:
            raise invalid_request(
                "Broadcast", "has not begun", "write: async with Broadcast(changes) as broadcast"
            )
        listener = Listener(self, self._size)
        if self._task.done():
            listener.end(_error_of(self._task))
        else:
            self._listeners[listener] = None
        return listener

    def leave(self, listener: Listener) -> None:
        """Remove a listener; it gets no more events.

        Args:
            listener: The listener.
        """
        self._listeners.pop(listener, None)
        self._space.set()

    def has_space(self) -> None:
        """Tell the follower that a queue has space again."""
        self._space.set()

    async def __aenter__(self) -> Broadcast:
        if self._task is not None:
            raise invalid_request("Broadcast", "was begun before", "make another for each use")
        self._changes._feed.check_events()
        self._task = asyncio.create_task(self._run(), name="multiclouddb broadcast")
        self._task.add_done_callback(_error_of)  # it counts as retrieved, even if the block has an error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._changes.stop()
        self._space.set()
        self._task.cancel()
        failure: BaseException | None = None
        try:
            await asyncio.wait((self._task,))
            failure = _error_of(self._task)
        finally:
            self._end(None)  # the task may have been cancelled before it began
            await self._changes._close(save=error is None and failure is None)
        if error is None and failure is not None:
            raise failure

    def __enter__(self) -> NoReturn:
        raise invalid_request("Broadcast", "is entered with with", "write async with")

    def __exit__(self, *_: object) -> None: ...

    async def _run(self) -> None:
        failure: BaseException | None = None
        try:
            async for page in self._changes.pages():
                for event in page.events:
                    for listener in list(self._listeners):
                        await self._put(listener, event)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._end(failure if isinstance(failure, Exception) else None)

    def _end(self, error: Exception | None) -> None:
        for listener in self._listeners:
            listener.end(error)
        self._listeners.clear()

    async def _put(self, listener: Listener, event: ChangeEvent) -> None:
        while listener in self._listeners and not listener.put(event):
            if self._on_slow == "end":
                self._listeners.pop(listener, None)
                listener.end(_too_slow(self._size))
                return
            self._space.clear()
            await self._space.wait()


class Listener:
    """The events of a `Broadcast` for one listener; iterate over it with `async for` in one task.

    Args:
        broadcast: The broadcast.
        size: The maximum number of events in the queue.
    """

    def __init__(self, broadcast: Broadcast, size: int) -> None:
        self._broadcast, self._size = broadcast, size
        self._events: deque[ChangeEvent] = deque()
        self._news = asyncio.Event()
        self._is_over = False
        self._error: BaseException | None = None

    @property
    def waiting(self) -> int:
        """The number of events in the queue."""
        return len(self._events)

    def put(self, event: ChangeEvent) -> bool:
        """Add an event; return False if the queue is full.

        Args:
            event: The event.
        """
        if len(self._events) >= self._size:
            return False
        self._events.append(event)
        self._news.set()
        return True

    def end(self, error: BaseException | None) -> None:
        """End the listener after the events in its queue.

        Args:
            error: The error that the listener then raises; None for a normal end.
        """
        self._is_over, self._error = True, error
        self._news.set()

    def __aiter__(self) -> Listener:
        return self

    async def __anext__(self) -> ChangeEvent:
        while not self._events:
            if self._is_over:
                error, self._error = self._error, None
                raise StopAsyncIteration if error is None else error
            self._news.clear()
            await self._news.wait()
        event = self._events.popleft()
        self._broadcast.has_space()
        return event

    async def aclose(self) -> None:
        """Leave the broadcast; `contextlib.aclosing` calls it."""
        self._events.clear()
        self._broadcast.leave(self)
        self.end(None)


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _too_slow(size: int) -> MulticloudDbError:
    return MulticloudDbError(
        f"this listener was too slow: its queue of {size} events is full; read faster, "
        f'pass a larger queue_size, or Broadcast(on_slow="wait")',
        ErrorDetail(ErrorCategory.THROTTLED, operation="listen"),
    )
