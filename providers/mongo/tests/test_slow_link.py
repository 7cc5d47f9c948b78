"""Tests the library's client behind a proxy that drops, delays or limits the server's answers."""

import threading
import time

import pytest

from multiclouddb_api import (
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
    connect,
)
from multiclouddb_conformance.proxy import Proxy

SILENT = 0.6
"""The number of seconds after which a test gives up a silent server."""


@pytest.fixture
def proxy(one):
    with Proxy(one.members[0]) as made:
        yield made


@pytest.fixture
def impatient(monkeypatch):
    for module in (
        "multiclouddb_spi.arrival",
        "multiclouddb_mongo.source",
        "multiclouddb_mongo.pymongo_internals",
    ):
        monkeypatch.setattr(f"{module}.SILENT_SECONDS", SILENT)


def url(proxy, **options):
    """Return a URL with options that keep PyMongo's monitor from noticing what happens to connections."""
    options = {
        "directConnection": "true",
        "heartbeatFrequencyMS": 600_000,
        "serverMonitoringMode": "poll",
    } | options
    return f"mongodb://127.0.0.1:{proxy.port}/?" + "&".join(
        f"{name}={value}" for name, value in options.items()
    )


class Consumer:
    """Reads page by page, and continues after failures that are retryable."""

    def __init__(self, client, here, timeout, wait=0.0):
        self.client, self.here, self.options = client, here, OperationOptions(timeout, wait)
        page = client.read_changes(ChangeFeedRequest(here, Now()))
        self.start, self.seen, self.calls = FromContinuationToken(page.continuation_token), [], 0

    def read(self):
        request = ChangeFeedRequest(self.here, self.start)
        self.calls += 1
        try:
            page = self.client.read_changes(request, self.options)
        except MulticloudDbError as error:
            if error.category != ErrorCategory.TRANSIENT_FAILURE or not error.retryable:
                raise
            return None
        self.start = FromContinuationToken(page.continuation_token)
        self.seen += [event.key.components["_id"] for event in page.events]
        return page

    def until(self, count, at_most):
        began = time.monotonic()
        while len(self.seen) < count:
            self.read()
            assert time.monotonic() - began < at_most, self.seen
        return time.monotonic() - began


class TestSilence:
    """A connection is dropped in silence, as by a firewall; the server and other connections are well."""

    @pytest.mark.parametrize("wait", [0.0, 1.0], ids=["at once", "long poll"])
    def test_a_forgotten_connection_is_given_up(self, proxy, here, written, impatient, wait):
        with connect(url(proxy)) as client:
            consumer = Consumer(client, here, timeout=1.0 + wait, wait=wait)
            consumer.read()
            proxy.forget()
            written.insert_one({"_id": "new"})
            assert consumer.until(1, at_most=10 + wait) < 4 + 2 * wait

    def test_a_reader_that_waits_meanwhile_is_given_up(self, proxy, here, written, impatient):
        with connect(url(proxy)) as client:
            consumer = Consumer(client, here, timeout=30, wait=20)
            threading.Timer(0.7, proxy.forget).start()
            threading.Timer(1.2, written.insert_one, [{"_id": "new"}]).start()
            assert consumer.until(1, at_most=15) < 8
            assert consumer.calls == 1

    def test_a_search_of_the_log_is_not_given_up_for_ever(self, proxy, here, written, impatient, one):
        """A server that searches its log sends nothing; each time that it is given up, it gets more time."""
        with connect(url(proxy, appName="searching")) as client:
            consumer = Consumer(client, here, timeout=0.5)
            written.insert_one({"_id": "new"})
            failing = {
                "configureFailPoint": "failCommand",
                "mode": "alwaysOn",
                "data": {
                    "failCommands": ["aggregate", "getMore"],
                    "appName": "searching",
                    "blockConnection": True,
                    "blockTimeMS": int(3000 * SILENT),
                },
            }
            one.client().admin.command(failing)
            try:
                consumer.until(1, at_most=30)
            finally:
                one.client().admin.command({"configureFailPoint": "failCommand", "mode": "off"})

    @pytest.mark.soak
    @pytest.mark.parametrize("wait", [0.0, 5.0])
    def test_with_the_real_limits(self, proxy, here, written, wait):
        with connect(url(proxy)) as client:
            consumer = Consumer(client, here, timeout=5.0, wait=wait)
            consumer.read()
            proxy.forget()
            written.insert_one({"_id": "new"})
            assert consumer.until(1, at_most=60) < 12 + wait
