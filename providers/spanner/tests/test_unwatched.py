"""Tests a change stream that is pointed away from its table and back while nobody reads."""

from contextlib import closing

import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ClientConfig,
    ErrorCategory,
    Gap,
    MulticloudDbError,
    Now,
    SkipToOldest,
)
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spi import Deadline, FeedSpec, Planner, ProviderFault, read_range

from .test_altered import MINUTE, WIDE, put, run
from .test_scripted_attacks import TABLE, feed, numbers, once

AWAY = "ALTER CHANGE STREAM items_stream SET FOR other"
OTHER = "CREATE TABLE other (id STRING(MAX) NOT NULL) PRIMARY KEY (id)"


def away_and_back(items, minutes=20):
    """Write a change before, two while the stream is away, and one after; return a time while it is away."""
    run(items, OTHER)
    put(items, "before", 1)
    items.server.advance(MINUTE)
    run(items, AWAY)
    put(items, "a", 2)
    moment = items.server.now()
    items.server.advance(minutes * MINUTE)
    put(items, "a", 3)
    run(items, WIDE)
    items.server.advance(10 * MINUTE)
    put(items, "after", 4)
    return moment


def read(items, token, size, **settings):
    """Read with a new process for each page, up to the end or an error."""
    events, notices, error = [], [], None
    for _ in range(50):
        items.restart()
        try:
            page = items.page(token, size, **settings)
        except MulticloudDbError as raised:
            error = raised
            break
        events += page.events
        notices += page.notices
        token = page.continuation_token
        if page.idle:
            break
    return events, notices, error


@pytest.mark.parametrize("size", [0, 1])
class TestResumed:
    def test_what_is_before_arrives_and_then_the_loss_is_told(self, size):
        with feed(initial_partitions=1) as items:
            token = items.token()
            away_and_back(items)
            events, _, error = read(items, token, size)
            assert numbers(events) == [1]
            assert error is not None
            assert error.category == ErrorCategory.CHECKPOINT_EXPIRED
            assert "did not watch" in str(error)

    def test_whoever_accepts_the_loss_reads_on_after_a_notice(self, size):
        with feed(initial_partitions=2) as items:
            token = items.token()
            away_and_back(items)
            events, notices, error = read(items, token, size, on_expired=SkipToOldest())
            assert error is None
            assert numbers(events) == [1, 4]
            once(events, 2)
            assert [type(notice) for notice in notices if isinstance(notice, Gap)]


def test_an_outage_without_it_is_read_through():
    with feed(initial_partitions=1) as items:
        token = items.token()
        for number in range(3):
            put(items, f"k{number}", number)
            items.server.advance(20 * MINUTE)
        events, notices, error = read(items, token, 0)
        assert (numbers(events), notices, error) == ([0, 1, 2], [], None)


def test_a_start_at_a_time_of_it_is_refused():
    with feed(initial_partitions=1) as items:
        moment = away_and_back(items)
        with pytest.raises(MulticloudDbError) as caught:
            items.page(AtTime(moment))
        assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED


def test_the_beginning_of_a_stream_that_watched_the_table_later():
    with feed(TABLE, "CREATE CHANGE STREAM items_stream", initial_partitions=1) as items:
        items.server.advance(20 * MINUTE)
        run(items, WIDE)
        put(items, "a", 1)
        items.server.advance(20 * MINUTE)
        assert numbers(items.drain(Beginning())) == [1]


@pytest.mark.parametrize("limit", [None, 5])
def test_a_bounded_read_plans_up_to_it_and_then_tells_the_loss(limit):
    with feed(initial_partitions=2) as items:
        deadline = Deadline.after(60)
        provider = PLUGIN.connect(ClientConfig("spanner", {"url": items.scripted.url}), None)
        with closing(provider):
            early = provider.open_feed(FeedSpec(items.address), deadline)
            start = Planner(provider, early).start(Now(), deadline)
            away_and_back(items)
            late = provider.open_feed(FeedSpec(items.address), deadline)
            planner = Planner(provider, late)
            step = planner.advance(start, limit, deadline, allow_empty=True)
            rows = [
                event
                for part in step.ranges()
                for batch in read_range(provider, late, part)
                for event in batch.events(0, len(batch))
            ]
            assert numbers(rows) == [1]
            with pytest.raises(ProviderFault) as caught:
                planner.advance(step.after, limit, deadline, allow_empty=True)
            assert caught.value.fault.category == ErrorCategory.CHECKPOINT_EXPIRED
