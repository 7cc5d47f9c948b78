"""Tests the library's client behind a proxy that drops, delays or limits the server's answers."""

import logging

import pytest

from multiclouddb_api import ChangeFeedRequest, Now, connect
from multiclouddb_conformance.proxy import Proxy
from multiclouddb_conformance.slow_link import SlowConsumer, seconds_to_close, seconds_to_stop

RATE = 60_000
REPORT = logging.getLogger(__name__)
SILENT = 0.6
"""The number of seconds after which a test gives up a silent server."""


@pytest.fixture
def proxy(one):
    with Proxy(one.members[0]) as made:
        yield made


@pytest.fixture
def impatient(monkeypatch):
    for module in (
        "multiclouddb_spi.time_limits",
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
            consumer = consumer_of(client, here, timeout=5.0, wait=wait)
            consumer.read()
            proxy.forget()
            written.insert_one({"_id": "new"})
            assert consumer.until(1, at_most=60) < 12 + wait


class TestSlow:
    @pytest.mark.parametrize(
        ("count", "timeout"),
        [
            (100, 0.5),
            pytest.param(1000, 2.0, marks=pytest.mark.soak),
            pytest.param(1000, 5.0, marks=pytest.mark.soak),
            pytest.param(1000, 30.0, marks=pytest.mark.soak),
        ],
    )
    def test_a_backlog_arrives_and_is_sent_once(self, proxy, here, written, count, timeout):
        with connect(url(proxy)) as client:
            consumer = consumer_of(client, here, timeout=timeout)
            written.insert_many({"_id": number, "text": "x" * 700} for number in range(1, count + 1))
            proxy.slow(RATE)
            before, size = proxy.answered, 1060 * count
            took = consumer.until(count, at_most=4 * size / RATE + timeout)
            sent = proxy.answered - before
        REPORT.info("%s events, %s s a call: %.1f s, %.2f times the bytes", count, timeout, took, sent / size)
        assert [event.key.components["_id"] for event in consumer.events] == list(range(1, count + 1))
        assert sent < 1.5 * size

    def test_a_trickle_is_given_up_and_the_client_reads_again(self, proxy, here, written):
        with connect(url(proxy)) as client:
            consumer = consumer_of(client, here, timeout=1.0)
            written.insert_many({"_id": number, "text": "x" * 700} for number in range(1, 21))
            proxy.slow(1.0)
            consumer.attempt(6.0)
            proxy.heal()
            assert consumer.until(20, at_most=20) < 5


class TestCut:
    @pytest.mark.parametrize(("count", "size"), [(1000, 700), (100, 12_000)])
    def test_a_connection_that_is_cut_within_an_answer_gets_smaller_answers(
        self, proxy, here, written, count, size
    ):
        with connect(url(proxy)) as client:
            consumer = consumer_of(client, here, timeout=5.0)
            written.insert_many({"_id": number, "text": "x" * size} for number in range(1, count + 1))
            proxy.cut_after = 350_000
            consumer.until(count, at_most=60)
        assert [event.key.components["_id"] for event in consumer.events] == list(range(1, count + 1))


class TestEnd:
    """`close` and `stop` end running calls within a second, whatever the server does."""

    @pytest.mark.parametrize("end", ["close", "stop"])
    @pytest.mark.parametrize("moment", ["opening", "reading"])
    def test_within_a_second(self, proxy, here, end, moment):
        with connect(url(proxy)) as client:
            consumer = SlowConsumer(client, here, Now())
            if moment == "reading":
                consumer.begin()
            proxy.drop()
            if end == "close":
                assert seconds_to_close(client, consumer.read) < 1.5
            else:
                assert seconds_to_stop(client.iterate_changes(ChangeFeedRequest(here, consumer.start))) < 1
