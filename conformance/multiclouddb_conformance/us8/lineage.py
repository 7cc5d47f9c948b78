"""Tests partitions that end: their retirement, their children, splits and merges."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from multiclouddb_api import (
    Capability,
    ChangeEvent,
    ChangeFeedPage,
    ErrorCategory,
    ErrorReason,
    PhysicalPartition,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.faults import LateChildren
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.waiting import wait_until

__all__ = ["TestDescendants", "TestLateChildren", "TestMerge", "TestRetirement", "TestSplit"]


def _retired(collection: Collection, name: str, token: str, size: int = 0) -> ChangeFeedPage:
    page = collection.last(token, size, scope=PhysicalPartition(name))
    assert page.partition_retired
    return page


def _in_order(events: Sequence[ChangeEvent]) -> None:
    """Check that every key's changes are in the order of writing, by the field `n`."""
    last: dict[str, int] = {}
    for event in events:
        assert event.new_item_state is not None
        number = event.new_item_state["n"]
        assert number > last.get(str(event.key), -1), f"{event.key}: {number} is out of order"
        last[str(event.key)] = number


@pytest.mark.shows("Plan 5", "Promise 8")
@pytest.mark.needs("split", "alone")
class TestRetirement:
    """A read of a `PhysicalPartition`, which is always one collection's, reaches the end of the partition."""

    def test_a_split_partition_retires_and_names_its_children(self, collection: Collection) -> None:
        name = collection.partitions()[0]
        token = collection.now(scope=PhysicalPartition(name))
        children = collection.split(name)
        page = _retired(collection, name, token)
        assert sorted(child.partition_id for child in page.child_partitions) == sorted(children)
        assert {child.parents for child in page.child_partitions} == {(name,)}
        assert not page.idle

    def test_a_retired_page_may_be_read_again_for_ever(self, collection: Collection) -> None:
        name = collection.partitions()[0]
        collection.split(name)
        first = _retired(collection, name, _token_before(collection, name))
        scope = PhysicalPartition(name)
        token = first.continuation_token
        for _ in range(3):
            collection.restart()
            again = collection.page(token, scope=scope)
            token = again.continuation_token
            assert (again.events, again.partition_retired) == ((), True)
            assert {child.partition_id for child in again.child_partitions} == {
                child.partition_id for child in first.child_partitions
            }

    def test_everything_in_a_partition_comes_before_it_retires(self, collection: Collection) -> None:
        name = collection.partitions()[0]
        token = collection.now(scope=PhysicalPartition(name))
        collection.fill(30)
        mine = ids(event for event in collection.read(collection.begin, 30) if event.partition_id == name)
        collection.split(name)
        pages = list(collection.pages(token, scope=PhysicalPartition(name)))
        assert [name for page in pages for name in ids(page.events)] == mine
        assert [page.partition_retired for page in pages] == [*(False for _ in pages[1:]), True]

    @pytest.mark.parametrize("size", [1, 3])
    def test_small_pages_retire_after_the_last_event(self, collection: Collection, size: int) -> None:
        name = collection.partitions()[0]
        token = collection.now(scope=PhysicalPartition(name))
        collection.fill(30)
        mine = ids(event for event in collection.read(collection.begin, 30) if event.partition_id == name)
        collection.split(name)
        got = ids(collection.drain(token, size, scope=PhysicalPartition(name)))
        assert got == mine

    def test_an_empty_partition_that_was_closed_retires_at_once(self, collection: Collection) -> None:
        name = collection.partitions()[-1]
        token = collection.now(scope=PhysicalPartition(name))
        collection.split(name)
        page = _retired(collection, name, token)
        assert page.events == ()
        assert len(page.child_partitions) >= 1

    def test_children_start_where_the_parent_ended(self, collection: Collection) -> None:
        name = collection.partitions()[0]
        token = collection.now(scope=PhysicalPartition(name))
        collection.fill(20)
        collection.split(name)
        collection.fill(20, start=20)
        alone = collection.follow(name, token)
        everything = collection.read(collection.begin, 40)
        lineage = {event.partition_id for event in alone}
        assert sorted(ids(alone)) == sorted(ids(e for e in everything if e.partition_id in lineage))
        assert name in lineage

    def test_what_was_written_to_children_before_the_parent_was_read_is_not_lost(
        self, collection: Collection
    ) -> None:
        starts = {name: collection.now(scope=PhysicalPartition(name)) for name in collection.partitions()}
        collection.fill(10)
        collection.split(collection.split()[0])
        collection.fill(30, start=10)
        collection.restart()
        events = [event for name, token in starts.items() for event in collection.follow(name, token, 2)]
        assert len(events) == len(set(ids(events))) == 40

    def test_a_retired_partition_is_no_longer_listed(self, collection: Collection) -> None:
        name = collection.partitions()[0]
        children = collection.split(name)
        assert name not in collection.partitions()
        assert set(children) <= set(collection.partitions())


