"""Tests that credentials which have aged are renewed once a call, in every call of the engine."""

import time

import pytest

import multiclouddb_api as api
from multiclouddb_conformance.simulation import SimulationProvider
from multiclouddb_spi import Deadline, Fault, InlineExecutor, ProviderFault, SupportsRenewal
from multiclouddb_spi.fetching.fetcher import Fetcher
from multiclouddb_spi.interrupts import End
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.retry import Tries

AGED = Fault(api.ErrorCategory.AUTHENTICATION_FAILED, "the token has expired; …", "403", renewable=True)
FOREVER = None


class Renewing(SimulationProvider):
    """A provider whose service refuses all calls until the credentials are renewed."""

    def __init__(self, sim, *, helps=True, has_others=True, **settings):
        super().__init__(sim, **settings)
        self.source, self.helps, self.has_others = sim, helps, has_others
        self.renewals = []

    def renew(self, since):
        assert 0 <= time.monotonic() - since < 30
        self.renewals.append(since)
        if self.helps:
            self.source.forgive()
        return self.has_others


@pytest.fixture
def renewing(bench):
    """Return a function that connects the bench with a renewing provider."""

    def connect(**settings):
        provider = Renewing(bench.sim, page_records=20, **settings)
        bench.connect(provider=provider)
        return provider

    return connect


@pytest.mark.parametrize("operation", ["open_feed", "start", "survey", "fetch"])
def test_a_call_goes_on_with_new_credentials(bench, ids, renewing, operation):
    bench.fill(3)
    provider = renewing()
    bench.sim.fail_next(None, AGED, times=FOREVER, operation=operation)
    assert ids(bench.drain()[0]) == bench.written()
    bench.partitions()
    assert len(provider.renewals) == 1


def test_a_running_feed_goes_on_and_says_that_it_tried_again(bench, ids, renewing):
    provider = renewing()
    token = bench.page(api.Now()).continuation_token
    bench.fill(3)
    bench.sim.fail_next(None, AGED, times=FOREVER)
    page = bench.page(token)
    assert ids(page.events) == bench.written()
    assert page.diagnostics.retries == 1
    assert len(provider.renewals) == 1


def test_a_refusal_that_stays_costs_one_more_request(bench, renewing):
    provider = renewing(helps=False)
    bench.page(api.Now())
    before = bench.calls.fetches["p0"]
    bench.sim.fail_next("p0", AGED, times=FOREVER)
    error = bench.refused(api.ErrorCategory.AUTHENTICATION_FAILED)
    assert not error.retryable
    assert bench.calls.fetches["p0"] - before == 2
    assert len(provider.renewals) == 1


@pytest.mark.parametrize("fault", [AGED, Fault(api.ErrorCategory.AUTHORIZATION_FAILED, "not yours")])
def test_without_other_credentials_the_call_is_not_repeated(bench, renewing, fault):
    provider = renewing(helps=False, has_others=False)
    bench.sim.fail_next("p0", fault, times=FOREVER)
    bench.refused(fault.category)
    assert bench.calls.fetches["p0"] == 1
    assert len(provider.renewals) == fault.renewable


def test_a_provider_that_renews_nothing_raises_the_refusal(bench):
    assert not isinstance(bench.provider, SupportsRenewal)
    bench.sim.fail_next("p0", AGED, times=FOREVER)
    bench.refused(api.ErrorCategory.AUTHENTICATION_FAILED)
    assert bench.calls.fetches["p0"] == 1


def test_credentials_that_cannot_be_renewed_are_the_error(bench, renewing):
    provider = renewing()
    refusal = Fault(api.ErrorCategory.AUTHENTICATION_FAILED, "the identity's service is away; try again")

    def away(since):
        raise ProviderFault(refusal)

    provider.renew = away
    bench.sim.fail_next("p0", AGED, times=FOREVER)
    error = bench.refused(api.ErrorCategory.AUTHENTICATION_FAILED)
    assert "is away" in error.message


class TestTries:
    """Spark, `verify` and the command line call through `Tries`."""

    def refuse(self, provider, failures, deadline):

        asked = []

        def ask():
            asked.append(failures[0])
            if failures[0] is not None:
                raise ProviderFault(failures.pop(0))
            return "read"

        try:
            return Tries(provider, attempts=3, pause=lambda _: None).call(ask, deadline), len(asked)
        except ProviderFault as error:
            return error.fault, len(asked)

    def test_a_failure_that_passes_may_follow_the_renewal(self, bench, renewing):
        passing = Fault(api.ErrorCategory.TRANSIENT_FAILURE, "away", retryable=True)
        answer = self.refuse(renewing(), [AGED, passing, None], Deadline.after(30))
        assert answer == ("read", 3)

    def test_a_call_renews_once(self, bench, renewing):
        passing = Fault(api.ErrorCategory.TRANSIENT_FAILURE, "away", retryable=True)
        provider = renewing()
        answer = self.refuse(provider, [AGED, passing, AGED, None], Deadline.after(30))
        assert answer == (AGED, 3)
        assert len(provider.renewals) == 1

    def test_no_call_begins_after_the_deadline(self, bench, renewing):
        assert self.refuse(renewing(), [AGED, None], Deadline.after(0)) == (AGED, 1)


def test_a_control_call_renews_in_its_own_thread(bench, renewing):
    provider = renewing()
    fetcher = Fetcher(provider, InlineExecutor(), Observing(None), End())

    failures = [AGED]

    def ask():
        if failures:
            raise ProviderFault(failures.pop())
        return "listed"

    assert fetcher.call(ask, Deadline.after(30)) == "listed"
    assert len(provider.renewals) == 1
