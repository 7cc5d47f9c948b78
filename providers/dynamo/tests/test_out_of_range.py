"""Tests failures for which a retry helps or does not help: invalid numbers, and answers without JSON."""

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from multiclouddb_api import Beginning, ErrorCategory, ResourceAddress
from multiclouddb_dynamo.errors import classify
from multiclouddb_dynamo.provider import PLUGIN
from multiclouddb_dynamo_emulator.http import HttpServer, Reply
from multiclouddb_spi import FeedSpec, ProviderFault

from .servers.local import shared
from .world import World, soon

HUGE = str(10**39 - 1)


def fault_of(provider, reader):
    """Return the fault that a read raises."""
    with pytest.raises((ProviderFault, ClientError)) as caught:
        reader.fetch(10, 1 << 20, 0.0, soon())
    error = caught.value
    return error.fault if isinstance(error, ProviderFault) else provider.classify(error)


def shard_of(feed):
    (seed,) = feed.start(Beginning(), None, soon())
    return seed.partition_id


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("code", ["ValidationException", "InternalFailure", "InternalServerError"])
def test_a_number_far_behind_the_shard_is_an_invalid_request(code, listed):
    with World() as world:
        world.put("a")
        shard = world.chain()
        provider, feed = world.feed()
        if listed:
            feed.survey({}, soon())
        world.troubles.fail("GetShardIterator", code, None)
        found = fault_of(provider, feed.open(shard, [HUGE, None]))
        assert found.category == ErrorCategory.INVALID_REQUEST
        assert not found.retryable
        assert HUGE in found.message


def test_a_service_in_trouble_is_tried_again():
    with World() as world:
        world.put("a")
        provider, feed = world.feed()
        reader = feed.open(shard_of(feed), ["h", None])
        cursor = reader.fetch(10, 1 << 20, 0.0, soon()).cursor_after(1)
        world.troubles.fail("GetShardIterator", "InternalFailure", None)
        found = fault_of(provider, feed.open(world.chain(), cursor))
        assert found.category == ErrorCategory.TRANSIENT_FAILURE
        assert found.retryable


def test_a_number_in_front_of_a_shard_that_this_process_has_not_listed_has_expired():
    with World() as world:
        world.put("a")
        provider, feed = world.feed()
        found = fault_of(provider, feed.open(world.chain(), ["1".zfill(21), None]))
        assert found.category == ErrorCategory.CHECKPOINT_EXPIRED


def test_local_breaks_down_at_a_number_that_is_far_behind():
    server = shared()
    server.create_table("far-behind")
    server.client().put_item(TableName="far-behind", Item={"pk": {"S": "a"}})
    with World() as world:
        config = world.config()
    connection = {**config.connection, "endpoint_url": server.endpoint_url}
    provider = PLUGIN.connect(type(config)("dynamo", connection), None)
    feed = provider.open_feed(FeedSpec(ResourceAddress(collection="far-behind")), soon())
    found = fault_of(provider, feed.open(shard_of(feed), [HUGE, None]))
    assert found.category == ErrorCategory.INVALID_REQUEST
    provider.close()


def test_a_page_of_html_that_says_too_many_requests_is_throttling():
    server = HttpServer(lambda _: Reply(429, {"Content-Type": "text/html"}, b"<html>slow down</html>"))
    client = boto3.client(
        "dynamodbstreams",
        endpoint_url=server.url,
        region_name="eu-west-1",
        config=Config(retries={"mode": "standard", "total_max_attempts": 1}),
    )
    with pytest.raises(ClientError) as caught:
        client.get_records(ShardIterator="it")
    client.close()
    server.stop()
    found = classify(caught.value)
    assert (found.category, found.retryable) == (ErrorCategory.THROTTLED, True)
