"""Runs random queries without Spark, with every method of listing partitions, and with splits during
planning.

The reader is called as Spark calls it: with positions and limits as in version 4.2, or without them as in
version 4.0.
"""

import os
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from multiclouddb_conformance.simulation import Listing, ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_conformance.simulation.feed import SimulationFeed
from pyspark_multiclouddb import connection
from pyspark_multiclouddb.connection import close_connections

from . import micro_batches
from .micro_batches import ids

LIVES = int(os.environ.get("MULTICLOUDDB_LIVES", "8"))
PLACE = {"url": "simulation://", "database": "sim", "collection": "items"}
LAST_ROUNDS = 400


class Query(RuleBasedStateMachine):
    """One query with its offset log; the process that plans may be killed at any time."""

    @initialize(
        partitions=st.sampled_from([1, 3, 1000]),
        form=st.sampled_from(list(Listing)),
        limit=st.sampled_from([None, 1, 4, 50]),
        plain=st.booleans(),
        idle=st.sampled_from(["0", "1 hour"]),
        seed=st.integers(0, 2**16),
    )
    def begin(self, partitions, form, limit, plain, idle, seed):
        self.sim = Simulation(partitions=partitions)
        self.sim.behaviour = ServiceBehaviour(listing=form, seed=seed)
        self.sim.options = lambda **more: {**PLACE, **more}
        provider = SimulationProvider(self.sim)
        self.during, self.most = [], partitions + 20
        self.patches = [
            patch.object(connection, "open_provider", lambda config: provider),
            patch.object(SimulationFeed, "heads", self.heads(SimulationFeed.heads)),
        ]
        for each in self.patches:
            each.start()
        bound = {} if limit is None else {"maxRecordsPerTrigger": str(limit)}
        options = {**bound, "idleCheckpointInterval": idle}
        self.query = micro_batches.Query(self.sim, is_plain=plain, **options)
        self.limit, self.number, self.delivered, self.latest = limit, 0, [], {}
        self.write(0, 3)

    def heads(self, original):
        """Change the database while a batch is planned."""

        def ask(feed, *arguments):
            while self.during:
                self.during.pop()()
            return original(feed, *arguments)

        return ask

    @rule(key=st.integers(0, 9), count=st.integers(1, 8))
    def write(self, key, count):
        for offset in range(count):
            self.number += 1
            self.sim.write(f"k{(key + offset) % 10}", {"n": self.number})

    @rule(keys=st.lists(st.integers(0, 9), min_size=2, max_size=9, unique=True))
    def transaction(self, keys):
        self.sim.transaction([(f"k{key}", {"n": 0}) for key in keys])

    @precondition(lambda self: len(self.sim.open_partitions) < self.most)
    @rule(key=st.integers(0, 9), into=st.integers(2, 3), planning=st.booleans())
    def split(self, key, into, planning):
        def act():
            name = self.sim.write(f"k{key}", {"n": -1}).partition_id
            if sum(high - low for low, high in self.sim.partitions[name].ranges) > into:
                self.sim.split(name, into)

        self.act(act, planning)

    @rule(key=st.integers(0, 9), other=st.integers(0, 9), planning=st.booleans())
    def merge(self, key, other, planning):
        def act():
            names = {self.sim.write(f"k{each}", {"n": -2}).partition_id for each in (key, other)}
            if len(names) > 1:
                self.sim.merge(*sorted(names))

        self.act(act, planning)

    def act(self, act, planning):
        if planning:
            self.during.append(act)
        else:
            act()

    @rule(times=st.integers(1, 4), replays=st.booleans(), dies=st.booleans())
    def batch(self, times, replays, dies):
        for _ in range(times):
            self.plan_and_read(replays)
        if dies:
            self.query.restart()

    def plan_and_read(self, replays=False):
        """Plan and read one micro-batch; return False if there was nothing to plan."""
        if not self.query.plan("all" if self.limit is None else None):
            return False
        rows = self.query.read()
        if replays:
            assert ids(self.query.restart().read()) == ids(rows)
        assert all(part for task in self.query.tasks() for part in task.value.ranges)
        assert self.limit is None or len(rows) <= self.limit
        for row in sorted(rows, key=lambda row: row["order_key"]):
            assert self.latest.get(row["key"], "") < row["order_key"]
            self.latest[row["key"]] = row["order_key"]
        self.delivered += ids(rows)
        return True

    def teardown(self):
        if not hasattr(self, "patches"):
            return
        try:
            for _ in range(LAST_ROUNDS):
                if not self.plan_and_read() and not self.during:
                    break
            written = sorted(record.event_id for record in self.sim.truth)
            assert sorted(self.delivered) == written
        finally:
            close_connections()
            for each in self.patches:
                each.stop()


class TestQuery(Query.TestCase):
    settings = settings(
        max_examples=LIVES, stateful_step_count=25, deadline=None, phases=[Phase.generate, Phase.shrink]
    )


@pytest.mark.soak
class TestMoreQueries(Query.TestCase):
    settings = settings(TestQuery.settings, max_examples=100 * LIVES)
