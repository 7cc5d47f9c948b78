"""Tests the retry policy that pages, plans, Spark and the command line share."""

import sys
from collections import Counter

import pytest

from multiclouddb_api import ChangeFeedRequest, ErrorCategory, MulticloudDbError, Now
from multiclouddb_conformance.simulation import (
    DeniedError,
    ServerError,
    SimulationProvider,
    ThrottledError,
)
from multiclouddb_spi import Deadline, Fault, FeedSpec, Planner, read_range
from multiclouddb_spi.errors import fault_of, user_errors
from multiclouddb_spi.open_feed import OpenFeed
from multiclouddb_spi.request_check import spec_of
from multiclouddb_spi.retry import ATTEMPTS, Tries, directly

SOON = 60


class Discreet(SimulationProvider):
    """A provider whose vendor's error text may quote a secret."""

    def classify(self, error):
        return Fault(ErrorCategory.PERMANENT_FAILURE, "it did not work; try another way", confidential=True)


class Counting(SimulationProvider):
    """A provider that keeps every error that it was asked to classify."""

    def __init__(self, sim, **settings):
        super().__init__(sim, **settings)
        self.classified = []

    def classify(self, error):
        self.classified.append(error)
        return super().classify(error)


@pytest.fixture
def pauses(monkeypatch):
    """Do not wait, but record how long each pause would be."""
    waited = []
    monkeypatch.setattr("multiclouddb_spi.retry.time.sleep", waited.append)
    return waited


def opened(provider, sim, tries):
    return OpenFeed(provider, spec_of(provider, ChangeFeedRequest(sim.address, Now()), "open"), tries.call, 5)


def failing(error, times=None):
    """Return a call that fails `times` times, and then returns the number of attempts.

    None means that the call always fails.
    """
    made = []

    def ask(deadline=None):
        made.append(deadline)
        if times is None or len(made) <= times:
            raise type(error)(*error.args)
        return len(made)

    return ask


class TestTries:
    def call(self, sim, ask, seconds=SOON, **settings):
        return Tries(SimulationProvider(sim), **settings).call(ask, Deadline.after(seconds))

    def test_what_works_is_called_once_and_waits_for_nothing(self, bench, pauses):
        assert self.call(bench.sim, failing(ServerError("503"), 0)) == 1
        assert pauses == []

    def test_what_works_the_second_time_works(self, bench, pauses):
        assert self.call(bench.sim, failing(ServerError("503"), 1)) == 2
        assert len(pauses) == 1

    def test_it_is_made_so_often_and_the_last_failure_is_raised(self, bench, pauses):
        told = []
        with pytest.raises(ServerError):
            self.call(bench.sim, failing(ServerError("503")), on_retry=lambda *facts: told.append(facts))
        assert [number for number, *_ in told] == list(range(1, ATTEMPTS))
        assert [seconds for _, seconds, _ in told] == pauses
        assert all(isinstance(error, ServerError) for *_, error in told)

    def test_the_waits_grow_with_full_jitter(self, bench, monkeypatch):
        waited = []
        monkeypatch.setattr("tenacity.wait.random.uniform", lambda low, high: high)
        with pytest.raises(ServerError):
            self.call(bench.sim, failing(ServerError("503")), attempts=8, pause=waited.append)
        assert waited == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])

    def test_the_service_s_pause_is_waited_in_full(self, bench, pauses):
        assert self.call(bench.sim, failing(ThrottledError("slow", 3.0), 2)) == 3
        assert all(3.0 <= seconds <= 3.0 + 2.0 / 4 for seconds in pauses)

    @pytest.mark.parametrize(
        "error",
        [DeniedError("no"), ServerError("503", None, True)],
        ids=["for good", "retried by the vendor"],
    )
    def test_what_is_not_to_be_tried_again_is_not(self, bench, pauses, error):
        ask = failing(error, 1)
        with pytest.raises(type(error)):
            self.call(bench.sim, ask)
        assert (ask(), pauses) == (2, [])

    def test_one_attempt_is_one(self, bench, pauses):
        ask = failing(ServerError("503"), 1)
        with pytest.raises(ServerError):
            self.call(bench.sim, ask, attempts=1)
        assert (ask(), pauses) == (2, [])

    def test_no_try_begins_behind_the_deadline(self, bench, pauses):
        ask = failing(ThrottledError("slow", 3.0), 1)
        with pytest.raises(ThrottledError):
            self.call(bench.sim, ask, seconds=2.0)
        assert (ask(), pauses) == (2, [])

    def test_an_interrupt_is_no_failure(self, bench, pauses):
        with pytest.raises(KeyboardInterrupt):
            self.call(bench.sim, failing(KeyboardInterrupt()))
        assert pauses == []

        def then_interrupted():
            if not pauses:
                raise ServerError("503")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.call(bench.sim, then_interrupted)
        assert len(pauses) == 1

    def test_directly_is_once(self):
        ask = failing(ServerError("503"), 1)
        with pytest.raises(ServerError):
            directly(ask, Deadline.after(SOON))
        assert directly(ask, Deadline.after(SOON)) == 2


