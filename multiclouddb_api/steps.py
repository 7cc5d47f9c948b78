"""Defines the steps that the loop over a feed asks its driver to take: wait, call a function, give a page."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from multiclouddb_api.errors import invalid_request

if TYPE_CHECKING:
    from multiclouddb_api.page import ChangeFeedPage

_Result = TypeVar("_Result")


class Wait:
    """Wait this long, or until the iterator is stopped; the answer is False if it was stopped."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Call:
    """Call a function, which may block; the answer is its result, and its exception is raised in the loop."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    @property
    def is_coroutine(self) -> bool:
        """True if the result has to be awaited."""
        return iscoroutinefunction(self.function)

    def run(self) -> Any:
        """Call the function in this thread.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` for a coroutine function, which a blocking driver cannot
                await.
        """
        if self.is_coroutine:
            raise invalid_request(
                "checkpoint_store",
                "has coroutine methods, which only an asyncio client can await",
                "use multiclouddb.aio.connect, or pass a store whose methods block",
            )
        return self.function(*self.arguments)


class Give:
    """Give this page to the application; the answer comes when the application asks for the next page."""

    __slots__ = ("page",)

    def __init__(self, page: ChangeFeedPage) -> None:
        self.page = page


Step: TypeAlias = Wait | Call | Give
Steps: TypeAlias = Generator[Step, Any, _Result]
"""A loop that a driver runs: it answers each step with `send`, or with `throw` if a call failed."""


def advance(resume: Callable[[Any], Step], answer: object) -> tuple[Step | None, Any]:
    """Answer the last step; return the next step, or None and the result of the loop.

    Args:
        resume: The `send` or `throw` of the steps.
        answer: The answer of the last step, or its exception.
    """
    try:
        return resume(answer), None
    except StopIteration as end:
        return None, end.value


def pages_of(
    steps: Steps[_Result], wait: Callable[[float], bool]
) -> Generator[ChangeFeedPage, None, _Result]:
    """Take the steps in this thread, and yield the pages.

    Args:
        steps: The loop.
        wait: Waits some seconds; returns False if the iterator was stopped.
    """
    with closing(steps):
        step, result = advance(steps.send, None)
        while step is not None:
            resume: Callable[[Any], Step] = steps.send
            answer: object = None
            if isinstance(step, Give):
                yield step.page
            elif isinstance(step, Wait):
                answer = wait(step.seconds)
            else:
                try:
                    answer = step.run()
                except BaseException as error:  # noqa: BLE001 - the loop raises it
                    resume, answer = steps.throw, error
            step, result = advance(resume, answer)
        return result  # type: ignore[no-any-return]  # the value of StopIteration is Any
