"""Tests changes that have expired, and records that cannot be decoded."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    ErrorCategory,
    ErrorReason,
    Gap,
    MulticloudDbError,
    PhysicalPartition,
    RecordSkipped,
    SkipToOldest,
    StartPosition,
    Support,
    encode_json,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.refusals import LOST, check_refusal
from multiclouddb_spi.faults import digest_in, key_digest

__all__ = ["TestExpiry", "TestPoison"]

_CAPABILITIES = {
    "beginning": Capability.CHANGE_FEED_BEGINNING,
    "time": Capability.CHANGE_FEED_POINT_IN_TIME,
}
_STARTS = (
    "now",
    *(
        pytest.param(name, marks=pytest.mark.requires(capability))
        for name, capability in _CAPABILITIES.items()
    ),
)


@pytest.mark.shows("Plan 15", "Promise 7")
@pytest.mark.needs("trim")
class TestExpiry:
    """A position is older than the retention."""

    @pytest.mark.shows("FR-066")
    def test_a_token_that_was_trimmed_has_expired(self, collection: Collection) -> None:
        collection.fill(10)
        collection.trim()
        for _ in range(3):
            error = collection.refused(ErrorCategory.CHECKPOINT_EXPIRED, collection.begin, reasons=LOST)
            assert not error.retryable
            assert error.detail.provider == collection.client.config.provider

    def test_a_token_in_the_middle_of_what_was_trimmed_has_expired(self, collection: Collection) -> None:
        collection.fill(20)
        token = collection.page(collection.begin, 3).continuation_token
        collection.trim()
        collection.restart()
        collection.refused(ErrorCategory.CHECKPOINT_EXPIRED, token, reasons=LOST)

    def test_a_token_of_an_idle_page_has_expired_too(self, collection: Collection) -> None:
        collection.fill(10)
        token = collection.last(collection.begin).continuation_token
        collection.fill(10, start=10)
        collection.trim()
        collection.restart()
        for _ in range(2):
            collection.refused(ErrorCategory.CHECKPOINT_EXPIRED, token, reasons=LOST)

    @pytest.mark.needs("alone", "still")
    def test_an_expired_partition_has_expired_alone_too(self, collection: Collection) -> None:
        plan = dict(collection.client.plan_partitions(collection.request(collection.begin)))
        partitions = collection.partitions()
        collection.fill(20)
        collection.trim()
        for name in partitions:
            token = plan[name]
            scope = PhysicalPartition(name)
            collection.refused(ErrorCategory.CHECKPOINT_EXPIRED, token, reasons=LOST, scope=scope)

    @pytest.mark.needs("read_past_trim")
    def test_what_was_read_before_a_trim_is_not_missed(self, collection: Collection) -> None:
        collection.fill(10)
        token = collection.last(collection.begin).continuation_token
        collection.trim()
        collection.fill(10, start=10)
        assert len(collection.read(token, 10)) == 10

    @pytest.mark.needs("alone", "still")
    def test_skipping_reports_the_gap_and_continues(self, collection: Collection) -> None:
        collection.fill(10)
        partitions = set(collection.partitions())
        collection.trim()
        partitions.update(collection.partitions())
        collection.fill(10, start=10)
        pages = list(collection.pages(collection.begin, on_expired=SkipToOldest()))
        gaps = [notice for page in pages for notice in page.notices if isinstance(notice, Gap)]
        events = [event for page in pages for event in page.events]
        assert gaps
        assert {gap.partition_id for gap in gaps} <= partitions
        assert len(events) == len(set(ids(events))) == 10

    @pytest.mark.needs("alone", "still")
    def test_skipping_continues_in_every_partition_alone(self, collection: Collection) -> None:
        plan = dict(collection.client.plan_partitions(collection.request(collection.begin)))
        collection.fill(20)
        collection.trim()
        collection.fill(20, start=20)
        events = [
            event
            for name, token in plan.items()
            for event in collection.follow(name, token, on_expired=SkipToOldest())
        ]
        assert len(events) == len(set(ids(events))) == 20

    def test_skipping_what_has_not_expired_changes_nothing(self, collection: Collection) -> None:
        collection.fill(10)
        pages = list(collection.pages(collection.begin, on_expired=SkipToOldest()))
        assert [notice for page in pages for notice in page.notices] == []
        assert sum(len(page.events) for page in pages) == 10

    def test_a_token_after_a_gap_is_good(self, collection: Collection) -> None:
        collection.fill(10)
        collection.trim()
        token = collection.last(collection.begin, on_expired=SkipToOldest()).continuation_token
        collection.restart()
        collection.fill(5, start=10)
        assert len(collection.read(token, 5)) == 5

    @pytest.mark.needs("split")
    def test_a_branch_that_was_trimmed_continues_in_its_descendants(self, collection: Collection) -> None:
        collection.fill(10)
        collection.split(collection.split()[0])
        collection.trim()
        collection.refused(ErrorCategory.CHECKPOINT_EXPIRED, collection.begin, reasons=LOST)
        collection.fill(10, start=10)
        events = collection.drain(collection.begin, on_expired=SkipToOldest())
        assert len(events) == len(set(ids(events))) == 10


@pytest.mark.shows("Promise 11")
@pytest.mark.needs("poison")
class TestPoison:
    """A record that no client can decode is never dropped."""

    def _until_poison(
        self, collection: Collection, size: int, start: StartPosition | str | None = None
    ) -> tuple[list[str], MulticloudDbError]:
        seen: list[str] = []
        token = collection.begin if start is None else start
        for _ in range(100):
            try:
                page = collection.page(token, size)
            except MulticloudDbError as error:
                return seen, error
            seen += ids(page.events)
            token = page.continuation_token
        return collection.fails("the poison record was skipped")

    @pytest.mark.needs("key_order")
    @pytest.mark.parametrize("size", [0, 1])
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_what_lies_before_comes_first_and_then_the_error(self, collection: Collection, size: int) -> None:
        for number in range(5):
            collection.put("a", n=number)
        collection.harness.poison(collection.address, "a")
        seen, error = self._until_poison(collection, size)
        assert len(seen) == len(set(seen)) == 5
        check_refusal(error, ErrorCategory.PROVIDER_ERROR, [ErrorReason.UNDECODABLE])
        assert error.detail.skip_token is not None
        assert not error.retryable

    @pytest.mark.needs("key_order")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_the_skip_token_continues_after_it_and_says_so(self, collection: Collection) -> None:
        collection.put("a", n=0)
        collection.harness.poison(collection.address, "a")
        collection.put("a", n=1)
        seen, error = self._until_poison(collection, 0)
        assert error.detail.skip_token is not None
        collection.restart()
        pages = list(collection.pages(error.detail.skip_token))
        skipped = [notice for page in pages for notice in page.notices if isinstance(notice, RecordSkipped)]
        assert len(skipped) == 1
        assert len(seen) == sum(len(page.events) for page in pages) == 1
        (event,) = (event for page in pages for event in page.events)
        name = key_digest(encode_json(event.key.components).decode())
        assert digest_in(skipped[0].position) in (None, name), "the key that the record is not of"

    def test_without_the_skip_token_it_is_reported_again(self, collection: Collection) -> None:
        collection.harness.poison(collection.address, "a")
        for _ in range(3):
            _, error = self._until_poison(collection, 0)
            check_refusal(error, ErrorCategory.PROVIDER_ERROR, [ErrorReason.UNDECODABLE])
            collection.restart()

    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    @pytest.mark.parametrize("start", _STARTS)
    def test_it_may_be_the_first_change_after_a_start(self, collection: Collection, start: str) -> None:
        began = collection.harness.now()
        collection.harness.poison(collection.address, "a")
        collection.put("b", n=1)
        place: StartPosition | str = collection.begin
        # An emulated start reads the items themselves, and they are not damaged.
        notes = collection.client.capabilities()
        if start != "now" and notes[_CAPABILITIES[start]].support is Support.NATIVE:
            place = AtTime(began) if start == "time" else Beginning()
        seen, error = self._until_poison(collection, 0, place)
        check_refusal(error, ErrorCategory.PROVIDER_ERROR, [ErrorReason.UNDECODABLE])
        assert error.detail.skip_token is not None
        collection.restart()
        after = collection.drain(error.detail.skip_token)
        assert len(seen) + len(after) == 1
