"""Tests whether the reader of a token is said to be late, on time or not known to be either."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Final

import pytest

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    ErrorCategory,
    MulticloudDbClient,
    MulticloudDbError,
    NotKnown,
    OperationOptions,
)
from multiclouddb_conformance.collection import Collection
from multiclouddb_conformance.faults import ServerFailure
from multiclouddb_conformance.refusals import check_refusal
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_spi.lateness import Late, Lateness, OnTime, lateness
from multiclouddb_spi.request_check import spec_of
from multiclouddb_spi.time_limits import Deadline

__all__ = ["TestLateness"]

_SECONDS: Final = 30.0
_NO_TIME: Final = "changes wait, but the service does not tell its time"
_NOW, _HOUR = timedelta(0), timedelta(hours=1)


def _lateness(
    collection: Collection,
    token: str,
    most: timedelta,
    client: MulticloudDbClient | None = None,
    seconds: float = _SECONDS,
) -> Lateness:
    harness = collection.harness
    request, deadline = collection.request(token), Deadline.after(_SECONDS)

    def read(asked: ChangeFeedRequest, wait: float) -> ChangeFeedPage:
        return (client or collection.client).read_changes(asked, OperationOptions(seconds, wait))

    provider = harness.plugin.connect(harness.config(), None)
    try:
        feed = provider.open_feed(spec_of(provider, request, "open"), deadline)
        now = feed.clock(deadline)
        return lateness(read, now, feed, request, decode_token(token), most, seconds)
    finally:
        provider.close()


@pytest.mark.shows("Plan 17")
class TestLateness:
    """A reader is late exactly if a change that it has not read is older than a limit."""

    def test_an_idle_feed_is_on_time_at_any_limit(self, collection: Collection) -> None:
        collection.fill(3)
        token = collection.last(collection.begin).continuation_token
        assert _lateness(collection, token, _NOW) == OnTime()
        collection.restart()
        assert _lateness(collection, token, _NOW) == OnTime()

    @pytest.mark.needs("clock_moves")
    def test_a_change_that_waits_becomes_too_old(self, collection: Collection) -> None:
        token = collection.last(collection.begin).continuation_token
        collection.fill(3)
        patience = collection.harness.patience_seconds
        if not collection.harness.tells_time:
            wait_until(lambda: _lateness(collection, token, _HOUR) == NotKnown(_NO_TIME), seconds=patience)
            return
        wait_until(lambda: isinstance(_lateness(collection, token, _NOW), Late), seconds=patience)
        assert _lateness(collection, token, _HOUR) == OnTime()
        events = collection.read(token, 3)
        found = _lateness(collection, token, _NOW)
        assert isinstance(found, Late)
        assert found.change in {event.timestamp for event in events}

    @pytest.mark.needs("split", "clock_moves")
    def test_the_changes_of_children_wait_too(self, collection: Collection) -> None:
        token = collection.last(collection.begin).continuation_token
        collection.split()
        collection.fill(10)
        patience = collection.harness.patience_seconds
        wait_until(lambda: isinstance(_lateness(collection, token, _NOW), Late), seconds=patience)
        after = collection.last(token).continuation_token
        assert _lateness(collection, after, _NOW) == OnTime()

    @pytest.mark.needs("several", "one_partition_fails", "still", "clock_moves")
    def test_a_partition_that_cannot_be_read_is_not_on_time(self, collection: Collection) -> None:
        collection.fill(20)
        token = collection.last(collection.begin).continuation_token
        script = ServerFailure(times=None, partition_id=collection.partitions()[0])
        with collection.harness.troubled(script, lambda: None) as client:
            found: Lateness | None = None
            # When the others have nothing more to say, a read of this partition alone fails.
            with suppress(MulticloudDbError):
                found = _lateness(collection, token, _NOW, client, seconds=2.0)
        assert found is None or isinstance(found, NotKnown)

    @pytest.mark.needs("trim")
    def test_lost_changes_are_an_expired_checkpoint(self, collection: Collection) -> None:
        collection.fill(5)
        collection.trim()
        with pytest.raises(MulticloudDbError) as caught:
            _lateness(collection, collection.begin, _HOUR)
        check_refusal(caught.value, ErrorCategory.CHECKPOINT_EXPIRED)
