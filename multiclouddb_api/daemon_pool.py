"""Runs functions in threads that do not keep the process from ending."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
_Task: TypeAlias = "tuple[Future[Any], Callable[[], Any]]"


class PoolEndedError(RuntimeError):
    """Raised if a pool is shut down."""


class DaemonPool(Executor):
    """A pool of at most `most` threads, each of which is started when it is needed."""

    # When a process ends, it waits for the threads of the standard library's pool. The vendor's client may
    # wait for ever for an answer that a firewall has dropped, and then the process would never end.

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._idle = deque[None]()  # one for each thread that has nothing to do
        self._lock = threading.Lock()
        self._over = False
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a function in a thread.

        Args:
            fn: The function to call.
            *args: The positional arguments of the function.
            **kwargs: The keyword arguments of the function.

        Raises:
            PoolEndedError: Raised if the pool is shut down.
            RuntimeError: Raised if no thread can be started.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._over:
                raise PoolEndedError
            if self._idle:
                self._idle.pop()
            elif len(self._threads) < self._most:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(None, _run, name, (self._tasks, self._idle), daemon=True)
                thread.start()
                self._threads.append(thread)
            self._tasks.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more functions; the threads end when they have run what was submitted.

        Args:
            wait: True to wait until the threads have ended.
            cancel_futures: True to cancel the functions that do not run yet.
        """
        with self._lock:
            self._over = True
            while cancel_futures:
                try:
                    task = self._tasks.get(block=False)
                except Empty:
                    break
                if task is not None:
                    task[0].cancel()
            self._tasks.put(None)
        for thread in self._threads if wait else ():
            thread.join()


def _run(tasks: SimpleQueue[_Task | None], idle: deque[None]) -> None:
    # A thread has no reference to the pool, so that a pool that was never shut down is collected.
    while (task := tasks.get()) is not None:
        future, function = task
        if future.set_running_or_notify_cancel():
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - the future raises it
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        del task, future, function  # they would keep the result in memory
        idle.append(None)
    tasks.put(None)  # for the next thread
