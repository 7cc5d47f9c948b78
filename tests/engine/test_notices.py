"""Tests that a notice comes after all earlier events and before all later events of its partition."""

from contextlib import suppress
from itertools import chain, combinations

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_conformance.simulation import ServiceBehaviour, Simulation, TrimmedError
from multiclouddb_conformance.simulation.reader import SimulationReader

FACT = api.Renamed("a", "b")
FOREVER = 10**9
SKIP = api.SkipToOldest()


NAMES = ("p0", "p1", "p2")
FIRST = [("p0", False), ("p1", False)]
"""Each partition is asked once, without a wait."""


def subsets(names):
    """Return every set of these names but the empty one."""
    return chain.from_iterable(combinations(names, count + 1) for count in range(len(names)))


def gaps(page):
    return [notice for notice in page.notices if isinstance(notice, api.Gap)]


class TestOrder:
    def test_a_page_with_a_notice_alone_waits_for_nothing_more(self, make_bench):
        bench = make_bench(partitions=2)
        bench.sim.announce("p0", FACT)
        assert bench.page(wait=20.0).notices == (FACT,)
        assert bench.calls.fetches == {"p0": 1, "p1": 1}

    @pytest.mark.parametrize("silent", ["p0", "p2"], ids=["the front", "another one"])
    def test_a_page_with_a_notice_alone_leaves_a_silent_partition(self, make_bench, monkeypatch, silent):
        """As one with a record: it waits for the turn of the front, and not until its deadline."""
        monkeypatch.setattr("multiclouddb_spi.fetching.queue.TURN_SECONDS", 0.1)
        bench = make_bench(partitions=3)
        bench.connect(threads=True)
        bench.sim.announce("p1", FACT)
        bench.sim.hold(silent)
        page = bench.page(timeout=3.0)
        assert page.notices == (FACT,)
        assert not page.diagnostics.partition_errors, "it waited until its deadline"
        assert not page.idle

    def test_a_notice_alone_ends_the_waits_at_the_service(self, make_bench, monkeypatch):
        """Once there is something to return, a fetch that begins does not wait for new records."""
        bench, waits, fetch = make_bench(partitions=2), [], SimulationReader.fetch
        unsure, sure = ServiceBehaviour(empty_batch=1.0), bench.sim.behaviour

        def noted(reader, records, nbytes, wait, deadline):
            waits.append((reader._id, wait > 0))
            if waits.count(("p0", True)) and reader._id == "p0":
                bench.sim.announce("p0", FACT)
            bench.sim.behaviour = unsure if waits == [*FIRST, ("p0", True), ("p1", True)] else sure
            return fetch(reader, records, nbytes, 0.0, deadline)

        monkeypatch.setattr(SimulationReader, "fetch", noted)
        assert bench.page(api.Now(), wait=20.0).notices == (FACT,)
        assert waits == [*FIRST, ("p0", True), ("p1", True), ("p1", False)]


