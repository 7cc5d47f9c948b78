"""Tests, without Spark, how a stream plans its starts and ends, and how it handles pauses, losses and
outages."""

import json
import threading
from collections import Counter
from itertools import product

import attrs
import pytest
from pyspark.sql.datasource import InputPartition

from multiclouddb_api import Capability
from multiclouddb_conformance.simulation import (
    ServerError,
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
    capabilities_without,
)
from multiclouddb_conformance.simulation.position import place_after, to_cursor
from multiclouddb_conformance.simulation.reader import SimulationReader
from multiclouddb_conformance.simulation.service_behaviour import CaughtUp
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_spi import Planner
from multiclouddb_spi.continuation.lineage import Lineage
from pyspark_multiclouddb import micro_batches, progress, saved_positions, stream
from pyspark_multiclouddb.checkpoint import offset_from_json
from pyspark_multiclouddb.errors import SourceError

from .micro_batches import Query, ids

AUTO_SAVE = {"pollInterval": "0", "idleCheckpointInterval": "5 minutes"}


def keys_of(partitions):
    """Return a key of each partition of a new collection."""
    probe = Simulation(partitions)
    return {probe.write(f"k{number}", {"n": 0}).partition_id: f"k{number}" for number in range(20)}


def written(simulation):
    return sorted(item.event_id for item in simulation.truth)


class TestStart:
    def test_is_symbolic_and_needs_no_database(self, source, tmp_path):
        query = Query(source, url=f"embedded://{tmp_path}/none.db")
        assert query.start_of(0) == query.restart().start_of(0)
        assert query.start_of(0)["from"] == "beginning"

    @pytest.mark.parametrize(
        ("position", "other", "count"), [("beginning", "now", 15), ("now", "beginning", 5)]
    )
    def test_is_fixed_by_a_batch_without_rows_and_not_by_later_options(self, source, position, other, count):
        source.write(10)
        query = Query(source, startingPosition=position)
        assert query.step() == []
        source.write(5)
        query.restart(startingPosition=other)
        assert query.read(0) == []
        assert len(query.drain()) == count

    def test_first_listing_without_partitions_is_not_the_end_of_the_feed(self, simulation):
        """A service may list a partition late. An offset without partitions could never be read from."""
        simulation.write("a", {"n": 1})
        for name in simulation.open_partitions:
            simulation.hide(name, 3)
        query = Query(simulation)
        query.step()
        assert len(query.log[0]["c"]["p"]) == 2
        assert len(query.drain()) == 1

    @pytest.mark.parametrize("position", ["beginning", "now", "snapshot"])
    def test_service_that_lists_no_partition_is_told_before_an_offset_is_written(self, simulation, position):
        for name in simulation.open_partitions:
            simulation.hide(name, 10_000)
        with pytest.raises(SourceError, match=r"TRANSIENT_FAILURE\] .*the service names no partition"):
            Query(simulation, startingPosition=position).plan()


class TestLimit:
    @pytest.fixture(autouse=True)
    def small_backlog(self, monkeypatch):
        monkeypatch.setattr(stream, "BACKLOG_RECORDS", 50)

    def sizes(self, query):
        return [size for rows in iter(query.step, None) if (size := len(rows))]

    def test_of_the_backlog_holds_until_the_stream_has_caught_up(self, source):
        source.write(230)
        query = Query(source)
        assert (sum(found := self.sizes(query)), max(found)) == (230, 50)
        source.write(120)
        query.log.append(query.log[-1])
        query.done += 1
        assert self.sizes(query) == [120]

    def test_of_the_backlog_holds_again_in_a_new_run(self, source):
        query = Query(source)
        query.drain()
        source.write(120)
        assert self.sizes(query.restart()) == [50, 50, 20]


