"""Tests how the engine, Spark and the command line open a feed, call it and check its token."""

import math
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest

import multiclouddb_api as api
from multiclouddb_conformance.simulation import (
    DeniedError,
    MissingError,
    ServerError,
    Simulation,
    SimulationFeed,
    SimulationProvider,
    capabilities_without,
)
from multiclouddb_spi import Deadline, Fault, FeedSpec, ProviderFault, open_feed
from multiclouddb_spi.open_feed import OpenFeed
from multiclouddb_spi.request_check import spec_of
from multiclouddb_spi.retry import Tries


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("multiclouddb_spi.retry.time", SimpleNamespace(sleep=lambda seconds: None))


@pytest.fixture
def sim():
    return Simulation()


def opened_by(provider, sim, keeper=None):
    spec = spec_of(provider, api.ChangeFeedRequest(sim.address, api.Now()), "open")
    return OpenFeed(provider, spec, Tries(provider).call, 5, keeper)


@pytest.fixture
def opened(sim):
    return opened_by(SimulationProvider(sim), sim)


def found_unless(old):
    def begin(feed):
        if feed is old:
            raise MissingError("gone")
        return "found"

    return begin


class TestUse:
    def test_not_found_on_a_feed_that_was_open_before_is_asked_again_on_a_new_one(self, opened):
        assert opened.use(found_unless(opened.feed)) == "found"

    def test_a_token_of_what_was_not_found_does_not_go_on_in_the_resource_that_replaced_it(self, opened):
        old, open_feed = opened.feed, opened.provider.open_feed

        def recreated(spec, deadline):
            feed = open_feed(spec, deadline)
            feed.resumes = lambda incarnation: False
            return feed

        def begin(feed):
            assert feed is old
            raise MissingError("gone")

        opened.provider.open_feed = recreated
        with pytest.raises(api.MulticloudDbError, match="recreated") as caught:
            opened.use(begin, made_by=(old.identity.incarnation, "continuation_token", "start again"))
        assert caught.value.category == api.ErrorCategory.INVALID_REQUEST

    def test_not_found_on_a_feed_that_was_just_opened_is_believed_and_forgotten(self, opened):
        begun = []

        def begin(feed):
            begun.append(feed)
            raise MissingError("gone")

        for count in (1, 2):
            with pytest.raises(MissingError):
                opened.use(begin)
            assert opened.provider.calls.feeds == len(begun) == count

    def test_a_token_that_a_new_feed_refuses_opens_no_second_feed(self, opened):
        with pytest.raises(api.MulticloudDbError, match="recreated"):
            opened.use(lambda feed: None, made_by=("earlier", "continuation_token", "start again"))
        assert opened.provider.calls.feeds == 1

    def test_any_other_failure_leaves_the_feed_open(self, opened):
        feed = opened.feed

        def begin(feed):
            raise ServerError("503")

        with pytest.raises(ServerError):
            opened.use(begin)
        assert opened.feed is feed

    @pytest.mark.parametrize("operation", ["open", "survey"])
    def test_a_limited_call_raises_the_users_error(self, opened, sim, operation):
        sim.fail_next(None, DeniedError("no"), operation="open_feed" if operation == "open" else operation)
        with pytest.raises(api.MulticloudDbError, match="no") as caught:
            opened.call("survey", lambda deadline: opened.feed.survey({}, deadline))
        detail = caught.value.detail
        denied = api.ErrorCategory.AUTHORIZATION_FAILED
        assert (detail.category, detail.provider, detail.operation) == (denied, "simulation", operation)

    def test_a_recreated_resource_opens_the_feed_again(self, opened, sim):
        assert opened.feed.identity.incarnation == sim.incarnation
        sim.recreate()
        for _ in range(2):
            made_by = (sim.incarnation, "continuation_token", "start again")
            assert opened.use(lambda feed: feed, made_by=made_by).identity.incarnation == sim.incarnation
            assert opened.provider.calls.feeds == 2

    @pytest.mark.parametrize("refusals", [0, 1, 2])
    def test_a_new_feed_is_checked_once_more(self, opened, refusals):
        assert opened.feed
        seen, begun = [], []

        def check(feed):
            seen.append(feed)
            if len(seen) <= refusals:
                raise api.invalid_request("partition_id", "is of another", "list them")

        with pytest.raises(api.MulticloudDbError, match="of another") if refusals == 2 else nullcontext():
            opened.use(begun.append, check)
        assert len(seen) == opened.provider.calls.feeds == 1 + (refusals > 0)
        assert begun == ([] if refusals == 2 else seen[-1:])

    def test_a_token_of_an_earlier_resource_is_refused(self, opened, sim):
        opened.check_resumes(sim.incarnation, "token", "start again")
        with pytest.raises(api.MulticloudDbError, match=r"^\[INVALID_REQUEST\] token: .*; start again"):
            opened.check_resumes("earlier", "token", "start again")

    def test_a_start_that_the_provider_lacks_is_refused(self, sim):
        lacking = capabilities_without(api.Capability.CHANGE_FEED_SNAPSHOT)
        opened = opened_by(SimulationProvider(sim, capabilities=lacking), sim)
        opened.check_start(api.Now())
        with pytest.raises(api.MulticloudDbError, match="use another simulation"):
            opened.check_start(api.Snapshot())


