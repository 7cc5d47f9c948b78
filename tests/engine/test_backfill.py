"""Tests a feed whose stream can start only at `Now`: for an earlier start, a scan comes first."""

from datetime import timedelta

import pytest

from multiclouddb_api import AtTime, BackfillDone, Beginning, ErrorCategory, Now, SnapshotStarted
from multiclouddb_conformance.simulation import SimulationFeed


@pytest.fixture
def asked(monkeypatch):
    """Make the simulation such a service; return the arguments of the calls of `backfill`."""
    calls = []

    def backfill(feed, position, partition_id, deadline):
        calls.append((position, partition_id))
        return feed.snapshot(None, deadline)

    monkeypatch.setattr(SimulationFeed, "backfill", backfill, raising=False)
    return calls


@pytest.mark.parametrize("at_time", [False, True], ids=["beginning", "time"])
def test_the_rows_come_first_and_then_the_changes(bench, asked, at_time):
    position = AtTime(bench.sim.now) if at_time else Beginning()
    bench.fill(5)
    first = bench.page(position, size=2)
    bench.sim.write("k0", {"n": 100})
    pages = [first, *bench.walk(first.continuation_token, size=2)]
    assert [event.backfilled for page in pages for event in page.events] == [True] * 5 + [False]
    assert [type(notice) for page in pages for notice in page.notices] == [SnapshotStarted, BackfillDone]
    assert asked == [(position, None)]


def test_now_needs_no_scan(bench, asked):
    bench.fill(5)
    assert bench.drain(Now())[0] == []
    assert asked == []


def test_a_time_in_the_future_is_refused_before_a_scan_is_planned(bench, asked):
    ahead = AtTime(bench.sim.now + timedelta(hours=1))
    bench.refused(ErrorCategory.INVALID_REQUEST, ahead, match=r"AtTime\.utc")
    assert asked == []
