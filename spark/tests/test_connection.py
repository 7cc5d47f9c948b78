"""Tests the connections that a Spark process keeps open: which readers share one, and when one is closed."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from multiclouddb_api import Beginning, Capability, ErrorCategory, MulticloudDbError, process
from multiclouddb_conformance.simulation import (
    ServerError,
    Simulation,
    SimulationProvider,
    capabilities_without,
)
from multiclouddb_conformance.simulation.reader import SimulationReader
from multiclouddb_spi.time_limits import current
from pyspark_multiclouddb import connection
from pyspark_multiclouddb.connection import close_connections, connection_for
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import ChangeFeedReader
from pyspark_multiclouddb.rows import read_work, work_of

from .micro_batches import CHILD, Query

MOST = 16
OPTIONS = {"url": "simulation://", "database": "sim", "collection": "items"}


def opened(collection="items", **options):
    return connection_for(parse_options({**OPTIONS, "collection": collection, **options}))


class Providers:
    """Opens a new provider for each connection, and keeps all of them in `opened`."""

    def __init__(self):
        self.sim, self.opened = Simulation(partitions=2), []

    def options(self, **more):
        return {**OPTIONS, **more}

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
    monkeypatch.setattr("multiclouddb_spi.retry.time", SimpleNamespace(sleep=lambda seconds: None))
    return made


@pytest.mark.parametrize(
    ("options", "is_shared"),
    [
        ({"startingPosition": "2026-01-31T12:00:00Z", "endingPosition": "2026-02-28T12:00:00Z"}, True),
        ({"startingPosition": "snapshot", "snapshotSegments": "3"}, True),
        ({"maxOffsetsPerTrigger": "5", "maxTasksPerBatch": "5"}, True),
        ({"pollInterval": "1 min", "idleCheckpointInterval": "1 min"}, True),
        ({"NEWITEMSTATE": "include_if_available"}, True),
        ({"collection": "others"}, False),
        ({"database": "other"}, False),
        ({"newItemState": "omit"}, False),
        ({"oldItemState": "require"}, False),
        ({"failOnDataLoss": "false"}, False),
        ({"failOnDataLoss": "resnapshot"}, False),
        ({"onPoison": "skip"}, False),
        ({"connection.colour": "red"}, False),
    ],
)
def test_only_options_that_affect_the_plan_alone_share_a_connection(providers, options, is_shared):
    assert (opened(**options) is opened()) is is_shared
    assert (len(providers.opened), providers.closed()) == (1 if is_shared else 2, [])


def test_connection_that_was_unused_for_the_longest_time_is_closed_and_opened_again(providers):
    for number in range(MOST):
        opened(f"c{number}")
    assert providers.closed() == []
    first = opened("c0")
    opened("one more")
    assert providers.closed() == [1]
    assert opened("c0") is first
    opened("c1")
    assert providers.closed() == [1, 2]
    assert len(providers.opened) == MOST + 2
    close_connections()
    assert len(providers.closed()) == MOST + 2
    opened("c1")
    assert not providers.opened[-1].closed


def test_forked_process_uses_and_closes_its_own_connections_alone(providers, monkeypatch):
    """The child has a copy of the parent's sockets. If it closed them, it would end the parent's session."""
    theirs = opened()
    with monkeypatch.context() as child:
        child.setattr(process, "os", CHILD)
        close_connections()
        assert providers.closed() == []
    theirs = opened()
    for module in (connection, process):
        monkeypatch.setattr(module, "os", CHILD)
    ours = opened()
    assert ours is not theirs
    assert opened() is ours
    for number in range(MOST):
        opened(f"c{number}")
    close_connections()
    assert providers.closed() == list(range(2, len(providers.opened)))


def test_connection_that_fails_to_close_harms_no_other(providers, monkeypatch, caplog):
    monkeypatch.setattr(connection, "_MOST_OPEN", 2)

    def broken():
        raise ServerError("503")

    first = opened("a")
    opened("b")
    monkeypatch.setattr(first, "end", broken)
    third = opened("c")
    assert opened("c") is third
    monkeypatch.setattr(third, "end", broken)
    close_connections()
    assert 1 in providers.closed(), "the second connection is closed although the third is not"
    assert [record.message for record in caplog.records] == ["a connection was not closed (503)"] * 2


END_OF_A_PROCESS = f"""
from multiclouddb_conformance.simulation.reader import SimulationReader
from multiclouddb_spi.time_limits import current
from pyspark_multiclouddb import connection
from pyspark_multiclouddb.options import parse_options
from multiclouddb_conformance.simulation import Simulation, SimulationProvider

