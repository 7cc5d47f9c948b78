"""Calls to a provider without an engine: what the command line and Spark make."""

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_conformance.simulation import ServerError, SimulationProvider
from multiclouddb_spi import Fault
from multiclouddb_spi.calling import RetriedCalls


class Discreet(SimulationProvider):
    """The vendor's text may quote a secret."""

    def classify(self, error):
        return Fault(ErrorCategory.PERMANENT_FAILURE, "it did not work; try another way", confidential=True)


def failing(text):
    def ask(deadline):
        raise ServerError(text)

    return ask


def test_a_confidential_failure_leaves_nothing_of_the_vendor_s_text(bench):
    with pytest.raises(MulticloudDbError) as caught:
        RetriedCalls(Discreet(bench.sim), 5).call("plan", failing("password=hunter2"))
    error = caught.value
    assert (error.category, error.detail.operation) == (ErrorCategory.PERMANENT_FAILURE, "plan")
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert "hunter2" not in f"{error} {error!r} {error.detail!r}"


def test_any_other_has_its_cause(bench, monkeypatch):
    monkeypatch.setattr("multiclouddb_spi.calling.time.sleep", lambda seconds: None)
    tried = []
    calls = RetriedCalls(SimulationProvider(bench.sim), 5, attempts=3, told=lambda *told: tried.append(told))
    with pytest.raises(MulticloudDbError) as caught:
        calls.call("plan", failing("503"))
    assert isinstance(caught.value.__cause__, ServerError)
    assert [number for number, *_ in tried] == [1, 2]


def test_what_works_the_second_time_works(bench, monkeypatch):
    monkeypatch.setattr("multiclouddb_spi.calling.time.sleep", lambda seconds: None)
    answers = [ServerError("503"), None]

    def ask(deadline):
        error = answers.pop(0)
        if error is not None:
            raise error
        return "done"

    assert RetriedCalls(SimulationProvider(bench.sim), 5).call("plan", ask) == "done"
