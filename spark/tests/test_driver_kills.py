"""Tests every way in which a driver can die between two steps of a micro-batch, each batch in turn.

The steps are those of Spark 4.2: `latestOffset`, the offset in the log, `planInputPartitions`, the tasks and
their sink, the commit. What a driver knows between them only saves requests.
"""

import itertools
import pickle

import pytest

from multiclouddb_conformance.simulation import (
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
)
from pyspark_multiclouddb import connection

from .micro_batches import Query, ids, through_json

STEPS = ("never", "asked again", "planned", "logged", "assigned", "delivered", "committed")
KEYS = [f"k{number}" for number in range(6)]


class Driver(Query):
    """Runs micro-batches step by step, into a sink that keeps each batch under its number."""

    def __init__(self, source, death, **options):
        self.death, self.sink, self.number = death, {}, 0
        super().__init__(source, startingPosition="beginning", **options)

    def live(self, dies=()):
        """Run one micro-batch, and die after the steps in `dies`, each once; False if nothing is to be read.

        With "asked again", the same driver is asked twice for the end of the batch.
        """
        dies = set(dies)
        while True:
            if self.done == len(self.log):
                if not self.plan():
                    return False
                if dies & {"asked again", "planned"}:
                    self.log.pop()
                    if "planned" in dies:
                        self.die()
                    self.happen()
                    dies -= {"asked again", "planned"}
                    continue
                if "logged" in dies:
                    dies.remove("logged")
                    self.die()
            tasks = self.tasks(self.done)
            if "assigned" in dies:
                dies.remove("assigned")
                self.die()
                continue
            rows = ids(row for task in tasks for batch in self.reader.read(task) for row in batch.to_pylist())
            assert self.sink.setdefault(self.done, rows) == rows
            assert len(rows) <= (self.settings.max_records or len(rows))
            if "delivered" in dies:
                dies.remove("delivered")
                self.die()
                continue
            self.done += 1
            if "committed" in dies:
                self.die()
            return True

    def die(self):
        """Let another driver take over; more was written when it begins."""
        self.happen()
        left = self.reader
        if self.death == "process":
            self.restart()
            return
        # Spark starts a query again in the process that has its connection, and what was planned ahead.
        self.reader = pickle.loads(pickle.dumps(left))
        if self.death == "both":  # the one before has not noticed yet
            start = self.start_of(len(self.log))
            end = through_json(left.latestOffset(start, left.getDefaultReadLimit()))
            self.happen()
            left.partitions(start, end)

    def happen(self):
        """Write, split or only let time pass, in turn."""
        self.number += 1
        for key in KEYS[self.number % 4 :]:
            self.source.write(key, {"n": self.number})
        if self.number % 3 == 1:
            self.source.split(self.source.open_partitions[0])


def check(lives, death, options):
    """Let a driver live each life; it loses, repeats and invents nothing."""
    for life in lives:
        sim = Simulation(2, ServiceBehaviour(page_limit=3))
        sim.provider = SimulationProvider(sim)
        place = {"url": "simulation://", "database": "sim", "collection": "items"}
        sim.options = lambda place=place, **more: {**place, **more}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "open_provider", lambda config, sim=sim: sim.provider)
            driver = Driver(sim, death, **options)
            for step in life:
                driver.happen()
                driver.live({step})
            while driver.live():
                pass
            found = [name for rows in driver.sink.values() for name in rows]
            assert sorted(found) == sorted(each.event_id for each in sim.truth), life
            connection.close_connections()


@pytest.fixture(params=["heads", "by reading"])
def form(request, monkeypatch):
    if request.param != "heads":
        monkeypatch.setattr(SimulationFeed, "heads", lambda self, *_: {})


OPTIONS = [{}, {"maxRecordsPerTrigger": "2"}, {"idleCheckpointInterval": "0"}, {"onPoison": "skip"}]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("death", ["process", "object", "both"])
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "limit", "idle", "skip"])
def test_driver_dies_after_each_step_of_two_batches(death, options):
    check(itertools.product(STEPS, repeat=2), death, options)


@pytest.mark.soak
@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("death", ["process", "object", "both"])
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "limit", "idle", "skip"])
def test_driver_dies_after_each_step_of_four_batches(death, options):
    check(itertools.product(STEPS, repeat=4), death, options)
