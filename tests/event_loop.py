"""Runs coroutines of tests in an event loop of their own."""

import asyncio
import sys
import threading
import traceback
from contextlib import contextmanager

from multiclouddb_conformance.waiting import wait_until


def run(main):
    """Run a coroutine that must end within a time limit and leave no task and no thread."""

    async def checked():
        result = await asyncio.wait_for(main(), 60)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    with no_thread_left():
        return asyncio.run(checked(), debug=True)


@contextmanager
def no_thread_left():
    """Check that the block leaves no thread of ours; whoever stays is told with its name and its stack.

    Drivers that earlier tests have left open, and their servers, start threads whenever they like.
    """

    def ours():
        return {each for each in threading.enumerate() if each.name.startswith(("asyncio", "multiclouddb"))}

    before = ours()
    yield

    def left():
        return ours() - before

    try:
        wait_until(lambda: not left())
    except TimeoutError:
        frames = sys._current_frames()
        stacks = {each.name: "".join(traceback.format_stack(frames.get(each.ident))) for each in left()}
        raise AssertionError("\n".join(f"{name}:\n{stack}" for name, stack in stacks.items())) from None
