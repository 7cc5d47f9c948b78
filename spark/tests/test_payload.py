"""Tests that what the driver has read while it planned is passed to the tasks, whole and within limits."""

import pickle
import random

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from multiclouddb_conformance.simulation import Simulation, SimulationFeed, SimulationProvider
from multiclouddb_embedded.feed import EmbeddedFeed
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.readers import settings_of

from .conftest import COLLECTION
from .micro_batches import Query, ids

MOST = 512 * 1024


@pytest.fixture(autouse=True)
def _by_reading(monkeypatch):
    for feed in (SimulationFeed, EmbeddedFeed):
        monkeypatch.setattr(feed, "heads", lambda self, *_: {})


@pytest.fixture
def many(simulation):
    """Provide a simulation with many partitions."""
    sim = Simulation(partitions=40)
    simulation.provider = SimulationProvider(sim)
    sim.options = simulation.options
    return sim


def fetches(simulation):
    return simulation.provider.calls.total_fetches


def write(sim, count, size=1, first=0):
    for number in range(first, first + count):
        sim.write(f"k{number}", {"n": number, "text": "x" * size})


class TestRowsInTasks:
    def test_a_small_batch_is_read_once(self, simulation, many):
        query = Query(many, startingPosition="now")
        query.step()
        write(many, 60)
        assert query.plan()
        tasks, read = query.tasks(), fetches(simulation)
        rows = [row for task in tasks for batch in query.reader.read(task) for row in batch.to_pylist()]
        assert ids(rows) == ids([{"event_id": item.event_id} for item in many.truth])
        assert fetches(simulation) == read

    def test_what_was_read_is_delivered_though_the_collection_was_dropped(self, many):
        query = Query(many, startingPosition="now")
        query.step()
        write(many, 60)
        assert query.plan()
        many.drop()
        assert len(query.read()) == 60

    def test_zero_turns_it_off(self, simulation, many):
        query = Query(many, startingPosition="now", maxTaskPayload="0")
        query.step()
        write(many, 60)
        assert query.plan()
        assert not any(task.value.read for task in query.tasks())
        read = fetches(simulation)
        assert len(query.read()) == 60
        assert fetches(simulation) > read

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("limit", [None, 7])
    def test_a_batch_that_is_replayed_after_a_restart_has_the_same_rows(self, source, seed, limit):
        dice = random.Random(seed)
        options = {} if limit is None else {"maxRecordsPerTrigger": str(limit)}
        query, kept = Query(source, **options), 0
        for _ in range(12):
            source.write(dice.randrange(20), seed=seed)
            if dice.random() < 0.3:
                source.split(dice.randrange(5))
            if dice.random() < 0.2 and len(source.store.partitions(COLLECTION)) > 2:
                source.merge(dice.randrange(5))
            if not query.plan():
                continue
            kept += sum(len(task.value.read) for task in query.tasks())
            number = len(query.log) - 1
            rows = query.read(number)
            query.restart()
            assert not any(task.value.read for task in query.tasks(number))
            assert query.read(number) == rows
            if limit is not None:
                assert len(rows) <= limit
        assert kept > 0

    def test_neither_a_task_nor_a_batch_carries_too_much(self, simulation, many):
        query = Query(many, startingPosition="now", maxTasksPerBatch="12")
        query.step()
        write(many, 400, size=20_000)
        rows = query.step()
        assert len(rows) == 400
        tasks = [len(pickle.dumps(task)) for task in query.tasks(1)]
        carried = [sum(map(len, task.value.read.values())) for task in query.tasks(1)]
        assert max(carried) <= MOST
        assert max(tasks) <= MOST + 20_000
        assert 0 < sum(carried) <= 8 * MOST

    def test_a_range_that_is_too_large_is_left_to_its_task(self, many):
        query = Query(many, startingPosition="now", maxTaskPayload="2000")
        query.step()
        many.write("large", {"text": "x" * 5000})
        many.write("small", {"text": "x"})
        assert query.plan()
        assert sum(len(task.value.read) for task in query.tasks()) == 1
        assert len(query.read()) == 2

    @pytest.mark.parametrize("text", ["-1", "1e3", "1000000", "all"])
    def test_a_payload_that_spark_would_warn_of_is_refused(self, many, text):
        with pytest.raises(SourceError, match="maxTaskPayload"):
            settings_of(many.options(maxTaskPayload=text), _schema(), is_stream=True)


class TestLeftToTheTask:
    def test_a_change_that_cannot_be_decoded_fails_its_task_and_not_the_plan(self, source):
        query = Query(source)
        query.step()
        source.fill(6)
        source.damage(3)
        assert query.plan()
        tasks = query.tasks()
        damaged = [part.partition_id for task in tasks for part in task.value.ranges]
        kept = sum(len(task.value.read) for task in tasks)
        assert kept == len(damaged) - 1
        with pytest.raises(SourceError):
            query.read()

    def test_with_skip_only_that_change_is_missing(self, source):
        query = Query(source, onPoison="skip")
        query.step()
        source.fill(6)
        source.damage(3)
        rows = query.drain()
        assert len(rows) == 5
        assert query.log[-1]["poison"]["count"] == 1

    def test_a_value_that_does_not_fit_its_column_fails_its_task(self, source):
        query = Query(source, startingPosition="now")  # else the first batch also moves what has no changes
        query.step()
        source.put("k1", {"n": "no number"})
        assert query.plan()
        (task,) = query.tasks()
        assert task.value.read
        settings = settings_of(source.options(), _schema(), is_stream=True)
        reader = type(query.reader)(settings)
        with pytest.raises(SourceError, match="column n: is bigint"):
            list(reader.read(task))


def _schema():
    return StructType([StructField("key", StringType()), StructField("n", LongType())])
