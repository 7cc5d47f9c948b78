"""Tests, without Spark, how a stream's reader plans starts and ends, and how it handles pauses and
outages."""

import json

import attrs
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from multiclouddb_api import Capability
from multiclouddb_conformance.simulation import (
    ServerError,
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
    ThrottledError,
    capabilities_without,
)
from multiclouddb_conformance.simulation.reader import SimulationReader
from multiclouddb_conformance.simulation.service_behaviour import CaughtUp
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_spi import Planner
from multiclouddb_spi.continuation.lineage import Lineage
from pyspark_multiclouddb import connection, micro_batches, progress
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.offsets import offset_from_json
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.stream import ChangeFeedStreamReader

ALL = ReadAllAvailable()


def reader_of(source, **options):
    return ChangeFeedStreamReader(parse_options(source.options(**options)).for_stream())


def rows(reader, start, end):
    found = []
    for task in reader.partitions(start, end):
        for batch in reader.read(task):
            found += batch.to_pylist()
    return found


@pytest.fixture
def simulation(monkeypatch):
    """Provide a simulated database for the option `url=simulation://`."""
    sim = Simulation(partitions=2)
    sim.provider = SimulationProvider(sim)
    monkeypatch.setattr(connection, "open_provider", lambda config: sim.provider)
    monkeypatch.setattr("multiclouddb_spi.retry.time.sleep", lambda seconds: None)
    return sim


def simulated(**options):
    return ChangeFeedStreamReader(
        parse_options(
            {"url": "simulation://", "database": "sim", "collection": "items", "pollInterval": "0", **options}
        )
    )


class TestStart:
    def test_is_symbolic_and_needs_no_database(self, source, tmp_path):
        reader = reader_of(source, url=f"embedded://{tmp_path}/none.db")
        assert reader.initialOffset() == reader.initialOffset()
        assert reader.initialOffset()["from"] == "beginning"

    @pytest.mark.parametrize("position", ["beginning", "now"])
    def test_first_batch_pins_it_and_has_no_rows(self, source, position):
        source.write(10)
        reader = reader_of(source, startingPosition=position)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        assert end != start
        assert list(reader.partitions(start, end)) == []

    def test_now_delivers_what_is_written_behind_the_pin(self, source):
        """Changes after the fixed start are also delivered when the first batch is replayed."""
        source.write(10)
        reader = reader_of(source, startingPosition="now")
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        source.write(5)
        again = reader_of(source, startingPosition="now")
        assert list(again.partitions(again.initialOffset(), pinned)) == []
        end = again.latestOffset(pinned, ALL)
        assert len(rows(again, pinned, end)) == 5

    def test_time_is_inclusive(self, source):
        source.write(10)
        reader = reader_of(source)
        everything = rows(reader, *self.first_two(reader))
        everything.sort(key=lambda row: row["order_key"])
        sixth = everything[5]["timestamp"].isoformat()
        later = reader_of(source, startingPosition=sixth)
        assert len(rows(later, *self.first_two(later))) == 5

    def test_time_to_come_is_refused(self, source):
        reader = reader_of(source, startingPosition="2999-01-01T00:00:00Z")
        with pytest.raises(
            SourceError, match=r"\[MULTICLOUDDB:INVALID_REQUEST\] startingPosition: is \d+ s ahead of"
        ):
            reader.latestOffset(reader.initialOffset(), ALL)

    def first_two(self, reader):
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        return pinned, reader.latestOffset(pinned, ALL)

    def test_first_listing_without_partitions_is_not_the_end_of_the_feed(self, simulation):
        """A service may list a partition late. An offset without partitions could never be read from."""
        simulation.write("a", {"n": 1})
        for name in simulation.open_partitions:
            simulation.hide(name, 3)
        reader = simulated()
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        assert len(pinned["c"]["p"]) == 2
        assert len(rows(reader, pinned, reader.latestOffset(pinned, ALL))) == 1

    @pytest.mark.parametrize("position", ["beginning", "now", "snapshot"])
    def test_service_that_lists_no_partition_is_told_before_an_offset_is_written(self, simulation, position):
        for name in simulation.open_partitions:
            simulation.hide(name, 10_000)
        reader = simulated(startingPosition=position)
        with pytest.raises(SourceError, match=r"TRANSIENT_FAILURE\] .*the service names no partition"):
            reader.latestOffset(reader.initialOffset(), ALL)

    def test_is_taken_from_the_checkpoint_not_from_the_options(self, source):
        source.write(10)
        pinned = reader_of(source).latestOffset(reader_of(source).initialOffset(), ALL)
        restarted = reader_of(source, startingPosition="now")
        assert len(rows(restarted, pinned, restarted.latestOffset(pinned, ALL))) == 10


