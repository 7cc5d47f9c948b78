"""Tests that the service's time advances with a monotonic clock, never with the client's clock."""

from datetime import UTC, datetime, timedelta

import pytest

from multiclouddb_api import AtTime, Beginning, ErrorCategory, MulticloudDbError, Now, Observer
from multiclouddb_conformance.delegating import WrappedProvider
from multiclouddb_conformance.simulation import ServerError, SimulationFeed, SimulationProvider
from multiclouddb_spi import open_feed
from multiclouddb_spi.reading import page_builder

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


def test_where_the_service_tells_no_time_the_provider_decides_what_is_ahead(bench, monkeypatch):
    bench.fill(3)
    monkeypatch.setattr(SimulationFeed, "clock", lambda self, deadline: None)
    bench.page(AtTime(bench.sim.now + FAR))


class Low(Observer):
    def __init__(self):
        self.told = []

    def retention_headroom_low(self, address, partition_id, seconds):
        self.told.append((partition_id, seconds))


def test_a_headroom_that_stays_low_is_told_once_a_minute(make_bench, monkeypatch):
    bench = make_bench(4, retention_seconds=3600)
    low = Low()
    bench.connect(observer=low, headroom_warning_seconds=10**9)
    bench.fill(40)
    seconds = [1000.0]
    monkeypatch.setattr(page_builder.time, "monotonic", lambda: seconds[0])
    token = bench.page(Beginning()).continuation_token
    told = len(low.told)
    for _ in range(20):
        token = bench.page(token).continuation_token
    assert (told, len(low.told)) == (1, 1)
    seconds[0] += 61
    bench.page(token)
    assert len(low.told) == 2


@pytest.mark.parametrize("start", [Beginning(), Now()])
def test_a_fresh_start_of_a_quiet_feed_is_told_nothing(make_bench, start):
    bench = make_bench(2, retention_seconds=3600 * 24)
    low = Low()
    bench.connect(observer=low)
    bench.page(start)
    assert low.told == []


def test_a_partition_that_is_read_to_its_end_can_lose_nothing(make_bench):
    bench = make_bench(1, retention_seconds=3600)
    low = Low()
    bench.connect(observer=low, headroom_warning_seconds=1800)
    bench.fill(3)
    bench.sim.advance(3500)
    bench.sim.split("p0")
    while not (page := bench.page(size=100)).events:
        pass
    bench.fill(3)
    page = bench.page(page.continuation_token)
    assert page.diagnostics.retention_headroom_seconds > 1800


class SameFeed(WrappedProvider):
    """A provider that returns the same feed object each time a feed is opened."""

    feed = None

    def open_feed(self, spec, deadline):
        if self.feed is None:
            self.feed = super().open_feed(spec, deadline)
        return self.feed


def test_a_clock_that_failed_is_asked_again_when_the_feed_is_opened_anew(bench):
    """The service is asked for its time again only when the feed is opened again.

    Until the feed is opened again, the service's time is unknown.
    """
    bench.fill(9)
    first = bench.page(size=1).continuation_token
    bench.connect(provider=SameFeed(SimulationProvider(bench.sim)), attempts=1)
    bench.sim.fail_next(None, ServerError("503"), times=None, operation="clock")
    page = bench.page(first, size=1)
    assert page.diagnostics.lag_seconds is None
    bench.sim.forgive()
    page = bench.page(page.continuation_token, size=1)
    assert page.diagnostics.lag_seconds is None
    bench.sim.trim("p0", 2)
    bench.refused(ErrorCategory.CHECKPOINT_EXPIRED, first, size=1)
    page = bench.page(page.continuation_token, size=1)
    assert page.diagnostics.lag_seconds is not None
