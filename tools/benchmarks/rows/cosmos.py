"""Compares the Cosmos emulator with its bare HTTP framework, which always sends the same answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

from benchmarks.cosmos import CONTAINER, Wire, emulator, fixed
from benchmarks.processes import on_client_core
from benchmarks.row import Bench, Done, Sides, row

_READS: Final = 4_000
_ITEMS: Final = 20_000
_PAGE: Final = 1_000
_AT_ONCE: Final = 1_000
_CLIENT: Final = (
    "The server runs on one core and the client on another. The client needs almost no CPU time: it signs "
    "each request once in advance and parses no answer."
)


def reads(wire: Wire, request: bytes, times: int) -> Done:
    """Return a list with the given number of copies of one request."""
    with on_client_core():
        good = wire.repeat(request, times)
    if good != times:
        raise ValueError(f"{times - good:,} of {times:,} reads failed")
    return Done(times)


@row(
    "cosmos-reads",
    title="Cosmos emulator, point reads",
    unit="reads/s",
    goal=0.3,
    about=(
        "The client makes 32 point reads at a time, on one connection, of one item of 400 bytes. The "
        f"emulator checks the key of each request. {_CLIENT}"
    ),
    against="A server written with the same framework, aiohttp, that answers every request with the same "
    "item.",
)
def cosmos_reads(bench: Bench) -> Iterator[Sides]:
    """This row measures the cost that the emulator adds to HTTP."""
    times = bench.size(_READS)
    with emulator(1) as (endpoint, key), closing(Wire(endpoint, key)) as wire:
        path = f"{CONTAINER}/docs/0"
        request = wire.request(path, "docs", path, x_ms_documentdb_partitionkey='["a"]')
        with fixed(wire, request) as plain:
            yield Sides(lambda: reads(wire, request, times), lambda: reads(plain, request, times))


def _feed_request(wire: Wire, after: str | None) -> bytes:
    start = {} if after is None else {"If_None_Match": after}
    return wire.request(
        f"{CONTAINER}/docs",
        "docs",
        CONTAINER,
        A_IM="Incremental Feed",
        x_ms_documentdb_partitionkeyrangeid="0",
        x_ms_max_item_count=str(_PAGE),
        **start,
    )


def _walk(wire: Wire) -> tuple[list[bytes], int]:
    """Return the requests that read the feed page by page, and the number of items that they return."""
    requests: list[bytes] = []
    items, after = 0, None
    while True:
        request = _feed_request(wire, after)
        status, headers, _ = wire.answer(request)
        if status != 200:
            return requests, items
        requests.append(request)
        items += int(headers["x-ms-item-count"])
        after = headers["etag"]


def walk(wire: Wire, requests: list[bytes], items: int) -> Done:
    """Read the feed page by page."""
    with on_client_core():
        good = sum(wire.repeat(request, 1) for request in requests)
    if good != len(requests):
        raise ValueError(f"{len(requests) - good} of {len(requests)} pages failed")
    return Done(items)


@row(
    "cosmos-feed",
    title="Cosmos emulator, change feed",
    unit="items/s",
    goal=0.3,
    about=(
        "The client reads a change feed of 20,000 items of 400 bytes in pages of 1,000, one page after the "
        f"other. {_CLIENT}"
    ),
    against="A server written with the same framework, aiohttp, that answers every request with the same "
    "page.",
)
def cosmos_feed(bench: Bench) -> Iterator[Sides]:
    """This row measures the cost of making a page."""
    with emulator(bench.size(_ITEMS, 2 * _PAGE)) as (endpoint, key), closing(Wire(endpoint, key)) as wire:
        requests, items = _walk(wire)
        with fixed(wire, requests[0]) as plain:
            yield Sides(lambda: walk(wire, requests, items), lambda: walk(plain, requests, items))


async def _at_once(endpoint: str, key: str, number: int) -> int:
    import aiohttp
    from azure.core.pipeline.transport import AioHttpTransport
    from azure.cosmos.aio import CosmosClient

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        transport = AioHttpTransport(session=session, session_owner=False)
        # A retry would hide a failure.
        none: Any = {
            "retry_total": 0,
            "retry_read": 0,
            "retry_connect": 0,
            "enable_endpoint_discovery": False,
        }
        async with CosmosClient(endpoint, key, transport=transport, **none) as client:
            container = client.get_database_client("shop").get_container_client("orders")
            reads = [container.read_item("0", "a") for _ in range(number)]
            found = await asyncio.gather(*reads, return_exceptions=True)
    return sum(not isinstance(each, BaseException) for each in found)


@row(
    "cosmos-at-once",
    title="Cosmos emulator, 1,000 requests at once",
    unit="answered",
    goal=_AT_ONCE,
    pairs=1,
    warm_up=False,
    about=(
        "The asynchronous azure-cosmos sends 1,000 point reads at once, on 1,000 connections and "
        "without retries. The figure is the number of answered reads."
    ),
    against="",
)
def cosmos_at_once(bench: Bench) -> Iterator[Sides]:
    """This row checks that every read gets an answer."""
    number = bench.size(_AT_ONCE)
    with emulator(1) as (endpoint, key):
        yield Sides(lambda: Done(number, value=float(asyncio.run(_at_once(endpoint, key, number)))))
