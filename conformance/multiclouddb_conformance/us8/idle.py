"""Tests feeds that have no new changes.

The tests cover idle pages, long polls, watermarks, and tokens that advance without changes.
"""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from multiclouddb_api import OperationOptions, PhysicalPartition
from multiclouddb_conformance.collection import Collection
from multiclouddb_conformance.waiting import SOON, assert_prompt
from multiclouddb_spi.continuation.token import decode_token

__all__ = ["TestIdle", "TestLongPoll", "TestReadUntil", "TestWatermark"]


@pytest.mark.shows("Promise 4")
class TestIdle:
    """`idle` means that every partition has reported that it has no more changes."""

    def test_an_empty_feed_is_idle(self, collection: Collection) -> None:
        page = collection.last(collection.begin)
        assert (page.events, page.idle) == ((), True)

    def test_no_page_is_idle_while_something_is_missing(self, collection: Collection) -> None:
        collection.fill(25)
        seen = 0
        for page in collection.pages(collection.begin, 2):
            assert not (page.idle and seen < 25)
            seen += len(page.events)

    def test_a_page_with_events_is_not_idle(self, collection: Collection) -> None:
        collection.fill(5)
        assert all(not page.idle for page in collection.pages(collection.begin) if page.events)

    def test_an_idle_feed_wakes_up(self, collection: Collection) -> None:
        token = collection.last(collection.begin).continuation_token
        collection.put("a", n=1)
        assert len(collection.read(token, 1)) == 1

    @pytest.mark.needs("several")
    def test_calls_that_leave_out_partitions_miss_nothing(self, collection: Collection) -> None:
        """The feed has more partitions than the client reads at once."""
        seen, token, options = set[str](), collection.begin, OperationOptions(wait_seconds=1, ask_all=False)
        with closing(collection.harness.connect(max_concurrency=1)) as client:
            for number in range(3):
                collection.fill(6, start=6 * number)
                until = time.monotonic() + collection.harness.patience_seconds + SOON
                while len(seen) < 6 * (number + 1):
                    assert time.monotonic() < until, f"{len(seen)} of {6 * (number + 1)} events have arrived"
                    page = client.read_changes(collection.request(token), options)
                    assert not (page.idle and page.poll_after_seconds)
                    token = page.continuation_token
                    seen.update(event.event_id for event in page.events)
        assert collection.drain(token) == []

    def test_an_idle_feed_does_not_lag(self, collection: Collection) -> None:
        collection.fill(3)
        lag = collection.last(collection.begin).diagnostics.lag_seconds
        assert lag is None or lag < 60

    @pytest.mark.shows("Promise 3")
    @pytest.mark.needs("several", "trim", "idle_moves", "still")
    def test_a_partition_that_is_idle_for_long_does_not_fall_out_of_retention(
        self, collection: Collection
    ) -> None:
        mine, other = collection.partitions()[:2]
        busy = collection.key_in(other)
        scope = PhysicalPartition(mine)
        token = collection.last(collection.now(scope=scope), scope=scope).continuation_token
        for round_ in range(3):
            for number in range(5):
                collection.put(busy, n=5 * round_ + number)
            page = collection.last(token, scope=scope)
            assert page.events == ()
            token = page.continuation_token
            collection.trim()
            collection.restart()
        assert collection.last(token, scope=scope).idle

    @pytest.mark.shows("Promise 3")
    @pytest.mark.needs("several", "idle_moves", "still")
    def test_an_empty_page_moves_the_token_with_the_service(self, collection: Collection) -> None:
        mine, other = collection.partitions()[:2]
        busy = collection.key_in(other)
        scope = PhysicalPartition(mine)
        tokens = [collection.now(scope=scope)]
        for number in range(3):
            collection.put(busy, n=number)
            tokens.append(collection.last(tokens[-1], scope=scope).continuation_token)
        states = {str(decode_token(token).state) for token in tokens}
        assert len(states) == 4


