"""Tests, without Spark, how an idle stream notices a change, and how many requests it sends until then."""

import threading
import time
from functools import partial
from pkgutil import resolve_name
from types import SimpleNamespace

import attrs
import pytest
from pymongo import MongoClient

from multiclouddb_api import process
from multiclouddb_conformance.simulation import ServerError, Simulation, SimulationFeed, SimulationProvider
from multiclouddb_conformance.simulation.reader import SimulationReader
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_spi import Planner
from pyspark_multiclouddb import connection, micro_batches, watch
from pyspark_multiclouddb.connection import close_connections
from pyspark_multiclouddb.errors import SourceError

from .micro_batches import CHILD, Query
from .test_stream import Clock

IDLE = {"pollInterval": "1 min", "startingPosition": "now"}
SECONDS = 10


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "multiclouddb-watch"]


@pytest.fixture(autouse=True)
def _no_threads():
    """The thread of an earlier test ends soon after its connection was closed."""
    close_connections()
    wait_until(lambda: threads() == [], seconds=30)


@pytest.fixture
def waiting(simulation, monkeypatch):
    """Make a simulated service with one partition, which delays its answer until there is a change."""
    monkeypatch.setattr(SimulationFeed, "waits_at_service", True)
    sim = Simulation(partitions=1)
    simulation.provider = SimulationProvider(sim)
    sim.options = simulation.options
    return sim


@pytest.fixture(params=["mark", "wait"])
def idle(request):
    """Return a function that makes idle streams, and a function that writes a change."""
    source = request.getfixturevalue("source" if request.param == "mark" else "waiting")

    def write():
        source.put("a", {"n": 1}) if request.param == "mark" else source.write("a", {"n": 1})

    return lambda **options: idle_query(source, **options), write


def idle_query(source, **options):
    query = Query(source, **{**IDLE, **options})
    query.drain()
    return query


