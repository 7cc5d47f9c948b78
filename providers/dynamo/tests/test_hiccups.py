"""Tests answers of a service that lags behind itself or is damaged for a moment. Nothing must be lost."""

from functools import partial
from typing import ClassVar

import pytest
from botocore.exceptions import ClientError

from multiclouddb_api import ErrorCategory, MulticloudDbError, Now
from multiclouddb_dynamo.client import Calls
from multiclouddb_spi import ProviderFault
from multiclouddb_spi.errors import fault_of

from .world import TABLE, World, seconds, soon

ITERATOR = "GetShardIterator"
MISSING = "ResourceNotFoundException"


class TestMissingShard:
    """The service says that a shard does not exist, although it lists the shard."""

    def test_a_position_behind_a_record_has_not_expired(self):
        with World() as world:
            consumer = world.consumer()
            world.put("a")
            consumer.until_idle()
            consumer.restart()
            world.script.expire_iterators()
            written = world.put("b")
            world.troubles.fail(ITERATOR, MISSING, 3)
            assert consumer.until_idle() == written

    def test_a_start_at_now_misses_nothing(self):
        with World() as world:
            consumer = world.consumer(Now())
            consumer.read()
            consumer.restart()
            written = world.put("a")
            world.script.expire_iterators()
            world.troubles.fail(ITERATOR, MISSING, 3)
            assert consumer.until_idle() == written

    def test_one_that_is_gone_for_good_has_expired(self):
        with World() as world:
            consumer = world.consumer()
            world.put("a")
            consumer.until_idle()
            consumer.restart()
            world.script.expire_iterators()
            world.troubles.fail(ITERATOR, MISSING, None)
            with pytest.raises(MulticloudDbError) as caught:
                consumer.read()
            assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED

    def test_a_deadline_ends_the_attempts(self):
        with World() as world:
            consumer = world.consumer()
            world.put("a")
            consumer.until_idle()
            consumer.restart()
            world.script.expire_iterators()
            written = world.put("b")
            trouble = world.troubles.fail(ITERATOR, MISSING, None)
            with pytest.raises(MulticloudDbError) as caught:
                consumer.read(seconds(0.3))
            assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE
            trouble.end()
            assert consumer.until_idle() == written


def stale(monkeypatch, times):
    """Let the service not know the shard after which the second page of a listing begins."""
    describe, left = Calls.describe_stream, [times]

    def described(self, arn, deadline, *, after=None, parent=None):
        if after is not None and left[0]:
            left[0] -= 1
            raise ClientError({"Error": {"Code": MISSING, "Message": "Shard not found"}}, "DescribeStream")
        return describe(self, arn, deadline, after=after, parent=parent)

    monkeypatch.setattr(Calls, "describe_stream", described)


class TestStaleListing:
    """The pages of a listing come from replicas, and one of them lags."""

    def test_it_is_tried_again(self, monkeypatch):
        with World(shards=101) as world:
            stale(monkeypatch, 4)
            written = world.put("a")
            assert world.consumer().until_idle() == written

    def test_it_does_not_mean_that_the_table_is_gone(self, monkeypatch):
        with World(shards=101) as world:
            stale(monkeypatch, 10**6)
            with pytest.raises(MulticloudDbError) as caught:
                world.consumer().read(seconds(10))
            assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE
            assert caught.value.retryable


def damage(provider, operation):
    """Replace the text of each answer to an operation by `null`."""

    def damaged(response_dict, **_):
        response_dict["body"] = b"null"

    clients = provider._calls._clients
    for client in (clients.dynamodb, clients.streams):
        service = client.meta.service_model.service_id.hyphenize()
        client.meta.events.register_first(f"before-parse.{service}.{operation}", damaged)


class TestNull:
    """The text of an answer is `null`, as a proxy may send it."""

    CALLS: ClassVar = {
        "DescribeTable": lambda calls, arn, place: calls.describe_table(TABLE),
        "DescribeStream": lambda calls, arn, place: calls.describe_stream(arn, soon()),
        "GetShardIterator": lambda calls, arn, place: calls.iterator(arn, place[0], "TRIM_HORIZON"),
        "GetRecords": lambda calls, arn, place: calls.records(place[1], 10, native=False),
        "Scan": lambda calls, arn, place: calls.scan(TABLE, (0, 1), None, 10, native=False),
        "ListTables": lambda calls, arn, place: calls.table_names(soon()),
    }

    @pytest.mark.parametrize("operation", CALLS)
    def test_is_a_damaged_answer(self, operation):
        with World() as world:
            provider, _ = world.feed()
            calls, shard = provider._calls, world.chain()
            place = shard, calls.iterator(world.arn, shard, "TRIM_HORIZON")
            damage(provider, operation)
            with pytest.raises(ProviderFault) as caught:
                self.CALLS[operation](calls, world.arn, place)
            assert caught.value.fault.category == ErrorCategory.TRANSIENT_FAILURE
            assert caught.value.fault.retryable

    @pytest.mark.parametrize("operation", ["GetRecords", "Scan"])
    def test_of_an_answer_as_boto3_returns_it_is_one_too(self, operation):
        with World() as world:
            provider, _ = world.feed()
            calls, shard = provider._calls, world.chain()
            iterator = calls.iterator(world.arn, shard, "TRIM_HORIZON")
            damage(provider, operation)
            call = {
                "GetRecords": partial(calls.records, iterator, 10, native=True),
                "Scan": partial(calls.scan, TABLE, (0, 1), None, 10, native=True),
            }
            with pytest.raises(ProviderFault) as caught:
                call[operation]()
            assert fault_of(provider, caught.value).category == ErrorCategory.TRANSIENT_FAILURE
