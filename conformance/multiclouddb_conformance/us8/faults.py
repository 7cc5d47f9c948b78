"""Runs the fault scripts: no fault may lose an event, and each fault must be reported as promised."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from multiclouddb_api import (
    Capability,
    ErrorCategory,
    Gap,
    MulticloudDbClient,
    MulticloudDbError,
    SkipToOldest,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.faults import (
    FAULTS,
    ChildrenFirst,
    FaultScript,
    MergeMidPage,
    ServerFailure,
    Slow,
    SplitMidPage,
    Throttle,
    Trimmed,
)
from multiclouddb_conformance.refusals import check_refusal
from multiclouddb_conformance.waiting import assert_prompt

__all__ = ["TestEndlessTrouble", "TestTrimmedOnTheWay", "TestTrouble"]

_NEEDS: Final = {
    "split mid-page": ("split",),
    "merge mid-page": ("split", "merge"),
    "child before parent": ("split",),
    "children named late": ("split", "late_children"),
}


def _scripts() -> list[Any]:
    return [
        pytest.param(script, id=name, marks=pytest.mark.needs(*_NEEDS.get(name, ())))
        for name, script in FAULTS.items()
        if not isinstance(script, Trimmed)
    ]


def _act(collection: Collection, script: FaultScript) -> Callable[[], None]:
    """Prepare the collection; return the action that the script performs in the middle of a page."""
    if isinstance(script, MergeMidPage):
        pair = collection.split()
        return lambda: collection.harness.merge(collection.address, *pair)
    if isinstance(script, SplitMidPage):
        name = collection.partitions()[0]
        return lambda: collection.harness.split(collection.address, name)
    if isinstance(script, Trimmed):
        return lambda: collection.harness.trim(collection.address)
    return lambda: None


def _read(collection: Collection, client: MulticloudDbClient, size: int, written: int) -> list[str]:
    """Read as an application would: repeat a failed call with the same token."""
    seen: list[str] = []
    token, failures, idle = collection.begin, 0, False
    while not (idle and len(set(seen)) >= written):
        try:
            page = collection.page(token, size, client=client)
        except MulticloudDbError as error:
            failures += 1
            if not error.retryable or failures == 20:
                raise
            continue
        seen += ids(page.events)
        assert len(seen) < 10 * written, "the same events are delivered again and again"
        assert not (page.idle and len(set(seen)) < written), (
            f"idle, but only {len(set(seen))} of {written} changes were delivered"
        )
        token, idle = page.continuation_token, page.idle
    return seen


@pytest.mark.shows("Promise 1")
@pytest.mark.parametrize("script", _scripts())
class TestTrouble:
    """After a transient fault, no event is lost and none is repeated unnecessarily."""

    @pytest.mark.parametrize("size", [0, 3])
    def test_nothing_is_lost(self, collection: Collection, script: FaultScript, size: int) -> None:
        act = _act(collection, script)
        collection.fill(20)
        if isinstance(script, ChildrenFirst) or "Late" in type(script).__name__:
            collection.split()
        collection.fill(20, start=20)
        with collection.harness.troubled(script, act) as client:
            seen = _read(collection, client, size, 40)
        assert len(set(seen)) == 40
        assert set(seen) == set(ids(collection.drain(collection.begin)))

    @pytest.mark.shows("Promise 2")
    @pytest.mark.needs("key_order")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_the_changes_of_a_key_stay_in_order(self, collection: Collection, script: FaultScript) -> None:
        act = _act(collection, script)
        for number in range(30):
            collection.put(f"k{number % 5}", n=number)
        with collection.harness.troubled(script, act) as client:
            last: dict[str, str] = {}
            seen = set[str]()
            token = collection.begin
            while len(seen) < 30:
                page = collection.page(token, 4, client=client)
                token = page.continuation_token
                for event in page.events:
                    if event.event_id not in seen:
                        assert event.order_key > last.get(str(event.key), "")
                        last[str(event.key)] = event.order_key
                        seen.add(event.event_id)

    def test_a_consumer_that_is_killed_continues_without_the_trouble(
        self, collection: Collection, script: FaultScript
    ) -> None:
        act = _act(collection, script)
        collection.fill(20)
        with collection.harness.troubled(script, act) as client:
            page = collection.page(collection.begin, 5, client=client)
        rest = collection.drain(page.continuation_token)
        assert len({*ids(page.events), *ids(rest)}) == len(page.events) + len(rest) == 20


@pytest.mark.shows("Promise 12")
class TestEndlessTrouble:
    """Tests a fault that does not end, and its effect on the reader."""

    def test_a_service_that_fails_for_ever_is_reported_and_the_token_stays_good(
        self, collection: Collection
    ) -> None:
        collection.fill(5)
        with collection.harness.troubled(ServerFailure(times=None), lambda: None) as client:

            def attempt() -> float:
                began = time.monotonic()
                error = collection.refused(
                    ErrorCategory.TRANSIENT_FAILURE, collection.begin, client=client, timeout=1.0
                )
                assert error.retryable
                return time.monotonic() - began

            assert_prompt(4, attempt, at_most=15)
        assert len(collection.read(collection.begin, 5)) == 5

    @pytest.mark.needs("several", "one_partition_fails", "still")
    def test_a_partition_that_fails_does_not_fail_the_others(self, collection: Collection) -> None:
        collection.fill(20)
        everything = collection.read(collection.begin, 20)
        bad = everything[0].partition_id
        good = {event.event_id for event in everything if event.partition_id != bad}
        script = ServerFailure(times=None, partition_id=bad)
        with collection.harness.troubled(script, lambda: None) as client:
            seen, token = set[str](), collection.begin
            while seen != good:
                page = collection.page(token, 4, client=client, timeout=2.0)
                token = page.continuation_token
                seen.update(ids(page.events))
                assert not page.idle
                assert set(page.diagnostics.partition_errors) <= {bad}
        rest = ids(collection.drain(token))
        assert sorted([*seen, *rest]) == sorted(ids(everything))

    def test_what_the_service_asks_to_wait_is_waited(self, collection: Collection) -> None:
        collection.fill(5)
        with collection.harness.troubled(Throttle(retry_after=0.4, times=1), lambda: None) as client:
            began = time.monotonic()
            pages = [collection.page(collection.begin, client=client)]
            while not pages[-1].idle:
                pages.append(collection.page(pages[-1].continuation_token, client=client))
            took = time.monotonic() - began
        assert sum(page.diagnostics.retries for page in pages) >= 1
        assert took >= 0.4

    def test_retries_are_reported(self, collection: Collection) -> None:
        collection.fill(5)
        with collection.harness.troubled(ServerFailure(times=1), lambda: None) as client:
            retries, token, idle = 0, collection.begin, False
            while not idle:
                page = collection.page(token, client=client)
                token, idle = page.continuation_token, page.idle
                retries += page.diagnostics.retries
        assert retries >= 1

    def test_a_slow_service_is_waited_for(self, collection: Collection) -> None:
        collection.fill(5)
        with collection.harness.troubled(Slow(0.3), lambda: None) as client:
            assert len(collection.drain(collection.begin, client=client)) == 5


@pytest.mark.shows("Promise 7")
@pytest.mark.needs("trim")
class TestTrimmedOnTheWay:
    """Retention removes records that a reader has not read yet."""

    def test_it_is_reported_and_not_jumped_over(self, collection: Collection) -> None:
        act = _act(collection, Trimmed())
        collection.fill(40)
        client = collection.harness.troubled(Trimmed(), act)
        with client, pytest.raises(MulticloudDbError) as caught:
            _read(collection, client, 3, 40)
        check_refusal(caught.value, ErrorCategory.CHECKPOINT_EXPIRED)

    def test_skipping_reports_the_gap(self, collection: Collection) -> None:
        act = _act(collection, Trimmed())
        collection.fill(40)
        with collection.harness.troubled(Trimmed(), act) as client:
            pages = list(collection.pages(collection.begin, 3, client=client, on_expired=SkipToOldest()))
        assert sum(len(page.events) for page in pages) < 40
        assert [notice for page in pages for notice in page.notices if isinstance(notice, Gap)]