class TestIdle:
    @pytest.fixture
    def query(self, simulation):
        query = Query(simulation, pollInterval="1 min")
        query.step()
        return query

    def test_database_is_asked_once_an_interval_and_the_offset_stays(self, simulation, query):
        assert not any(query.plan() for _ in range(100))
        assert simulation.provider.calls.heads == 1

    def test_answer_is_for_this_start_only(self, simulation, query):
        simulation.write("a", {"n": 1})
        later = Query(simulation)
        later.log = [*query.log]
        assert later.plan()
        simulation.write("a", {"n": 2})
        query.log = later.log
        assert [row["new_item_state"] for row in query.step("all") and query.step("all")] == ['{"n":2}']


class Clock:
    """Replaces the module `time`, so that calls do not really wait."""

    def __init__(self):
        self.seconds = 1000.0

    def monotonic(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (micro_batches, saved_positions):
        monkeypatch.setattr(module, "time", made)
    return made


class TestIdlePosition:
    """The store changes, but the collection does not. The feed's position moves, although the feed has no
    changes."""

    @pytest.fixture
    def query(self, source, clock):
        """Return a query that has read everything."""
        source.store.create_collection("others")
        source.write(10)
        query = Query(source, **AUTO_SAVE)
        query.drain()
        return query.restart()

    def write_beside(self, source):
        source.store.put("others", "k", {"n": 1})

    def moves(self, source, query, clock, seconds, times):
        """Return the times of the calls that returned a new offset; before each, another collection
        changes."""
        began, found = clock.seconds, []
        for _ in range(times):
            self.write_beside(source)
            if (rows := query.step("all")) is not None:
                assert rows == []
                found.append(clock.seconds - began)
            clock.seconds += seconds
        return found

    @pytest.mark.parametrize("limit", ["all", 3])
    def test_is_saved_at_once_by_a_query_that_goes_on(self, source, query, limit):
        self.write_beside(source)
        assert query.plan(limit)
        assert query.report["idle"] is True
        assert query.tasks() == []
        self.write_beside(source)
        assert not query.plan(limit)

    @pytest.mark.parametrize(
        ("options", "seconds", "times", "found"),
        [
            ({}, 10, 100, [0, 300, 600, 900]),
            ({"idleCheckpointInterval": "1 hour"}, 600, 13, [0, 3600, 7200]),
            # It is not saved more often than it is asked for.
            ({"idleCheckpointInterval": "0", "pollInterval": "1 min"}, 10, 13, [0, 60, 120]),
        ],
    )
    def test_is_saved_once_an_interval(self, source, query, clock, options, seconds, times, found):
        moves = self.moves(source, query.restart(**options), clock, seconds, times)
        assert [round(moment, -1) for moment in moves] == found

    def test_is_saved_by_records_only_when_it_is_due(self, source, query, clock):
        """A batch moves only the partitions from which it contains records; the others move later."""
        self.write_beside(source)
        query.step()

        def moved():
            source.write(1)
            assert len(query.step()) == 1
            both = [sorted(map(json.dumps, offset["c"]["p"])) for offset in query.log[-2:]]
            return sum(new != old for new, old in zip(*both, strict=True))

        clock.seconds += 299
        self.write_beside(source)
        assert moved() == 1
        clock.seconds += 1
        assert moved() == 3

    def test_that_was_just_pinned_is_fresh(self, source, clock):
        query = Query(source, startingPosition="now", **AUTO_SAVE)
        source.store.create_collection("others")
        query.step()
        assert self.moves(source, query, clock, 100, 7) == [300, 600]

    def test_that_stands_still_costs_nothing(self, query, clock):
        query.restart(idleCheckpointInterval="0")
        for _ in range(5):
            assert not query.plan()
            clock.seconds += 1000

    @pytest.mark.parametrize("records", [0, 5])
    def test_is_saved_once_in_a_run_that_ends_by_itself(self, source, query, clock, records):
        """A run with records saves it with them."""
        for _ in range(3):
            source.write(records)
            self.write_beside(source)
            query.restart(idleCheckpointInterval="0").reader.prepareForTriggerAvailableNow()
            assert len(query.step()) == records
            assert self.moves(source, query, clock, 1000, 3) == []
            source.write(1)
            assert query.step() is None
            assert len(query.restart().step()) == 1

    def test_is_not_looked_through_twice(self, source, query, monkeypatch):
        begun, advance = [], Planner.advance

        def noting(planner, before, *rest, **settings):
            begun.append(json.dumps(before.to_json()))
            return advance(planner, before, *rest, **settings)

        monkeypatch.setattr(Planner, "advance", noting)
        self.write_beside(source)
        query.step()
        for _ in range(5):
            self.write_beside(source)
            assert not query.plan()
        source.write(3)
        assert len(query.step()) == 3
        query.plan()
        assert len(set(begun)) == len(begun) == 8

    def test_of_another_start_is_not_taken_for_this_one(self, source, query):
        self.write_beside(source)
        query.step()
        self.write_beside(source)
        assert not query.plan()
        assert query.plan("all", start=query.log[0])
        tasks = query.reader.partitions(query.log[0], query.log[-1])
        assert sum(batch.num_rows for task in tasks for batch in query.reader.read(task)) == 10

    def test_is_saved_when_it_is_due_although_it_stands_by_then(self, source, query, clock):
        self.write_beside(source)
        query.step()
        self.write_beside(source)
        assert not query.plan()
        clock.seconds += 300
        assert query.step() == []
        clock.seconds += 300
        assert not query.plan()


def test_children_are_saved_before_they_are_read(simulation):
    """A call finds child partitions. In the same call, only the position of another partition advances."""
    keys = {simulation.write(key, {"n": 0}).partition_id: key for key in "abcdefgh"}
    simulation.delay_children("p0", 3)
    query = Query(simulation)
    found = query.step()
    simulation.split("p0")
    for number in range(10):
        simulation.write(keys["p0"], {"n": number})
        found += query.step() or []
    assert ids(found + query.drain()) == written(simulation)


class TestSlowPartition:
    """One of two partitions doesn't answer, and neither has records: only positions move."""

    @pytest.fixture
    def query(self, simulation, monkeypatch):
        monkeypatch.setattr(SimulationFeed, "heads", lambda self, *_: {})
        for module in ("planning.heads", "fetching.queue"):
            monkeypatch.setattr(f"multiclouddb_spi.{module}.TURN_SECONDS", 0.05)
        query = Query(simulation, startingPosition="now", **AUTO_SAVE)
        query.drain()
        yield query
        simulation.release("p1")

    def test_does_not_hold_the_query(self, simulation, query):
        """What the step has found is a batch, so that Spark can end the query; else the step would be
        planned again and again, until the partition answers.
        """
        simulation.hold("p1")
        simulation.commit_elsewhere()
        hopeless = threading.Timer(20, simulation.release, ["p1"])
        hopeless.start()
        assert query.plan()
        assert hopeless.is_alive()
        hopeless.cancel()

    def test_is_saved_when_it_answers_if_it_was_late_when_all_were_saved(self, simulation, clock, query):
        clock.seconds += 300
        simulation.hold("p1")
        simulation.commit_elsewhere()
        assert query.step() == []
        simulation.release("p1")
        assert query.step() == []
        simulation.commit_elsewhere()
        assert not query.plan()


class TestIdleFeedOverRetention:
    """A query follows only one of two partitions, and the logs of both partitions are trimmed."""

    @pytest.fixture
    def query(self, simulation):
        simulation.owners = {simulation.write(key, {"n": 0}).partition_id: key for key in "abcdefgh"}
        query = Query(simulation, startingPosition="now", **AUTO_SAVE)
        query.step()
        first = query.log[0]
        first["c"] = {"p": [entry for entry in first["c"]["p"] if entry[0] == "p0"]}
        return query.restart()

    def write(self, simulation, partition):
        simulation.write(simulation.owners[partition], {"n": 1})

    def test_the_checkpoint_moves_along(self, simulation, query):
        for _ in range(3):
            self.write(simulation, "p1")
            query.restart().reader.prepareForTriggerAvailableNow()
            assert query.drain() == []
            simulation.trim()
        self.write(simulation, "p0")
        assert len(query.restart().step()) == 1
        with pytest.raises(SourceError, match="CHECKPOINT_EXPIRED"):
            query.restart().plan(start=query.log[0])

    def test_a_batch_of_it_outlives_what_it_went_over(self, simulation, query):
        """The driver crashed after planning; when it restarts, the log has been trimmed almost to its end."""
        self.write(simulation, "p1")
        assert query.plan()
        simulation.trim()
        self.write(simulation, "p0")
        query.restart()
        assert query.step() == []
        assert len(query.step()) == 1


@pytest.mark.parametrize("ends_by_itself", [False, True], ids=["goes on", "ends by itself"])
@pytest.mark.parametrize(
    "answers", [*product(["prompt", "late", "in parts", "refused"], repeat=2)], ids=" and ".join
)
def test_a_run_that_has_read_everything_has_saved_all_positions(
    simulation, monkeypatch, ends_by_itself, answers
):
    """The first batch has the records of one partition, and what the others have answered by then. The run
    ends long before idle positions are saved again, and the next one begins after retention has removed all
    that lies before this one.
    """
    monkeypatch.setattr(SimulationFeed, "heads", lambda self, *_: {})
    monkeypatch.setattr("multiclouddb_spi.planning.heads.TURN_SECONDS", 0.01)
    monkeypatch.setattr("multiclouddb_spi.fetching.queue.TURN_SECONDS", 0.01)
    many = Simulation(partitions=3)
    monkeypatch.setattr(simulation, "provider", SimulationProvider(many))
    keys, fetch, target, left = keys_of(3), SimulationReader.fetch, Planner.target, threading.Event()
    asks, asked = {}, Counter()

    def through(reader, *wanted):
        """Let p1 and p2 answer in their way until a batch is planned without what they have not sent."""
        name, way = reader._id, asks.get(reader._id)
        asked[name] += 1
        if way == "refused":
            raise ServerError("503")
        after = place_after(reader._place[0])
        if way == "late" or (way == "in parts" and asked[name] > 3):
            assert left.wait(20)
        elif way == "in parts":
            batch, reader._place = fetch(reader, *wanted), after  # one commit further
            return attrs.evolve(batch, end=to_cursor(after), caught_up=False)
        return fetch(reader, *wanted)

    def targeted(planner, *wanted):
        found = target(planner, *wanted)
        asks.update(zip(("p1", "p2"), answers, strict=True))
        return found

    query = Query(simulation, startingPosition="now", **AUTO_SAVE)
    query.drain()
    for number in range(5):
        many.write(keys["p0"], {"n": number})
    monkeypatch.setattr(SimulationReader, "fetch", through)
    monkeypatch.setattr(Planner, "target", targeted)
    query.restart()
    asked.clear()
    if ends_by_itself:
        query.reader.prepareForTriggerAvailableNow()
    else:
        asks.update(zip(("p1", "p2"), answers, strict=True))
    assert query.plan()
    asks.clear()
    left.set()
    assert len(query.drain()) == 5
    many.trim()
    many.write(keys["p1"], {"n": 6})
    many.write(keys["p2"], {"n": 6})
    assert len(query.restart().drain()) == 2


@pytest.mark.parametrize("is_plain", [True, False], ids=["Spark 4.0", "Spark 4.2"])
@pytest.mark.parametrize("happens", ["records", "a new partition", "nothing"])
def test_a_start_at_the_beginning_leaves_it_with_its_first_run(simulation, is_plain, happens):
    """A partition without changes stood at what expires first."""
    keys = keys_of(2)
    match happens:
        case "records":
            simulation.write(keys["p1"], {"n": 1})
        case "a new partition":
            simulation.roll("p1")
        case "nothing":
            simulation.commit_elsewhere()
    query = Query(simulation, is_plain=is_plain, startingPosition="beginning", **AUTO_SAVE)
    assert len(query.drain()) == (happens == "records")
    simulation.trim()
    simulation.write(keys["p0"], {"n": 6})
    assert len(query.restart().drain()) == 1


class TestManyPartitions:
    def test_batch_of_one_record_reads_one_range(self, monkeypatch, simulation):
        many = Simulation(partitions=1000)
        monkeypatch.setattr(simulation, "provider", SimulationProvider(many))
        query = Query(simulation, startingPosition="now")
        query.step()
        for number in range(3):
            many.write("a", {"n": number})
            assert len(query.step()) == 1
            (task,) = query.tasks()
            assert len(task.value.ranges) == 1

    def test_idle_poll_looks_at_no_partition_while_nothing_changes(self, source, clock, monkeypatch):
        looked, heads = [], EmbeddedFeed.heads

        def counted(feed, cursors, *arguments):
            looked.append(len(cursors))
            return heads(feed, cursors, *arguments)

        monkeypatch.setattr(EmbeddedFeed, "heads", counted)
        source.store.create_collection("orders", partitions=100, recreate=True)
        query = Query(source)
        query.step()
        assert not any(query.plan() for _ in range(10))
        assert looked == [100]
        clock.seconds += 61
        assert not query.plan()
        assert looked == [100, 100]
        for act in (lambda: source.write(1), source.split, source.merge):
            act()
            assert query.step() is not None

    def test_change_during_a_poll_is_found_by_the_next_poll(self, source, clock, monkeypatch):
        heads = EmbeddedFeed.heads

        def overtaken(feed, *arguments):
            found = heads(feed, *arguments)
            monkeypatch.setattr(EmbeddedFeed, "heads", heads)
            source.write(1)
            return found

        query = Query(source)
        query.step()
        monkeypatch.setattr(EmbeddedFeed, "heads", overtaken)
        assert not query.plan()
        assert len(query.step()) == 1


def test_each_offset_is_parsed_once(simulation, monkeypatch):
    """Spark passes it as the end of a step, as the start of the next step, and twice to `partitions`."""
    parsed, built, from_json = [], [], Lineage.from_json
    parse = lambda *given: parsed.append(given) or offset_from_json(*given)  # noqa: E731
    monkeypatch.setattr(micro_batches, "offset_from_json", parse)
    monkeypatch.setattr(Lineage, "from_json", lambda *given: built.append(given) or from_json(*given))
    query = Query(simulation)
    query.step()
    for number in range(5):
        simulation.write("a", {"n": number})
        assert len(query.step()) == 1
    assert len(parsed) == 7, "the symbolic start, and the end of each of six steps"
    assert len(built) == 6


class TestReport:
    @pytest.mark.parametrize("later", [0, 1])
    def test_loss_is_saved_and_told_once(self, source, later):
        """Most partitions have no change after the loss, or none has."""
        source.write(20)
        query = Query(source, failOnDataLoss="false")
        query.drain()
        source.write(20, seed=1)
        source.trim()
        source.fill(later)
        assert len(query.step()) == later
        assert query.report["skipped"]["count"] == 3
        query.restart().plan()
        assert query.report["skipped"]["count"] == 0

    def test_loss_after_a_plan_ends_the_query_and_is_told_after_a_restart(self, source):
        source.write(20)
        query = Query(source, failOnDataLoss="false")
        query.drain()
        source.write(20, seed=1)
        assert query.plan()
        source.trim()
        with pytest.raises(SourceError, match=r"TRANSIENT_FAILURE\].*restart the query, which then skips"):
            query.step()
        assert query.restart().step() == []
        source.fill(1)
        assert len(query.step()) == 1
        assert query.log[-1]["lost"] == 1

    def test_summary_is_small_and_tells_how_far(self, source):
        source.write(20)
        query = Query(source)
        assert query.report is None
        query.step()
        last = max(row["timestamp"] for row in query.step())
        report = query.report
        assert (report["partitions"], report["waiting"], report["idle"]) == (3, 0, False)
        assert report["readUntil"].removesuffix("Z") == last.isoformat().removesuffix("+00:00")
        assert report["lagSeconds"] >= 0
        assert not query.plan()
        assert query.report["idle"] is True
        assert set(report) == {
            "events", "foundLate", "headroomSeconds", "idle", "lagSeconds", "openWatches", "partitions",
            "poison", "readUntil", "readUntilEstimated", "skipped", "snapshot", "v", "waiting",
        }  # fmt: skip


class TestLag:
    """The service sends no watermarks; its answer that nothing follows proves how far a query has read."""

    @pytest.fixture(params=[True, False], ids=["heads", "no heads"])
    def query(self, simulation, monkeypatch, request):
        self.patch = monkeypatch
        monkeypatch.setattr(progress, "_CLOCK_SECONDS", 0.0)
        if not request.param:
            monkeypatch.setattr(SimulationFeed, "heads", lambda self, *_: {})
        return self.begun(simulation)

    def begun(self, simulation, delay=0.0, **behaviour):
        self.patch.setattr(SimulationFeed, "visible_after", lambda self: delay)
        simulation.behaviour = ServiceBehaviour(watermarks=False, heartbeats=False, **behaviour)
        query = Query(simulation, startingPosition="now")
        query.step()
        return query

    def test_of_a_busy_feed_does_not_grow_because_one_partition_is_quiet(self, simulation, query):
        delay, slack, until = 5.0, 4.0, ""
        query = self.begun(simulation, delay)
        for _ in range(4):
            simulation.advance(22)
            simulation.write("a", {"n": 1})
            query.step()
            assert query.report["lagSeconds"] <= delay + slack
            assert query.report["readUntil"] > until
            assert query.report["readUntilEstimated"] is False
            until = query.report["readUntil"]

    def test_of_a_step_that_ends_at_its_limit(self, simulation, query):
        for number in range(9):
            simulation.write("a", {"n": number})
        simulation.advance(100)
        for limit, is_behind in ((4, True), (4, True), (9, False)):
            query.step(limit)
            assert (query.report["lagSeconds"] > 90) is is_behind

    @pytest.mark.parametrize("query", [False], indirect=True)
    @pytest.mark.parametrize("is_likely", [False, True])
    def test_answer_that_may_be_followed_proves_nothing(self, simulation, query, is_likely):
        """A moment that is only likely is marked."""
        query, fetch = self.begun(simulation, caught_up=CaughtUp.UNKNOWN), SimulationReader.fetch

        def likely(reader, *asked):
            return attrs.evolve(fetch(reader, *asked), likely_read_until=simulation.now)

        if is_likely:
            self.patch.setattr(SimulationReader, "fetch", likely)
        simulation.advance(100)
        query.plan()
        report = query.report
        if is_likely:
            assert (report["lagSeconds"], report["readUntilEstimated"]) == (pytest.approx(0, abs=4), True)
        else:
            assert report["readUntil"] is None


@pytest.mark.parametrize("limit", ["all", 9])
def test_run_that_ends_by_itself_ends_while_others_write_split_and_merge(source, limit):
    source.write(50)
    source.split()
    source.write(20)
    query, found = Query(source), []
    query.reader.prepareForTriggerAvailableNow()
    query.step(limit)
    for turn in range(1000):
        if (rows := query.step(limit)) is None:
            break
        found += rows
        source.write(5, seed=turn)
        if turn < 5:
            source.split(turn)
    assert len(found) == 70
    found += query.restart().drain(limit)
    assert len(set(ids(found))) == len(found) == len(source.truth)


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"startingPosition": "2999-01-01T00:00:00Z"},
                r"INVALID_REQUEST\] startingPosition: is \d+ s ah",
            ),
            ({"collection": "no\nne"}, r"NOT_FOUND\] there is no collection main/no ne"),
        ],
    )
    def test_of_a_start(self, source, options, message):
        with pytest.raises(SourceError, match=rf"^\[MULTICLOUDDB:{message}"):
            Query(source, **options).plan()

    @pytest.mark.parametrize(
        ("name", "value"), [("newItemState", "require"), ("oldItemState", "include_if_available")]
    )
    def test_other_columns_than_those_of_the_checkpoint(self, source, name, value):
        query = Query(source)
        query.step()
        message = rf"checkpoint: was written with the default .* the query has {name}={value}"
        with pytest.raises(SourceError, match=message):
            query.restart(**{name: value}).plan()
        same = Query(source, **{name: value})
        same.step()
        assert not same.restart().plan()

    def test_checkpoint_of_another_collection(self, source):
        query = Query(source)
        query.step()
        query.restart(collection="others")
        for ask in (query.plan, lambda: query.reader.partitions(query.log[0], query.log[0])):
            with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:INVALID_REQUEST\] checkpoint: is of anot"):
                ask()

    def test_recreated_collection(self, source):
        source.write(5)
        query = Query(source)
        query.drain()
        tasks = query.tasks()
        source.store.create_collection("orders", recreate=True)
        recreated = (
            r"\[MULTICLOUDDB:INVALID_REQUEST\] checkpoint: belongs to an earlier main/orders, .*checkpointL"
        )
        with pytest.raises(SourceError, match=recreated):
            query.restart().plan()
        with pytest.raises(SourceError, match=recreated):
            list(query.reader.read(tasks[0]))

    def test_worker_that_knew_the_earlier_collection_reads_the_new_one(self, source):
        old = Query(source)
        old.step()
        worker = old.reader
        source.store.create_collection("orders", recreate=True)
        source.write(5)
        new = Query(source)
        new.drain()
        assert sum(batch.num_rows for task in new.tasks() for batch in worker.read(task)) == 5

    def test_database_that_cannot_start_there(self, simulation):
        """The position of the checkpoint can be read, even if the database cannot start there."""
        without = capabilities_without(Capability.CHANGE_FEED_BEGINNING)
        simulation.provider = SimulationProvider(simulation, capabilities=without)
        with pytest.raises(SourceError, match=r"UNSUPPORTED_CAPABILITY\] startingPosition=beginning is n"):
            Query(simulation).plan()
        query = Query(simulation, startingPosition="now")
        query.step()
        simulation.write("a", {"n": 1})
        assert len(query.restart(startingPosition="beginning").step()) == 1

    def test_feed_that_has_ended_is_told_once_all_is_delivered(self, simulation):
        query = Query(simulation)
        query.step()
        query.log[0]["c"] = {"p": []}
        with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:NOT_FOUND\] the feed of sim/items has ended"):
            query.restart().plan()


