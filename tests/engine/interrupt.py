"""Interrupts a call in any line of the engine, as Ctrl-C would."""

import sys
from linecache import getline

from multiclouddb_spi import consumer_opener, engine
from multiclouddb_spi.fetching import consumer, consumers, page_content, queue, stream
from multiclouddb_spi.reading import answers, filling, page_builder

MODULES = tuple(
    each.__file__
    for each in (
        engine,
        consumer_opener,
        consumer,
        consumers,
        stream,
        queue,
        page_content,
        filling,
        answers,
        page_builder,
    )
)


def interrupted_at(line, call):
    """Make the call, and interrupt it in a line of the engine; return whether there were as many lines."""
    left = line

    def trace(frame, event, argument):
        nonlocal left
        file = frame.f_code.co_filename
        if file not in MODULES:
            return None
        # Python delivers no interrupt between a lock and its `with`.
        if event == "line" and not getline(file, frame.f_lineno).strip().startswith("with "):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        assert left == 0
    finally:
        sys.settrace(None)
    return left <= 0  # a fetch that runs in this thread may keep the interrupt to itself
