"""Tests that the client's clock never decides what is delivered, because it may be wrong or be changed."""

import importlib
import time
from datetime import UTC, datetime, timedelta

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    Now,
    PhysicalPartition,
)
from multiclouddb_conformance.refusals import refused

from .world import ADDRESS, World

HOUR = 3600
EXPIRED = 16 * 60  # an iterator is valid for 15 minutes
MANY = 70  # more open shards than a token can have iterators


@pytest.fixture
def ahead(monkeypatch):
    """Return a function that sets the client's clock ahead by the given seconds in the whole provider."""
    wrong, right = [0.0], time.time

    class Wrong(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.fromtimestamp(right() + wrong[0], zone or UTC)

    for name in (
        "client",
        "feed",
        "partitions",
        "position",
        "provider",
        "reader",
        "shards",
        "snapshots",
        "source",
    ):
        module = importlib.import_module(f"multiclouddb_dynamo.{name}")
        monkeypatch.setattr(module, "datetime", Wrong, raising=False)

    def by(seconds):
        wrong[0] = seconds

    return by


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize(("shards", "seconds"), [(3, -30 * HOUR), (3, 30 * HOUR), (MANY, 30 * HOUR)])
def test_a_wrong_clock_and_one_that_is_set_in_between_lose_nothing(ahead, shards, seconds, tells):
    if not tells:
        ahead(seconds)
    with World(shards=shards, tells_time=tells) as world:
        world.put_everywhere()
        world.script.advance(HOUR if tells else 0)
        consumer = world.consumer(Now())
        assert consumer.read().events == ()
        after = world.put_everywhere()
        ahead(seconds)
        world.script.advance(EXPIRED)
        found = consumer.until_idle() if tells else consumer.restart().until_idle()
        assert set(after) <= set(found)
        assert sorted(found) == after or not tells


def test_two_starts_of_one_client_are_two(ahead):
    with World(shards=MANY, tells_time=False) as world:
        client = world.client()
        one, two = world.consumer(Now(), client), world.consumer(Now(), client)
        one.read()
        between = world.put_in(world.open()[0])
        two.read()
        after = world.put_in(world.open()[0])
        assert two.until_idle() == after
        assert one.until_idle() == between + after


def test_a_start_at_the_beginning_expires_when_the_service_says_so(ahead):
    ahead(30 * HOUR)
    with World(tells_time=False) as world:
        written = world.put("a")
        consumer = world.consumer(Beginning(), max_page_size=1)
        assert consumer.read().diagnostics.retention_headroom_seconds is None
        ahead(60 * HOUR)
        written += world.put("b")
        consumer.restart().until_idle()
        assert consumer.markers == written
        world.put("c")
        world.roll_over()
        world.put("d")
        world.script.advance(25 * HOUR)
        with refused(ErrorCategory.CHECKPOINT_EXPIRED):
            consumer.restart().read()


@pytest.mark.parametrize(("tells", "minutes"), [(False, 25 * 60), (True, 70)])
def test_a_start_that_was_not_read_in_time_is_told(tells, minutes):
    """Unread records may have been trimmed: the shard is gone, or the start is an hour old."""
    with World(tells_time=tells) as world:
        world.put("a")
        world.roll_over()
        (name, token), *_ = world.client().plan_partitions(ChangeFeedRequest(ADDRESS, Beginning()))
        world.script.advance(60 * (minutes - 20))
        consumer = world.consumer(FromContinuationToken(token), scope=PhysicalPartition(name))
        if tells:
            consumer.read()
        world.script.advance(60 * 20)
        with refused(ErrorCategory.CHECKPOINT_EXPIRED):
            world.consumer(FromContinuationToken(token), scope=PhysicalPartition(name)).read()


@pytest.mark.parametrize("start", [Beginning(), Now()])
def test_a_fresh_start_of_a_quiet_table_has_time(world, start):
    page = world.consumer(start).read()
    assert page.diagnostics.retention_headroom_seconds > timedelta(hours=12).total_seconds()
