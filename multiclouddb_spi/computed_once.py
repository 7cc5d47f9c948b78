"""Defines a property whose value is computed when it is first used, and then kept."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import Any, TypeVar

T = TypeVar("T")


class computed_once(cached_property[T]):  # noqa: N801 - used as a decorator
    """Python's `cached_property` without its lock, which it has only in Python 3.11.

    While that lock is held, a value is computed, for whichever object of the class. A child process that is
    forked meanwhile would wait for it forever, because the thread that holds it does not exist in the child.
    Without it, two threads that use one object for the first time may both compute the value. In a slotted
    class of attrs, use `cached_property`: attrs replaces it by one without a lock.

    Args:
        func: The function that computes the value.
    """

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = nullcontext()