class TestShared:
    """Tests what callers see of a feed that is kept for all of them."""

    @pytest.fixture
    def pair(self, sim):
        provider = SimulationProvider(sim)
        cache = open_feed.FeedCache(Tries(provider).call, lambda feed: None)
        return [opened_by(provider, sim, cache) for _ in range(2)]

    def test_one_opened_again_is_new_for_all(self, pair):
        one, other = pair
        first = one.feed
        assert other.feed is first
        one.renew()
        assert other.feed is first  # as long as it is in use
        other.close()
        assert one.feed is other.feed is not first
        assert one.provider.calls.feeds == 2

    def test_users_of_the_old_leave_the_new(self, pair):
        one, other = pair
        assert one.feed is other.feed
        one.renew()
        new = one.feed
        other.renew()
        assert other.feed is new
        assert one.provider.calls.feeds == 2

    def test_one_that_was_just_opened_is_believed(self, pair):
        one, _ = pair
        with pytest.raises(api.MulticloudDbError, match="recreated"):
            one.use(lambda feed: None, made_by=("earlier", "continuation_token", "start again"))
        assert one.provider.calls.feeds == 1

    def test_what_is_not_found_is_asked_again(self, pair):
        one, other = pair
        assert other.use(found_unless(one.feed)) == "found"


def test_a_host_without_address_is_a_wrong_name_only_until_a_feed_was_open(bench):
    message = "this host has no address; check its name"
    fault = Fault(api.ErrorCategory.TRANSIENT_FAILURE, message, retryable=True, unknown_host=True)
    bench.fill(1)
    bench.sim.fail_next(None, ProviderFault(fault), operation="open_feed")
    bench.refused(api.ErrorCategory.INVALID_REQUEST)
    assert len(bench.page().events) == 1
    bench.sim.fail_next(None, ProviderFault(fault), operation="open_feed")
    assert len(bench.page(include_native=True).events) == 1  # another feed, opened with a retry


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(open_feed, "time", clock)
    return clock


@pytest.fixture
def forgotten(bench, monkeypatch):
    """Return the keys whose feeds, with their consumers, the engine has forgotten."""
    names, forget = [], bench.engine._calls.kept.feeds._forget_consumers

    def noting(feed):
        names.append(feed.spec.scope.key.components["id"])
        forget(feed)

    monkeypatch.setattr(bench.engine._calls.kept.feeds, "_forget_consumers", noting)
    return names


class Worker:
    """A worker that reads many keys in turn."""

    def __init__(self, bench, count):
        self.bench, self.tokens = (
            bench,
            dict.fromkeys((f"k{number}" for number in range(count)), api.Beginning()),
        )

    def turn(self, *names):
        """Read a page of some keys, or of every key; return how many feeds were opened."""
        before = self.bench.calls.feeds
        for name in names or self.tokens:
            scope = api.LogicalPartition(self.bench.sim.key(name))
            page = self.bench.page(self.tokens.get(name, api.Beginning()), scope=scope)
            self.tokens[name] = page.continuation_token
        return self.bench.calls.feeds - before


def test_a_feed_is_opened_once_for_each_of_many_keys(bench, forgotten):
    worker = Worker(bench, 500)
    assert [worker.turn() for _ in range(3)] == [500, 0, 0]
    assert forgotten == []


@pytest.mark.parametrize("used", ["k0", "k19"])
def test_one_that_nobody_has_used_for_ten_minutes_is_forgotten(bench, clock, forgotten, used):
    worker = Worker(bench, 20)
    worker.turn()
    clock.now += 599
    assert worker.turn(used) == 0
    assert forgotten == []
    clock.now += 2
    for count in (8, 16, 19):  # each call forgets only some of the feeds
        worker.turn(used)
        assert len(forgotten) == count
    others = {*worker.tokens} - {used}
    assert sorted(forgotten) == sorted(others)
    assert worker.turn(used) == 0
    assert worker.turn(min(others)) == 1


def test_more_than_are_kept_do_not_push_each_other_out(bench, clock, forgotten, monkeypatch):
    monkeypatch.setattr(open_feed, "_MOST_FEEDS", 10)
    worker = Worker(bench, 12)
    assert [worker.turn() for _ in range(3)] == [12, 2, 2]
    assert forgotten == ["k10", "k11"] * 3


def test_sixteen_thousand_are_kept():
    forgotten = []
    cache = open_feed.FeedCache(lambda operation, deadline: operation(), forgotten.append)
    for number in range(16385):
        assert forgotten == []
        cache.release(cache.acquire(number, lambda spec=number: SimpleNamespace(spec=spec))[0])
    assert [feed.spec for feed in forgotten] == [16384]


