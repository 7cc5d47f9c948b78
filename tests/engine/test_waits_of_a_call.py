"""Tests which answers a call waits for, in which order, and how it reports partitions without an answer."""

import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from multiclouddb_api import Now, Snapshot, SnapshotOrder
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import SimulationReader
from multiclouddb_conformance.simulation.segments import SegmentReader
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_spi import Deadline
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.fetching.turns import Turns
from multiclouddb_spi.reading import poll
from multiclouddb_spi.reading.poll import Fetches, Waiting
from multiclouddb_spi.scan.contract import plan_id_of

LONG = 1000.0


class Clock:
    """A clock that the test sets."""

    def __init__(self, now=5000.0, step=0.0):
        self.now, self.step = now, step

    def monotonic(self):
        self.now += self.step
        return self.now


class TestRounds:
    @pytest.fixture
    def clock(self, monkeypatch):
        clock = Clock()
        monkeypatch.setattr(poll, "time", clock)
        return clock

    def test_the_pause_between_two_is_no_longer_than_the_call_waits(self, clock):
        times = Waiting(Deadline(clock.now + 60), 0.001)
        assert times.before_round() == pytest.approx(0.001)

    def test_the_time_that_a_round_took_is_part_of_the_pause(self, clock):
        times = Waiting(Deadline(clock.now + 60), 30.0)
        assert times.before_round() == pytest.approx(0.002)  # short: most services then long-poll
        times.begin_round()
        assert times.before_round() == pytest.approx(0.02)
        times.begin_round()
        clock.now += 0.025
        assert 0 < times.before_round() < 0.01
        times.begin_round()
        clock.now += 10
        assert times.before_round() == 0.0

    def test_a_quiet_service_that_answers_at_once_is_not_asked_without_a_pause(self, make_bench, monkeypatch):
        bench = make_bench(2)
        bench.connect()
        token = bench.page(Now()).continuation_token
        clock, fetch = Clock(), SimulationReader.fetch

        def at_once(self, records, nbytes, wait, deadline):
            clock.now += 0.001
            return fetch(self, records, nbytes, 0.0, deadline)

        def pause(seconds):
            clock.now += seconds

        monkeypatch.setattr(time, "monotonic", clock.monotonic)
        monkeypatch.setattr(SimulationReader, "fetch", at_once)
        monkeypatch.setattr(bench.engine._context.closed, "wait", pause)
        before = bench.calls.total_fetches
        assert bench.page(token, wait=10.0).idle
        assert 20 < bench.calls.total_fetches - before < 120

    def test_a_partition_that_waits_for_news_does_not_keep_others_from_being_asked(
        self, make_bench, ids, monkeypatch
    ):
        """The service keeps the poll of `p0` open for the whole call, but the engine does not treat `p0` as
        slow.
        """
        for module in ("reading.poll",):
            monkeypatch.setattr(f"multiclouddb_spi.{module}.HEAD_SECONDS", LONG)
        bench = make_bench(2)
        bench.connect(threads=True)
        token = bench.page(Now()).continuation_token
        fetch, news, asked = SimulationReader.fetch, [], []

        def patient(self, records, nbytes, wait, deadline):
            if self._id == "p1":
                asked.append(wait)
                if len(asked) == 3:
                    news.extend(bench.fill_partition("p1"))
                wait = 0.0
            return fetch(self, records, nbytes, LONG if wait else 0.0, deadline)

        monkeypatch.setattr(SimulationReader, "fetch", patient)
        page = bench.page(token, wait=20, timeout=30)
        assert ids(page) == news
        assert len(news) == 1


@pytest.mark.parametrize(
    ("had_nothing", "wait", "trouble", "quiet"),
    [
        (False, 1.0, None, set()),  # it has never answered
        (True, 1.0, None, {"p0"}),
        (True, 0.0, None, set()),  # it is only asked again
        (True, 1.0, OSError("reset"), set()),
    ],
)
def test_a_partition_that_had_nothing_is_quiet_while_it_waits_for_news(had_nothing, wait, trouble, quiet):
    """A page is idle only if every partition has answered that it has no more records."""
    turns = Turns(Lineage([Entry.read("p0", 1)], RULES))
    budget = SimpleNamespace(limit=1 << 30, used=0, expected=0)
    context = SimpleNamespace(width=2, page_records=20, budget=budget, cache=None)
    turns.ask(["p0"])
    turns.of("p0").silent = had_nothing
    reader = SimpleNamespace(batch=None, future=Future(), asked_at=0.0, trouble=trouble)
    Fetches(context, None, turns, 1, 20, Deadline.after(60)).launch(turns.of("p0"), reader, wait)
    assert turns.quiet() == quiet


def test_a_call_looks_at_a_late_scan_several_times_a_second(make_bench, monkeypatch):
    """The stream has filled its part of the page, and the scan answers after the call's third look."""
    for module in ("reading.poll", "scan.scanning"):
        monkeypatch.setattr(f"multiclouddb_spi.{module}.HEAD_SECONDS", LONG)
    bench = make_bench(1)
    bench.fill(40, 40)
    bench.connect(threads=True)
    token = bench.page(Snapshot(SnapshotOrder.INTERLEAVED), 8).continuation_token
    bench.fill(40)
    bench.connect(threads=True)
    fetch, land, looks = SegmentReader.fetch, Fetches.land, []

    def late(self, records, nbytes, wait, deadline):
        wait_until(lambda: len(looks) >= 3 or max(looks, default=0.0) > 0.2, 20.0)
        return fetch(self, records, nbytes, wait, deadline)

    def look(self, patience):
        if all(plan_id_of(name) for name in self._turns.asked):
            looks.append(patience)
        return land(self, patience)

    monkeypatch.setattr(SegmentReader, "fetch", late)
    monkeypatch.setattr(Fetches, "land", look)
    page = bench.page(token, 8)
    assert [event.backfilled for event in page.events] == [False] * 6 + [True] * 2
    assert 0.01 <= min(looks) <= max(looks) <= 0.2


def test_children_that_start_in_a_call_leave_the_head_its_place(make_bench, ids, monkeypatch):
    """The first partition answers late, after the children have filled their part of the page."""
    for module in ("reading.poll",):
        monkeypatch.setattr(f"multiclouddb_spi.{module}.HEAD_SECONDS", LONG)
    bench = make_bench(2)
    bench.connect(threads=True)
    token = bench.page(Now()).continuation_token
    own = bench.fill_partition("p0", 1)
    for name in bench.sim.split("p1"):
        bench.fill_partition(name, 20)
    bench.connect(threads=True)
    calls, fetch = bench.calls, SimulationReader.fetch

    def late(self, records, nbytes, wait, deadline):
        if self._id == "p0":
            wait_until(lambda: calls.mapped >= 3, 20.0)
        return fetch(self, records, nbytes, wait, deadline)

    monkeypatch.setattr(SimulationReader, "fetch", late)
    page = bench.page(token, 4, timeout=300.0)
    assert len(page.events) == 4
    assert own[0] in ids(page)