@pytest.mark.shows("FR-069")
@pytest.mark.needs("split")
class TestDescendants:
    """One token covers a partition and its descendants: `PhysicalPartition(…, with_descendants=True)`."""

    @pytest.mark.parametrize("size", [1, 3, 0])
    def test_a_partition_is_continued_in_its_children(self, collection: Collection, size: int) -> None:
        name = collection.partitions()[0]
        scope = PhysicalPartition(name, with_descendants=True)
        token, alone = collection.now(scope=scope), collection.now(scope=PhysicalPartition(name))
        collection.fill(20)
        children = collection.split(name)
        collection.fill(20, start=20)
        collection.split(children[-1])
        collection.fill(20, start=40)
        pages = list(collection.pages(token, size, scope=scope))
        got = [event for page in pages for event in page.events]
        assert not any(page.partition_retired or page.child_partitions for page in pages)
        assert sorted(ids(got)) == sorted(ids(collection.follow(name, alone)))
        places = {
            event.partition_id: number for number, event in enumerate(got) if event.partition_id == name
        }
        assert all(event.partition_id == name for event in got[: places.get(name, -1) + 1])

    def test_it_may_be_ended_after_every_page(self, collection: Collection) -> None:
        name = collection.partitions()[0]
        scope = PhysicalPartition(name, with_descendants=True)
        token = collection.now(scope=scope)
        collection.fill(12)
        collection.split(name)
        collection.fill(12, start=12)
        whole = ids(collection.drain(token, 4, scope=scope))
        got: list[str] = []
        for page in collection.pages(token, 4, scope=scope):
            got += ids(page.events)
            collection.restart()
            rest = ids(collection.drain(page.continuation_token, 4, scope=scope))
            assert sorted(got + rest) == sorted(whole)

    @pytest.mark.needs("alone")
    def test_a_plan_has_everything_together(self, collection: Collection) -> None:
        request = collection.request(collection.begin)
        plan = collection.client.plan_partitions(request, with_descendants=True)
        collection.fill(20)
        collection.split()
        collection.fill(20, start=20)
        events = [
            event
            for name, token in plan
            for event in collection.drain(token, scope=PhysicalPartition(name, with_descendants=True))
        ]
        assert len(set(ids(events))) == 40

    def test_tokens_of_the_two_forms_are_distinguished(self, collection: Collection) -> None:
        name = collection.partitions()[0]
        alone, whole = (PhysicalPartition(name, with_descendants=form) for form in (False, True))
        for mine, other in ((alone, whole), (whole, alone)):
            token, reasons = collection.now(scope=mine), [ErrorReason.WRONG_SCOPE]
            error = collection.refused(ErrorCategory.INVALID_REQUEST, token, scope=other, reasons=reasons)
            form = "with" if mine is whole else "without"
            assert f"{form} its descendants" in error.message


def _token_before(collection: Collection, name: str) -> str:
    """Return a token from the start of a partition that has ended in the meantime."""
    plan = dict(collection.client.plan_partitions(collection.request(collection.begin)))
    return plan[name]


@pytest.mark.shows("Promise 1")
@pytest.mark.needs("split")
class TestSplit:
    """`EntireCollection` is read while partitions split."""

    def test_nothing_is_lost_and_nothing_comes_twice(self, collection: Collection) -> None:
        collection.fill(20)
        collection.split()
        collection.fill(20, start=20)
        events = collection.drain(collection.begin)
        assert len(events) == len(set(ids(events))) == 40

    @pytest.mark.shows("Plan 13", "Promise 2")
    @pytest.mark.needs("key_order")
    @pytest.mark.parametrize("size", [1, 4, 0])
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_a_child_comes_after_its_parent(self, collection: Collection, size: int) -> None:
        for number in range(40):
            collection.put(f"k{number % 8}", n=number)
            if number in (12, 24):
                collection.split()
        events = collection.drain(collection.begin, size)
        assert len(events) == 40
        _in_order(events)

    def test_a_token_from_before_a_split_is_good_after_it(self, collection: Collection) -> None:
        collection.fill(20)
        token = collection.last(collection.begin).continuation_token
        collection.split()
        collection.fill(20, start=20)
        collection.restart()
        events = collection.drain(token)
        assert len(events) == len(set(ids(events))) == 20

    @pytest.mark.shows("Promise 2")
    def test_every_generation_of_splits_is_followed(self, collection: Collection) -> None:
        token = collection.begin
        for number in range(5):
            collection.split(collection.partitions()[-1])
            collection.fill(10, start=10 * number)
        events = collection.drain(token, 3)
        assert len(events) == len(set(ids(events))) == 50

    def test_an_empty_parent_hides_no_child(self, collection: Collection) -> None:
        collection.split(collection.split()[0])
        collection.fill(20)
        assert len(collection.read(collection.begin, 20)) == 20

    @pytest.mark.shows("Plan 12")
    def test_drained_partitions_leave_the_token(self, collection: Collection) -> None:
        collection.fill(10)
        before = len(collection.last(collection.begin).continuation_token)
        token = collection.begin
        for _ in range(6):
            children = collection.split()
            if collection.harness.can_merge:
                collection.merge(children)
            token = collection.last(token).continuation_token
        # Without a proof that all children are known, the engine searches for more children, but here only
        # once.
        config = attrs.evolve(collection.harness.config(), child_watch_seconds=0)
        tokens = [token]

        def is_closed() -> bool:
            page = collection.page(tokens[-1], client=client)
            tokens.append(page.continuation_token)
            return not page.diagnostics.open_watches

        with open_client(collection.harness.plugin, config) as client:
            wait_until(is_closed)
        assert len(tokens[-1]) < before + 60 * len(collection.partitions())


