"""Tests the library's client behind a proxy that drops, delays or limits the service's answers."""

import attrs
import pytest

from multiclouddb_api import Beginning, connect
from testing.proxy import Proxy
from testing.slow_link_suite import Behind, TestCut, TestEnd, TestSlow  # noqa: F401

from .world import ADDRESS, TABLE, World


@pytest.fixture
def behind():
    with World() as world, Proxy(world.script.endpoint_url.split("/")[2]) as link:
        config = world.config()
        there = config.connection | {"endpoint_url": f"http://127.0.0.1:{link.port}"}

        def write(items, size):
            for number in range(items):
                item = {"id": {"S": f"k{number}"}, "n": {"N": str(number)}, "text": {"S": "x" * size}}
                world.server.client().put_item(TableName=TABLE, Item=item)

        with connect(attrs.evolve(config, connection=there)) as ours:
            yield Behind(link, ours, ADDRESS, Beginning(), write, 700)