class TestWithoutEngine:
    """Tests the retries of Spark and the command line: each call has its own time limit, and raises the error
    that the user sees.
    """

    def test_a_confidential_failure_leaves_nothing_of_the_vendor_s_text(self, bench):
        provider = Discreet(bench.sim)
        with pytest.raises(MulticloudDbError) as caught:
            opened(provider, bench.sim, Tries(provider)).call(
                "plan", failing(ServerError("password=hunter2"))
            )
        error = caught.value
        assert (error.category, error.detail.operation) == (ErrorCategory.PERMANENT_FAILURE, "plan")
        assert error.__cause__ is None
        assert error.__suppress_context__
        assert "hunter2" not in f"{error} {error!r} {error.detail!r}"

    def test_any_other_has_its_cause(self, bench, pauses):
        provider = SimulationProvider(bench.sim)
        with pytest.raises(MulticloudDbError) as caught:
            opened(provider, bench.sim, Tries(provider, 3)).call("plan", failing(ServerError("503")))
        assert isinstance(caught.value.__cause__, ServerError)
        assert len(pauses) == 2

    def test_every_try_has_the_same_deadline(self, bench, pauses):
        provider, asked = SimulationProvider(bench.sim), []

        def ask(deadline):
            asked.append(deadline)
            if len(asked) < 3:
                raise ServerError("503")
            return "done"

        assert opened(provider, bench.sim, Tries(provider)).call("plan", ask) == "done"
        assert len(asked) == 3
        assert len(set(asked)) == 1
        assert 0 < asked[0].remaining() <= 5


class TestClassifiedOnce:
    """Tests that the provider classifies each error only once, even if several callers need the result."""

    def trouble(self, bench, operation="fetch"):
        """Return a new exception for every failure, as a vendor's client does."""
        for number in range(50):
            bench.sim.fail_next(None, ServerError(f"503, number {number}"), 1, operation)

    def check(self, provider, least):
        assert max(Counter(map(id, provider.classified)).values()) == 1
        assert len(provider.classified) >= least

    def test_by_a_page_that_fails(self, bench):
        provider = Counting(bench.sim)
        bench.connect(provider=provider)
        self.trouble(bench)
        bench.refused(ErrorCategory.TRANSIENT_FAILURE)
        self.check(provider, ATTEMPTS)

    def test_by_a_control_call_that_fails(self, bench):
        provider = Counting(bench.sim)
        bench.connect(provider=provider)
        self.trouble(bench, "open_feed")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE)
        self.check(provider, ATTEMPTS)

    def test_by_a_call_without_engine(self, bench, pauses):
        provider = Counting(bench.sim)
        with pytest.raises(MulticloudDbError):
            opened(provider, bench.sim, Tries(provider)).call("plan", failing(ServerError("503")))
        self.check(provider, ATTEMPTS)

    def test_by_a_range(self, bench, monkeypatch):
        monkeypatch.setattr("multiclouddb_spi.planning.ranges._sleep", lambda seconds: None)
        bench.fill(5)
        provider = Counting(bench.sim)
        feed = provider.open_feed(FeedSpec(bench.sim.address), Deadline.after(SOON))
        planner = Planner(provider, feed)
        start = planner.start(Now(), Deadline.after(SOON))
        bench.fill(5)
        (part, *_) = planner.advance(start, None, Deadline.after(SOON)).ranges()
        self.trouble(bench)
        with pytest.raises(MulticloudDbError):
            list(read_range(provider, feed, part))
        self.check(provider, ATTEMPTS)

    def test_the_same_error_again_is_not_asked_about(self, bench):
        provider, error = Counting(bench.sim), ServerError("503")
        assert fault_of(provider, error) is fault_of(provider, error)
        with pytest.raises(MulticloudDbError), user_errors(provider, "read"):
            raise error
        assert provider.classified == [error]


def test_a_failure_is_raised_if_the_retries_cannot_be_loaded(make_bench, monkeypatch):
    """The retry code is loaded at the first failure; without free file handles, loading fails."""
    monkeypatch.setitem(sys.modules, "tenacity", None)
    bench = make_bench(1)
    tries = Tries(SimulationProvider(bench.sim))
    error = ThrottledError("slow down")

    def fails():
        raise error

    with pytest.raises(ThrottledError) as caught:
        tries.call(fails, Deadline.after(SOON))
    assert caught.value is error
