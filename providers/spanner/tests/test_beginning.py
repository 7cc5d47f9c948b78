"""Tests that a token from a start at the beginning behaves like any other token: expiry is reported as a
loss."""

import pytest

from multiclouddb_api import Beginning, Gap, SkipToOldest
from multiclouddb_spanner_emulator.partition import HASHES, place_of

from .scripted import READ
from .test_horizon import MINUTE, STATES, expired
from .test_scripted_attacks import DAY, feed, numbers


def key_of(partition):
    """Return a key whose changes go to the given one of two partitions."""
    return next(
        key
        for key in (f"k{number}" for number in range(1000))
        if place_of(f'items {{"id":"{key}"}}') * 2 // HASHES == partition
    )


def begun(items):
    """Return the token of a first page, which has read only the first of two partitions.

    The second partition has a change that expires two minutes later, and a change that is kept.
    """
    items.server.advance(2 * DAY)
    items.put((key_of(1), 1))
    items.server.advance(DAY - 2 * MINUTE)
    items.put((key_of(0), 2))
    items.put((key_of(1), 3))
    waits = items.server.troubles.hang(READ, 1, token=items.open_partitions()[1])
    page = items.page(Beginning(), 1)
    waits.end()
    assert numbers(page.events) == [2]
    return page.continuation_token


@STATES
@pytest.mark.parametrize("minutes", [3, 9, 30])
def test_a_token_whose_unread_changes_expired_is_refused(told, minutes):
    with feed(names_horizon=told) as items:
        token = begun(items)
        assert sorted(numbers(items.drain(token))) == [1, 3]
        items.server.advance(minutes * MINUTE)
        items.restart()
        expired(lambda: items.drain(token))


@STATES
def test_skipping_them_is_a_gap(told):
    with feed(names_horizon=told) as items:
        token = begun(items)
        items.server.advance(3 * MINUTE)
        items.restart()
        events, gaps = [], 0
        while not (page := items.page(token, on_expired=SkipToOldest())).idle:
            events += page.events
            gaps += sum(isinstance(notice, Gap) for notice in page.notices)
            token = page.continuation_token
        assert gaps
        assert 3 in numbers([*events, *page.events])


def test_a_start_stays_ahead_of_retention_for_as_long_as_its_call_may_take():
    with feed() as items:
        items.server.advance(2 * DAY)
        items.fill(10)
        items.server.advance(DAY - 11 * MINUTE)
        items.fill(10, start=10)
        late = items.open_partitions()[1]
        items.server.troubles.act(lambda: items.server.advance(5 * MINUTE), token=late, after_rows=None)
        page = items.page(Beginning(), timeout=300)
        events = list(page.events)
        assert sorted(numbers(events + items.drain(page.continuation_token))) == list(range(20))
