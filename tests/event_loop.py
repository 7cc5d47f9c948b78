"""Runs coroutines of tests in an event loop of their own."""

import asyncio
import threading

from multiclouddb_conformance.waiting import wait_until


def run(main):
    """Run a coroutine that must end within a time limit and leave no task and no thread."""

    async def checked():
        result = await asyncio.wait_for(main(), 60)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    before = set(threading.enumerate())
    result = asyncio.run(checked(), debug=True)
    wait_until(lambda: set(threading.enumerate()) <= before)
    return result
