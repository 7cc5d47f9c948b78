"""Tests answers of a service that lags behind itself, is damaged, or refuses a number: nothing is lost."""

from functools import partial

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from multiclouddb_api import Beginning, ErrorCategory, Now, ResourceAddress
from multiclouddb_conformance.refusals import refused
from multiclouddb_dynamo.client import Calls
from multiclouddb_dynamo.provider import PLUGIN
from multiclouddb_dynamo_emulator.http import HttpServer, Reply
from multiclouddb_spi import FeedSpec, ProviderFault
from multiclouddb_spi.errors import fault_of

from .servers.local import shared
from .world import TABLE, World, seconds, soon

ITERATOR = "GetShardIterator"
MISSING = "ResourceNotFoundException"
HUGE = str(10**39 - 1)
TRANSIENT = ErrorCategory.TRANSIENT_FAILURE


class TestMissingShard:
    """The service says that a shard does not exist, although it lists the shard."""

    @pytest.fixture(params=[Beginning(), Now()], ids=["after a record", "now"])
    def consumer(self, world, request):
        """Provide a consumer in another process, whose iterator has expired."""
        consumer = world.consumer(request.param)
        consumer.read()
        if request.param == Beginning():
            world.put("a")
            consumer.until_idle()
        consumer.restart()
        world.script.expire_iterators()
        return consumer

    def test_it_is_asked_for_again(self, world, consumer):
        written = world.put("b")
        world.troubles.fail(ITERATOR, MISSING, 3)
        assert consumer.until_idle() == written

    def test_one_that_is_gone_for_good_has_expired_unless_the_deadline_comes_first(self, world, consumer):
        written = world.put("b")
        trouble = world.troubles.fail(ITERATOR, MISSING, None)
        with refused(TRANSIENT):
            consumer.read(seconds(0.3))
        with refused(ErrorCategory.CHECKPOINT_EXPIRED):
            consumer.read()
        trouble.end()
        assert consumer.until_idle() == written


class TestStaleListing:
    """A replica does not know the shard after which a page of a listing begins."""

    @pytest.fixture
    def stale(self, monkeypatch):
        describe, left = Calls.describe_stream, [0]

        def described(self, arn, deadline, *, after=None, parent=None):
            if after is not None and left[0]:
                left[0] -= 1
                error = {"Error": {"Code": MISSING, "Message": "Shard not found"}}
                raise ClientError(error, "DescribeStream")
            return describe(self, arn, deadline, after=after, parent=parent)

        monkeypatch.setattr(Calls, "describe_stream", described)
        return left

    def test_it_is_tried_again_and_does_not_mean_that_the_table_is_gone(self, stale):
        with World(shards=101) as world:
            stale[0] = 4
            written = world.put("a")
            assert world.consumer().until_idle() == written
            stale[0] = 10**6
            with refused(TRANSIENT) as caught:
                world.consumer().read(seconds(10))
            assert caught.value.retryable


CALLS = {
    "DescribeTable": lambda calls, arn, shard, it, native: calls.describe_table(TABLE),
    "DescribeStream": lambda calls, arn, shard, it, native: calls.describe_stream(arn, soon()),
    "GetShardIterator": lambda calls, arn, shard, it, native: calls.iterator(arn, shard, "TRIM_HORIZON"),
    "GetRecords": lambda calls, arn, shard, it, native: calls.records(it, 10, native=native),
    "Scan": lambda calls, arn, shard, it, native: calls.scan(TABLE, (0, 1), None, 10, native=native),
    "ListTables": lambda calls, arn, shard, it, native: calls.table_names(soon()),
}


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("operation", CALLS)
def test_an_answer_that_a_proxy_replaced_by_null_is_damaged(world, operation, native):
    provider, _ = world.feed()
    calls, shard = provider._calls, world.chain()
    call = partial(
        CALLS[operation], calls, world.arn, shard, calls.iterator(world.arn, shard, "TRIM_HORIZON")
    )

    def damaged(response_dict, **_):
        response_dict["body"] = b"null"

    for client in (calls._clients.dynamodb, calls._clients.streams):
        service = client.meta.service_model.service_id.hyphenize()
        client.meta.events.register_first(f"before-parse.{service}.{operation}", damaged)
    with pytest.raises(ProviderFault) as caught:
        call(native)
    fault = fault_of(provider, caught.value)
    assert (fault.category, fault.retryable) == (TRANSIENT, True)


def fault_at(provider, feed, shard, cursor):
    """Return the fault of a read at a position."""
    with pytest.raises((ProviderFault, ClientError)) as caught:
        feed.open(shard, cursor).fetch(10, 1 << 20, 0.0, soon())
    error = caught.value
    return error.fault if isinstance(error, ProviderFault) else provider.classify(error)


class TestNumbers:
    """The service refuses a sequence number; some servers fail at it."""

    @pytest.mark.parametrize("listed", [False, True])
    @pytest.mark.parametrize("code", ["ValidationException", "InternalFailure", "InternalServerError"])
    def test_one_far_behind_the_shard_is_an_invalid_request(self, world, code, listed):
        world.put("a")
        provider, feed = world.feed()
        if listed:
            feed.survey({}, soon())
        world.troubles.fail(ITERATOR, code, None)
        found = fault_at(provider, feed, world.chain(), [HUGE, None])
        assert (found.category, found.retryable) == (ErrorCategory.INVALID_REQUEST, False)
        assert HUGE in found.message

    def test_one_in_front_of_a_shard_has_expired_and_a_good_one_is_tried_again(self, world):
        world.put("a")
        provider, feed = world.feed()
        found = fault_at(provider, feed, world.chain(), ["1".zfill(21), None])
        assert found.category == ErrorCategory.CHECKPOINT_EXPIRED
        batch = feed.open(world.chain(), ["h", None]).fetch(10, 1 << 20, 0.0, soon())
        world.troubles.fail(ITERATOR, "InternalFailure", None)
        found = fault_at(provider, feed, world.chain(), batch.cursor_after(1))
        assert (found.category, found.retryable) == (TRANSIENT, True)

    def test_local_fails_at_one_that_is_far_behind(self, world):
        server = shared()
        server.create_table("far-behind")
        server.client().put_item(TableName="far-behind", Item={"pk": {"S": "a"}})
        config = world.config()
        connection = {**config.connection, "endpoint_url": server.endpoint_url}
        provider = PLUGIN.connect(type(config)("dynamo", connection), None)
        feed = provider.open_feed(FeedSpec(ResourceAddress(collection="far-behind")), soon())
        (seed,) = feed.start(Beginning(), None, soon())
        found = fault_at(provider, feed, seed.partition_id, [HUGE, None])
        assert found.category == ErrorCategory.INVALID_REQUEST
        provider.close()


def test_a_page_of_html_that_says_too_many_requests_is_throttling(world):
    server = HttpServer(lambda _: Reply(429, {"Content-Type": "text/html"}, b"<html>slow down</html>"))
    once = Config(retries={"mode": "standard", "total_max_attempts": 1})
    client = boto3.client("dynamodbstreams", endpoint_url=server.url, region_name="eu-west-1", config=once)
    with pytest.raises(ClientError) as caught:
        client.get_records(ShardIterator="it")
    client.close()
    server.stop()
    found = world.feed()[0].classify(caught.value)
    assert (found.category, found.retryable) == (ErrorCategory.THROTTLED, True)
