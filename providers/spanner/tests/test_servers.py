"""Tests a killed, silent or missing server. Calls must fail by the deadline with a category, and use little
CPU time."""

import signal
import time

import pytest

from multiclouddb_api import (
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.waiting import assert_prompt
from multiclouddb_spanner.reader import SpannerReader

from .servers.emulator import STILL
from .table import Table

pytestmark = pytest.mark.emulator(*STILL)


@pytest.fixture
def table(own):
    return Table(own)


@pytest.fixture
def here(table):
    return ResourceAddress(table.database.database_id, table.name)


def failing(client, request, seconds, wait=0.0):
    """Return the error of a read, the read's duration, and the fraction of this time in which a CPU was
    busy."""
    began, worked = time.monotonic(), time.process_time()
    with pytest.raises(MulticloudDbError) as caught:
        client.read_changes(request, OperationOptions(seconds, wait))
    took = time.monotonic() - began
    return caught.value, took, (time.process_time() - worked) / took


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])
def test_a_server_that_is_gone_is_told_by_the_deadline_with_little_work(own, table, here, how):
    with connect(own.url) as client:
        token = client.read_changes(ChangeFeedRequest(here, Now())).continuation_token
        request = ChangeFeedRequest(here, FromContinuationToken(token))
        own.process.send_signal(how)
        shares = []

        def attempt():
            error, took, share = failing(client, request, 3.0)
            assert error.category == ErrorCategory.TRANSIENT_FAILURE
            assert error.retryable
            shares.append(share)
            return took

        assert_prompt(5.0, attempt, at_most=30)
    assert min(shares) < 0.1


def test_a_wait_in_which_the_server_is_killed_is_not_idle(own, table, here, monkeypatch):
    """The server is killed as soon as it has answered once for every partition."""
    answered, fetch = set(), SpannerReader.fetch

    def fetch_and_kill(reader, *args):
        batch = fetch(reader, *args)
        answered.add(id(reader))
        if len(answered) == partitions:
            own.process.kill()
        return batch

    with connect(own.url) as client:
        token = client.read_changes(ChangeFeedRequest(here, Now())).continuation_token
        partitions = len(client.list_physical_partitions(here))
        monkeypatch.setattr(SpannerReader, "fetch", fetch_and_kill)
        request = ChangeFeedRequest(here, FromContinuationToken(token))
        page = client.read_changes(request, OperationOptions(5.0, 4.0))
        assert (page.events, page.idle) == ((), False)
        assert all("UNAVAILABLE" in problem for problem in page.diagnostics.partition_errors.values())
        assert page.diagnostics.partition_errors
