"""Tests up to which moment a stream was read, although an empty answer proves nothing."""

from datetime import UTC, datetime, timedelta

import pytest

from multiclouddb_api import Beginning, Capability, Now
from multiclouddb_dynamo.provider import CAPABILITIES
from multiclouddb_dynamo.source import DELAY_SECONDS, EMPTY_ANSWERS, EmptyAnswers

from .world import World

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DELAY = timedelta(seconds=DELAY_SECONDS)
SLACK = timedelta(seconds=20)  # a busy machine is slow


@pytest.mark.parametrize("start", [Beginning(), Now()])
def test_one_busy_shard_of_eight_does_not_lag(start):
    with World(shards=8) as world:
        world.put_everywhere()
        consumer = world.consumer(start)
        consumer.until_idle()
        busy = world.open()[0]
        for _ in range(4):
            world.script.advance(600)
            world.put_in(busy, 3)
            consumer.restart().until_idle()
            told = consumer.pages[-1].diagnostics
            assert told.lag_seconds <= (DELAY + SLACK).total_seconds()
            assert told.read_until_estimated
            assert len(told.partitions_read_until) == 8
            assert min(told.partitions_read_until.values()) == told.read_until


def test_it_does_not_go_back_and_the_watermark_waits_for_proof():
    with World(shards=2) as world:
        world.put_everywhere()
        consumer = world.consumer()
        consumer.until_idle()
        before = consumer.pages[-1].diagnostics
        world.script.advance(600)
        world.put_in(world.open()[0])
        consumer.until_idle()
        after = consumer.pages[-1].diagnostics
        # The first changes of the two shards may lie in different seconds.
        assert after.watermark < before.watermark + timedelta(seconds=100)
        assert after.read_until > before.read_until + timedelta(seconds=500)
        moments = [page.diagnostics.read_until for page in consumer.pages]
        known = [moment for moment in moments if moment is not None]
        assert known == sorted(known)


def test_no_change_before_it_comes_later():
    with World(empty_pages=EMPTY_ANSWERS - 1) as world:
        consumer = world.consumer()
        until = None
        for number in range(5):
            world.put(f"k{number}")
            world.script.advance(100)
            for _ in range(3):
                page = consumer.read()
                assert until is None or all(event.timestamp >= until for event in page.events)
                until = page.diagnostics.read_until


class TestAnswers:
    """Tests the answers of one shard, on a clock that the test moves."""

    @pytest.fixture
    def clock(self, monkeypatch):
        seconds = [1000.0]
        monkeypatch.setattr("multiclouddb_dynamo.source.time.monotonic", lambda: seconds[0])
        return seconds

    def answers(self, clock, count, pause):
        found = EmptyAnswers()
        for number in range(count):
            clock[0] += pause if number else 0
            found.add(clock[0])
        return found

    def test_too_few_say_nothing(self, clock):
        assert self.answers(clock, EMPTY_ANSWERS - 1, 0.1).read_until(NOW) is None

    def test_enough_say_how_far_it_was_read(self, clock):
        assert self.answers(clock, EMPTY_ANSWERS, 0.1).read_until(NOW) == NOW - DELAY

    def test_answers_far_apart_say_less(self, clock):
        found = self.answers(clock, EMPTY_ANSWERS, 10.0)
        assert found.read_until(NOW) == NOW - timedelta(seconds=10 * (EMPTY_ANSWERS - 1))

    def test_time_that_passes_afterwards_counts(self, clock):
        found = self.answers(clock, EMPTY_ANSWERS, 0.1)
        clock[0] += 100
        assert found.read_until(NOW) == NOW - DELAY - timedelta(seconds=100)

    def test_without_the_time_of_the_service_nothing_is_known(self, clock):
        assert self.answers(clock, EMPTY_ANSWERS, 0.1).read_until(None) is None

    @pytest.mark.parametrize(("pause", "recent"), [(1.0, True), (1.9, True), (5.0, False)])
    def test_answers_of_long_ago_are_not_recent(self, clock, pause, recent):
        assert self.answers(clock, EMPTY_ANSWERS, pause).are_recent(0.1) is recent

    def test_in_a_feed_of_many_shards_they_may_be_further_apart(self, clock):
        assert self.answers(clock, EMPTY_ANSWERS, 5.0).are_recent(4.0)


def test_the_note_of_the_capability_names_both_numbers():
    note = CAPABILITIES[Capability.CHANGE_FEED].note
    assert f"{EMPTY_ANSWERS} answers" in note
    assert f"{DELAY_SECONDS:.0f} seconds" in note