def is_planned(query):
    """Call the source as Spark does, for at most ten seconds; return True if a micro-batch is planned."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if query.plan():
            return True
    return False


def test_change_is_planned_long_before_the_interval_is_over(idle, monkeypatch):
    make, write = idle
    first = make()
    # The connections stay open, so that both streams use one, as in a process with several streams.
    monkeypatch.setattr("spark.tests.micro_batches.close_connections", lambda: None)
    second = make()
    assert not first.plan()
    assert not second.plan()
    write()
    for query in (first, second):
        assert is_planned(query)
        assert len(query.step()) == 1
        assert not query.plan()


def test_call_that_waits_returns_as_soon_as_there_is_a_change(idle, monkeypatch):
    monkeypatch.setattr(micro_batches, "_NAP_SECONDS", 60.0)
    make, write = idle
    query = make()
    writer = threading.Timer(0.1, write)
    writer.start()
    assert query.plan() or query.plan()
    writer.join()


def test_call_without_a_change_waits_for_a_tenth_of_a_second_at_most(idle, monkeypatch):
    query, asked = idle[0](), []
    for kind in (watch.MarkWatch, watch.ReadWatch):

        def noted(self, seconds, wait=kind.wait):
            asked.append(seconds)
            return wait(self, seconds)

        monkeypatch.setattr(kind, "wait", noted)
    began = time.monotonic()
    for _ in range(10):
        assert not query.plan()
        assert max(asked, default=0.0) <= 0.1
    assert len(asked) >= 9
    assert time.monotonic() - began < 30  # the interval is a minute


def test_restart_finds_the_change_that_was_written_meanwhile(idle):
    make, write = idle
    query = make()
    write()
    assert len(query.restart().drain()) == 1


def test_run_that_ends_by_itself_never_waits(waiting):
    query = Query(waiting, **IDLE)
    query.reader.prepareForTriggerAvailableNow()
    query.drain()
    assert threads() == []


def test_limit_on_rows_holds_after_a_hint(idle):
    make, write = idle
    query = make(maxRecordsPerTrigger="2")
    for _ in range(5):
        write()
    assert is_planned(query)
    assert [len(query.step()) for _ in range(3)] == [2, 2, 1]


class TestThread:
    def test_ends_when_the_query_is_stopped(self, waiting):
        query = idle_query(waiting)
        assert len(threads()) == 1
        query.reader.stop()
        wait_until(lambda: threads() == [], seconds=10)
        query.reader.stop()

    def test_ends_when_a_batch_is_planned_and_when_the_connection_is_closed(self, waiting):
        query = idle_query(waiting)
        waiting.write("a", {"n": 1})
        assert is_planned(query)
        wait_until(lambda: threads() == [], seconds=10)
        query.drain()
        assert len(threads()) == 1
        close_connections()
        wait_until(lambda: threads() == [], seconds=10)

    def test_is_one_for_each_stream_however_often_it_is_planned(self, waiting):
        query = idle_query(waiting, pollInterval="20 ms")
        assert not any(query.plan() for _ in range(20))
        assert len(threads()) == 1

    def test_is_not_expected_in_a_forked_process(self, waiting, monkeypatch):
        query = idle_query(waiting, pollInterval="1 s")
        for module in (connection, process, watch):
            monkeypatch.setattr(module, "os", CHILD)
        assert not query.plan()
        waiting.write("a", {"n": 1})
        assert is_planned(query)

    def test_dropped_collection_ends_the_query_at_once(self, waiting):
        query = idle_query(waiting)
        waiting.drop()
        with pytest.raises(SourceError, match="NOT_FOUND"):
            is_planned(query)

    def test_that_fails_costs_two_plans_in_an_interval_and_no_change(self, waiting, monkeypatch):
        def fails(reader, *_):
            raise ServerError("503")

        query, clock, plans = idle_query(waiting, pollInterval="1 s"), Clock(), noted(monkeypatch)
        monkeypatch.setattr(SimulationReader, "fetch", fails)
        monkeypatch.setattr(micro_batches, "time", clock)
        query.restart()
        began = clock.seconds
        while clock.seconds < began + 60:
            assert not query.plan()
            clock.seconds += 0.01
        assert len(plans) <= 122
        monkeypatch.undo()
        waiting.write("a", {"n": 1})
        assert is_planned(query)


def noted(monkeypatch):
    plans, advance = [], Planner.advance

    def noting(*arguments, **settings):
        plans.append(arguments)
        return advance(*arguments, **settings)

    monkeypatch.setattr(Planner, "advance", noting)
    return plans


class TestRequests:
    """An idle stream is called all the time; how many requests does it send in a minute?"""

    @pytest.fixture
    def clock(self, monkeypatch):
        clock = Clock()
        for module in (micro_batches, watch):
            monkeypatch.setattr(module, "time", clock)
        return clock

    def run(self, query, clock):
        began = clock.seconds
        while clock.seconds < began + 60:
            query.step()
            clock.seconds += 0.01

    def test_store_in_this_process_is_asked_for_its_mark_fifty_times_a_second(
        self, source, clock, monkeypatch
    ):
        query, plans = idle_query(source, pollInterval="1 s"), noted(monkeypatch)
        asked, mark = [], EmbeddedFeed.change_mark

        def noting(feed, deadline):
            asked.append(clock.seconds)
            return mark(feed, deadline)

        monkeypatch.setattr(EmbeddedFeed, "change_mark", noting)
        self.run(query, clock)
        assert len(asked) <= 60 * 60
        assert len(plans) <= 2

    def test_changes_of_another_collection_cause_two_plans_in_an_interval(self, source, clock, monkeypatch):
        query, plans = idle_query(source, pollInterval="1 s"), noted(monkeypatch)
        source.store.create_collection("others")
        began = clock.seconds
        while clock.seconds < began + 60:
            source.store.put("others", "k", {"n": 1})
            query.step()
            clock.seconds += 0.05
        assert len(plans) <= 122

    def test_service_without_either_is_asked_once_an_interval(self, simulation, clock):
        query = idle_query(simulation, pollInterval="1 s")
        before = simulation.provider.calls.heads
        self.run(query, clock)
        assert simulation.provider.calls.heads - before <= 61
        assert threads() == []

    @pytest.mark.parametrize(("poll_after", "least"), [(0.0, 0.9), (1.5, 2.9)])
    def test_service_that_does_not_wait_is_asked_seldom(self, waiting, monkeypatch, poll_after, least):
        """It is asked twice a second, or as often as the service itself proposes."""
        waiting.behaviour = attrs.evolve(waiting.behaviour, poll_after=poll_after)
        asked, fetch = [], SimulationReader.fetch

        def at_once(reader, most, size, wait, deadline):
            asked.append(time.monotonic())
            return fetch(reader, most, size, 0.0, deadline)

        monkeypatch.setattr(SimulationReader, "fetch", at_once)
        query = idle_query(waiting)
        wait_until(lambda: len(asked) >= 3, seconds=30)
        query.reader.stop()
        assert asked[2] - asked[0] >= least


@pytest.mark.parametrize(
    ("database", "sends", "most"),
    [
        # A reader that has just opened a shard needs several empty answers to know that it is at the end.
        ("dynamo", "botocore.httpsession.URLLib3Session.send", 8),
        ("cosmos", "azure.core.pipeline.transport.RequestsTransport.send", 1),
    ],
)
def test_service_that_is_polled_gets_few_requests_for_a_partition(
    databases, monkeypatch, database, sends, most
):
    [feed] = databases("polled", database)
    source = SimpleNamespace(options=partial(dict, feed.options()))
    query, sent, send = idle_query(source, pollInterval="0"), [], resolve_name(sends)

    def counting(*arguments, **options):
        sent.append(arguments)
        return send(*arguments, **options)

    monkeypatch.setattr(sends, counting)
    for _ in range(10):
        assert not query.plan()
    assert 0 < len(sent) <= 10 * most * query.report["partitions"] + 1


def test_mongodb_answers_when_there_is_a_change_and_gets_few_requests(databases):
    [feed] = databases("watched", "mongo")
    source = SimpleNamespace(options=partial(dict, feed.options()))
    with MongoClient(feed.url) as client:

        def requests():
            counts = client.admin.command("serverStatus")["metrics"]["commands"]
            return sum(counts[name]["total"] for name in ("aggregate", "find", "getMore"))

        query = idle_query(source)
        begun = requests()
        wait_until(lambda: requests() > begun + 2, seconds=30)
        began, before = time.monotonic(), requests()
        assert not any(query.plan() for _ in range(20))
        assert requests() - before <= 3 * (time.monotonic() - began) + 3
        client[feed.address.database][feed.address.collection].insert_one({"_id": 1})
        assert is_planned(query)