@pytest.mark.shows("Further 1")
class TestLongPoll:
    """`wait_seconds` is the time for which a call waits for a first event."""

    def test_without_waiting_an_empty_page_comes_at_once(self, collection: Collection) -> None:
        token = collection.last(collection.begin).continuation_token

        def attempt() -> float:
            began = time.monotonic()
            assert collection.page(token).events == ()
            return time.monotonic() - began

        assert_prompt(2, attempt, at_most=15)

    def test_a_wait_ends_when_its_time_is_over(self, collection: Collection) -> None:
        token = collection.last(collection.begin).continuation_token

        def attempt() -> float:
            began = time.monotonic()
            assert collection.page(token, wait=0.3).events == ()
            took = time.monotonic() - began
            assert took >= 0.25
            return took

        assert_prompt(2, attempt, at_most=15)

    def test_a_wait_ends_with_the_first_event(self, collection: Collection) -> None:
        token = collection.last(collection.begin).continuation_token
        writer = threading.Timer(0.2, collection.put, ("a",), {"n": 1})
        writer.start()
        began = time.monotonic()
        page = collection.page(token, wait=20)
        writer.join()
        assert len(page.events) == 1
        assert time.monotonic() - began < 15


@pytest.mark.shows("Plan 17")
@pytest.mark.needs("watermarks")
class TestWatermark:
    """No later event is older than the watermark, and the watermark never goes back."""

    def test_it_never_goes_back(self, collection: Collection) -> None:
        marks = []
        token = collection.begin
        for number in range(4):
            collection.fill(5, start=5 * number)
            for page in collection.pages(token, 2):
                token = page.continuation_token
                marks.append(page.diagnostics.watermark)
            collection.restart()
        reported = [mark for mark in marks if mark is not None]
        assert reported
        assert reported == sorted(reported)

    @pytest.mark.parametrize("size", [1, 3, 0])
    def test_no_later_event_is_older(self, collection: Collection, size: int) -> None:
        collection.fill(20)
        pages = list(collection.pages(collection.begin, size))
        collection.fill(10, start=20)
        pages += collection.pages(pages[-1].continuation_token, size)
        for number, page in enumerate(pages):
            mark = page.diagnostics.watermark
            later = [event for each in pages[number + 1 :] for event in each.events]
            assert mark is None or all(event.timestamp >= mark for event in later)

    @pytest.mark.needs("split")
    def test_no_later_event_is_older_through_a_split(self, collection: Collection) -> None:
        collection.fill(10)
        collection.split()
        collection.fill(10, start=10)
        pages = list(collection.pages(collection.begin, 2))
        for number, page in enumerate(pages):
            mark = page.diagnostics.watermark
            later = [event for each in pages[number + 1 :] for event in each.events]
            assert mark is None or all(event.timestamp >= mark for event in later)


@pytest.mark.shows("Plan 17")
@pytest.mark.needs("watermarks")
class TestReadUntil:
    """Every change before `read_until` was returned, and `read_until` never goes back."""

    @pytest.mark.parametrize("size", [1, 3, 0])
    def test_no_earlier_change_comes_later(self, collection: Collection, size: int) -> None:
        collection.fill(20)
        pages = list(collection.pages(collection.begin, size))
        collection.restart()
        collection.fill(10, start=20)
        pages += collection.pages(pages[-1].continuation_token, size)
        told = [page.diagnostics.read_until for page in pages]
        assert told.count(None) <= next((at for at, each in enumerate(told) if each is not None), len(told))
        reported = [each for each in told if each is not None]
        assert reported == sorted(reported)
        rounding = collection.harness.rounding
        for number, page in enumerate(pages):
            until = page.diagnostics.read_until
            if until is None or page.diagnostics.read_until_estimated:
                continue
            later = [event for each in pages[number + 1 :] for event in each.events]
            assert all(event.timestamp + rounding >= until for event in later)

    @pytest.mark.needs("idle_moves")
    def test_it_passes_each_moment_while_one_key_is_busy(self, collection: Collection) -> None:
        """The other partitions have no changes, and must not hold it back."""
        collection.fill(5)
        events = collection.read(collection.begin, 5)
        moment = max(event.timestamp for event in events)
        token, give_up, number = collection.begin, time.monotonic() + 90, 0
        while True:
            number += 1
            collection.put("busy", n=number)
            page = collection.page(token, wait=0.2)
            token, until = page.continuation_token, page.diagnostics.read_until
            if until is not None and until > moment:
                break
            assert time.monotonic() < give_up, f"only {until}"
