"""Tests what a micro-batch contains if partitions are busy, idle, damaged or dropped."""

import pytest

from multiclouddb_conformance.simulation import (
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
)
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import ChangeFeedReader

from .micro_batches import Query, ids


@pytest.fixture(params=[True, False], ids=["heads", "by reading"])
def heads(request, monkeypatch):
    """The feed can tell its heads (end positions), or the planner has to read."""
    if not request.param:
        monkeypatch.setattr(SimulationFeed, "heads", lambda self, *_: {})
    return request.param


@pytest.fixture
def make(simulation, heads):
    """Return a function that makes a simulation with a number of partitions, and a query on it."""

    def made(partitions, behaviour=None, **options):
        many = Simulation(partitions=partitions, **({} if behaviour is None else {"behaviour": behaviour}))
        simulation.provider = SimulationProvider(many)
        query = Query(simulation, startingPosition="now", **options)
        query.step()
        return many, query

    return made


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_no_partition_starves_behind_idle_or_busy_ones(make, limit):
    sim, query = make(40, maxRecordsPerTrigger=str(limit))
    sim.write("lonely", {"n": 1})
    assert len(query.drain()) == 1
    busy = [f"k{number}" for number in range(300)]
    sim.write("rare", {"n": 1})
    for turn in range(3 * len(sim.open_partitions)):
        for key in busy[turn : turn + 10]:
            sim.write(key, {"n": turn})
        rows = query.step()
        assert len(rows) <= limit
        if any("rare" in row["key"] for row in rows):
            return
    pytest.fail("the rare one never came")


def test_limit_is_used_up_when_the_records_are_in_one_partition(make):
    sim, query = make(16, maxRecordsPerTrigger="300")
    for number in range(500):
        sim.write("one", {"n": number})
    assert len(query.step()) == 300


def test_batch_ends_though_records_come_as_fast_as_it_asks(simulation, monkeypatch):
    for number in range(60):
        simulation.write(f"k{number}", {"n": number})
    heads, before = SimulationFeed.heads, ids(map(vars_of, simulation.truth))

    def overtaken(feed, *arguments):
        for number in range(20):
            simulation.write(f"k{number}", {"n": -1})
        return heads(feed, *arguments)

    monkeypatch.setattr(SimulationFeed, "heads", overtaken)
    reader = ChangeFeedReader(parse_options(simulation.options()).for_batch())
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    got = ids(row for batch in batches for row in batch.to_pylist())
    assert set(before) <= set(got) <= set(ids(map(vars_of, simulation.truth)))
    assert len(set(got)) == len(got)


def vars_of(record):
    return {"event_id": record.event_id}


def test_what_lies_before_a_poison_record_is_delivered_first(make):
    """If a planner finds heads by reading, it reaches the poison record during planning."""
    sim, query = make(1, ServiceBehaviour(poison_at_fetch=True), maxRecordsPerTrigger="1")
    sim.write("a", {"n": 1})
    sim.write("b", {"n": 1}, poison=True)
    assert len(query.step()) == 1
    with pytest.raises(SourceError, match="PROVIDER_ERROR"):
        query.step()


@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "1"}, {"maxRecordsPerTrigger": "3"}])
def test_what_lies_behind_a_record_that_cannot_be_fetched_is_planned_and_read(make, limit):
    sim, query = make(2, ServiceBehaviour(poison_at_fetch=True), onPoison="skip", **limit)
    for number in range(12):
        sim.write(f"k{number}", {"n": number}, poison=number in (0, 3, 4, 11))
    left = [record.event_id for record in sim.truth if not record.poison]
    assert ids(query.drain()) == sorted(left)
    assert sum(end["poison"]["count"] for end in query.log if "poison" in end) == 4


def test_range_of_a_collection_that_was_dropped_is_not_silently_short(make):
    sim, query = make(1, ServiceBehaviour(drop_notice=True))
    sim.write("a", {"n": 1})
    assert query.plan()
    sim.drop()
    with pytest.raises(SourceError, match="try again"):
        query.read()
