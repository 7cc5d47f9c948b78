"""Tests that micro-batches together are the log, and that each gives the same rows when it is read again.

The calls come in the order of Spark 4.2, or of Spark 4.0 and 4.1.
"""

import os
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from multiclouddb_conformance.simulation import Listing, ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_conformance.simulation.feed import SimulationFeed
from multiclouddb_spi.faults import AFTER_AN_OUTAGE
from multiclouddb_spi.planning import ranges
from pyspark_multiclouddb import connection
from pyspark_multiclouddb.connection import close_connections
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.readers import PlainStreamReader
from pyspark_multiclouddb.source_columns import ROW_SCHEMA

from .micro_batches import Query, ids


@pytest.mark.parametrize("tasks", ["1", "9"])
def test_sequence_counts_rows_in_partition_and_batch(source, monkeypatch, tasks):
    monkeypatch.setattr(ranges, "_RECORDS", 7)
    source.write(100)
    found = {}
    for row in sorted(Query(source, maxTasksPerBatch=tasks).drain(), key=lambda row: row["order_key"]):
        found.setdefault(row["partition_id"], []).append(row["sequence"])
    assert len(found) == 3
    assert all(numbers == list(range(len(numbers))) for numbers in found.values())


def test_rows_have_the_exact_schema(source):
    query = Query(source, oldItemState="include_if_available")
    source.write(30)
    query.drain()
    assert all(batch.schema.equals(ROW_SCHEMA) for batch in query.batches())


def test_tasks_are_few_and_bounded(source):
    query = Query(source, maxTasksPerBatch="2")
    source.split(0)
    source.split(3)
    source.write(200)
    query.drain()
    assert max(len(query.tasks(number)) for number in range(len(query.log))) == 2


def test_planning_a_replay_needs_no_database(source, tmp_path):
    query = Query(source)
    source.write(30)
    query.drain()
    before = query.tasks()
    source.store.close()
    (tmp_path / "store.db").rename(tmp_path / "gone.db")
    assert [task.value for task in query.restart().tasks()] == [task.value for task in before]


class TestPlainStream:
    """The stream of Spark 4.0 and 4.1, of which a run that ends by itself has one micro-batch."""

    @pytest.fixture
    def query(self, source):
        source.write(60)
        return Query(source, is_plain=True, maxRecordsPerTrigger="20")

    def run(self, query):
        """Return the rows of one run, and whether more may follow."""
        rows = query.restart().step()
        return rows or [], rows is not None and query.log[-1].get("more", False)

    @pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "20"}])
    def test_runs_until_nothing_more_follows_read_all(self, source, limit):
        source.write(50)
        source.split()
        source.write(20)
        query, found, more = Query(source, is_plain=True, **limit), [], True
        while more:
            rows, more = self.run(query)
            found += ids(rows)
        assert len(set(found)) == len(found) == len(source.truth)

    def test_nothing_more_follows_a_position_that_moved_without_a_record(self, source, query):
        source.store.create_collection("others")
        query.restart(idleCheckpointInterval="0", maxRecordsPerTrigger="100").step()
        source.store.put("others", "k", {"n": 1})
        before = len(query.log)
        assert self.run(query) == ([], False)
        assert len(query.log) == before + 1

    @pytest.mark.parametrize("done", [0, 1])
    def test_pending_batch_is_read_again_and_the_next_one_follows_it(self, source, query, done):
        for _ in range(done):
            self.run(query)
        assert query.restart().plan()
        first = query.read()
        source.write(10)
        assert query.restart().step() == first
        assert set(ids(query.step())).isdisjoint(ids(first))

    def test_batch_that_was_planned_without_the_checkpoint_is_refused(self, query):
        for _ in range(2):
            self.run(query)
        blind = PlainStreamReader(query.settings)
        assert blind.latestOffset() != query.log[-1]
        with pytest.raises(SourceError, match=r"triggerAvailableNowWrapper\.enabled"):
            blind.partitions(query.log[-1], query.log[-1])

    def test_first_offset_names_what_a_query_without_a_snapshot_leaves(self, source, query):
        assert query.step()
        assert AFTER_AN_OUTAGE in query.log[0]["warning"]
        assert query.step()
        assert "warning" not in query.log[1]

    def test_start_is_resolved_once(self, source):
        """Changes after the start would be lost if a second call resolved the start again."""
        source.write(10)
        query = Query(source, is_plain=True, startingPosition="now")
        assert query.plan()
        source.write(5)
        assert query.reader.latestOffset() == query.log[-1]
        assert query.step() == []
        assert len(query.step()) == 5


LIVES = int(os.environ.get("MULTICLOUDDB_LIVES", "8"))
PLACE = {"url": "simulation://", "database": "sim", "collection": "items"}
LAST_ROUNDS = 400


class Life(RuleBasedStateMachine):
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
        self.query = Query(self.sim, is_plain=plain, **options)
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


class TestLife(Life.TestCase):
    settings = settings(
        max_examples=LIVES, stateful_step_count=25, deadline=None, phases=[Phase.generate, Phase.shrink]
    )


@pytest.mark.soak
class TestMoreLives(Life.TestCase):
    settings = settings(TestLife.settings, max_examples=100 * LIVES)
