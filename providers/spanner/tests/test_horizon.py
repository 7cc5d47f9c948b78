"""Tests streams that are older than their retention, so that the oldest readable time advances constantly."""

from datetime import timedelta

import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    Gap,
    MulticloudDbError,
    PhysicalPartition,
    SkipToOldest,
)

from .test_scripted_attacks import DAY, feed, numbers, once

MINUTE = 60
STATES = pytest.mark.parametrize("told", [True, False], ids=["told", "searched"])


def expired(read):
    with pytest.raises(MulticloudDbError) as caught:
        read()
    assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED


class TestBeginning:
    @STATES
    def test_a_young_stream_begins_exactly_where_it_was_created(self, told):
        with feed(names_horizon=told) as items:
            items.server.crowd(0.2)
            items.fill(4)
            items.server.advance(DAY - 2 * MINUTE)
            once(items.drain(Beginning()), 4)

    @STATES
    def test_an_old_one_begins_a_minute_after_its_oldest_change(self, told):
        with feed(names_horizon=told) as items:
            items.fill(2)
            items.server.advance(40)  # these changes will be kept for less than the margin
            items.fill(2, start=2)
            items.server.advance(MINUTE)  # these changes will be kept for longer
            items.fill(2, start=4)
            items.server.advance(DAY - 80)
            assert sorted(numbers(items.drain(Beginning()))) == [4, 5]

    @STATES
    def test_a_first_read_that_comes_too_late_is_refused(self, told):
        """Resolve the start, let time pass, and then read each partition for the first time."""
        with feed(names_horizon=told) as items:
            items.fill(3)
            items.server.advance(DAY + MINUTE)
            items.fill(4, start=3)
            plan = items.client.plan_partitions(ChangeFeedRequest(items.address, Beginning()))
            items.server.advance(5 * MINUTE)
            assert len(plan) == len(items.open_partitions())
            for name, token in plan:
                expired(lambda name=name, token=token: items.page(token, scope=PhysicalPartition(name)))
            assert sorted(numbers(items.drain(Beginning()))) == [3, 4, 5, 6]

    def test_a_call_that_may_take_hours_leaves_out_a_tenth_of_the_retention(self):
        with feed(initial_partitions=1) as items:
            items.server.advance(2 * DAY)
            items.fill(1)
            items.server.advance(100)
            items.fill(1, start=1)
            items.server.advance(DAY - DAY / 10 - 50)
            assert numbers(items.page(Beginning(), timeout=50_000).events) == [1]

    def test_a_first_read_that_comes_much_too_late_is_told(self):
        with feed() as items:
            items.server.advance(2 * DAY)
            items.fill(6)
            token = items.page(Beginning(), 1).continuation_token
            items.server.advance(DAY + 30 * MINUTE)
            items.restart()
            expired(lambda: items.drain(token))

    def test_a_retention_that_was_made_shorter_under_a_client_is_noticed(self):
        with feed() as items:
            items.server.execute(
                items.scripted.database,
                "ALTER CHANGE STREAM items_stream SET OPTIONS (retention_period = '3d')",
            )
            items.restart()
            items.token()
            items.fill(3)
            items.server.advance(2 * DAY)
            items.server.execute(
                items.scripted.database,
                "ALTER CHANGE STREAM items_stream SET OPTIONS (retention_period = '1d')",
            )
            items.fill(4, start=3)
            assert sorted(numbers(items.drain(Beginning()))) == [3, 4, 5, 6]


class TestMoment:
    def test_the_moment_of_creation_is_one(self):
        with feed() as items:
            items.server.crowd(0.2)
            items.fill(3)
            events = sorted(items.drain(Beginning()), key=lambda event: event.timestamp)
            assert len(items.drain(AtTime(events[0].timestamp))) == 3
            assert len(items.drain(AtTime(events[0].timestamp - timedelta(microseconds=1)))) == 3


class TestPositions:
    """Tests that the provider never moves a stored position or a requested time."""

    def test_a_moment_before_the_oldest_change_is_told(self):
        with feed() as items:
            items.server.advance(2 * DAY)
            items.fill(3)
            horizon = items.server.now() - timedelta(days=1)
            expired(lambda: items.page(AtTime(horizon - timedelta(milliseconds=1))))
            once(items.drain(AtTime(horizon + timedelta(minutes=1))), 3)

    @pytest.mark.parametrize("size", [1, 0])
    def test_a_position_that_expired_by_a_second_is_told(self, size):
        with feed(initial_partitions=1) as items:
            items.server.advance(2 * DAY)
            items.fill(3)
            token = items.page(Beginning(), size).continuation_token
            items.fill(2, start=3)
            items.server.advance(DAY + 1)
            items.restart()
            expired(lambda: items.drain(token))

    def test_what_expires_after_a_gap_is_a_gap_again(self):
        with feed(initial_partitions=4) as items:
            token = items.token()
            items.server.advance(2 * DAY)
            items.fill(8)
            gaps = 0
            for _ in range(2):
                page = items.page(token, 1, on_expired=SkipToOldest())
                gaps += sum(isinstance(notice, Gap) for notice in page.notices)
                token = page.continuation_token
                items.server.advance(2 * DAY)
                items.restart()
            expired(lambda: items.drain(token))
            assert gaps