def test_one_that_was_not_used_for_a_minute_gives_its_place(bench, clock, forgotten, monkeypatch):
    monkeypatch.setattr(open_feed, "_MOST_FEEDS", 10)
    worker = Worker(bench, 10)
    worker.turn()
    clock.now += 61
    worker.turn("k5", "new")
    assert forgotten == ["k0"]
    assert worker.turn("k5", "new", "k1") == 0


class TestInUse:
    """Tests that a feed in use by a call is not forgotten before the call ends."""

    @pytest.fixture
    def cache(self, bench):
        return bench.engine._calls.kept.feeds

    def acquire(self, bench, cache, name):
        spec = FeedSpec(bench.sim.address, api.LogicalPartition(bench.sim.key(name)))
        return cache.acquire(spec, lambda: bench.provider.open_feed(spec, Deadline.after(30)))[0]

    def test_time_of_the_service_goes_on_between_answers(self, bench, cache, clock):
        feed = self.acquire(bench, cache, "clock")
        first = cache.now(feed, Deadline.after(30))
        assert first == bench.sim.now
        clock.now += 5
        assert cache.now(feed, Deadline.after(30)) - first == timedelta(seconds=5)

    def test_a_service_that_tells_no_time_has_none(self, bench, cache, monkeypatch):
        monkeypatch.setattr(SimulationFeed, "clock", lambda *_: None)
        assert cache.now(self.acquire(bench, cache, "clock"), Deadline.after(30)) is None
        bench.fill(1)
        page = bench.page()
        assert (len(page.events), page.diagnostics.lag_seconds) == (1, None)

    @pytest.fixture
    def asked(self, monkeypatch):
        """Record how long the service may take for its time, each time that it is asked."""
        found, tell = [], SimulationFeed.clock

        def recorded(feed, deadline):
            found.append(deadline.remaining())
            return tell(feed, deadline)

        monkeypatch.setattr(SimulationFeed, "clock", recorded)
        return found

    def times(self, bench, cache, clock, waits):
        feed = self.acquire(bench, cache, "clock")
        for seconds in waits:
            clock.now += seconds
            yield cache.soon(feed, Deadline(math.inf))

    def test_the_service_tells_its_time_once_a_minute(self, bench, cache, clock, asked):
        told = self.times(bench, cache, clock, (0, 59, 2, 59, 2))
        assert [(time is not None, len(asked)) for time in told] == [(True, n) for n in (1, 1, 2, 2, 3)]
        assert all(0 < seconds <= 1 for seconds in asked)

    def test_a_start_at_now_always_asks_the_time(self, bench, cache, clock, asked):
        feed = self.acquire(bench, cache, "clock")
        for count in (1, 2, 3):
            assert cache.asked_now(feed, Deadline(math.inf)) == bench.sim.now
            assert len(asked) == count

    def test_a_service_without_an_answer_rests_a_minute(self, bench, cache, clock, asked):
        bench.sim.fail_next(None, DeniedError("no"), operation="clock")
        told = self.times(bench, cache, clock, (0, 59, 2, 1))
        assert [(time is not None, len(asked)) for time in told] == [
            (False, 1),
            (False, 1),
            (True, 2),
            (True, 2),
        ]

    def test_it_does_not_age(self, bench, cache, clock, forgotten):
        feed = self.acquire(bench, cache, "long")
        clock.now += 601
        cache.release(self.acquire(bench, cache, "other"))
        assert forgotten == []
        cache.release(feed)
        clock.now += 599
        cache.release(self.acquire(bench, cache, "other"))
        assert forgotten == []
        clock.now += 2
        cache.release(self.acquire(bench, cache, "other"))
        assert forgotten == ["long"]

    def test_one_that_is_renewed_stays_open_for_others(self, bench, cache, forgotten):
        feed = self.acquire(bench, cache, "both")
        assert self.acquire(bench, cache, "both") is feed
        cache.forget(feed)
        cache.release(feed)
        assert cache.now(feed, Deadline.after(30)) is not None
        cache.release(feed)
        assert forgotten == ["both", "both"]

    def test_one_not_in_use_is_forgotten_once(self, bench, cache, clock, forgotten):
        feed = self.acquire(bench, cache, "idle")
        cache.release(feed)
        cache.forget(feed)
        clock.now += 601
        cache.release(self.acquire(bench, cache, "other"))
        assert forgotten == ["idle"]

    def test_closing_forgets_those_that_are_not_in_use(self, bench, cache, forgotten):
        feeds = [self.acquire(bench, cache, name) for name in ("idle", "used")]
        cache.release(feeds[0])
        cache.close()
        cache.release(feeds[1])
        assert sorted({*forgotten}) == ["idle", "used"]

    def test_one_that_was_being_opened_while_the_client_closed_is_not_kept(self, bench, cache, forgotten):
        spec = FeedSpec(bench.sim.address, api.LogicalPartition(bench.sim.key("late")))

        def open_late():
            feed = bench.provider.open_feed(spec, Deadline.after(30))
            cache.close()
            return feed

        feed, _ = cache.acquire(spec, open_late)
        assert forgotten == []
        cache.release(feed)
        assert forgotten == ["late"]
