"""Tests how one call handles answers: notices, positions that expire repeatedly, and the time for an
audit.
"""

import gc
import time
import weakref

import attrs
import pytest

from multiclouddb_api import Gap, LogicalPartition, Now, Renamed, SkipToOldest
from multiclouddb_conformance.simulation import (
    ServerError,
    ServiceBehaviour,
    SimulationFeed,
    SimulationReader,
    TrimmedError,
)
from multiclouddb_spi import Drained, Survey
from multiclouddb_spi.continuation.entry import Audited
from multiclouddb_spi.continuation.follow import is_search_due

FACT = Renamed("a", "b")
SKIP = SkipToOldest()


def test_children_come_after_a_notice_that_stands_at_the_end_of_their_parent(make_bench, ids, monkeypatch):
    """One answer contains the last records, the notice and the end of the partition."""
    fetch = SimulationReader.fetch

    def with_notice(self, records, nbytes, wait, deadline):
        batch = fetch(self, records, nbytes, wait, deadline)
        ends = isinstance(batch.outcome, Drained) and self._id == "p0"
        return attrs.evolve(batch, notices=(FACT,)) if ends else batch

    monkeypatch.setattr(SimulationReader, "fetch", with_notice)
    bench = make_bench()
    bench.connect()
    first = bench.fill_partition("p0", 2)
    later = [event for name in bench.sim.split("p0") for event in bench.fill_partition(name, 2)]
    page = bench.page()
    assert (ids(page), page.notices) == (first, (FACT,))
    assert not page.idle
    assert sorted(ids(bench.drain(page.continuation_token)[0])) == sorted(later)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_position_that_expires_again_while_it_is_replaced_costs_no_failure(make_bench, ids, times):
    """A busy service may remove the oldest records three times during one call."""
    bench = make_bench()
    bench.connect()
    token = bench.page(Now()).continuation_token
    bench.fill_partition("p0", 3)
    bench.sim.trim("p0")
    left = bench.fill_partition("p0", 2)
    bench.sim.fail_next("p0", TrimmedError("gone already"), times=times)
    pages = list(bench.walk(token, on_expired=SKIP))
    notices = [notice for page in pages for notice in page.notices]
    assert {type(notice) for notice in notices} == {Gap}
    assert len(notices) == times
    assert [event for page in pages for event in ids(page)] == left


class TestAudit:
    def test_it_takes_half_of_a_short_call_at_most(self, make_bench, monkeypatch):
        """An audit takes at most half of the call's time; the other half remains for reading. If an audit got
        only a third of the time, it would always fail on a slow service.
        """
        bench = make_bench(behaviour=ServiceBehaviour(late_listing=1))
        bench.connect(coverage_audit_seconds=1e-9)
        token, left, now = bench.page(Now()).continuation_token, [], [7000.0]

        def survey(self, asked, deadline, **wanted):
            left.append(deadline.remaining())
            return Survey()

        def monotonic():
            now[0] += 1e-6
            return now[0]

        monkeypatch.setattr(SimulationFeed, "survey", survey)
        monkeypatch.setattr(time, "monotonic", monotonic)
        bench.page(token, timeout=8.0)
        assert left == [pytest.approx(4.0, abs=0.1)]

    @pytest.mark.parametrize(("retired", "after"), [(False, 600), (True, 60)])
    def test_it_is_due_when_its_time_has_come(self, monkeypatch, retired, after):
        audited = Audited(None, 1_000_000, retired=retired)
        monkeypatch.setattr(time, "time", lambda: float(1_000_000 + after))
        assert is_search_due(audited, 600.0)
        monkeypatch.setattr(time, "time", lambda: 1_000_000 + after - 0.001)
        assert not is_search_due(audited, 600.0)


def test_a_failure_that_was_retried_is_not_kept(make_bench):
    """The error's traceback refers to the records that were being read, which may take many megabytes."""
    bench = make_bench()
    bench.connect()
    bench.fill_partition("p0", 3)
    error = ServerError("503")
    kept = weakref.ref(error)
    bench.sim.fail_next("p0", error)
    del error
    page = bench.page(size=1)
    assert (len(page.events), page.diagnostics.retries) == (1, 1)
    gc.collect()
    assert kept() is None


def test_a_feed_of_one_key_goes_on_with_a_partition_that_is_listed_after_a_loss(make_bench, ids):
    bench = make_bench(behaviour=ServiceBehaviour(late_listing=1))
    bench.connect(coverage_audit_seconds=1e-9)
    scope = LogicalPartition(bench.sim.key("k"))
    token = bench.page(Now(), scope=scope).continuation_token
    bench.sim.write("k", {})
    child = bench.sim.roll("p0")
    last = bench.sim.roll(child)
    bench.sim.hide(last, 4)
    bench.sim.trim("p0")
    bench.sim.trim(child)
    left = bench.sim.write("k", {}).event_id
    found = []
    for _ in range(9):
        page = bench.page(token, scope=scope, on_expired=SKIP)
        token, found = page.continuation_token, found + ids(page)
    assert (found, page.idle) == ([left], True)
