"""Tests the library's client behind a proxy that drops, delays or limits the server's answers."""

from urllib.parse import urlencode

import pytest

from multiclouddb_api import Now, connect
from testing import slow_link_suite
from testing.proxy import Proxy
from testing.slow_link import SlowConsumer
from testing.slow_link_suite import Behind, TestCut, TestEnd  # noqa: F401

from .monitor import keys
from .servers.mongod import fail_command

SILENT = 0.6
"""The number of seconds after which a test gives up a silent server."""


@pytest.fixture
def proxy(one):
    with Proxy(one.members[0]) as made:
        yield made


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("multiclouddb_mongo.reader.SILENT_SECONDS", SILENT)
    monkeypatch.setattr("multiclouddb_mongo.source.ANSWER_SECONDS", 2 * SILENT)


def url(proxy, **options):
    """Return a URL with options that keep PyMongo's monitor from noticing what happens to connections."""
    options |= {"directConnection": "true", "heartbeatFrequencyMS": 600_000, "serverMonitoringMode": "poll"}
    return f"mongodb://127.0.0.1:{proxy.port}/?{urlencode(options)}"


@pytest.fixture
def behind(proxy, here, written):
    def write(items, length):
        written.insert_many({"_id": number, "text": "x" * length} for number in range(1, items + 1))

    with connect(url(proxy)) as client:
        yield Behind(proxy, client, here, Now(), write, text=700)


def consumer_of(client, here, **settings):
    return SlowConsumer(client, here, Now(), **settings).begin()


class TestSilence:
    """A connection is dropped in silence, as by a firewall; the server and other connections are well."""

    @pytest.mark.parametrize("wait", [0.0, 1.0], ids=["at once", "long poll"])
    def test_a_forgotten_connection_is_given_up(self, proxy, here, written, impatient, wait):
        with connect(url(proxy)) as client:
            consumer = consumer_of(client, here, timeout=1.0 + wait, wait=wait)
            consumer.read()
            proxy.forget()
            written.insert_one({"_id": "new"})
            assert consumer.until(1, at_most=10 + wait) < 4 + 2 * wait

    def test_a_search_of_the_log_is_not_given_up_for_ever(self, proxy, here, written, impatient, one):
        """A server that searches its log sends nothing; each time that it is given up, it gets more time."""
        with connect(url(proxy, appName="searching")) as client:
            consumer = consumer_of(client, here, timeout=0.5)
            written.insert_one({"_id": "new"})
            slow = {"blockConnection": True, "blockTimeMS": int(3000 * SILENT)}
            commands = ["aggregate", "getMore"]
            with fail_command(one, commands=commands, app_name="searching", times=None, **slow):
                consumer.until(1, at_most=30)

    @pytest.mark.soak
    @pytest.mark.parametrize("wait", [0.0, 5.0])
    def test_with_the_real_limits(self, proxy, here, written, wait):
        with connect(url(proxy)) as client:
            consumer = consumer_of(client, here, timeout=5.0, wait=wait)
            consumer.read()
            proxy.forget()
            written.insert_one({"_id": "new"})
            assert consumer.until(1, at_most=60) < 12 + wait


class TestSlow(slow_link_suite.TestSlow):
    """Silence is tested by `TestSilence`."""

    test_silence_is_given_up = None


def test_a_connection_that_is_cut_within_few_large_changes(proxy, here, written):
    with connect(url(proxy)) as client:
        consumer = consumer_of(client, here, timeout=5.0)
        written.insert_many({"_id": number, "text": "x" * 12_000} for number in range(1, 101))
        proxy.cut_after = 350_000
        consumer.until(100, at_most=60)
    assert keys(consumer.events) == list(range(1, 101))
