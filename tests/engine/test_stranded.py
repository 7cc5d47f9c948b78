"""Tests that a merged child does not wait forever for a parent that was never listed and no longer exists."""

import pytest

from multiclouddb_api import ErrorCategory, Gap, Now, SkipToOldest
from multiclouddb_conformance.simulation import SimulationProvider
from multiclouddb_spi import Deadline, FeedSpec, Planner, ProviderFault

NEVER, ALWAYS = 1e9, 1e-9
LATE = 10**6
SKIP = {"on_expired": SkipToOldest()}


@pytest.fixture
def stranded(make_bench):
    """Make a token that waits for both `p0` and `p1`, the parents of `p2`.

    `p1` was never listed and no longer exists. `p0` was read to its end, so `p2` waits only for `p1`.
    """
    bench = make_bench(2)
    bench.connect(coverage_audit_seconds=NEVER)
    bench.sim.hide("p1", LATE)
    token = bench.page(Now()).continuation_token
    bench.lost = bench.fill_partition("p1", 3)
    bench.sim.merge("p0", "p1")
    bench.after = bench.fill_partition("p2", 4)
    bench.token = bench.page(token).continuation_token
    assert not bench.page(bench.token).idle
    bench.sim.trim("p1")
    assert bench.sim.partitions["p1"].gone
    return bench


def test_it_is_an_expired_checkpoint_that_names_the_lost_partition(stranded):
    stranded.connect(coverage_audit_seconds=ALWAYS)
    for _ in range(3):
        error = stranded.refused(ErrorCategory.CHECKPOINT_EXPIRED, stranded.token)
        assert stranded.sim.public_id("p1") in error.message
        assert "SkipToOldest" in error.message


def test_skipping_tells_of_the_gap_once_and_reads_the_child(stranded, ids):
    stranded.connect(coverage_audit_seconds=ALWAYS)
    pages = list(stranded.walk(stranded.token, **SKIP))
    gaps = [notice for page in pages for notice in page.notices]
    assert [(type(gap), gap.partition_id) for gap in gaps] == [(Gap, stranded.sim.public_id("p1"))]
    told = next(number for number, page in enumerate(pages) if page.notices)
    assert all(page.events == () for page in pages[: told + 1])
    assert [name for page in pages for name in ids(page)] == stranded.after


def test_the_child_that_waits_may_be_lost_too(stranded, ids):
    stranded.sim.roll("p2")
    stranded.sim.trim()
    after = stranded.fill_partition(stranded.sim.open_partitions[0], 2)
    assert stranded.sim.partitions["p2"].gone
    stranded.connect(coverage_audit_seconds=ALWAYS)
    error = stranded.refused(ErrorCategory.CHECKPOINT_EXPIRED, stranded.token)
    assert stranded.sim.public_id("p1") in error.message
    assert [name for page in stranded.walk(stranded.token, **SKIP) for name in ids(page)] == after


@pytest.mark.parametrize("way", ["listed", "readable"])
def test_a_parent_that_can_still_be_read_is_waited_for(make_bench, ids, way):
    bench = make_bench(2)
    bench.connect(coverage_audit_seconds=NEVER)
    bench.sim.hide("p1", LATE)
    token = bench.page(Now()).continuation_token
    written = bench.fill_partition("p1", 3)
    bench.sim.merge("p0", "p1")
    written += bench.fill_partition("p2", 4)
    token = bench.page(token).continuation_token
    bench.connect(coverage_audit_seconds=ALWAYS)
    if way == "readable":
        page = bench.page(token, **SKIP)
        assert page.notices == ()
        assert page.events == ()
        token = page.continuation_token
    bench.sim.hide("p1", 0)
    pages = list(bench.walk(token, **SKIP)) + list(bench.walk(token, **SKIP))
    assert not [notice for page in pages for notice in page.notices if isinstance(notice, Gap)]


class TestPlanner:
    """Tests bounded reads of a feed with stranded partitions, which the tests above read page by page."""

    def planner(self, bench, every, on_expired=None):
        provider = SimulationProvider(bench.sim)
        feed = provider.open_feed(FeedSpec(bench.sim.address), Deadline.after(30))
        return Planner(provider, feed, on_expired, audit_seconds=every)

    @pytest.fixture
    def waiting(self, make_bench):
        """Return the collection, and a lineage in which a child waits."""
        bench = make_bench(2)
        bench.sim.hide("p1", LATE)
        planner = self.planner(bench, NEVER)
        lineage = planner.start(Now(), Deadline.after(30))
        bench.fill_partition("p1", 3)
        bench.sim.merge("p0", "p1")
        bench.fill_partition("p2", 4)
        lineage = planner.advance(lineage, None, Deadline.after(30)).after
        assert lineage.active() == []
        bench.sim.trim("p1")
        return bench, lineage

    def test_it_is_an_expired_checkpoint(self, waiting):
        bench, lineage = waiting
        with pytest.raises(ProviderFault, match="SkipToOldest"):
            self.planner(bench, ALWAYS).advance(lineage, None, Deadline.after(30))

    def test_skipping_goes_on_with_the_child(self, waiting):
        bench, lineage = waiting
        step = self.planner(bench, ALWAYS, SkipToOldest()).advance(lineage, None, Deadline.after(30))
        assert [entry.partition_id for entry in step.after.active()] == ["p2"]
