"""A service that keeps the newest orders in memory, and its metrics for Prometheus.

SOURCE is the URL of the database and COLLECTION the collection: `uvicorn app:app`.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, HTTPException, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from multiclouddb import ChangeFeedRequest, ChangeType, ResourceAddress, Snapshot
from multiclouddb.aio import connect
from multiclouddb.prometheus import PrometheusObserver

orders: dict[str, dict] = {}


async def follow(source: str, address: ResourceAddress, observer: PrometheusObserver) -> None:
    """Read every row, then follow the changes; a restart reads the rows again, so no position is kept."""
    async with connect(source, observer=observer) as client:
        async for page in client.iterate_changes(ChangeFeedRequest(address, Snapshot())).pages():
            for event in page.events:
                key = str(next(iter(event.key.components.values())))
                if event.type is ChangeType.DELETE:
                    orders.pop(key, None)
                else:
                    orders[key] = dict(event.new_item_state or {})


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Follow the feed while the service runs."""
    address = ResourceAddress.parse(os.environ["COLLECTION"])
    following = asyncio.create_task(follow(os.environ["SOURCE"], address, PrometheusObserver(REGISTRY)))
    yield
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following


app = FastAPI(lifespan=lifespan)


@app.get("/orders/{key}")
async def order(key: str) -> dict:
    """Return one order."""
    if key not in orders:
        raise HTTPException(404)
    return orders[key]


@app.get("/metrics")
async def metrics() -> Response:
    """Return the metrics, which Prometheus scrapes."""
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)
