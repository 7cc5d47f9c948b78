"""Tests feeds behind a `mongos`, whose answers may be short or empty although changes exist."""

import pytest

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    EntireCollection,
    FromContinuationToken,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.provider import PLUGIN
from multiclouddb_spi import Deadline, FeedSpec, Planner, read_range

from .servers.mongos import Mongos
from .servers.shared import shared

ROUNDS = 2


@pytest.fixture(scope="module")
def brisk():
    """Provide a member that writes an empty operation every second, as the shards of a cluster do."""
    return shared("brisk", 1, parameters={"periodicNoopIntervalSecs": 1})


@pytest.fixture(params=range(2))
def mongos(brisk, request):
    with Mongos(brisk.members[0], request.param) as made:
        yield made


@pytest.fixture
def written(brisk, database):
    collection = brisk.client()[database]["c"]
    collection.insert_one({"_id": 0})
    return collection


def ids(events):
    return [event.key.components["_id"] for event in events]


class TestIdle:
    def test_it_comes_after_every_acknowledged_write(self, mongos, written):
        here = ResourceAddress(written.database.name, "c")
        with connect(ClientConfig("mongo", {"url": mongos.uri})) as client:
            token = client.read_changes(ChangeFeedRequest(here, Now())).continuation_token
            for number in range(ROUNDS):
                keys = [10 * number + each for each in range(1, 8)]
                written.insert_many([{"_id": key} for key in keys])
                request = ChangeFeedRequest(here, FromContinuationToken(token))
                with client.iterate_changes(request, until_idle=True) as changes:
                    assert ids(changes) == keys
                    token = changes.continuation_token

    def test_a_call_without_the_time_to_wait_is_not_idle(self, mongos, written):
        """The caller's short time limit ends the wait for the shards."""
        here = ResourceAddress(written.database.name, "c")
        with connect(ClientConfig("mongo", {"url": mongos.uri})) as client:
            page = client.read_changes(ChangeFeedRequest(here, Now()))
            written.insert_one({"_id": 1})
            seen = []
            while not seen:
                request = ChangeFeedRequest(here, FromContinuationToken(page.continuation_token))
                page = client.read_changes(request, OperationOptions(1.0))
                seen += ids(page.events)
                assert seen or not page.idle


class TestTarget:
    def test_a_bounded_read_contains_every_acknowledged_write(self, mongos, written):
        provider = PLUGIN.connect(ClientConfig("mongo", {"url": mongos.uri}), None)
        try:
            soon = Deadline.after(60)
            feed = provider.open_feed(
                FeedSpec(
                    ResourceAddress(written.database.name, "c"), EntireCollection(), options=MongoOptions()
                ),
                soon,
            )
            planner = Planner(provider, feed)
            at = planner.start(Now(), soon)
            for number in range(ROUNDS):
                keys = [10 * number + each for each in range(1, 8)]
                written.insert_many([{"_id": key} for key in keys])
                seen = []
                for step in planner.steps(at, soon, planner.target(at, soon)):
                    at = step.after
                    for part in step.ranges():
                        for batch in read_range(provider, feed, part):
                            seen += ids(batch.events(0, len(batch)))
                assert seen == keys
        finally:
            provider.close()
