"""Tests the library's client behind a proxy that drops, delays or limits the account's answers."""

import pytest
from azure.cosmos import CosmosClient

from multiclouddb_api import ClientConfig, Now, connect
from multiclouddb_cosmos_emulator.auth import WELL_KNOWN_KEY
from testing.proxy import Proxy
from testing.slow_link_suite import Behind, TestCut, TestEnd, TestSlow  # noqa: F401

from .world import ADDRESS


@pytest.fixture(params=["all_versions", pytest.param("latest", marks=pytest.mark.soak)])
def behind(world, request):
    with Proxy(world.server.endpoint.split("/")[2]) as link, client_of(link, request.param) as ours:
        yield Behind(link, ours, ADDRESS, Now(), lambda items, size: write(world, items, size), 800)


def client_of(link, mode="all_versions"):
    return connect(ClientConfig("cosmos", {"url": f"cosmos://127.0.0.1:{link.port}?tls=false", "mode": mode}))


def write(world, items, size):
    world.put(*(f"k{number}" for number in range(items)), text="x" * size)


class TestCutOfAnApplicationsClient(TestCut):
    """Nobody counts the bytes that arrive for it, so an answer gets smaller once two have broken."""

    @pytest.fixture
    def behind(self, world):
        with Proxy(world.server.endpoint.split("/")[2]) as link:
            url = f"http://127.0.0.1:{link.port}"
            native = CosmosClient(url, WELL_KNOWN_KEY, enable_endpoint_discovery=False)
            with native, connect(ClientConfig("cosmos", {}), native_client=native) as ours:
                yield Behind(link, ours, ADDRESS, Now(), lambda items, size: write(world, items, size), 800)


@pytest.mark.soak
def test_many_ranges_share_a_link(make_world):
    """With default settings, sixteen ranges with 2.4 MB each arrive over 8 Mbit/s."""
    world, items = make_world(16), 9600
    with Proxy(world.server.endpoint.split("/")[2], rate=1e9) as link, client_of(link) as ours:
        behind = Behind(link, ours, ADDRESS, Now(), lambda items, size: write(world, items, size), 3800)
        consumer = behind.backlog(items)
        before, size = link.answered, 4060 * items
        link.slow(1_000_000)
        consumer.until(items, at_most=150)
        sent = link.answered - before
    assert len({event.event_id for event in consumer.events}) == len(consumer.events) == items
    assert sent < 1.5 * size
