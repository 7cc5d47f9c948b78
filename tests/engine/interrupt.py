"""Interrupts a call in any line, as Ctrl-C would."""

import sys
from itertools import count
from linecache import getline
from pathlib import Path

import multiclouddb_api
import multiclouddb_spi
from multiclouddb_spi import InlineExecutor

ROOMS = tuple(str(Path(each.__file__).parent) for each in (multiclouddb_api, multiclouddb_spi))


def interrupted_at(line, call, rooms=ROOMS):
    """Make the call, and interrupt it in a line of the packages; return whether there were as many lines.

    Args:
        line: The number of the line, or a function that is given its place and returns whether it is the one.
        call: The call.
        rooms: The folders of the packages.
    """
    numbers, was_reached, pool = count(1), False, 0
    is_the_one = line if callable(line) else lambda _: next(numbers) == line

    def of_a_pool(frame, event, argument):
        """Wait for the end of what a real client runs in a thread of its own, which is not interrupted."""
        nonlocal pool
        if event == "return":
            pool -= 1
        return of_a_pool

    def trace(frame, event, argument):
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


def lines_of(call, rooms=ROOMS):
    """Return the place of each line that a call runs in the packages, in order; many come more than once."""
    found = []
    interrupted_at(lambda place: found.append(place), call, rooms)
    return found
