"""Tests that any client can resume from any token, and that the page size is a limit.

A client can resume from the same token any number of times.
"""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import pytest

from multiclouddb_api import ChangeEvent, PhysicalPartition
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.harness import Write

__all__ = ["TestCheckpoint", "TestPageSize"]


@pytest.mark.shows("Promise 1")
class TestCheckpoint:
    """A read from a token delivers everything that comes after it."""

    @pytest.mark.shows("FR-066")
    def test_resuming_after_every_single_event_loses_nothing(self, collection: Collection) -> None:
        collection.fill(12)
        everything = set(ids(collection.read(collection.begin, 12)))
        token, before = collection.begin, set[str]()
        for page in collection.pages(token, 1):
            rest = set(ids(collection.drain(page.continuation_token)))
            before |= set(ids(page.events))
            assert before | rest == everything
            assert not before & rest

    @pytest.mark.shows("FR-066")
    @pytest.mark.parametrize("size", [1, 3, 5])
    def test_resuming_after_every_page_loses_nothing(self, collection: Collection, size: int) -> None:
        """A new client resumes, because the client that read the page may still hold unread records."""
        collection.fill(16)
        everything = set(ids(collection.read(collection.begin, 16)))
        before = set[str]()
        for page in collection.pages(collection.begin, size):
            before |= set(ids(page.events))
            with collection.harness.connect() as fresh:
                rest = set(ids(collection.drain(page.continuation_token, client=fresh)))
            assert before | rest == everything
            assert not before & rest

    @pytest.mark.shows("FR-066")
    @pytest.mark.needs("batch")
    def test_resuming_inside_a_transaction_loses_nothing(self, collection: Collection) -> None:
        collection.batch(*(Write(f"k{number}", {"n": number}) for number in range(8)))
        everything = set(ids(collection.read(collection.begin, 8)))
        before = set[str]()
        for page in collection.pages(collection.begin, 1):
            before |= set(ids(page.events))
            collection.restart()
            assert before | set(ids(collection.drain(page.continuation_token))) == everything

    @pytest.mark.shows("FR-066", "Plan 14")
    def test_a_token_read_twice_gives_the_same(self, collection: Collection) -> None:
        collection.fill(10)
        token = collection.page(collection.begin, 3).continuation_token
        first, second = collection.drain(token), collection.drain(token)
        assert sorted(ids(first)) == sorted(ids(second))
        assert {event.event_id: event for event in first} == {event.event_id: event for event in second}

    def test_a_token_read_by_two_clients_in_turns_gives_the_same_to_both(
        self, collection: Collection
    ) -> None:
        collection.fill(10)
        with collection.harness.connect() as other:
            mine = theirs = collection.begin
            seen: tuple[set[str], set[str]] = (set(), set())
            for _ in range(40):
                page = collection.page(mine, 1)
                mine = page.continuation_token
                seen[0].update(ids(page.events))
                page = collection.page(theirs, 2, client=other)
                theirs = page.continuation_token
                seen[1].update(ids(page.events))
        assert len(seen[0]) == 10
        assert seen[0] == seen[1]

    @pytest.mark.shows("FR-066")
    def test_a_token_outlives_the_client_that_made_it(self, collection: Collection) -> None:
        collection.fill(6)
        page = collection.page(collection.begin, 2)
        collection.restart()
        rest = collection.drain(page.continuation_token)
        assert len(set(ids(page.events)) | set(ids(rest))) == 6

    @pytest.mark.shows("Plan 12")
    def test_a_token_is_plain_ascii_text(self, collection: Collection) -> None:
        collection.fill(3)
        for page in collection.pages(collection.begin, 1):
            assert page.continuation_token.isascii()
            assert not set(page.continuation_token) & set(" \n\"'+/=")

    def test_the_page_size_may_change_on_the_way(self, collection: Collection) -> None:
        collection.fill(20)
        events: list[ChangeEvent] = []
        token = collection.begin
        for size in (1, 3, 2, 7, 1, 0):
            page = collection.page(token, size)
            token = page.continuation_token
            events += page.events
        events += collection.drain(token)
        assert len(events) == len(set(ids(events))) == 20

    def test_writes_after_a_token_do_not_change_what_is_before(self, collection: Collection) -> None:
        collection.fill(6)
        page = collection.page(collection.begin, 4)
        collection.fill(6, start=6)
        rest = collection.drain(page.continuation_token)
        assert len({*ids(page.events), *ids(rest)}) == len(page.events) + len(rest) == 12

    @pytest.mark.shows("Further 11")
    @pytest.mark.needs("alone", "still")
    def test_planned_tokens_cover_the_feed_once(self, collection: Collection) -> None:
        collection.fill(30)
        plan = collection.client.plan_partitions(collection.request(collection.begin))
        # A partition that has ended is still planned while more children may be named.
        assert {name for name, _ in plan} >= set(collection.partitions())
        events = [
            event for name, token in plan for event in collection.drain(token, scope=PhysicalPartition(name))
        ]
        assert len(events) == len(set(ids(events))) == 30


@pytest.mark.shows("Promise 10")
class TestPageSize:
    """`max_page_size` is a hard limit. A page is returned even if it is not full."""

    @pytest.mark.parametrize("size", [1, 2, 7])
    def test_no_page_is_longer(self, collection: Collection, size: int) -> None:
        collection.fill(20)
        pages = list(collection.pages(collection.begin, size))
        assert max(len(page.events) for page in pages) <= size
        assert len({name for page in pages for name in ids(page.events)}) == 20

    @pytest.mark.shows("Promise 15")
    def test_a_page_ends_by_bytes_but_has_one_event(self, collection: Collection) -> None:
        collection.fill(12)
        pages = collection.pages(collection.begin, max_page_bytes=1)
        found = [ids(page.events) for page in pages if page.events]
        assert {len(page) for page in found} == {1}
        assert len({name for page in found for name in page}) == 12

    def test_small_pages_starve_no_partition(self, collection: Collection) -> None:
        collection.fill(60)
        everything = collection.read(collection.begin, 60)
        partitions = {event.partition_id for event in everything}
        early: set[str] = set()
        for number, page in enumerate(collection.pages(collection.begin, 1)):
            early |= {event.partition_id for event in page.events}
            if number >= 4 * len(partitions):
                break
        assert early == partitions

    @pytest.mark.shows("Plan 13", "Promise 2")
    @pytest.mark.needs("key_order")
    def test_small_pages_keep_the_order_of_each_partition(self, collection: Collection) -> None:
        for number in range(30):
            collection.put(f"k{number % 3}", n=number)
        last: dict[str, str] = {}
        for event in collection.drain(collection.begin, 1):
            assert event.order_key > last.get(str(event.key), "")
            last[str(event.key)] = event.order_key
