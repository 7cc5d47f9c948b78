"""Tests what a micro-batch contains if partitions are busy, idle, damaged or dropped."""

import pickle
from datetime import UTC, datetime

import attrs
import pytest

from multiclouddb_api import Dropped, Invalidated, PartitionFoundLate, Renamed
from multiclouddb_conformance.simulation import (
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
)
from multiclouddb_conformance.simulation.partition_log import PartitionLog
from multiclouddb_spi import Follows
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.micro_batches import MicroBatches
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
    sim, query = make(1, ServiceBehaviour(drop_notice=True), maxTaskPayload="0")
    sim.write("a", {"n": 1})
    assert query.plan()
    sim.drop()
    with pytest.raises(SourceError, match="try again"):
        query.read()


def now():
    return datetime.now(UTC).isoformat()


def planned(source, **options):
    settings = parse_options(source.options(**options)).for_batch()
    reader = pickle.loads(pickle.dumps(ChangeFeedReader(settings)))
    tasks = reader.partitions()
    assert isinstance(tasks, list)
    return lambda: [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def count(source, **options):
    """Return the number of rows of a batch; each row comes once."""
    found = ids(planned(source, **options)())
    assert len(set(found)) == len(found)
    return len(found)


def grow(source):
    """Make three generations of partitions."""
    for turn in range(3):
        source.write(20, seed=turn)
        source.split(turn)
        source.write(20, seed=turn)
        source.merge(turn)
    return now(), len(source.truth)


def test_reads_every_generation_of_partitions_from_and_to_a_moment(source):
    (first, before), (last, after), _ = grow(source), grow(source), grow(source)
    assert count(source) == len(source.truth)
    assert count(source, endingPosition=first) == before
    assert count(source, startingPosition=first, endingPosition=last) == after - before
    assert count(source, startingPosition=last, endingPosition=last) == 0


def test_snapshot_is_taken_when_it_is_planned(source):
    source.write(20)
    read = planned(source)
    source.write(20)
    source.split()
    assert len(read()) == 20


def test_snapshot_in_segments_has_each_row_once(source):
    source.fill(120)
    source.put("k1", {"n": 1000})
    assert count(source, startingPosition="snapshot", snapshotSegments="5") == 120


def test_end_at_a_moment_right_before_a_split(source):
    """The parent's last change is exactly at the end of the range; the changes of the children come after."""
    source.write(20)
    moment = now()
    for _ in range(3):
        source.split()
        source.write(20)
    assert count(source, endingPosition=moment) == 20


def test_end_to_come_is_refused(source):
    with pytest.raises(SourceError, match=r"INVALID_REQUEST\] endingPosition: is \d+ s ahead of"):
        planned(source, endingPosition="2999-01-01T00:00:00Z")


def test_start_that_was_trimmed_is_told(source):
    source.write(10)
    moment = now()
    source.write(10)
    source.trim(3)
    with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:CHECKPOINT_EXPIRED\]"):
        planned(source, startingPosition=moment)
    assert count(source) == 3


GONE = [(Dropped("sim/items"), "was dropped"), (Renamed("sim/items", "sim/old"), "was renamed to sim/old")]


@pytest.mark.parametrize(("notice", "text"), [*GONE, (Invalidated("it is over"), "it is over")])
@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "3"}])
def test_notice_that_other_rows_exist_is_in_the_offset_and_ends_the_query(
    make, notice, text, is_alone, limit
):
    sim, query = make(2, **limit)
    for number in range(0 if is_alone else 10):
        sim.write(f"k{number}", {"n": number})
    sim.announce("p0", notice)
    for _ in range(3):
        sim.write("later", {"n": 1})
    rows = []
    while not any("gone" in end for end in query.log):
        rows += query.step()
    assert text in "".join(query.log[-1]["gone"])
    restarted = query.restart()
    assert set(ids(restarted.read())) <= set(ids(rows))
    with pytest.raises(SourceError, match=f"NOT_FOUND.*{text}.*startingPosition=snapshot"):
        restarted.step()


def test_notices_that_change_no_row_are_no_end(make):
    sim, query = make(1)
    sim.announce("p0", PartitionFoundLate("p0", "here"))
    sim.write("a", {"n": 1})
    assert len(query.drain()) == 1
    assert not any("gone" in end for end in query.log)


@pytest.mark.parametrize("notice", [notice for notice, _ in GONE])
def test_task_fails_at_a_notice_that_no_offset_names(make, heads, monkeypatch, notice):
    sim, query = make(1)
    monkeypatch.setattr(PartitionLog, "has_notice", lambda *_: False)
    sim.write("a", {"n": 1})
    sim.announce("p0", notice)
    sim.write("b", {"n": 1})
    assert query.plan()
    assert ("gone" in query.log[-1]) == (not heads)
    query.log[-1].pop("gone", None)
    with pytest.raises(SourceError, match=r"NOT_FOUND.*startingPosition=snapshot"):
        query.read()


@pytest.fixture
def short(monkeypatch):
    """Let each answer stop after one change, without saying whether more follow."""
    heads = SimulationFeed.heads

    def answer(feed, cursors, most, deadline):
        found = heads(feed, cursors, 1, deadline)
        unknown = {name: head for name, head in found.items() if head.follows is Follows.MORE}
        return found | {name: attrs.evolve(each, follows=Follows.NOT_KNOWN) for name, each in unknown.items()}

    monkeypatch.setattr(SimulationFeed, "heads", answer)


@pytest.mark.usefixtures("short")
class TestNotKnown:
    """An answer that is shorter than the limit is not the end."""

    @pytest.fixture
    def source(self, simulation):
        for number in range(30):
            simulation.write(f"k{number}", {"n": number})
        return simulation

    @pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "20"}])
    def test_a_query_is_caught_up_and_idle_when_everything_was_read(self, source, limit):
        query = Query(source, pollInterval="1 hour", **limit)
        batches, found = query.reader._batches, []
        while query.plan():
            found += ids(query.read())
            assert batches.caught_up == (len(found) == 30)
            assert not batches.report["idle"]
        assert len(found) == 30
        assert batches.report["idle"]

    def test_a_plain_stream_says_that_more_follows_until_everything_was_read(self, source):
        query, found, more = Query(source, is_plain=True, maxRecordsPerTrigger="20"), 0, True
        while more:
            rows = query.restart().step()
            found, more = found + len(rows or []), rows is not None and query.log[-1].get("more", False)
        assert found == 30

    def test_a_batch_that_ends_by_itself_has_everything(self, source):
        assert count(source) == 30

    @pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "20"}])
    def test_a_stream_that_ends_by_itself_has_everything(self, source, limit):
        query = Query(source, **limit)
        query.reader.prepareForTriggerAvailableNow()
        assert len(query.drain()) == 30

    def test_nothing_left_is_said_only_when_it_is_known(self, source, monkeypatch):
        """A plan that has found nothing and knows nothing is made again, without a pause."""
        query = Query(source, pollInterval="1 hour")
        query.drain()
        query.restart()
        asked = []
        late = [lambda: source.write("late", {"n": 1})]
        none = MicroBatches._step

        def unknown(self, connection, before, most):
            step = none(self, connection, before, most)
            asked.append(step)
            if len(asked) < 3:
                return attrs.evolve(step, left=frozenset({"p0"}))
            while late:
                late.pop()()
            return none(self, connection, before, most)

        monkeypatch.setattr(MicroBatches, "_step", unknown)
        assert len(query.step()) == 1
        assert len(asked) == 3