class TestHeirs:
    """Tests that if a notice causes other partitions to be read, their events are on a later page."""

    @pytest.mark.parametrize("named_late", [False, True])
    def test_the_children_of_its_partition(self, make_bench, ids, named_late):
        bench = make_bench(behaviour=ServiceBehaviour(late_children=1) if named_late else ServiceBehaviour())
        bench.sim.announce("p0", FACT)
        children = bench.sim.split("p0")
        events = [event for name in children for event in bench.fill_partition(name, 2)]
        page = bench.page()
        assert (page.notices, page.events) == ((FACT,), ())
        assert not page.idle
        assert sorted(ids(bench.drain(page.continuation_token)[0])) == sorted(events)

    def test_the_children_of_a_partition_that_ends_with_it(self, make_bench, ids, monkeypatch):
        bench = make_bench()
        bench.sim.announce("p0", FACT)
        events = [event for name in bench.sim.split("p0") for event in bench.fill_partition(name, 2)]
        fetch = SimulationReader.fetch

        def fetched(self, *args):
            batch = fetch(self, *args)
            if batch.notices:
                rest = fetch(self, *args)
                return attrs.evolve(batch, end=rest.end, outcome=rest.outcome)
            return batch

        monkeypatch.setattr(SimulationReader, "fetch", fetched)
        page = bench.page()
        assert (page.notices, page.events) == ((FACT,), ())
        assert sorted(ids(bench.drain(page.continuation_token)[0])) == sorted(events)

    def test_a_child_that_is_named_late_is_read_in_the_call_in_which_its_parent_ends(
        self, make_bench, ids, monkeypatch
    ):
        monkeypatch.setattr(Simulation, "children_named", lambda *_, asked: asked)
        bench = make_bench(1, behaviour=ServiceBehaviour(proves_children=False))
        token = bench.page(api.Now()).continuation_token
        child, _ = bench.sim.split("p0")
        events = bench.fill_partition(child, 2)
        assert ids(bench.page(token)) == events

    def test_a_merged_child_whose_other_parent_ends_later_in_the_call(self, make_bench, ids):
        bench = make_bench(partitions=2)
        bench.sim.announce("p0", FACT)
        first = bench.fill_partition("p1", 2)
        second = bench.fill_partition(bench.sim.merge("p0", "p1"), 2)
        page = bench.page()
        assert (page.notices, ids(page)) == ((FACT,), first)
        assert ids(bench.drain(page.continuation_token)[0]) == second

    @pytest.mark.parametrize("split", [False, True])
    def test_what_takes_the_place_of_a_lost_partition(self, make_bench, ids, split):
        bench = make_bench(partitions=2)
        token = bench.page(api.Now()).continuation_token
        bench.fill_partition("p0", 3)
        heirs = bench.sim.split("p0") if split else ("p0",)
        bench.sim.trim("p0")
        left = [name for heir in heirs for name in bench.fill_partition(heir, 2)]
        others = bench.fill_partition("p1", 3)
        page = bench.page(token, on_expired=SKIP)
        assert [gap.partition_id for gap in gaps(page)] == [bench.sim.public_id("p0")]
        assert ids(page) == others
        assert gaps(bench.page(token, on_expired=SKIP)) == gaps(page)
        pages = list(bench.walk(page.continuation_token, on_expired=SKIP))
        assert sorted(name for each in pages for name in ids(each)) == sorted(left)
        assert not any(gaps(each) for each in pages)


class TestGap:
    def test_one_that_leads_nowhere_is_told_when_it_does(self, make_bench, ids, monkeypatch):
        """At each attempt, the oldest position has already expired. The other partitions are read, and
        nothing is skipped silently.
        """
        bench = make_bench(partitions=2)
        token = bench.page(api.Now()).continuation_token
        bench.fill_partition("p0", 3)
        bench.sim.trim("p0")
        left = bench.fill_partition("p0", 2)
        others = bench.fill_partition("p1", 3)
        bench.sim.fail_next("p0", TrimmedError("gone already"), times=FOREVER)
        page = bench.page(token, on_expired=SKIP)
        assert (ids(page), page.notices) == (others, ())
        bench.refused(api.ErrorCategory.CHECKPOINT_EXPIRED, page.continuation_token, on_expired=SKIP)
        bench.sim.forgive()
        pages = list(bench.walk(page.continuation_token, on_expired=SKIP))
        assert [gap.lost_from for each in pages for gap in gaps(each)] == ["commit 0"]
        assert [name for each in pages for name in ids(each)] == left

    @pytest.mark.parametrize(
        ("lost", "nowhere"), [(lost, some) for lost in subsets(NAMES) for some in subsets(lost)]
    )
    @pytest.mark.parametrize("width", [1, 2, 3])
    def test_each_is_told_exactly_once(self, make_bench, ids, lost, nowhere, width):
        """One refusal moves every lost partition, and some of them lead nowhere afterwards."""
        bench = make_bench(partitions=3)
        bench.connect(max_concurrency=width)
        token = bench.page(api.Now()).continuation_token
        for name in lost:
            bench.fill_partition(name, 3)
            bench.sim.trim(name)
        left = [event for name in NAMES for event in bench.fill_partition(name, 2)]
        for name in nowhere:
            bench.sim.fail_next(name, TrimmedError("gone already"), times=FOREVER)
        pages = []
        with suppress(api.MulticloudDbError):
            pages.append(bench.page(token, on_expired=SKIP))
            token = pages[0].continuation_token
        bench.sim.forgive()
        pages += bench.walk(token, on_expired=SKIP)
        # A refusal of the oldest position that the service has left tells a gap of nothing.
        told = [gap for page in pages for gap in gaps(page) if gap.lost_from != gap.resumed_at]
        assert {gap.lost_from for gap in told} == {"commit 0"}
        assert sorted(gap.partition_id for gap in told) == sorted(map(bench.sim.public_id, lost))
        assert sorted(event for page in pages for event in ids(page)) == sorted(left)
