"""Tests the library's client behind a proxy that drops, delays or limits the service's answers."""

import pytest

from multiclouddb_api import Now, connect
from multiclouddb_spanner import config
from testing.proxy import Proxy
from testing.slow_link_suite import Behind, TestCut, TestEnd, TestSlow  # noqa: F401

from .feeds import feed

# With these settings, a silent connection is given up twenty times as soon.
SOON = tuple((name, value // 20 if name.endswith("_ms") else value) for name, value in config.ALIVE)


@pytest.fixture
def behind(monkeypatch):
    monkeypatch.setattr(config, "ALIVE", SOON)
    with feed(initial_partitions=1) as items, Proxy(items.server.host, rate=1e9) as link:

        def write(count, size):
            for number in range(count):
                items.put((f"k{number}", number, "x" * size), names=("id", "n", "text"))

        with connect(f"spanner://tests/tests?emulator_host=127.0.0.1:{link.port}") as ours:
            yield Behind(link, ours, items.address, Now(), write, 450)