class TestTroubles:
    @pytest.mark.parametrize("operation", ["open_feed", "start", "heads"])
    def test_outage_is_waited_out(self, simulation, operation):
        simulation.write("a", {"n": 1})
        simulation.fail_next(None, ServerError("503"), times=30, operation=operation)
        assert len(Query(simulation).drain()) == 1

    def test_expired_position_names_the_way_out(self, source):
        source.write(20)
        query = Query(source)
        query.step()
        assert query.plan()
        source.trim(5)
        for ask in (query.read, lambda: query.restart().plan(start=query.log[0])):
            with pytest.raises(SourceError, match=r"CHECKPOINT_EXPIRED\].*set failOnDataLoss=fa") as caught:
                ask()
            assert "SkipToOldest" not in str(caught.value)

    def test_outage_while_a_loss_is_skipped_is_waited_out(self, simulation):
        for number in range(20):
            simulation.write(f"k{number}", {"n": number})
        query = Query(simulation, failOnDataLoss="false")
        query.step()
        assert query.plan()
        simulation.trim(upto=10)
        simulation.fail_next(None, ServerError("503"), times=2, operation="oldest")
        assert len(query.restart().read()) == 10


def test_task_without_work_has_no_rows(source):
    assert list(Query(source).reader.read(InputPartition(None))) == []
