"""Tests up to which moment a feed was read, and what moves the watermark."""

from datetime import timedelta

import attrs
import pytest

from multiclouddb_api import Beginning, Now, Snapshot
from multiclouddb_conformance.simulation import ServerError, ServiceBehaviour, SimulationFeed
from multiclouddb_conformance.simulation.reader import SimulationReader
from multiclouddb_conformance.simulation.service_behaviour import CaughtUp
from multiclouddb_spi.continuation.token import decode_token, to_moment

DELAY = timedelta(seconds=5)
SLACK = timedelta(seconds=4)  # the test may run slowly, and the engine's clock goes on


@pytest.fixture(autouse=True)
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
    bench = make_bench(partitions, behaviour=behaviour)
    bench.connect()
    return bench


class TestProof:
    """A moment and the watermark move only by a record, a heartbeat or an answer that nothing follows."""

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

    @pytest.mark.usefixtures("delayed")
    def test_records_that_are_left_for_a_later_page_hold_it_back(self, make_bench):
        bench = quiet(make_bench, 1)
        bench.fill(5)
        bench.sim.advance(60)
        page = bench.page(size=2)
        assert page.diagnostics.read_until <= page.events[-1].timestamp + timedelta(seconds=1)
        *_, last = bench.walk(page.continuation_token)
        assert last.diagnostics.read_until > bench.sim.now - DELAY - SLACK

    def test_a_watermark_of_the_service_is_enough(self, make_bench):
        bench = make_bench(3)
        bench.connect()
        bench.fill(9)
        bench.sim.advance(60)
        *_, page = bench.walk()
        assert page.diagnostics.read_until == page.diagnostics.watermark == bench.sim.now

    def test_without_the_time_of_the_service_the_lag_is_unknown(self, make_bench, monkeypatch):
        monkeypatch.setattr(SimulationFeed, "clock", lambda self, deadline: None)
        bench = quiet(make_bench, 1)
        bench.fill(3)
        *_, page = bench.walk()
        assert page.idle
        assert page.diagnostics.lag_seconds is None


class TestMemory:
    """What is known of a partition is kept while other partitions are read, and in the token."""

    @pytest.mark.usefixtures("delayed")
    def test_a_call_that_reads_only_one_partition_keeps_the_others(self, make_bench):
        bench = quiet(make_bench, 4)
        _, token = bench.drain()
        bench.sim.advance(100)
        token = bench.page(token).continuation_token
        bench.fill_partition("p0", 50)
        for _ in range(20):
            page = bench.page(token, size=1)
            token = page.continuation_token
            assert page.diagnostics.read_until > bench.sim.now - DELAY - SLACK

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

    @pytest.mark.usefixtures("delayed")
    def test_an_earlier_token_knows_nothing_of_a_later_one(self, make_bench):
        bench = quiet(make_bench, 1)
        bench.fill(5)
        early = bench.page(size=1)
        bench.sim.advance(100)
        bench.drain(early.continuation_token)
        again = bench.page(early.continuation_token, size=1)
        assert again.diagnostics.read_until < bench.sim.now - timedelta(seconds=50)

    @pytest.mark.usefixtures("delayed")
    def test_it_never_goes_back_while_partitions_split_and_merge(self, make_bench):
        bench = quiet(make_bench, 3)
        token, last = bench.page(Beginning()).continuation_token, None
        for number in range(12):
            bench.fill(4)
            if number % 4 == 1:
                names = bench.sim.partitions
                bench.sim.split(next(name for name in names if names[name].closed is None))
            bench.sim.advance(10)
            for page in bench.walk(token, size=2):
                token, until = page.continuation_token, page.diagnostics.read_until
                assert last is None or (until is not None and until >= last)
                last = until

    def test_the_scan_of_a_snapshot_has_none(self, make_bench):
        bench = make_bench(2)
        bench.connect()
        bench.fill(20)
        pages = list(bench.walk(Snapshot(), size=3))
        during = [page for page in pages if page.diagnostics.snapshot is not None]
        assert during
        assert all(page.diagnostics.read_until is None for page in during)
        assert pages[-1].diagnostics.read_until is not None


class TestEstimate:
    """A provider whose service proves nothing tells a likely moment, and the page says so."""

    @pytest.fixture
    def likely(self, monkeypatch):
        """Let the reader of the first partition estimate its moment."""
        make = SimulationReader._batch

        def batch(reader, found):
            made = make(reader, found)
            if reader._id != "p0" or len(made):
                return made
            return attrs.evolve(made, likely_read_until=reader._sim.now - DELAY)

        monkeypatch.setattr(SimulationReader, "_batch", batch)

    @pytest.mark.usefixtures("likely")
    def test_moves_the_moment_but_not_the_watermark(self, make_bench):
        bench = quiet(make_bench, 1, CaughtUp.UNKNOWN)
        bench.fill(3)
        _, token = bench.drain()
        before = bench.page(token).diagnostics.watermark
        bench.sim.advance(60)
        told = bench.page(token).diagnostics
        assert (told.read_until, told.read_until_estimated) == (bench.sim.now - DELAY, True)
        assert told.watermark == before

    @pytest.mark.usefixtures("likely")
    def test_the_token_remembers_that_it_is_one(self, make_bench):
        bench = quiet(make_bench, 1, CaughtUp.UNKNOWN)
        bench.fill(3)
        _, token = bench.drain()
        bench.sim.advance(60)
        token = bench.page(token).continuation_token
        found = decode_token(token).read_until
        assert (to_moment(found.micros), found.estimated) == (bench.sim.now - DELAY, True)