class TestIdle:
    def pinned(self, reader):
        return reader.latestOffset(reader.initialOffset(), ALL)

    def test_nothing_new_gives_the_very_start(self, source):
        reader = reader_of(source, pollInterval="0")
        pinned = self.pinned(reader)
        assert reader.latestOffset(pinned, ALL) is pinned

    def test_database_is_asked_once_an_interval(self, simulation):
        reader = simulated(pollInterval="1 min")
        pinned = self.pinned(reader)
        for _ in range(100):
            assert reader.latestOffset(json.loads(json.dumps(pinned)), ALL) == pinned
        assert simulation.provider.calls.heads == 1

    def test_answer_is_for_this_start_only(self, source):
        reader = reader_of(source, pollInterval="2 min")
        pinned = self.pinned(reader)
        assert reader.latestOffset(pinned, ALL) is pinned
        source.write(3)
        other = reader_of(source).latestOffset(pinned, ALL)
        source.write(1)
        assert reader.latestOffset(other, ALL) != other

    def test_new_rows_come_after_the_interval(self, source):
        reader = reader_of(source, pollInterval="50 ms")
        pinned = self.pinned(reader)
        assert reader.latestOffset(pinned, ALL) is pinned
        source.write(1)
        wait_until(lambda: reader.latestOffset(pinned, ALL) is not pinned)


def places(offset):
    return sorted(map(json.dumps, offset["c"]["p"]))


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
    monkeypatch.setattr(micro_batches, "time", made)
    return made


class TestIdlePosition:
    """The store changes, but the collection does not. The feed's position moves, although the feed has no
    changes."""

    @pytest.fixture
    def offset(self, source, clock):
        """Return the offset in the checkpoint after everything was read."""
        source.store.create_collection("others")
        source.write(10)
        reader = reader_of(source)
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        return json.loads(json.dumps(reader.latestOffset(pinned, ALL)))

    def write_beside(self, source):
        source.store.put("others", "k", {"n": 1})

    def moves(self, source, reader, offset, clock, seconds, times):
        """Return the times of the calls that returned a new offset. Before each call, the test writes to
        another collection."""
        began, found = clock.seconds, []
        for _ in range(times):
            self.write_beside(source)
            end = reader.latestOffset(offset, ALL)
            if end is not offset:
                found.append(clock.seconds - began)
            offset = end
            clock.seconds += seconds
        return found

    @pytest.mark.parametrize("limit", [ALL, ReadMaxRows(3)], ids=["all", "limited"])
    def test_is_saved_at_once_by_a_query_that_goes_on(self, source, offset, limit):
        reader = reader_of(source, pollInterval="0")
        self.write_beside(source)
        end = reader.latestOffset(offset, limit)
        assert end != offset
        assert reader.reportLatestOffset()["idle"] is True
        assert reader.partitions(offset, end) == []
        self.write_beside(source)
        assert reader.latestOffset(end, limit) is end

    def test_is_saved_once_an_interval(self, source, offset, clock):
        assert self.moves(source, reader_of(source), offset, clock, 10, 100) == [0, 300, 600, 900]
        reader = reader_of(source, idleCheckpointInterval="1 hour")
        assert self.moves(source, reader, offset, clock, 600, 13) == [0, 3600, 7200]

    def test_is_not_saved_more_often_than_it_is_asked(self, source, offset, clock):
        reader = reader_of(source, pollInterval="1 min", idleCheckpointInterval="0")
        found = self.moves(source, reader, offset, clock, 10, 13)
        assert [round(seconds, -1) for seconds in found] == [0, 60, 120]

    def test_is_saved_by_records_only_when_it_is_due(self, source, offset, clock):
        """A batch moves only the partitions from which it contains records.

        The moves of other partitions are saved after the interval.
        """
        reader = reader_of(source, pollInterval="0")
        self.write_beside(source)
        offset = reader.latestOffset(offset, ALL)
        clock.seconds += 299
        self.write_beside(source)
        source.write(1)
        end = reader.latestOffset(offset, ALL)
        moved = [new for new, old in zip(places(end), places(offset), strict=True) if new != old]
        assert len(moved) == 1
        assert len(reader.partitions(offset, end)) == 1
        clock.seconds += 1
        source.write(1)
        last = reader.latestOffset(end, ALL)
        assert all(new != old for new, old in zip(places(last), places(offset), strict=True))

    def test_that_was_just_pinned_is_fresh(self, source, clock):
        reader = reader_of(source, startingPosition="now")
        source.store.create_collection("others")
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        assert self.moves(source, reader, pinned, clock, 100, 7) == [300, 600]

    def test_that_stands_still_costs_nothing(self, source, offset, clock):
        reader = reader_of(source, pollInterval="0", idleCheckpointInterval="0")
        for _ in range(5):
            assert reader.latestOffset(offset, ALL) is offset
            clock.seconds += 1000

    def test_is_saved_once_in_a_run_that_ends_by_itself(self, source, offset, clock):
        for _ in range(3):
            self.write_beside(source)
            reader = reader_of(source, idleCheckpointInterval="0")
            reader.prepareForTriggerAvailableNow()
            end = reader.latestOffset(offset, ALL)
            assert end != offset
            assert reader.partitions(offset, end) == []
            assert self.moves(source, reader, end, clock, 1000, 3) == []
            source.write(1)
            assert reader.latestOffset(end, ALL) is end
            offset = reader_of(source).latestOffset(end, ALL)
            assert len(rows(reader, end, offset)) == 1

    def test_adds_nothing_to_a_run_with_records(self, source, offset, clock):
        source.write(5)
        self.write_beside(source)
        reader = reader_of(source)
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(offset, ALL)
        assert len(rows(reader, offset, end)) == 5
        assert self.moves(source, reader, end, clock, 1, 3) == []

    def test_is_replayed_without_the_database(self, source, offset, tmp_path):
        self.write_beside(source)
        end = json.loads(json.dumps(reader_of(source).latestOffset(offset, ALL)))
        source.store.close()
        (tmp_path / "store.db").rename(tmp_path / "gone.db")
        assert reader_of(source).partitions(offset, end) == []

    @pytest.fixture
    def begun(self, monkeypatch):
        """Record the lineage with which each call of `Planner.advance` starts."""
        begun, advance = [], Planner.advance

        def noting(planner, before, *rest, **settings):
            begun.append(before.to_json())
            return advance(planner, before, *rest, **settings)

        monkeypatch.setattr(Planner, "advance", noting)
        return begun

    def test_is_not_looked_through_twice(self, source, offset, clock, begun):
        reader = reader_of(source, pollInterval="0")
        self.write_beside(source)
        offset = reader.latestOffset(offset, ALL)
        for _ in range(5):
            self.write_beside(source)
            assert reader.latestOffset(offset, ALL) is offset
        assert len({json.dumps(each) for each in begun}) == 6
        source.write(3)
        end = reader.latestOffset(offset, ALL)
        assert len(rows(reader, offset, end)) == 3
        assert begun[-1] != offset["c"]
        reader.latestOffset(end, ALL)
        # The call starts ahead of the offset, because the offset keeps the old positions of partitions
        # without records.
        assert sorted(begun[-1]["p"]) >= sorted(end["c"]["p"])
        assert begun[-1] not in begun[:-1]

    def test_of_another_question_is_not_taken_for_this_one(self, source, offset, clock, begun):
        reader = reader_of(source, pollInterval="0")
        self.write_beside(source)
        later = reader.latestOffset(offset, ALL)
        self.write_beside(source)
        assert reader.latestOffset(later, ALL) is later
        reader.latestOffset(offset, ALL)
        assert begun[-1] == offset["c"]

    def test_is_saved_when_it_is_due_although_it_stands_by_then(self, source, offset, clock):
        reader = reader_of(source, pollInterval="0")
        self.write_beside(source)
        offset = reader.latestOffset(offset, ALL)
        self.write_beside(source)
        assert reader.latestOffset(offset, ALL) is offset
        clock.seconds += 300
        end = reader.latestOffset(offset, ALL)
        assert end["c"] != offset["c"]
        assert reader.partitions(offset, end) == []
        clock.seconds += 300
        assert reader.latestOffset(end, ALL) is end

    @pytest.mark.parametrize("interval", ["0", "1 hour"])
    def test_loses_nothing_that_is_written_later(self, source, offset, clock, interval):
        found, reader = [], reader_of(source, pollInterval="0", idleCheckpointInterval=interval)
        for number in range(20):
            self.write_beside(source)
            source.write(number % 3)
            if number % 5 == 4:
                source.split(number)
            end = reader.latestOffset(offset, ReadMaxRows(2))
            found += rows(reader, offset, end)
            offset = json.loads(json.dumps(end))
        while (end := reader.latestOffset(offset, ALL)) is not offset:
            found += rows(reader, offset, end)
            offset = end
        assert len({row["event_id"] for row in found}) == len(found) == len(source.truth) - 10


def test_children_are_saved_before_they_are_read(simulation):
    """A call finds child partitions. In the same call, only the position of another partition advances."""
    keys = {simulation.write(key, {"n": 0}).partition_id: key for key in "abcdefgh"}
    simulation.delay_children("p0", 3)
    reader = simulated()
    offset, found = reader.latestOffset(reader.initialOffset(), ALL), []
    simulation.split("p0")
    for number in range(10):
        simulation.write(keys["p0"], {"n": number})
        end = reader.latestOffset(offset, ALL)
        found += [] if end is offset else rows(reader, offset, end)
        offset = end
    while (end := reader.latestOffset(offset, ALL)) is not offset:
        found += rows(reader, offset, end)
        offset = end
    assert sorted(row["event_id"] for row in found) == sorted(item.event_id for item in simulation.truth)


class TestIdleFeedOverRetention:
    """A query follows only one of two partitions, and the logs of both partitions are trimmed."""

    @pytest.fixture
    def offset(self, simulation):
        simulation.owners = {simulation.write(key, {"n": 0}).partition_id: key for key in "abcdefgh"}
        reader = simulated(startingPosition="now")
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        return {**pinned, "c": {"p": [entry for entry in pinned["c"]["p"] if entry[0] == "p0"]}}

    def days(self, simulation, offset, **options):
        """Run the query once per night, and trim the log after each run."""
        for _ in range(3):
            simulation.write(simulation.owners["p1"], {"n": 1})
            reader = simulated(**options)
            reader.prepareForTriggerAvailableNow()
            while (end := reader.latestOffset(offset, ALL)) is not offset:
                assert rows(reader, offset, end) == []
                offset = end
            simulation.trim()
        return offset

    def test_the_checkpoint_moves_along(self, simulation, offset):
        last = self.days(simulation, offset)
        simulation.write(simulation.owners["p0"], {"n": 2})
        reader = simulated()
        assert len(rows(reader, last, reader.latestOffset(last, ALL))) == 1
        with pytest.raises(SourceError, match="CHECKPOINT_EXPIRED"):
            simulated().latestOffset(offset, ALL)

    def test_a_batch_of_it_outlives_what_it_went_over(self, simulation, offset):
        """The driver crashed after planning; when it restarts, the log has been trimmed almost to its end."""
        simulation.write(simulation.owners["p1"], {"n": 1})
        end = simulated().latestOffset(offset, ALL)
        simulation.trim()
        simulation.write(simulation.owners["p0"], {"n": 2})
        again = simulated()
        assert rows(again, offset, end) == []
        assert len(rows(again, end, again.latestOffset(end, ALL))) == 1


class TestManyPartitions:
    def test_batch_of_one_record_reads_one_range(self, monkeypatch, simulation):
        sim = Simulation(partitions=1000)
        sim.provider = SimulationProvider(sim)
        monkeypatch.setattr(connection, "open_provider", lambda config: sim.provider)
        reader = simulated(startingPosition="now")
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        for number in range(3):
            sim.write("a", {"n": number})
            end = reader.latestOffset(pinned, ALL)
            (task,) = reader.partitions(pinned, end)
            assert len(task.value.ranges) == 1
            assert len(rows(reader, pinned, end)) == 1
            pinned = end

    def test_idle_poll_looks_at_no_partition_while_nothing_changes(self, source, clock, monkeypatch):
        looked, heads = [], EmbeddedFeed.heads

        def counted(feed, cursors, *arguments):
            looked.append(len(cursors))
            return heads(feed, cursors, *arguments)

        monkeypatch.setattr(EmbeddedFeed, "heads", counted)
        source.store.create_collection("orders", partitions=100, recreate=True)
        reader = reader_of(source, pollInterval="0")
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        for _ in range(10):
            assert reader.latestOffset(pinned, ALL) is pinned
        assert looked == [100]
        clock.seconds += 61
        assert reader.latestOffset(pinned, ALL) is pinned
        assert looked == [100, 100]
        for act in (lambda: source.write(1), source.split, source.merge):
            act()
            end = reader.latestOffset(pinned, ALL)
            assert end is not pinned
            pinned = end

    def test_change_during_a_poll_is_found_by_the_next_poll(self, source, clock, monkeypatch):
        heads = EmbeddedFeed.heads

        def overtaken(feed, *arguments):
            found = heads(feed, *arguments)
            monkeypatch.setattr(EmbeddedFeed, "heads", heads)
            source.write(1)
            return found

        reader = reader_of(source, pollInterval="0")
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        monkeypatch.setattr(EmbeddedFeed, "heads", overtaken)
        assert reader.latestOffset(pinned, ALL) is pinned
        assert len(rows(reader, pinned, reader.latestOffset(pinned, ALL))) == 1


def test_each_offset_is_parsed_once(simulation, monkeypatch):
    """Spark passes it as the end of a step, as the start of the next step, and twice to `partitions`."""
    parsed, built, from_json = [], [], Lineage.from_json
    monkeypatch.setattr(
        micro_batches, "offset_from_json", lambda *given: parsed.append(given) or offset_from_json(*given)
    )
    monkeypatch.setattr(Lineage, "from_json", lambda *given: built.append(given) or from_json(*given))
    reader = simulated()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    for number in range(5):
        simulation.write("a", {"n": number})
        end = json.loads(json.dumps(reader.latestOffset(json.loads(json.dumps(start)), ALL)))
        assert len(rows(reader, start, end)) == 1
        start = end
    assert len(parsed) == 7, "the symbolic start, and the end of each of six steps"
    assert len(built) == 6


class TestReport:
    def test_loss_without_a_later_change_is_saved_and_told_once(self, source):
        source.write(20)
        reader = reader_of(source, failOnDataLoss="false", pollInterval="0", idleCheckpointInterval="1 hour")
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        source.store.trim("orders", max_count=0)
        end = reader.latestOffset(pinned, ALL)
        assert reader.reportLatestOffset()["skipped"]["count"] >= 1
        assert end != pinned
        restarted = reader_of(source, failOnDataLoss="false", pollInterval="0")
        restarted.latestOffset(end, ALL)
        assert restarted.reportLatestOffset()["skipped"]["count"] == 0

    def test_tells_what_was_skipped_with_count_and_place(self, source):
        source.write(20)
        reader = reader_of(source, failOnDataLoss="false", pollInterval="0")
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        source.store.trim("orders", max_count=5)
        end = reader.latestOffset(pinned, ALL)
        report = reader.reportLatestOffset()
        assert report["skipped"]["count"] >= 1
        assert " after sequence " in report["skipped"]["last"]
        assert (report["events"], report["idle"]) == (len(rows(reader, pinned, end)), False)
        assert reader.latestOffset(end, ALL) is end
        assert reader.reportLatestOffset()["skipped"] == report["skipped"]

    def test_tells_lag_and_headroom(self, simulation):
        simulation.write("a", {"n": 1})
        reader = simulated()
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        reader.latestOffset(pinned, ALL)
        report = reader.reportLatestOffset()
        assert report["lagSeconds"] >= 0
        assert set(report) == {
            "events", "foundLate", "headroomSeconds", "idle", "lagSeconds", "openWatches", "partitions",
            "poison", "readUntil", "readUntilEstimated", "skipped", "snapshot", "v", "waiting",
        }  # fmt: skip

    @pytest.mark.parametrize("heads", [True, False])
    def test_lag_of_a_busy_feed_does_not_grow_because_one_partition_is_quiet(
        self, simulation, monkeypatch, heads
    ):
        delay, slack = 5.0, 4.0
        monkeypatch.setattr(SimulationFeed, "visible_after", lambda self: delay)
        if not heads:
            monkeypatch.setattr(SimulationFeed, "heads", lambda self, *_: {})
        simulation.behaviour = ServiceBehaviour(watermarks=False, heartbeats=False)
        monkeypatch.setattr(progress, "_CLOCK_SECONDS", 0.0)
        reader = simulated(startingPosition="now")
        here, until = reader.latestOffset(reader.initialOffset(), ALL), ""
        for _ in range(4):
            simulation.advance(22)
            simulation.write("a", {"n": 1})
            here = reader.latestOffset(here, ALL)
            report = reader.reportLatestOffset()
            assert report["lagSeconds"] <= delay + slack
            assert report["readUntil"] > until
            assert report["readUntilEstimated"] is False
            until = report["readUntil"]

    @pytest.mark.parametrize("heads", [True, False])
    def test_step_that_ends_at_its_limit_has_not_read_until_now(self, simulation, monkeypatch, heads):
        monkeypatch.setattr(SimulationFeed, "visible_after", lambda self: 0.0)
        if not heads:
            monkeypatch.setattr(SimulationFeed, "heads", lambda self, *_: {})
        simulation.behaviour = ServiceBehaviour(watermarks=False, heartbeats=False)
        monkeypatch.setattr(progress, "_CLOCK_SECONDS", 0.0)
        reader = simulated(startingPosition="now")
        here = reader.latestOffset(reader.initialOffset(), ALL)
        for number in range(9):
            simulation.write("a", {"n": number})
        simulation.advance(100)
        for limit, is_behind in ((ReadMaxRows(4), True), (ReadMaxRows(4), True), (ReadMaxRows(9), False)):
            here = reader.latestOffset(here, limit)
            assert (reader.reportLatestOffset()["lagSeconds"] > 90) is is_behind

    def test_answer_that_may_be_followed_proves_nothing(self, simulation, monkeypatch):
        monkeypatch.setattr(SimulationFeed, "visible_after", lambda self: 0.0)
        monkeypatch.setattr(SimulationFeed, "heads", lambda self, *_: {})
        monkeypatch.setattr(progress, "_CLOCK_SECONDS", 0.0)
        simulation.behaviour = ServiceBehaviour(
            watermarks=False, heartbeats=False, caught_up=CaughtUp.UNKNOWN
        )
        reader = simulated(startingPosition="now")
        here = reader.latestOffset(reader.initialOffset(), ALL)
        simulation.advance(100)
        reader.latestOffset(here, ALL)
        assert reader.reportLatestOffset()["readUntil"] is None

    def test_moment_that_is_only_likely_is_marked(self, simulation, monkeypatch):
        fetch = SimulationReader.fetch

        def likely(reader, *asked):
            return attrs.evolve(fetch(reader, *asked), likely_read_until=simulation.now)

        monkeypatch.setattr(SimulationReader, "fetch", likely)
        monkeypatch.setattr(SimulationFeed, "heads", lambda self, *_: {})
        simulation.behaviour = ServiceBehaviour(
            watermarks=False, heartbeats=False, caught_up=CaughtUp.UNKNOWN
        )
        monkeypatch.setattr(progress, "_CLOCK_SECONDS", 0.0)
        reader = simulated(startingPosition="now")
        here = reader.latestOffset(reader.initialOffset(), ALL)
        simulation.advance(100)
        reader.latestOffset(here, ALL)
        report = reader.reportLatestOffset()
        assert (report["lagSeconds"], report["readUntilEstimated"]) == (pytest.approx(0, abs=4), True)

    def test_summary_is_small_and_tells_how_far(self, source):
        source.write(20)
        reader = reader_of(source, pollInterval="0")
        assert reader.reportLatestOffset() is None
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        end = reader.latestOffset(pinned, ALL)
        report = reader.reportLatestOffset()
        assert (report["partitions"], report["waiting"], report["idle"]) == (3, 0, False)
        last = max(row["timestamp"] for row in rows(reader, pinned, end))
        assert report["readUntil"].removesuffix("Z") == last.isoformat().removesuffix("+00:00")
        reader.latestOffset(end, ALL)
        assert reader.reportLatestOffset()["idle"] is True


class TestAvailableNow:
    @pytest.mark.parametrize("limit", [ALL, ReadMaxRows(9)])
    def test_ends_while_others_write_split_and_merge(self, source, limit):
        source.write(50)
        source.split()
        source.write(20)
        reader = reader_of(source)
        reader.prepareForTriggerAvailableNow()
        offset = reader.latestOffset(reader.initialOffset(), limit)
        found = []
        for turn in range(1000):
            end = reader.latestOffset(offset, limit)
            if end is offset:
                break
            found += rows(reader, offset, end)
            offset = end
            source.write(5, seed=turn)
            if turn < 5:
                source.split(turn)
        assert len(found) == 70

        later = reader_of(source, pollInterval="0")
        while (end := later.latestOffset(offset, limit)) is not offset:
            found += rows(later, offset, end)
            offset = end
        assert len({row["event_id"] for row in found}) == len(found) == len(source.truth)


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "value"), [("newItemState", "require"), ("oldItemState", "include_if_available")]
    )
    def test_other_columns_than_those_of_the_checkpoint(self, source, name, value):
        pinned = reader_of(source).latestOffset(reader_of(source).initialOffset(), ALL)
        other = reader_of(source, **{name: value})
        with pytest.raises(
            SourceError, match=rf"checkpoint: was written with the default .* the query has {name}={value}"
        ):
            other.latestOffset(pinned, ALL)
        same = reader_of(source, **{name: value})
        again = same.latestOffset(same.initialOffset(), ALL)
        assert same.latestOffset(again, ALL) is again

    def test_checkpoint_of_another_collection(self, source):
        pinned = reader_of(source).latestOffset(reader_of(source).initialOffset(), ALL)
        other = reader_of(source, collection="others")
        for ask in (lambda: other.latestOffset(pinned, ALL), lambda: other.partitions(pinned, pinned)):
            with pytest.raises(
                SourceError, match=r"\[MULTICLOUDDB:INVALID_REQUEST\] checkpoint: is of another"
            ):
                ask()

    def test_recreated_collection(self, source):
        source.write(5)
        reader = reader_of(source)
        pinned = reader.latestOffset(reader.initialOffset(), ALL)
        end = reader.latestOffset(pinned, ALL)
        (task, *_) = reader.partitions(pinned, end)
        source.store.create_collection("orders", recreate=True)
        connection.close_connections()
        recreated = (
            r"\[MULTICLOUDDB:INVALID_REQUEST\] checkpoint: belongs to an earlier orders, which was rec"
        )
        with pytest.raises(SourceError, match=recreated):
            reader.latestOffset(end, ALL)
        with pytest.raises(SourceError, match=recreated):
            list(reader.read(task))

    def test_worker_that_knew_the_earlier_one_reads_the_new_one(self, source):
        old = reader_of(source)
        old.latestOffset(old.initialOffset(), ALL)
        source.store.create_collection("orders", recreate=True)
        source.write(5)
        planner = reader_of(source, pollInterval="0")
        pinned = planner.latestOffset(planner.initialOffset(), ALL)
        tasks = planner.partitions(pinned, planner.latestOffset(pinned, ALL))
        assert sum(batch.num_rows for task in tasks for batch in old.read(task)) == 5

    def test_missing_collection(self, source):
        reader = reader_of(source, collection="none")
        with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:NOT_FOUND\]"):
            reader.latestOffset(reader.initialOffset(), ALL)

    def test_database_that_cannot_start_there(self, simulation):
        simulation.provider = SimulationProvider(
            simulation, capabilities=capabilities_without(Capability.CHANGE_FEED_BEGINNING)
        )
        reader = simulated()
        with pytest.raises(
            SourceError, match=r"UNSUPPORTED_CAPABILITY\] startingPosition=beginning is not supported"
        ):
            reader.latestOffset(reader.initialOffset(), ALL)
        now = simulated(startingPosition="now")
        pinned = now.latestOffset(now.initialOffset(), ALL)
        simulation.write("a", {"n": 1})
        restarted = simulated()
        assert len(rows(restarted, pinned, restarted.latestOffset(pinned, ALL))) == 1


class TestTroubles:
    def pinned(self, reader):
        return reader.latestOffset(reader.initialOffset(), ALL)

    @pytest.mark.parametrize("operation", ["open_feed", "start", "heads"])
    def test_outage_is_waited_out(self, simulation, operation):
        simulation.write("a", {"n": 1})
        simulation.fail_next(None, ServerError("503"), times=30, operation=operation)
        reader = simulated()
        pinned = self.pinned(reader)
        assert len(rows(reader, pinned, reader.latestOffset(pinned, ALL))) == 1

    def test_throttled_read_is_tried_again(self, simulation):
        simulation.write("a", {"n": 1})
        reader = simulated()
        pinned = self.pinned(reader)
        end = reader.latestOffset(pinned, ALL)
        simulation.fail_next(None, ThrottledError("slow down", 0.0), times=3)
        assert len(rows(reader, pinned, end)) == 1

    def test_poison_is_told_with_its_position(self, simulation):
        simulation.write("a", {"n": 1}, poison=True)
        reader = simulated()
        pinned = self.pinned(reader)
        end = reader.latestOffset(pinned, ALL)
        with pytest.raises(SourceError, match=r"^\[MULTICLOUDDB:PROVIDER_ERROR\] \S+: record at commit 1"):
            rows(reader, pinned, end)

    def test_expired_position_names_the_way_out(self, source):
        source.write(20)
        reader = reader_of(source)
        pinned = self.pinned(reader)
        end = reader.latestOffset(pinned, ALL)
        source.store.trim("orders", max_count=5)
        message = r"\[MULTICLOUDDB:CHECKPOINT_EXPIRED\].*set failOnDataLoss=false"
        with pytest.raises(SourceError, match=message):
            reader_of(source).latestOffset(pinned, ALL)
        with pytest.raises(SourceError, match=message) as caught:
            rows(reader, pinned, end)
        assert "SkipToOldest" not in str(caught.value)

    def test_loss_is_skipped_when_asked_for(self, source):
        source.write(20)
        reader = reader_of(source, failOnDataLoss="false")
        pinned = self.pinned(reader)
        end = reader.latestOffset(pinned, ALL)
        source.store.trim("orders", max_count=5)
        assert len(rows(reader, pinned, end)) == 5
        fresh = reader_of(source, failOnDataLoss="false")
        assert len(rows(fresh, pinned, fresh.latestOffset(pinned, ALL))) == 5

    def test_outage_while_a_loss_is_skipped_is_waited_out(self, simulation):
        for number in range(20):
            simulation.write(f"k{number}", {"n": number})
        reader = simulated(failOnDataLoss="false")
        pinned = self.pinned(reader)
        end = reader.latestOffset(pinned, ALL)
        simulation.trim(upto=10)
        simulation.fail_next(None, ServerError("503"), times=2, operation="oldest")
        assert len(rows(reader, pinned, end)) == 10

    def test_feed_that_has_ended_is_told_once_all_is_delivered(self, simulation):
        reader = simulated()
        ended = {
            "c": {"p": []},
            "inc": simulation.incarnation,
            "src": reader._batches.settings.source,
            "v": 1,
        }
        with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:NOT_FOUND\] the feed of sim/items has ended"):
            reader.latestOffset(ended, ALL)

    def test_message_is_one_line(self, source):
        reader = reader_of(source, collection="no\nne")
        with pytest.raises(SourceError) as caught:
            self.pinned(reader)
        assert "\n" not in str(caught.value)


def test_task_without_work_has_no_rows(source):
    assert list(reader_of(source).read(InputPartition(None))) == []


def test_nothing_depends_on_commit_and_stop(source):
    source.write(3)
    reader = reader_of(source)
    pinned = reader.latestOffset(reader.initialOffset(), ALL)
    reader.commit(pinned)
    reader.stop()
    assert len(rows(reader, pinned, reader.latestOffset(pinned, ALL))) == 3
