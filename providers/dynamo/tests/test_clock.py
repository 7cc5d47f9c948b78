"""Tests that the client's clock never decides what is delivered, because it may be wrong or be changed."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    PhysicalPartition,
)

from .world import ADDRESS, World

HOUR = 3600
EXPIRED = 16 * 60  # an iterator is valid for 15 minutes
MANY = 70  # more open shards than a token can have iterators


@pytest.fixture
def ahead(monkeypatch):
    """Set the client's clock ahead by the given seconds in all modules of the project."""
    wrong = {"by": 0.0}
    right = time.time

    class Wrong(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.fromtimestamp(right() + wrong["by"], zone or UTC)

    rooms = [
        "client",
        "feed",
        "partitions",
        "position",
        "provider",
        "reader",
        "shards",
        "snapshots",
        "source",
    ]
    for name in rooms:
        module = f"multiclouddb_dynamo.{name}.datetime"
        monkeypatch.setattr(module, Wrong, raising=False)

    def by(seconds):
        wrong["by"] = seconds

    return by


@pytest.mark.parametrize("seconds", [-30 * HOUR, 30 * HOUR])
@pytest.mark.parametrize("shards", [3, MANY])
def test_a_service_that_tells_no_time_loses_nothing(ahead, seconds, shards):
    ahead(seconds)
    with World(shards=shards, tells_time=False) as world:
        consumer = world.consumer(Now())
        assert consumer.read().events == ()
        after = world.put_everywhere()
        world.script.advance(EXPIRED)
        assert sorted(consumer.restart().until_idle()) == after


def test_two_starts_of_one_client_are_two(ahead):
    with World(shards=MANY, tells_time=False) as world:
        client = world.client()
        one = world.consumer(Now(), client)
        one.read()
        between = world.put_in(world.open()[0])
        two = world.consumer(Now(), client)
        two.read()
        after = world.put_in(world.open()[0])
        assert two.until_idle() == after
        assert one.until_idle() == between + after


@pytest.mark.parametrize("jump", [-30 * HOUR, 30 * HOUR])
def test_a_clock_that_is_set_in_between_changes_nothing(ahead, jump):
    with World(shards=3) as world:
        world.put_everywhere()
        world.script.advance(HOUR)
        consumer = world.consumer(Now())
        consumer.read()
        after = world.put_everywhere()
        ahead(jump)
        world.script.advance(EXPIRED)
        assert sorted(consumer.until_idle()) == after


def test_a_start_at_the_beginning_expires_when_the_service_says_so(ahead):
    ahead(30 * HOUR)
    with World(tells_time=False) as world:
        written = world.put("a")
        consumer = world.consumer(Beginning(), max_page_size=1)
        consumer.read()
        ahead(60 * HOUR)
        written += world.put("b")
        consumer.restart().until_idle()
        assert consumer.markers == written
        world.put("c")
        world.roll_over()
        world.put("d")
        world.script.advance(25 * HOUR)
        with pytest.raises(MulticloudDbError) as caught:
            consumer.restart().read()
        assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED


def test_a_start_that_was_never_read_and_is_gone_is_told(ahead):
    """The age of the start is unknown, and its shard no longer exists: a possible loss is reported."""
    with World(tells_time=False) as world:
        request = ChangeFeedRequest(ADDRESS, Beginning())
        name, token = world.client().plan_partitions(request)[0]
        world.put("a")
        world.roll_over()
        world.script.advance(25 * HOUR)
        consumer = world.consumer(FromContinuationToken(token), scope=PhysicalPartition(name))
        with pytest.raises(MulticloudDbError) as caught:
            consumer.read()
        assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED


def test_nothing_is_said_of_retention_where_the_service_tells_no_time():
    with World(tells_time=False) as world:
        world.put("a")
        consumer = world.consumer()
        assert consumer.read().diagnostics.retention_headroom_seconds is None


@pytest.mark.parametrize("start", [Beginning(), Now()])
def test_a_fresh_start_of_a_quiet_table_has_time(start):
    with World() as world:
        page = world.consumer(start).read()
        assert page.diagnostics.retention_headroom_seconds > timedelta(hours=12).total_seconds()
