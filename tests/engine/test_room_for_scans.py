"""Tests lineage entries that are not partitions of the service, such as the segments of a scan."""

import json
from typing import get_args

import pytest

from multiclouddb_api import Beginning, FeedEnded, MulticloudDbError
from multiclouddb_conformance.simulation import (
    Listing,
    ServiceBehaviour,
    Simulation,
    SimulationProvider,
)
from multiclouddb_conformance.simulation.view import View
from multiclouddb_spi import (
    Awaiting,
    Child,
    Continue,
    Deadline,
    Drained,
    Ended,
    FeedSpec,
    Lineage,
    Reached,
    Scanned,
    read_range,
)
from multiclouddb_spi.batch import Outcome, children_of, goes_on
from multiclouddb_spi.continuation.coverage import find_uncovered, tracked
from multiclouddb_spi.continuation.entry import Active, Audited, Waiting
from multiclouddb_spi.continuation.mover import Moved, Mover, Waits
from multiclouddb_spi.continuation.plan import Plan
from multiclouddb_spi.continuation.retention import Retention
from multiclouddb_spi.continuation.state import lineage_from_json
from multiclouddb_spi.planning.ranges import Range
from multiclouddb_spi.retry import directly

SOON = Deadline.after(30)
AUDITED = Audited(since=None, at=1, retired=False)
forms = pytest.mark.parametrize("form", list(Listing))


def first(child_id, cursors):
    return cursors[0]


def scanning(*roots, join=first):
    """Make a lineage in which the stream's partitions wait for a plan, and two segments are read."""
    parts = [Active(name, {"rows": name}, listed=False) for name in ("plan", "part-1", "part-2")]
    return Lineage([*parts, *(Waiting(root, (0,), ("plan",)) for root in roots)], join, AUDITED)


def ids(entries):
    return [entry.partition_id for entry in entries]


class TestLineage:
    def test_stands_in_a_token_by_bits(self):
        made = scanning("p0")
        made.failed_last("part-2")
        assert made.to_json()["p"] == [
            ["plan", {"rows": "plan"}, 8],
            ["part-1", {"rows": "part-1"}, 8],
            ["part-2", {"rows": "part-2"}, 10],
            ["p0", [0], 4, ["plan"]],
        ]
        again = lineage_from_json(json.loads(json.dumps(made.to_json())), first)
        assert list(again) == list(made)

    def test_what_waits_comes_back_too(self):
        made = Lineage([Active("a", 1), Waiting("b", (1, 2), ("a",), listed=False)], first)
        assert made.to_json()["p"][1] == ["b", [1, 2], 12, ["a"]]
        assert list(Lineage.from_json(made.to_json(), first)) == list(made)
        assert made.retire("a") == ["b"]
        assert list(made) == [Active("b", 1, listed=False)]

    def test_reading_does_not_change_the_kind(self):
        made = scanning()
        made.failed_last("part-1")
        made.advance("part-1", {"rows": 7})
        made.rotate(["part-1"])
        assert list(made)[-1] == Active("part-1", {"rows": 7}, listed=False)

    def test_pieces_are_of_the_same_kind(self):
        made = scanning()
        assert made.retire("part-1", [Child("part-3", ("part-1",), 5), Child("part-4", ("part-1",), 6)]) == [
            "part-3",
            "part-4",
        ]
        assert [entry.listed for entry in made] == [False] * 4
        assert "part-1" not in made

    def test_waiting_for_one_does_not_change_the_kind(self):
        made = scanning("p0")
        made.replace("plan", [], holds={"part-1": "part-2"})
        assert Waiting("part-1", ({"rows": "part-1"},), ("part-2",), listed=False) in list(made)

    def test_end_of_one_starts_what_waits_for_it(self):
        made = scanning("p0", "p1")
        assert made.retire("part-1") == []
        assert made.retire("plan") == ["p0", "p1"]
        assert [entry.listed for entry in made.active()] == [False, True, True]

    def test_end_of_one_asks_for_no_audit(self):
        made = scanning("p0")
        made.retire("part-1")
        assert not made.audited.retired
        made.retire("plan")
        made.retire("p0")
        assert made.audited.retired

    def test_service_is_not_asked_for_its_children(self):
        with pytest.raises(AssertionError, match="does not know this partition"):
            scanning().retire("part-1", [], complete=False)


