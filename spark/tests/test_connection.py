"""Tests the connections that a Spark process keeps open: which readers share one, and when one is closed."""

import os
import subprocess
import sys

import pytest

from multiclouddb_api import Capability, ErrorCategory
from multiclouddb_conformance.simulation import (
    ServerError,
    Simulation,
    SimulationProvider,
    capabilities_without,
)
from pyspark_multiclouddb import connection
from pyspark_multiclouddb.connection import close_connections, connection_for
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import ChangeFeedReader
from pyspark_multiclouddb.stream import ChangeFeedStreamReader

MOST = 16
OPTIONS = {"url": "simulation://", "database": "sim", "collection": "items"}


def settings(**options):
    return parse_options({**OPTIONS, **options})


class Providers:
    """Opens a new provider for each connection, and keeps all of them in `opened`."""

    def __init__(self):
        self.sim = Simulation(partitions=2)
        self.opened = []

    def open(self, config):
        del config
        self.opened.append(SimulationProvider(self.sim))
        return self.opened[-1]

    def closed(self):
        return [number for number, provider in enumerate(self.opened) if provider.closed]


@pytest.fixture
def providers(monkeypatch):
    made = Providers()
    monkeypatch.setattr(connection, "open_provider", made.open)
    monkeypatch.setattr("multiclouddb_spi.retry.time.sleep", lambda seconds: None)
    return made


PLANNING = [
    {"startingPosition": "2026-01-31T12:00:00Z", "endingPosition": "2026-02-28T12:00:00Z"},
    {"startingPosition": "snapshot", "snapshotSegments": "3"},
    {"maxOffsetsPerTrigger": "5", "maxTasksPerBatch": "5"},
    {"pollInterval": "1 min", "idleCheckpointInterval": "1 min", "NEWITEMSTATE": "include_if_available"},
]
OTHERS = [
    {"collection": "others"},
    {"database": "other"},
    {"newItemState": "omit"},
    {"oldItemState": "require"},
    {"failOnDataLoss": "false"},
    {"failOnDataLoss": "resnapshot"},
    {"connection.colour": "red"},
]


@pytest.mark.parametrize("options", [*PLANNING, *OTHERS], ids=str)
def test_only_options_that_affect_the_plan_alone_share_a_connection(providers, options):
    is_shared = connection_for(settings(**options)) is connection_for(settings())
    assert is_shared is (options in PLANNING)
    assert (len(providers.opened), providers.closed()) == (1 if is_shared else 2, [])


def test_connection_that_was_unused_for_the_longest_time_is_closed(providers):
    for number in range(MOST):
        connection_for(settings(collection=f"c{number}"))
    assert providers.closed() == []
    first = connection_for(settings(collection="c0"))
    connection_for(settings(collection="one more"))
    assert providers.closed() == [1]
    assert connection_for(settings(collection="c0")) is first
    connection_for(settings(collection="c1"))
    assert providers.closed() == [1, 2]
    assert len(providers.opened) == MOST + 2


def test_closed_connections_are_opened_again(providers):
    for number in range(3):
        connection_for(settings(collection=f"c{number}"))
    close_connections()
    assert providers.closed() == [0, 1, 2]
    connection_for(settings(collection="c1"))
    assert len(providers.opened) == 4
    assert not providers.opened[-1].closed


def test_forked_process_uses_and_closes_its_own_connections_alone(providers, monkeypatch):
    """The child has a copy of the parent's sockets. If it closed them, it would end the parent's session."""
    theirs = connection_for(settings())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    close_connections()
    assert providers.closed() == []
    monkeypatch.undo()
    monkeypatch.setattr(connection, "open_provider", providers.open)
    theirs = connection_for(settings())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    ours = connection_for(settings())
    assert ours is not theirs
    assert connection_for(settings()) is ours
    for number in range(MOST):
        connection_for(settings(collection=f"c{number}"))
    close_connections()
    assert providers.closed() == list(range(2, len(providers.opened)))


def test_provider_is_closed_even_if_its_feed_fails_to_close(providers, monkeypatch):
    opened = connection_for(settings())
    closed = []

    def fail():
        closed.append("feed")
        raise RuntimeError("the socket is gone")

    monkeypatch.setattr(opened.feed, "close", fail)
    close_connections()
    assert closed == ["feed"]
    assert providers.closed() == [0]


END_OF_A_PROCESS = """
from pyspark_multiclouddb import connection
from pyspark_multiclouddb.options import parse_options
from multiclouddb_conformance.simulation import Simulation, SimulationProvider

class Provider(SimulationProvider):
    def close(self):
        print("closed")

connection.open_provider = lambda config: Provider(Simulation())
connection.connection_for(parse_options({"url": "simulation://", "database": "sim", "collection": "items"}))
print("ends")
"""


def test_connection_that_fails_to_close_harms_no_other(providers, monkeypatch, caplog):
    monkeypatch.setattr(connection, "_MOST_OPEN", 2)

    def broken():
        raise ServerError("503")

    first = connection_for(settings(collection="a"))
    connection_for(settings(collection="b"))
    monkeypatch.setattr(first, "close", broken)
    third = connection_for(settings(collection="c"))
    assert connection_for(settings(collection="c")) is third
    monkeypatch.setattr(third, "close", broken)
    close_connections()
    assert 1 in providers.closed(), "the second connection is closed although the third is not"
    assert [record.message for record in caplog.records] == ["a connection was not closed (503)"] * 2


def test_connections_are_closed_at_the_end_of_the_process():
    command = [sys.executable, "-c", END_OF_A_PROCESS]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["ends", "closed"]


def test_start_that_never_works_is_tried_a_hundred_times_in_all(providers):
    """The start is repeated as a whole. If each of its requests were repeated too, there would be ten
    thousand."""
    providers.sim.fail_next(None, ServerError("503"), times=10**6, operation="start")
    reader = ChangeFeedStreamReader(settings())
    with pytest.raises(SourceError, match=rf"\[MULTICLOUDDB:{ErrorCategory.TRANSIENT_FAILURE}\]"):
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert providers.opened[0].calls.starts == 100


def test_every_failed_attempt_is_logged(providers, caplog):
    providers.sim.fail_next(None, ServerError("503 busy"), times=2, operation="start")
    reader = ChangeFeedStreamReader(settings())
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    lines = [record.getMessage() for record in caplog.records if record.name == "multiclouddb.spark"]
    assert [line.partition(";")[0] for line in lines] == [
        f"attempt {number} of a call failed (503 busy)" for number in (1, 2)
    ]


def test_end_that_the_database_cannot_determine_is_refused(providers, monkeypatch):
    without = capabilities_without(Capability.CHANGE_FEED_POINT_IN_TIME)
    monkeypatch.setattr(
        connection, "open_provider", lambda config: SimulationProvider(providers.sim, capabilities=without)
    )
    reader = ChangeFeedReader(settings(endingPosition="2026-01-31T12:00:00Z"))
    with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:UNSUPPORTED_CAPABILITY\]"):
        reader.partitions()
