"""Tests special cases of MongoDB: reads that outlast a call, heads, and refused old tokens."""

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    Dropped,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
)
from multiclouddb_conformance.faults import FaultyPlugin, FaultyProvider, ServerFailure, Slow
from multiclouddb_conformance.open_client import open_client
from multiclouddb_mongo.provider import PLUGIN
from multiclouddb_spi import Continue, Deadline, FeedSpec, Planner, SupportsHeads, read_range

SHORT = OperationOptions(timeout_seconds=0.3)


@pytest.fixture
def config(one, app):
    return ClientConfig("mongo", {"url": one.uri(appName=app)})


def test_an_answer_slower_than_every_call_is_read_by_a_later_one(config, here, written):
    """The fetch continues after the deadline of a call."""
    # If the fetch ended at the deadline, each later call would start it from the beginning, and no call would
    # finish it.
    plugin = FaultyPlugin(PLUGIN, Slow(1.0))
    with open_client(plugin, config) as client:
        token = client.read_changes(ChangeFeedRequest(here, Now())).continuation_token
        written.insert_one({"_id": 1})
        before, late = plugin.providers[0].happened, 0
        while True:
            try:
                page = client.read_changes(ChangeFeedRequest(here, FromContinuationToken(token)), SHORT)
            except MulticloudDbError as error:
                if not error.retryable:
                    raise
                late += 1
                assert late < 30, "it begins anew with each call"
                continue
            token = page.continuation_token
            if page.events:
                break
        assert late
        assert plugin.providers[0].happened - before <= 3
    assert [event.key.components for event in page.events] == [{"_id": 1}]


def test_a_token_of_a_collection_that_is_gone_goes_on_to_its_end(config, here, written):
    with open_client(PLUGIN, config) as client:
        token = client.read_changes(ChangeFeedRequest(here, Now())).continuation_token
    written.insert_one({"_id": 1})
    written.drop()

    def rest(plugin):
        seen, notices, place = [], [], token
        with open_client(plugin, config) as client:
            while not notices:
                page = client.read_changes(ChangeFeedRequest(here, FromContinuationToken(place)))
                place = page.continuation_token
                seen += [event.key.components["_id"] for event in page.events]
                notices += page.notices
        return seen, notices

    seen, notices = rest(FaultyPlugin(PLUGIN, ServerFailure()))
    assert seen == [1]
    assert isinstance(notices[-1], Dropped)
    assert (seen, notices) == rest(PLUGIN)


def test_a_bounded_read_is_planned_by_heads(config, here, written):
    written.insert_many([{"_id": number} for number in range(1, 9)])
    provider = FaultyProvider(PLUGIN.connect(config, None), Slow())
    try:
        deadline = Deadline.after(60)
        feed = provider.open_feed(FeedSpec(here, options=provider.options_type()), deadline)
        assert isinstance(feed, SupportsHeads)
        planner = Planner(provider, feed)
        start = planner.start(Beginning(), deadline)
        step = planner.advance(start, None, deadline)
        assert provider.happened == 0  # nothing was read to find the head
        assert isinstance(feed.heads({"0": start.cursor("0")}, None, deadline)["0"].outcome, Continue)
        (part,) = step.ranges()
        events = [
            event for batch in read_range(provider, feed, part) for event in batch.events(0, len(batch))
        ]
        assert [event.key.components["_id"] for event in events][-8:] == list(range(1, 9))
        assert provider.happened > 0
    finally:
        provider.close()
