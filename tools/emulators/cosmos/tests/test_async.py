"""Tests the asynchronous SDK, azure.cosmos.aio, with the same calls."""

import asyncio

import pytest
from azure.core import MatchConditions
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient
from azure.cosmos.exceptions import (
    CosmosAccessConditionFailedError,
    CosmosBatchOperationError,
    CosmosClientTimeoutError,
    CosmosHttpResponseError,
    CosmosResourceNotFoundError,
)

from multiclouddb_cosmos_emulator import Drop, Fail

ALL = "AllVersionsAndDeletes"
FEED = "ReadChangeFeed"


@pytest.fixture
def run(shop):
    """Run a coroutine function with a container that has the given number of partitions."""

    def go(work, partitions=1, **more):
        async def connected():
            async with CosmosClient(shop.server.endpoint, shop.server.key) as client:
                database = client.get_database_client("shop")
                container = await database.create_container(
                    "orders", PartitionKey("/pk"), offer_throughput=6_000 * partitions, **more
                )
                await work(container)

        asyncio.run(connected())

    return go


async def listed(pages):
    return [item async for item in pages]


async def fill(container, count, first=0):
    for number in range(first, first + count):
        await container.create_item({"id": str(number), "pk": f"k{number}", "n": number})


class AsyncReader:
    """Reads a change feed page by page."""

    def __init__(self, container, **start):
        self._container, self._start = container, start

    async def page(self):
        seen = []
        pages = self._container.query_items_change_feed(
            **self._start, response_hook=lambda headers, _: seen.append(headers)
        ).by_page()
        items = []
        async for page in pages:
            items = [item async for item in page]
            break
        self._start = {"continuation": seen[-1]["etag"]}
        return items

    async def all(self):
        found = []
        while page := await self.page():
            found += page
        return found


class TestAsync:
    def test_account_databases_containers_and_throughput(self, shop):
        async def work():
            async with CosmosClient(shop.server.endpoint, shop.server.key) as client:
                database = await client.create_database_if_not_exists("more")
                container = await database.create_container_if_not_exists("c", PartitionKey("/pk"))
                assert {each["id"] async for each in client.list_databases()} == {"shop", "more"}
                assert (await container.read())["id"] == "c"
                assert (await container.get_throughput()).offer_throughput == 400
                await container.replace_throughput(20_000)
                assert len(await listed(container.read_feed_ranges())) == 2
                await database.delete_container("c")
                await client.delete_database("more")

        asyncio.run(work())

    def test_items(self, run):
        async def work(container):
            made = await container.create_item({"id": "1", "pk": "a", "n": 1})
            assert await container.read_item("1", "a") == made
            await container.upsert_item({"id": "1", "pk": "a", "n": 2})
            await container.replace_item("1", {"id": "1", "pk": "a", "n": 3})
            patched = await container.patch_item("1", "a", [{"op": "incr", "path": "/n", "value": 4}])
            assert patched["n"] == 7
            stale = {"etag": made["_etag"], "match_condition": MatchConditions.IfNotModified}
            with pytest.raises(CosmosAccessConditionFailedError):
                await container.delete_item("1", "a", **stale)
            await container.delete_item("1", "a")
            with pytest.raises(CosmosResourceNotFoundError):
                await container.read_item("1", "a")

        run(work)

    def test_queries_and_read_many(self, run):
        async def work(container):
            await fill(container, 20)
            assert sorted(await listed(container.query_items("SELECT VALUE c.n FROM c"))) == list(range(20))
            query = "SELECT VALUE c.n FROM c ORDER BY c.n DESC OFFSET 1 LIMIT 3"
            assert await listed(container.query_items(query)) == [18, 17, 16]
            assert await listed(container.query_items("SELECT VALUE COUNT(1) FROM c")) == [20]
            one = container.query_items("SELECT VALUE c.n FROM c", partition_key="k3")
            assert await listed(one) == [3]
            items = await container.read_items([(str(number), f"k{number}") for number in (7, 3, 11)])
            assert [each["n"] for each in items] == [7, 3, 11]
            assert len(await listed(container.read_all_items())) == 20

        run(work, partitions=3)

    def test_batches(self, run):
        async def work(container):
            create = ("create", ({"id": "1", "pk": "a"},))
            results = await container.execute_item_batch([create, ("read", ("1",))], partition_key="a")
            assert [each["statusCode"] for each in results] == [201, 200]
            with pytest.raises(CosmosBatchOperationError):
                await container.execute_item_batch([create], partition_key="a")
            await container.delete_all_items_by_partition_key("a")
            assert await listed(container.read_all_items()) == []

        run(work)

    def test_the_change_feed_over_a_split(self, run, shop):
        async def work(container):
            await fill(container, 10)
            latest = AsyncReader(container, start_time="Beginning")
            versions = AsyncReader(container, mode=ALL, start_time="Now")
            assert sorted(each["n"] for each in await latest.all()) == list(range(10))
            assert await versions.page() == []
            shop.split()
            await fill(container, 10, first=10)
            await container.delete_item("3", "k3")
            assert sorted(each["n"] for each in await latest.all()) == list(range(10, 20))
            kinds = sorted(each["metadata"]["operationType"] for each in await versions.all())
            assert kinds == [*["create"] * 10, "delete"]

        run(work)

    def test_one_logical_partition_s_change_feed(self, run):
        async def work(container):
            await fill(container, 10)
            found = container.query_items_change_feed(partition_key="k4", start_time="Beginning")
            assert [each["n"] async for each in found] == [4]

        run(work, partitions=2)

    @pytest.mark.parametrize(
        ("code", "substatus", "requests"), [(449, 0, 1), (400, 0, 1), (404, 1002, 2), (410, 1008, 1)]
    )
    def test_faults(self, run, server, code, substatus, requests):
        async def work(container):
            server.faults.add(Fail(code, substatus), FEED, times=None)
            with pytest.raises(CosmosHttpResponseError) as caught:
                await listed(container.query_items_change_feed(start_time="Beginning"))
            assert caught.value.status_code == code

        run(work)
        assert server.journal.count(FEED) == requests

    def test_a_split_that_never_ends(self, run, server):
        async def work(container):
            server.faults.add(Fail(410, 1002), FEED, times=None)
            with pytest.raises((CosmosClientTimeoutError, CosmosHttpResponseError)):
                await listed(container.query_items_change_feed(start_time="Beginning", timeout=1))

        run(work)
        assert server.journal.count(FEED) >= 10

    def test_throttling_and_a_broken_connection_pass(self, run, server):
        async def work(container):
            await container.create_item({"id": "1", "pk": "a"})
            server.faults.add(Fail(429, 3200, retry_after=0.01), "ReadItem", times=3)
            server.faults.add(Drop(), "ReadItem")
            assert (await container.read_item("1", "a"))["id"] == "1"

        run(work)
        assert server.journal.count("ReadItem") == 5

    def test_many_at_once(self, run):
        async def work(container):
            writes = [container.create_item({"id": str(n), "pk": f"k{n % 10}"}) for n in range(200)]
            assert len(await asyncio.gather(*writes)) == 200
            assert len(await listed(container.read_all_items())) == 200

        run(work, partitions=2)
