"""Interrupts a call in any line, as Ctrl-C would."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

import multiclouddb_api
import multiclouddb_spi
from multiclouddb_spi import InlineExecutor

__all__ = ["ROOMS", "Line", "interrupted_at", "lines_of"]

Line: TypeAlias = tuple[str, int]
"""A file, and the number of a line in it."""
ROOMS: Final = tuple(str(Path(str(each.__file__)).parent) for each in (multiclouddb_api, multiclouddb_spi))
"""The folders of the API and of the engine."""


def interrupted_at(
    line: int | Callable[[Line], object], call: Callable[[], object], rooms: tuple[str, ...] = ROOMS
) -> bool:
    """Make the call, and interrupt it in a line of some packages; return whether it came to that line.

    Args:
        line: The number of lines up to and with that one, or a function that finds it.
        call: The call.
        rooms: The folders of the packages.
    """
    numbers, was_reached, pool = count(1), False, 0
    is_the_one = line if callable(line) else lambda _: next(numbers) == line

    def of_a_pool(frame: FrameType, event: str, argument: Any) -> Any:
        """Wait for the end of what a real client runs in a thread of its own, which is not interrupted."""
        nonlocal pool
        if event == "return":
            pool -= 1
        return of_a_pool

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal was_reached, pool
        file = frame.f_code.co_filename
        if frame.f_code is InlineExecutor.submit.__code__:
            pool += 1
            return of_a_pool
        if pool or not file.startswith(rooms):
            return None
        # Python delivers no interrupt between a lock and its `with`.
        is_line = event == "line" and not getline(file, frame.f_lineno).strip().startswith("with ")
        if is_line and not was_reached and is_the_one((file, frame.f_lineno)):
            was_reached = True
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        assert was_reached, "an interrupt of nobody"
    else:
        assert not was_reached, "the interrupt was kept from the caller"
    finally:
        sys.settrace(None)
    return was_reached


def lines_of(call: Callable[[], object], rooms: tuple[str, ...] = ROOMS) -> list[Line]:
    """Return each line that a call runs in some packages, in order; many come more than once."""
    found = list[Line]()
    interrupted_at(found.append, call, rooms)
    return found
