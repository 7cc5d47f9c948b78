"""Tests that an interrupt in any line of a plan throws away what was kept for it, and the query goes on.

Spark ends its Python process after an interrupt. Whoever plans in a process of his own goes on with it.
Usually every seventh line is tried, when it first runs; the soak tries each line each time that it runs.
"""

from concurrent import futures
from pathlib import Path

import pytest

import pyspark_multiclouddb
from multiclouddb_conformance.interrupting import ROOMS, interrupted_at, lines_of
from multiclouddb_conformance.simulation import (
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
)
from multiclouddb_conformance.waiting import wait_until
from pyspark_multiclouddb import connection

from .micro_batches import Query, ids

PACKAGES = (
    *ROOMS,
    str(Path(pyspark_multiclouddb.__file__).parent),
    str(Path(futures.__file__).parent),  # an interrupt may leave a lock of these held for ever
)


class Interrupted:
    """A query whose second batch is planned while a partition splits."""

    def __init__(self, monkeypatch):
        self.sim = Simulation(3, ServiceBehaviour(page_limit=3))
        self.providers = []

        def opened(config):
            self.providers.append(SimulationProvider(self.sim))
            return self.providers[-1]

        monkeypatch.setattr(connection, "open_provider", opened)
        place = {"url": "simulation://", "database": "sim", "collection": "items"}
        self.sim.options = lambda **more: {**place, **more}
        self.write()
        self.query = Query(self.sim, startingPosition="beginning", maxRecordsPerTrigger="8")
        self.rows = ids(self.query.step())
        self.write()
        self.sim.split("p1")

    def write(self):
        for number in range(20):
            self.sim.write(f"k{number}", {"n": number})

    def check(self):
        """Go on in the same process: it has nothing of the interrupted plan, and each change comes once."""
        *replaced, now = self.providers
        assert all(each.closed for each in replaced)
        assert wait_until(lambda: not any(each.calls.open_readers for each in replaced), 30.0)
        context = connection.connection_for(self.query.settings)._context
        assert not context.consumers._used
        self.rows += ids(self.query.drain())
        assert sorted(self.rows) == sorted(item.event_id for item in self.sim.truth)
        connection.close_connections()
        assert now.closed
        assert wait_until(lambda: not now.calls.open_readers, 30.0)
        assert not any(each.calls.violations for each in self.providers)


@pytest.mark.parametrize("each_time", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("form", ["heads", "by reading"])
def test_each_line_of_a_plan(monkeypatch, form, each_time):
    if form != "heads":
        monkeypatch.setattr(SimulationFeed, "heads", lambda self, *_: {})
    ran = lines_of(Interrupted(monkeypatch).query.plan, PACKAGES)
    connection.close_connections()
    first = {line: number for number, line in reversed(list(enumerate(ran, 1)))}
    for number in range(1, len(ran) + 1) if each_time else sorted(first.values())[::7]:
        life = Interrupted(monkeypatch)
        # What its threads do meanwhile differs from plan to plan, and so do the lines that run.
        if interrupted_at(number, life.query.plan, PACKAGES):
            life.check()
