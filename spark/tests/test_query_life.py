"""Runs random queries without Spark, with every method of listing partitions, and with splits during
planning.

The reader is called as Spark calls it: with positions and limits as in version 4.2, or without them as in
version 4.0.
"""

import json
import os
from unittest.mock import patch

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from multiclouddb_conformance.simulation import Listing, ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_conformance.simulation.feed import SimulationFeed
from pyspark_multiclouddb import connection
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import PlainStreamReader
from pyspark_multiclouddb.stream import ChangeFeedStreamReader

LIVES = int(os.environ.get("MULTICLOUDDB_LIVES", "25"))
OPTIONS = {"url": "simulation://", "database": "sim", "collection": "items", "pollInterval": "0"}
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
        self.provider = SimulationProvider(self.sim)
        self.during, self.most = [], partitions + 20
        self.patches = [
            patch.object(connection, "open_provider", lambda config: self.provider),
            patch.object(SimulationFeed, "heads", self.heads(SimulationFeed.heads)),
        ]
        for each in self.patches:
            each.start()
        self.limit, self.plain, self.number = limit, plain, 0
        bound = {} if limit is None else {"maxRecordsPerTrigger": str(limit)}
        self.settings = parse_options({**OPTIONS, **bound, "idleCheckpointInterval": idle})
        self.log, self.delivered, self.latest = [], [], {}
        self.restart()
        self.write(0, 3)

    def heads(self, original):
        """Change the database while a batch is planned."""

        def ask(feed, *arguments):
            while self.during:
                self.during.pop()()
            return original(feed, *arguments)

        return ask

    def restart(self):
        """Continue planning in another process. On Spark 4.0, the new process receives the end of the log."""
        connection.close_connections()
        self.reader = (PlainStreamReader if self.plain else ChangeFeedStreamReader)(self.settings)
        if self.plain and self.log:
            self.reader.partitions(self.log[-1], self.log[-1])

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
            self.restart()

    def plan_and_read(self, replays=False):
        """Plan and read one micro-batch; return False if there was nothing to plan."""
        start = self.log[-1] if self.log else through_json(self.reader.initialOffset())
        if self.plain:
            end = self.reader.latestOffset()
        else:
            limit = ReadAllAvailable() if self.limit is None else ReadMaxRows(self.limit)
            end = self.reader.latestOffset(start, limit)
        end = through_json(end)
        if self.log and end == start:
            return False
        rows = self.rows(start, end)
        self.log.append(end)
        if replays:
            self.restart()
            assert ids(self.rows(start, end)) == ids(rows)
        assert self.limit is None or len(rows) <= self.limit
        for row in sorted(rows, key=lambda row: row["order_key"]):
            assert self.latest.get(row["key"], "") < row["order_key"]
            self.latest[row["key"]] = row["order_key"]
        self.delivered += ids(rows)
        return True

    def rows(self, start, end):
        tasks = self.reader.partitions(start, end)
        assert all(part for task in tasks for part in task.value.ranges)
        return [row for task in tasks for batch in self.reader.read(task) for row in batch.to_pylist()]

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
            connection.close_connections()
            for each in self.patches:
                each.stop()


def through_json(offset):
    return json.loads(json.dumps(offset))


def ids(rows):
    return sorted(row["event_id"] for row in rows)


TestQuery = Query.TestCase
TestQuery.settings = settings(
    max_examples=LIVES, stateful_step_count=25, deadline=None, phases=[Phase.generate, Phase.shrink]
)
