"""Tests many requests at the same time."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import aiohttp
from azure.core.pipeline.transport import AioHttpTransport
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient


def test_a_thousand_reads_at_once_and_none_fails(shop, container):
    """A thousand connections are open before the first answer is read."""
    container.create_item({"id": "1", "pk": "a"})

    async def work():
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            transport = AioHttpTransport(session=session, session_owner=False)
            settings = {"transport": transport, "enable_endpoint_discovery": False}
            async with CosmosClient(shop.server.endpoint, shop.server.key, **settings) as client:
                orders = client.get_database_client("shop").get_container_client("orders")
                reads = [orders.read_item("1", "a") for _ in range(1000)]
                return await asyncio.gather(*reads)

    found = asyncio.run(work())
    assert [each["id"] for each in found] == ["1"] * 1000
    assert shop.server.journal.count("ReadItem") == 1000


def test_writers_in_threads_lose_nothing(shop):
    container = shop.create(partitions=2)

    def write(worker):
        for number in range(20):
            container.upsert_item({"id": f"{worker}-{number}", "pk": str(number % 3)})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    feed = container.query_items_change_feed(start_time="Beginning")
    assert len({each["id"] for each in feed}) == 160


def test_a_split_amid_writes_loses_nothing(shop):
    container = shop.create(key=PartitionKey("/pk"))

    def write(worker):
        for number in range(20):
            container.create_item({"id": f"{worker}-{number}", "pk": f"{worker}{number}"})
            if worker == 0 and number in (5, 10):
                shop.split(shop.ids()[-1])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(shop.partitions()) == 3
    assert len(list(container.query_items_change_feed(start_time="Beginning"))) == 80
