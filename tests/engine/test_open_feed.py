"""Tests how the engine, Spark and the command line open a feed, call it and check its token."""

import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    ChangeFeedRequest,
    ErrorCategory,
    MulticloudDbError,
    Now,
)
from multiclouddb_conformance.simulation import (
    MissingError,
    ServerError,
    Simulation,
    SimulationProvider,
    capabilities_without,
)
from multiclouddb_spi.open_feed import OpenFeed
from multiclouddb_spi.request_check import spec_of
from multiclouddb_spi.retry import Tries


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("multiclouddb_spi.retry.time.sleep", lambda seconds: None)


@pytest.fixture
def sim():
    return Simulation()


def opened_by(provider, sim, keeper=None):
    spec = spec_of(provider, ChangeFeedRequest(sim.address, Now()), "open")
    return OpenFeed(provider, spec, Tries(provider).call, 5, keeper)


@pytest.fixture
def opened(sim):
    return opened_by(SimulationProvider(sim), sim)


def closings(opened):
    """Provide a list of the feeds that are closed from now on."""
    closed = []
    open_feed = opened.provider.open_feed

    def noting(spec, deadline):
        feed = open_feed(spec, deadline)
        feed.close = lambda: closed.append(feed)
        return feed

    opened.provider.open_feed = noting
    return closed


class TestOpening:
    def test_is_opened_once_and_at_the_first_use(self, opened):
        assert opened.provider.calls.feeds == 0
        assert opened.feed is opened.feed
        assert opened.provider.calls.feeds == 1

    def test_is_tried_again(self, opened, sim):
        sim.fail_next(None, ServerError("503"), 2, "open_feed")
        assert opened.feed.spec == opened.spec
        assert opened.provider.calls.feeds == 1

    def test_what_keeps_failing_is_the_user_s_error(self, opened, sim):
        sim.drop()
        with pytest.raises(MulticloudDbError) as caught:
            _ = opened.feed
        assert (caught.value.category, caught.value.detail.operation) == (ErrorCategory.NOT_FOUND, "open")

    def test_closing_closes_it_once(self, opened):
        closed = closings(opened)
        opened.close()
        feed = opened.feed
        opened.close()
        opened.close()
        assert closed == [feed]

    def test_renewing_closes_it_and_opens_another(self, opened):
        closed = closings(opened)
        feed = opened.feed
        opened.renew()
        assert closed == [feed]
        assert opened.feed is not feed


class TestKeeping:
    def test_a_kept_feed_is_released_and_not_closed(self, sim):
        told = []

        class Keeper:
            def acquire(self, spec, open_feed):
                told.append("acquire")
                return open_feed(), False

            def forget(self, feed):
                told.append("forget")

            def release(self, feed):
                told.append("release")

        opened = opened_by(SimulationProvider(sim), sim, Keeper())
        closed = closings(opened)
        _ = opened.feed
        opened.renew()
        _ = opened.feed
        opened.close()
        assert told == ["acquire", "forget", "release", "acquire", "release"]
        assert closed == []


class TestIncarnation:
    WAY_OUT = ("checkpoint", "use another")

    def test_its_own_goes_on(self, opened, sim):
        opened.check_resumes(sim.incarnation, *self.WAY_OUT)
        opened.check_resumes(sim.incarnation, *self.WAY_OUT)
        assert opened.provider.calls.feeds == 1

    def test_an_earlier_one_is_refused(self, opened, sim):
        earlier = sim.incarnation
        sim.recreate()
        for count in (1, 2):  # a feed that was opened for this call is not opened again
            with pytest.raises(MulticloudDbError) as caught:
                opened.check_resumes(earlier, *self.WAY_OUT)
            assert caught.value.category == ErrorCategory.INVALID_REQUEST
            problem = f"belongs to an earlier {sim.address}, which was recreated under the same name"
            assert caught.value.message == f"checkpoint: {problem}; use another"
            assert opened.provider.calls.feeds == count

    def test_a_feed_that_was_open_before_is_opened_anew_first(self, opened, sim):
        closed = closings(opened)
        old = opened.feed
        sim.recreate()
        opened.check_resumes(sim.incarnation, *self.WAY_OUT)
        assert closed == [old]
        assert opened.feed.identity.incarnation == sim.incarnation

    def test_it_is_the_feed_that_says_what_resumes(self, opened):
        opened.feed.resumes = lambda incarnation: incarnation == "an older one of the same data"
        opened.check_resumes("an older one of the same data", *self.WAY_OUT)
        assert opened.provider.calls.feeds == 1


class TestUse:
    def test_not_found_on_a_feed_that_was_open_before_is_asked_again_on_a_new_one(self, opened):
        old = opened.feed

        def begin(feed):
            if feed is old:
                raise MissingError("gone")
            return "found"

        assert opened.use(begin) == "found"

    def test_not_found_on_a_feed_that_was_just_opened_is_believed_and_forgotten(self, opened):
        closed, asked = closings(opened), []

        def begin(feed):
            asked.append(feed)
            raise MissingError("gone")

        for count in (1, 2):
            with pytest.raises(MissingError):
                opened.use(begin)
            assert len(asked) == opened.provider.calls.feeds == count
            assert closed == asked

    def test_any_other_failure_leaves_the_feed_open(self, opened):
        feed = opened.feed

        def begin(feed):
            raise ServerError("503")

        with pytest.raises(ServerError):
            opened.use(begin)
        assert opened.feed is feed

    def test_nothing_is_a_result_too(self, opened):
        assert opened.use(lambda feed: None) is None
        assert opened.use(lambda feed: None) is None
        assert opened.provider.calls.feeds == 1


class TestStarts:
    @pytest.mark.parametrize(
        ("capability", "refused"),
        [
            (Capability.CHANGE_FEED_BEGINNING, Beginning()),
            (Capability.CHANGE_FEED_POINT_IN_TIME, AtTime(Simulation().now)),
        ],
        ids=["beginning", "time"],
    )
    def test_one_that_the_provider_cannot_do_is_refused(self, sim, capability, refused):
        provider = SimulationProvider(sim, capabilities=capabilities_without(capability))
        opened = opened_by(provider, sim)
        for position in {Beginning(), AtTime(sim.now), Now()} - {refused}:
            opened.check_start(position)
        with pytest.raises(MulticloudDbError) as caught:
            opened.check_start(refused)
        assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY
        assert provider.calls.feeds == 0
