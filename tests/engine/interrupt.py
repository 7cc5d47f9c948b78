"""Interrupts a call in any line, as Ctrl-C would."""

import sys
from itertools import count
from linecache import getline
from pathlib import Path

import multiclouddb_api
import multiclouddb_spi

ROOMS = tuple(str(Path(each.__file__).parent) for each in (multiclouddb_api, multiclouddb_spi))


def interrupted_at(line, call, rooms=ROOMS):
    """Make the call, and interrupt it in a line of the packages; return whether there were as many lines.

    Args:
        line: The number of the line, or a function that is given its place and returns whether it is the one.
        call: The call.
        rooms: The folders of the packages.
    """
    numbers, was_reached = count(1), False
    is_the_one = line if callable(line) else lambda _: next(numbers) == line

    def trace(frame, event, argument):
        nonlocal was_reached
        file = frame.f_code.co_filename
        if not file.startswith(rooms):
            return None
        # Python delivers no interrupt between a lock and its `with`.
        if event == "line" and not getline(file, frame.f_lineno).strip().startswith("with "):
            if not was_reached and is_the_one((file, frame.f_lineno)):
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
