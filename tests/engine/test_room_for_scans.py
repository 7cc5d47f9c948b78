"""Tests lineage entries that are not partitions of the service, such as the segments of a scan."""

import pytest

from multiclouddb_api import FeedEnded, MulticloudDbError
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import (
    Listing,
    Simulation,
    SimulationProvider,
)
from multiclouddb_conformance.simulation.view import View
from multiclouddb_spi import (
    Deadline,
    Drained,
    Ended,
    FeedSpec,
    read_range,
)
from multiclouddb_spi.continuation.entry import Entry, Plan, Stage
from multiclouddb_spi.continuation.follow import Ending, apply_end
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.planning.ranges import Range

SOON = Deadline.after(30)
forms = pytest.mark.parametrize("form", list(Listing))


class TestOutcomes:
    def test_a_dropped_collection_ends_the_scan_and_starts_the_stream(self):
        plan = Plan("plan", [1], "f", 5, holds=True)
        segments = [Entry.read(name, 1, listed=False) for name in ("part-1", "part-2")]
        made = Lineage([plan, *segments, Entry("p0", Stage.WAIT, (1,), ("plan",))], RULES)
        assert apply_end(made, "part-1", Ended(FeedEnded("over"))) == Ending((), ("p0",))
        assert [entry.partition_id for entry in made] == ["p0"]

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
