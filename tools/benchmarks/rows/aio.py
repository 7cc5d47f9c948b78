"""The client of asyncio compared with the blocking one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.row import Bench, Done, Sides, row
from benchmarks.stores import ADDRESS, fill, url
from multiclouddb_api import Beginning, ChangeFeedRequest, aio, connect

_EVENTS: Final = 200_000
_REQUEST: Final = ChangeFeedRequest(ADDRESS, Beginning())


def awaited(path: Path) -> Done:
    """Read pages in an event loop."""

    async def read() -> list[str]:
        async with aio.connect(url(path)) as client:
            pages = client.iterate_changes(_REQUEST, until_idle=True).pages()
            return [event.event_id async for page in pages for event in page.events]

    began = time.process_time()
    ids = asyncio.run(read())
    return Done(len(ids), ids, value=len(ids) / (time.process_time() - began))


def blocking(path: Path) -> Done:
    """Read the same pages in this thread."""
    began = time.process_time()
    with connect(url(path)) as client:
        pages = client.iterate_changes(_REQUEST, until_idle=True).pages()
        ids = [event.event_id for page in pages for event in page.events]
    return Done(len(ids), ids, value=len(ids) / (time.process_time() - began))


@row(
    "asyncio-pages",
    title="asyncio, pages",
    question="What do pages cost through asyncio?",
    goal=0.95,
    unit="events/CPU s",
    about=(
        "`multiclouddb.aio` reads 200,000 events of an embedded store in pages of 1,000. The figure is "
        "events per second of CPU."
    ),
    against="The blocking iterator over the same store.",
    shown=(blocking,),
)
def asyncio_pages(bench: Bench) -> Iterator[Sides]:
    """Measure what an event loop costs."""
    path = bench.folder / "store.db"
    fill(path, bench.size(_EVENTS))
    yield Sides(lambda: awaited(path), lambda: blocking(path))
