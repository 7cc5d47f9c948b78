"""Tests reads from an account with per-partition failover.

If an account has per-partition failover, azure-cosmos sends reads in other threads.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.cosmos import CosmosClient, PartitionKey

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    Now,
    ResourceAddress,
    connect,
)
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos.config import CosmosConfig
from multiclouddb_cosmos.transport import SameThread
from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_cosmos_emulator.message import Reply

ADDRESS = ResourceAddress("shop", "orders")


@pytest.fixture(params=["one region", "two regions"])
def account(request, monkeypatch):
    """Provide an emulator of an account with per-partition failover, and the container `shop/orders`."""
    reply = Reply.of

    def of(body, *args, **kwargs):
        if isinstance(body, dict) and "userConsistencyPolicy" in body:
            body["enablePerPartitionFailoverBehavior"] = True
            if request.param == "two regions":
                url = body["readableLocations"][0]["databaseAccountEndpoint"]
                body["readableLocations"] = [
                    *body["readableLocations"],
                    {"name": "Second", "databaseAccountEndpoint": url.replace("127.0.0.1", "localhost")},
                ]
        return reply(body, *args, **kwargs)

    monkeypatch.setattr(Reply, "of", staticmethod(of))
    monkeypatch.setattr(CosmosConfig, "is_local", property(lambda self: False))
    with CosmosEmulator() as server:
        monkeypatch.setenv("AZURE_COSMOS_KEY", server.key)
        native = CosmosClient(server.endpoint, server.key, enable_endpoint_discovery=False)
        container = native.create_database("shop").create_container("orders", PartitionKey("/pk"))
        yield server, container


def client_of(server):
    host = server.endpoint.split("/")[2]
    return connect(ClientConfig("cosmos", {"url": f"cosmos://{host}?tls=false"}))


def ids(client, start, **request):
    """Return the ids of all items up to the first idle page."""
    found, page = [], None
    while page is None or not page.idle:
        position = start if page is None else FromContinuationToken(page.continuation_token)
        page = client.read_changes(ChangeFeedRequest(ADDRESS, position, **request))
        found += [event.new_item_state["id"] for event in page.events]
    return found


@pytest.mark.parametrize("apart", [False, True], ids=["our executor", "another thread"])
def test_every_change_comes(account, monkeypatch, apart):
    server, container = account
    if apart:  # simulates a version of azure-cosmos that does not accept an executor
        pool = ThreadPoolExecutor(2)
        monkeypatch.setattr(SameThread, "submit", lambda self, fn, /, *a, **k: pool.submit(fn, *a, **k))
    with client_of(server) as client:
        page = client.read_changes(ChangeFeedRequest(ADDRESS, Now()))
        for number in range(5):
            container.upsert_item({"id": str(number), "pk": "a"})
        assert ids(client, FromContinuationToken(page.continuation_token)) == ["0", "1", "2", "3", "4"]


def test_every_item_of_a_backfill_comes(account):
    server, container = account
    for number in range(5):
        container.upsert_item({"id": str(number), "pk": "a"})
    with client_of(server) as client:
        found = ids(client, Beginning(), provider_options=CosmosOptions(backfill=True))
    assert sorted(found) == ["0", "1", "2", "3", "4"]