@pytest.mark.needs("split", "merge")
class TestMerge:
    """A feed is read while two partitions are merged into one."""

    @pytest.mark.shows("Plan 13", "Promise 2")
    @pytest.mark.needs("key_order")
    @pytest.mark.parametrize("size", [1, 4, 0])
    @pytest.mark.needs("merged_children")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_a_merged_child_comes_after_both_parents(self, collection: Collection, size: int) -> None:
        children = collection.split()
        for number in range(40):
            collection.put(f"k{number % 8}", n=number)
            if number == 24:
                collection.merge(children)
        events = collection.drain(collection.begin, size)
        assert len(events) == len(set(ids(events))) == 40
        _in_order(events)

    @pytest.mark.shows("Promise 2", "Promise 8")
    @pytest.mark.needs("merged_children")
    def test_every_parent_names_the_merged_child_and_all_its_parents(self, collection: Collection) -> None:
        pair = collection.split()
        tokens = {name: collection.now(scope=PhysicalPartition(name)) for name in pair}
        merged = collection.merge(pair)
        for name in pair:
            (child,) = _retired(collection, name, tokens[name]).child_partitions
            assert child.partition_id == merged
            assert set(child.parents) == set(pair)

    @pytest.mark.shows("FR-069")
    @pytest.mark.needs("merged_children")
    def test_followers_of_both_parents_read_the_merged_child(self, collection: Collection) -> None:
        pair = collection.split()
        scopes = [PhysicalPartition(name, with_descendants=True) for name in pair]
        tokens = [collection.now(scope=scope) for scope in scopes]
        collection.fill(20)
        merged = collection.merge(pair)
        collection.fill(20, start=20)
        read = [collection.drain(token, scope=scope) for token, scope in zip(tokens, scopes, strict=True)]
        theirs = [[event.event_id for event in events if event.partition_id == merged] for events in read]
        assert theirs[0] == theirs[1] != []
        for events in read:
            child = [event.partition_id == merged for event in events]
            assert child == sorted(child)

    @pytest.mark.shows("Promise 2")
    def test_a_token_from_before_a_merge_is_good_after_it(self, collection: Collection) -> None:
        pair = collection.split()
        collection.fill(20)
        first = collection.page(collection.begin, 5)
        collection.merge(pair)
        collection.fill(20, start=20)
        collection.restart()
        rest = ids(collection.drain(first.continuation_token))
        assert len({*ids(first.events), *rest}) == len(first.events) + len(rest) == 40

    @pytest.mark.shows("Plan 13", "Promise 2")
    @pytest.mark.needs("alone", "merged_children")
    def test_no_event_of_a_merged_child_comes_before_the_last_of_its_parents(
        self, collection: Collection
    ) -> None:
        pair = collection.split()
        collection.fill(30)
        merged = collection.merge(pair)
        collection.fill(30, start=30)
        events = collection.drain(collection.begin, 2)
        first = min(number for number, event in enumerate(events) if event.partition_id == merged)
        last = max(number for number, event in enumerate(events) if event.partition_id in pair)
        assert last < first


@pytest.mark.shows("Promise 1")
@pytest.mark.needs("split", "late_children")
class TestLateChildren:
    """A service names the children of a closed partition late."""

    def test_children_named_late_lose_nothing(self, collection: Collection) -> None:
        collection.fill(10)
        collection.split()
        collection.fill(10, start=10)
        with collection.harness.troubled(LateChildren(calls=2), lambda: None) as client:
            events: list[ChangeEvent] = []
            token = collection.begin
            for _ in range(10):
                page = collection.page(token, client=client)
                token = page.continuation_token
                events += page.events
                if page.idle:
                    break
        assert len(events) == len(set(ids(events))) == 20

    @pytest.mark.shows("Promise 4")
    def test_a_feed_that_waits_for_children_is_not_idle(self, collection: Collection) -> None:
        collection.fill(10)
        collection.split()
        with collection.harness.troubled(LateChildren(calls=1000), lambda: None) as client:
            token = collection.begin
            for _ in range(4):
                page = collection.page(token, client=client)
                token = page.continuation_token
                assert not page.idle
        assert collection.last(token).idle

    def test_a_token_that_waits_for_children_resumes(self, collection: Collection) -> None:
        collection.fill(10)
        collection.split()
        collection.fill(10, start=10)
        with collection.harness.troubled(LateChildren(calls=1000), lambda: None) as client:
            page = collection.page(collection.begin, client=client)
        events = [*page.events, *collection.drain(page.continuation_token)]
        assert len(events) == len(set(ids(events))) == 20