class Provider(SimulationProvider):
    def close(self):
        print("closed")

connection.open_provider = lambda config: Provider(Simulation())
connection.connection_for(parse_options({OPTIONS}))
print("ends")
"""


def test_connections_are_closed_at_the_end_of_the_process():
    command = [sys.executable, "-c", END_OF_A_PROCESS]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["ends", "closed"]


def test_start_that_never_works_is_tried_a_hundred_times_in_all(providers):
    """The start is repeated as a whole. If each of its requests were repeated too, there would be ten
    thousand."""
    providers.sim.fail_next(None, ServerError("503"), times=10**6, operation="start")
    with pytest.raises(SourceError, match=rf"\[MULTICLOUDDB:{ErrorCategory.TRANSIENT_FAILURE}\]"):
        Query(providers).plan()
    assert providers.opened[0].calls.starts == 100


def test_every_failed_attempt_is_logged(providers, caplog):
    providers.sim.fail_next(None, ServerError("503 busy"), times=2, operation="start")
    Query(providers).plan()
    lines = [record.getMessage() for record in caplog.records if record.name == "multiclouddb.spark"]
    assert [line.partition(";")[0] for line in lines] == [
        f"attempt {number} of a call failed (503 busy)" for number in (1, 2)
    ]


def test_end_that_the_database_cannot_determine_is_refused(providers, monkeypatch):
    without = capabilities_without(Capability.CHANGE_FEED_POINT_IN_TIME)
    provider = SimulationProvider(providers.sim, capabilities=without)
    monkeypatch.setattr(connection, "open_provider", lambda config: provider)
    settings = parse_options({**OPTIONS, "endingPosition": "2026-01-31T12:00:00Z"})
    with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:UNSUPPORTED_CAPABILITY\]"):
        ChangeFeedReader(settings).partitions()


def test_a_later_task_asks_for_as_little_as_the_one_before_after_the_link_was_cut(providers, monkeypatch):
    providers.sim.write("a", {"n": 1})
    asked, fetch = [], SimulationReader.fetch

    def cut(self, max_records, *rest):
        asked.append(max_records)
        current().heard(50_000)
        if max_records > 700:
            raise ServerError("the connection was cut")
        return fetch(self, max_records, *rest)

    settings = parse_options(providers.options())
    one = connection_for(settings)
    before = one.start(Beginning())
    step = one.plan("plan", lambda planner, until: planner.advance(before, None, until))
    tasks = work_of(settings, one.incarnation, step.ranges(), skip_poison=False)
    monkeypatch.setattr(SimulationReader, "fetch", cut)
    for first in ([10_000, 2500, 625], [625]):
        asked.clear()
        assert sum(rows.num_rows for task in tasks for rows in read_work(settings, task)) == 1
        assert asked[: len(first)] == first


def test_a_call_that_never_answers_is_given_up(providers, monkeypatch):
    monkeypatch.setattr(connection, "CALL_SECONDS", 0.1)
    monkeypatch.setattr(connection, "CALL_SILENT_SECONDS", 0.1)
    answer = threading.Event()
    monkeypatch.setattr(SimulationProvider, "open_feed", lambda *_: answer.wait(30))
    with pytest.raises(MulticloudDbError, match="has not answered") as caught:
        _ = opened().feed
    answer.set()
    assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE
