"""Tests up to which moment a feed was read, and what moves the watermark."""

import math
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ErrorCategory,
    MulticloudDbError,
    Now,
    Observer,
    OperationOptions,
    Snapshot,
)
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import ServerError, ServiceBehaviour, SimulationFeed
from multiclouddb_conformance.simulation.reader import SimulationReader
from multiclouddb_conformance.simulation.service_behaviour import CaughtUp
from multiclouddb_spi import open_feed
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.token import ReadUntil
from multiclouddb_spi.continuation.watermark import Standings
from multiclouddb_spi.reading import page_builder

DELAY = timedelta(seconds=5)
SLACK = timedelta(seconds=4)  # the test may run slowly, and the engine's clock goes on


@pytest.fixture
def current_time(monkeypatch):
    """Let every call ask the service for its time."""
    monkeypatch.setattr("multiclouddb_spi.open_feed._CLOCK_SECONDS", 0.0)


@pytest.fixture
def delayed(monkeypatch):
    """Let a change be visible to every read after some seconds."""
    monkeypatch.setattr(SimulationFeed, "visible_after", lambda self: DELAY.total_seconds())


def quiet(make_bench, partitions, caught_up=CaughtUp.EXACT):
    """Make a bench whose service tells no watermark and no heartbeat."""
    behaviour = ServiceBehaviour(caught_up=caught_up, watermarks=False, heartbeats=False)
    return make_bench(partitions, behaviour=behaviour)


@pytest.mark.usefixtures("current_time")
class TestProof:
    """A moment and the watermark move only by a record, a heartbeat or an answer that nothing follows."""

    @pytest.fixture
    def timeless(self, monkeypatch):
        """No position tells a time."""
        describe = SimulationFeed.describe
        monkeypatch.setattr(
            SimulationFeed, "describe", lambda feed, cursor: attrs.evolve(describe(feed, cursor), time=None)
        )

    @pytest.mark.usefixtures("timeless")
    @pytest.mark.usefixtures("delayed")
    def test_what_was_proved_of_a_position_also_holds_at_a_later_one(self, make_bench):
        bench = quiet(make_bench, 1)
        page = bench.page(bench.page(Now()).continuation_token)
        before = page.diagnostics.partitions_watermark
        bench.fill(3)
        page = bench.page(page.continuation_token, size=1)
        assert page.events
        assert page.diagnostics.partitions_watermark == before != {}

    @pytest.mark.usefixtures("timeless")
    def test_a_child_that_waits_at_a_position_without_a_time_has_no_watermark(self, make_bench):
        bench = quiet(make_bench, 2)
        bench.fill_partition("p1", 3)
        bench.sim.merge("p0", "p1")
        page = bench.page(size=1)
        assert page.events
        assert page.diagnostics.partitions_watermark == {}

    @pytest.mark.usefixtures("delayed")
    def test_one_busy_partition_of_eight_does_not_lag(self, make_bench):
        bench = quiet(make_bench, 8)
        token = bench.page(Now()).continuation_token
        for _ in range(6):
            bench.sim.advance(22)
            bench.fill_partition("p3")
            for page in bench.walk(token):
                token = page.continuation_token
            told = page.diagnostics
            assert timedelta(0) <= bench.sim.now - told.read_until <= DELAY + SLACK
            assert told.watermark == told.read_until
            assert told.lag_seconds == pytest.approx(DELAY.total_seconds(), abs=SLACK.total_seconds())
            assert not told.read_until_estimated

    @pytest.mark.usefixtures("delayed")
    def test_an_answer_that_may_be_followed_proves_nothing(self, make_bench):
        bench = quiet(make_bench, 2, CaughtUp.UNKNOWN)
        bench.fill(20)
        _, token = bench.drain()
        before = bench.page(token).diagnostics
        bench.sim.advance(60)
        after = bench.page(token).diagnostics
        assert (after.watermark, after.read_until) == (before.watermark, before.read_until)

    @pytest.mark.usefixtures("delayed")
    def test_a_partition_that_fails_holds_the_moment_back(self, make_bench):
        bench = quiet(make_bench, 2)
        _, token = bench.drain()
        before = bench.page(token)
        bench.sim.fail_next("p1", ServerError("503"), times=None)
        bench.sim.advance(60)
        after = bench.page(before.continuation_token).diagnostics
        assert after.partition_errors
        assert after.read_until < bench.sim.now - timedelta(seconds=50)
        good, bad = map(bench.sim.public_id, ("p0", "p1"))
        assert after.partitions_read_until[good] > bench.sim.now - DELAY - SLACK
        assert after.partitions_read_until[bad] < bench.sim.now - timedelta(seconds=50)

    @pytest.mark.parametrize("number", [0, 1])
    def test_what_one_answer_of_a_page_calls_likely_outlives_the_next(self, make_bench, monkeypatch, number):
        """Not every answer says something of this kind."""
        behaviour = ServiceBehaviour(
            caught_up=CaughtUp.UNKNOWN, watermarks=False, heartbeats=False, page_limit=1
        )
        bench, answers, fetch = make_bench(1, behaviour=behaviour), [], SimulationReader.fetch
        bench.fill(2)
        likely = bench.sim.now + timedelta(seconds=7)

        def telling(self, *args):
            batch = fetch(self, *args)
            answers.append(batch)
            return attrs.evolve(batch, likely_read_until=likely if len(answers) == number + 1 else None)

        monkeypatch.setattr(SimulationReader, "fetch", telling)
        page = bench.page(size=2)
        assert (len(page.events), page.diagnostics.read_until) == (2, likely)
        assert len(answers) > 1
        assert page.diagnostics.read_until_estimated

    @pytest.mark.usefixtures("delayed")
    def test_it_counts_from_the_request_and_not_from_its_answer(self, make_bench, monkeypatch):
        bench = quiet(make_bench, 1)
        _, token = bench.drain()
        fetch, monotonic, asked = SimulationReader.fetch, time.monotonic, []

        def slow(self, *args):
            asked.append(bench.sim.now)
            batch = fetch(self, *args)
            bench.sim.advance(30)
            return batch

        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 30 * len(asked))
        monkeypatch.setattr(SimulationReader, "fetch", slow)
        told = bench.page(token, timeout=300.0).diagnostics
        assert told.read_until <= asked[-1] - DELAY + SLACK

    def test_an_ended_partition_whose_children_are_not_named_holds_the_watermark(self, make_bench):
        bench = make_bench(2, behaviour=ServiceBehaviour(proves_children=False))
        token = bench.page(Now()).continuation_token
        bench.sim.delay_children("p0", 10**6)
        bench.fill_partition("p0", 2)
        bench.sim.split("p0")
        ended = bench.sim.now
        bench.sim.advance(100)
        bench.fill_partition("p1", 2)
        page = bench.page(token)
        for _ in range(3):
            assert page.diagnostics.watermark <= ended + SLACK
            page = bench.page(page.continuation_token)

    @pytest.mark.usefixtures("delayed")
    def test_records_that_are_left_for_a_later_page_hold_it_back(self, make_bench):
        bench = quiet(make_bench, 1)
        bench.fill(5)
        bench.sim.advance(60)
        page = bench.page(size=2)
        assert page.diagnostics.read_until <= page.events[-1].timestamp + timedelta(seconds=1)
        *_, last = bench.walk(page.continuation_token)
        assert last.diagnostics.read_until > bench.sim.now - DELAY - SLACK


@pytest.mark.usefixtures("current_time")
class TestMemory:
    """What is known of a partition is kept while other partitions are read, and in the token."""

    @pytest.mark.usefixtures("delayed")
    def test_another_process_goes_on_from_the_token(self, make_bench):
        bench = quiet(make_bench, 4)
        _, token = bench.drain()
        bench.sim.advance(100)
        first = bench.page(token)
        bench.connect()
        bench.fill_partition("p0", 5)
        second = bench.page(first.continuation_token, size=1)
        assert second.diagnostics.read_until >= first.diagnostics.read_until > bench.sim.now - DELAY - SLACK

    def test_the_scan_of_a_snapshot_has_none(self, make_bench):
        bench = make_bench(2)
        bench.fill(20)
        pages = list(bench.walk(Snapshot(), size=3))
        during = [page for page in pages if page.diagnostics.snapshot is not None]
        assert during
        assert all(page.diagnostics.read_until is None for page in during)
        assert pages[-1].diagnostics.read_until is not None


FAR = timedelta(hours=30)


@pytest.mark.parametrize("jump", [-FAR, FAR])
def test_a_client_clock_that_is_set_changes_nothing(bench, monkeypatch, jump):
    """A jump of the client's clock has no effect; the engine uses the service's time for one minute."""
    bench.fill(3)
    moment = bench.sim.now

    class Jumping(datetime):
        ahead = timedelta()

        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone or UTC) + cls.ahead

    monkeypatch.setattr(open_feed, "datetime", Jumping)
    bench.page(AtTime(moment))
    Jumping.ahead = jump
    bench.page(AtTime(moment))
    with pytest.raises(MulticloudDbError) as caught:
        bench.page(AtTime(moment + timedelta(minutes=5)))
    assert caught.value.category == ErrorCategory.INVALID_REQUEST


def test_a_headroom_that_stays_low_is_told_once_a_minute(make_bench, monkeypatch):
    bench, observer = make_bench(4, retention_seconds=3600), Mock(Observer)
    low = observer.retention_headroom_low
    bench.connect(observer=observer, headroom_warning_seconds=10**9)
    bench.fill(40)
    seconds = [1000.0]
    monkeypatch.setattr(page_builder.time, "monotonic", lambda: seconds[0])
    token = bench.page(Beginning()).continuation_token
    assert low.call_count == 1
    for _ in range(20):
        token = bench.page(token).continuation_token
    assert low.call_count == 1
    seconds[0] += 61
    bench.page(token)
    assert low.call_count == 2


@pytest.mark.usefixtures("current_time")
def test_a_report_of_a_token_speaks_of_the_token_and_not_of_the_page_after_it(make_bench):
    bench = make_bench()
    token = bench.page(Now()).continuation_token
    bench.fill_partition("p0")
    bench.sim.advance(60)
    report = bench.engine.inspect(token, OperationOptions(), None, None)
    [event] = bench.page(token).events
    assert report.changes_waiting is True
    assert report.watermark <= event.timestamp
    assert report.lag_seconds >= 59


class Clock:
    """A feed whose positions are moments in seconds, of which every second one is told."""

    @staticmethod
    def public_id(name):
        return name.upper()

    @staticmethod
    def visible_after():
        return 0.0

    @staticmethod
    def compare(one, other):
        return (one[0] > other[0]) - (one[0] < other[0])

    @staticmethod
    def describe(cursor):
        return SimpleNamespace(time=at(cursor[0]) if cursor[1] else None)


def at(seconds):
    return datetime.fromtimestamp(seconds, UTC)


def said(**told):
    nothing = {"watermark": None, "likely_read_until": None, "caught_up_at": None, "headroom": math.inf}
    return SimpleNamespace(**{**nothing, **told})


class TestMeasured:
    """What is remembered of a partition holds until the partition says more, or has moved."""

    @staticmethod
    def read(places):
        return Lineage([Entry.read(name, place) for name, place in places.items()], RULES)

    @pytest.fixture
    def lineage(self):
        return self.read({"a": [10, 1], "b": [20, 1]})

    @pytest.fixture
    def standings(self, lineage):
        standings = Standings()
        first = standings.measure(Clock, lineage, {}, at(100))
        assert first.watermark == first.read_until == at(10)
        assert first.partitions == first.watermarks == {"A": at(10), "B": at(20)}
        return standings

    @pytest.mark.parametrize("floor", [None, ReadUntil(10_000_000, estimated=False)])
    def test_an_answer_at_the_same_position_moves_it(self, lineage, standings, floor):
        answered = {"a": said(watermark=at(15))}
        told = standings.measure(Clock, lineage, answered, at(100), floor=floor)
        assert (told.watermark, told.read_until, told.estimated) == (at(15), at(15), False)
        assert standings.measure(Clock, lineage, {}, at(100)) == told

    def test_a_read_that_nothing_followed_moves_it(self, lineage, standings):
        answered = {"a": said(caught_up_at=time.monotonic())}
        told = standings.measure(Clock, lineage, answered, at(100))
        assert (told.watermark, told.read_until) == (at(20), at(20))
        assert at(100) - SLACK <= told.partitions["A"] <= at(100)

    def test_a_position_that_moves_moves_it(self, lineage, standings):
        lineage.took("a", [30, 1])
        assert standings.measure(Clock, lineage, {}, at(100)).watermarks == {"A": at(30), "B": at(20)}
        older = self.read({"a": [5, 1], "b": [20, 1]})
        assert standings.measure(Clock, older, {}, at(100)).watermark == at(5), "of an older token"

    def test_a_partition_that_joins_holds_the_watermark(self, lineage, standings):
        joined = Lineage([*lineage, Entry.read("c", [9, 0])], RULES)
        told = standings.measure(Clock, joined, {}, at(100))
        assert (told.watermark, told.read_until) == (None, None)
        assert told.partitions == {"A": at(10), "B": at(20)}

    @pytest.mark.parametrize(("known", "moment"), [(1, at(12)), (0, None)])
    def test_waiting_children_count_from_their_earliest_start(self, lineage, known, moment):
        child = Entry("c", Stage.WAIT, ([14, 1], [12, known]), ("a", "b"))
        told = Standings().measure(Clock, Lineage([*lineage, child], RULES), {}, at(100))
        assert told.watermarks.get("C") == moment

    def test_no_moment_is_before_that_of_the_feed(self, lineage, standings):
        told = standings.measure(Clock, lineage, {}, at(100), floor=ReadUntil(15_000_000, estimated=True))
        assert told.partitions == {"A": at(15), "B": at(20)}
        assert told.watermarks == {"A": at(10), "B": at(20)}
        assert (told.read_until, told.estimated, told.watermark) == (at(15), True, at(10))

    def test_what_is_only_likely_is_told_as_such(self, lineage, standings):
        answered = {"a": said(likely_read_until=at(17))}
        told = standings.measure(Clock, lineage, answered, at(100))
        assert (told.partitions, told.estimated) == ({"A": at(17), "B": at(20)}, True)
        assert (told.watermark, told.watermarks["A"]) == (at(10), at(10))
        proven = standings.measure(Clock, lineage, {"a": said(watermark=at(17))}, at(100))
        assert (proven.partitions, proven.estimated) == ({"A": at(17), "B": at(20)}, False)

    def test_headrooms_are_those_that_are_told(self, lineage, standings):
        told = standings.measure(
            Clock, lineage, {"b": said(headroom=0.0), "gone": said(headroom=7.0)}, at(100)
        )
        assert told.headrooms == {"B": 0.0}


def test_a_partition_without_a_known_retention_has_no_headroom(make_bench):
    bench = make_bench(2)
    told = bench.page(Now()).diagnostics
    assert len(told.partitions_read_until) == 2
    assert (told.partitions_headroom_seconds, told.retention_headroom_seconds) == ({}, None)
