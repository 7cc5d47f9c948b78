"""Tests a connection that a firewall or proxy has dropped in silence: later calls must use another one."""

import time
from contextlib import suppress
from types import SimpleNamespace

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials

from multiclouddb_api import (
    ChangeFeedRequest,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
    connect,
)
from multiclouddb_conformance.proxy import Proxy
from multiclouddb_conformance.slow_link import SlowConsumer
from multiclouddb_spanner import config
from multiclouddb_spanner.config import ALIVE, SpannerConfig

from .test_scripted_attacks import feed

SOON = tuple((name, value // 20 if name.endswith("_ms") else value) for name, value in ALIVE)
MOST = 15.0


@pytest.fixture
def link():
    with feed(initial_partitions=1) as items, Proxy(items.server.host, rate=1e9) as proxy:
        host = f"127.0.0.1:{proxy.port}"
        yield SimpleNamespace(items=items, host=host, swallow=proxy.forget, slow=proxy.slow)


def test_a_client_reads_on_over_another_connection(link, monkeypatch):
    monkeypatch.setattr(config, "ALIVE", SOON)
    with connect(f"spanner://tests/tests?emulator_host={link.host}") as client:
        request = ChangeFeedRequest(link.items.address, Now())
        token = client.read_changes(request).continuation_token
        link.items.put(("a", 1))
        link.swallow()
        events, until = [], time.monotonic() + MOST
        while not events and time.monotonic() < until:
            with suppress(MulticloudDbError):
                request = ChangeFeedRequest(link.items.address, FromContinuationToken(token))
                page = client.read_changes(request, OperationOptions(1.0))
                token, events = page.continuation_token, page.events
        assert [event.new_item_state["n"] for event in events] == [1]


def test_a_slow_network_is_not_a_silent_one(link, monkeypatch):
    """The answer to a ping would come after all data that is on its way, after more than the limit."""
    monkeypatch.setattr(config, "ALIVE", SOON)
    with connect(f"spanner://tests/tests?emulator_host={link.host}") as client:
        consumer = SlowConsumer(client, link.items.address, Now(), timeout=1.0).begin()
        for number in range(4):
            link.items.put((f"k{number}", number, "x" * 30_000), names=("id", "n", "text"))
        link.slow(60_000)
        consumer.until(4, at_most=MOST)


def test_a_channel_to_the_service_has_the_same_settings(monkeypatch):
    seen = []

    def create_channel(*args, options=(), **settings):
        seen.append(dict(options))
        return grpc.insecure_channel("localhost:1")

    monkeypatch.setattr(config.SpannerGrpcTransport, "create_channel", create_channel)
    monkeypatch.delenv("SPANNER_EMULATOR_HOST", raising=False)
    instance = SimpleNamespace(emulator_host=None)
    client = SimpleNamespace(credentials=AnonymousCredentials(), instance=lambda name: instance)
    SpannerConfig("my-project", "my-instance").transport(client).close()
    assert [{**found, **dict(ALIVE)} == found for found in seen] == [True]
    assert seen[0]["grpc.max_receive_message_length"] == -1