class TestAudits:
    @forms
    def test_nobody_takes_them_for_partitions(self, form):
        sim = Simulation(2, behaviour=ServiceBehaviour(listing=form))
        feed = SimulationProvider(sim).open_feed(FeedSpec(sim.address), SOON)
        made = scanning("p0", "p1")
        assert tracked(made).keys() == {"p0", "p1"}
        assert [entry.parents for entry in tracked(made).values()] == [(), ()]
        assert not find_uncovered(feed, made, SOON)

    def test_what_is_missed_is_found_all_the_same(self):
        sim = Simulation(3)
        feed = SimulationProvider(sim).open_feed(FeedSpec(sim.address), SOON)
        assert [seed.partition_id for seed in find_uncovered(feed, scanning("p0", "p1"), SOON)] == ["p2"]

    @forms
    @pytest.mark.parametrize("gone", [False, True])
    def test_retention_is_not_asked_for_them(self, form, gone):
        sim = Simulation(2, behaviour=ServiceBehaviour(listing=form))
        feed = SimulationProvider(sim).open_feed(FeedSpec(sim.address), SOON)
        one, other = sim.split("p0")
        merged = sim.merge(one, other)
        if gone:
            sim.write("k", {})
            sim.trim()
        made = scanning("p1")
        made.add([*feed.start(Beginning(), "p1", SOON)])
        entries = [Active(one, 0), *made]
        made = Lineage(entries, first, AUDITED)
        asked = []

        def oldest(names):
            asked.extend(names)
            return feed.oldest(names, SOON)

        retention = Retention(lambda: feed.partitions(SOON), oldest)
        retention.after_end(made, one, [Child(merged, (one, other), 0)])
        retention.after_loss(made, one, feed.oldest([one], SOON))
        retention.stranded(Lineage([*made, Waiting("m", (0,), ("nobody",))], first, AUDITED))
        assert not {"plan", "part-1", "part-2"}.intersection(asked)


class TestOutcomes:
    NAMED = Drained((Child("b", ("a",), 1),))
    ALL = (Continue(), Reached(), NAMED, Awaiting(), Ended(None), Ended(FeedEnded("over")), Scanned())

    def test_every_outcome_is_told_apart(self):
        assert {type(outcome) for outcome in self.ALL} == set(get_args(Outcome))
        assert [goes_on(outcome) for outcome in self.ALL] == [True] + [False] * 6
        assert [len(children_of(outcome)) for outcome in self.ALL] == [0, 0, 1, 0, 0, 0, 0]

    @pytest.mark.parametrize("question", [goes_on, children_of])
    def test_what_is_no_outcome_is_refused(self, question):
        with pytest.raises(AssertionError):
            question("over")

    def test_an_end_with_neither_children_nor_notice_moves_the_lineage(self, bench):
        feed = SimulationProvider(bench.sim).open_feed(FeedSpec(bench.sim.address), SOON)
        made = scanning("p0")
        mover = Mover(feed, made, directly, SOON, 600)
        for name, started in (("part-1", ()), ("plan", ("p0",))):
            assert mover.ask_waits(name, Ended(None)) == Waits()
            assert mover.end(name, Ended(None), Waits()) == Moved((), started)
        assert ids(made) == ["part-2", "p0"]

    def test_a_dropped_collection_ends_the_scan_and_starts_the_stream(self, bench):
        feed = SimulationProvider(bench.sim).open_feed(FeedSpec(bench.sim.address), SOON)
        plan = Plan("plan", [1], "f", 5, holds=True)
        segments = [Active(name, 1, listed=False) for name in ("part-1", "part-2")]
        made = Lineage([plan, *segments, Waiting("p0", (1,), ("plan",))], first, AUDITED)
        mover = Mover(feed, made, directly, SOON, 600)
        assert mover.end("part-1", Ended(FeedEnded("over")), Waits()) == Moved((), ("p0",))
        assert ids(made) == ["p0"]

    def test_a_page_tells_nothing_of_it_but_the_end_of_all(self, make_bench, monkeypatch, ended):
        bench = make_bench(2)
        bench.connect(coverage_audit_seconds=1e9)
        bench.fill(6)
        plain = View.ending

        def ending(view, partition_id, *, asked):
            outcome = plain(view, partition_id, asked=asked)
            return Ended(None) if isinstance(outcome, Drained) else outcome

        monkeypatch.setattr(View, "ending", ending)
        _, token = bench.drain()
        bench.sim.roll("p0")
        page = bench.page(token)
        token = page.continuation_token
        assert page.idle
        assert page.notices == ()
        bench.sim.roll("p1")
        page = bench.page(token)
        assert [type(notice) for notice in page.notices] == [FeedEnded]
        assert ended(page)
        assert page.idle


class TestRanges:
    """Tests that `Range.until=None` reads to the end of the partition, whatever ends the partition."""

    def world(self):
        sim = Simulation(1)
        provider = SimulationProvider(sim)
        for number in range(5):
            sim.write(f"k{number}", {})
        sim.split("p0")
        return sim, provider, provider.open_feed(FeedSpec(sim.address), SOON)

    @pytest.mark.parametrize("end", TestOutcomes.ALL[2:], ids=str)
    def test_every_end_ends_the_range(self, monkeypatch, end):
        _, provider, feed = self.world()
        monkeypatch.setattr(View, "ending", lambda *_, **__: end)
        batches = list(read_range(provider, feed, Range("p0", 0, None)))
        assert sum(map(len, batches)) == 5

    @pytest.mark.parametrize("end", TestOutcomes.ALL[2:], ids=str)
    def test_one_before_the_bound_is_reported(self, monkeypatch, end):
        sim, provider, feed = self.world()
        monkeypatch.setattr(View, "ending", lambda *_, **__: end)
        with pytest.raises(MulticloudDbError, match="it ended before the end of the planned range"):
            list(read_range(provider, feed, Range("p0", 0, sim.head + 5)))
