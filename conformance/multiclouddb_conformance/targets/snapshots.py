"""Tests what snapshots, gaps and notices leave in a table, and what follows a table that was lost."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import attrs
import pytest

from multiclouddb_api import (
    BackfillDone,
    Dropped,
    ErrorCategory,
    ErrorReason,
    Gap,
    Invalidated,
    MulticloudDbError,
    MulticloudDbKey,
    Notice,
    Renamed,
    SnapshotStarted,
)
from multiclouddb_conformance.refusals import check_refusal, refusal
from multiclouddb_conformance.sink_harness import (
    PLAN,
    Death,
    SinkHarness,
    Turn,
    documents,
    events,
    expected,
    page,
    read,
    refused,
    tombstones,
)

__all__ = ["TestNoticed", "TestNoticesOfPages", "TestSnapshot", "TestTexts", "TestVanished"]


class TestSnapshot:
    """Tests that a snapshot repairs the table, documents that were deleted unseen included."""

    def test_replaces_older_rows_and_buries_what_it_does_not_contain(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 20, {"n": 20}), ("gone", 21, {}), ("b", 2, {"n": 2}), ("old", 3, None))))
        floor = "000010~"
        sink.merge(page([], SnapshotStarted(floor, PLAN)))
        sink.merge(page(events(("a", 0, {"s": 1}), mark="snapshot:s:", backfilled=True, floor=floor)))
        sink.merge(page(events(("c", 11, {"n": 11}))))
        sink.merge(
            page(
                events(
                    ("b", 0, {"s": 2}), ("c", 0, {"s": 3}), mark="snapshot:s:", backfilled=True, floor=floor
                ),
                BackfillDone(PLAN, floor),
            )
        )
        assert documents(sink) == {"a": {"s": 1}, "b": {"s": 2}, "c": {"n": 11}}
        # A change from before the snapshot comes late.
        sink.merge(page(events(("gone", 9, {"n": 9}), ("old", 9, {"n": 9}), ("a", 9, {"n": 9}))))
        assert tombstones(sink).keys() == {"gone", "old"}
        assert {row["state"] for row in read(sink).values() if row["deleted"]} == {None}
        again = page([], SnapshotStarted(floor, PLAN))
        sink.merge(again)
        assert documents(sink) == {"a": {"s": 1}, "b": {"s": 2}, "c": {"n": 11}}

    def test_rows_without_its_beginning_are_refused_if_the_table_has_rows(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 1, {}))))
        scanned = events(("b", 0, {}), mark="snapshot:s:", backfilled=True, floor="000010~")
        assert (
            "SnapshotStarted" in refused(sink.merge, page(scanned), reason=ErrorReason.ROWS_MISSING).message
        )
        assert documents(sink) == {"a": {}}

    @pytest.mark.parametrize("is_last", [False, True])
    def test_does_not_go_on_in_another_table(self, sink: SinkHarness, is_last: bool) -> None:
        """Its first rows went with the table that was dropped."""
        floor = "000010~"
        first, second = (
            events((key, 0, {}), mark="snapshot:s:", backfilled=True, floor=floor) for key in "ab"
        )
        sink.merge(page([], SnapshotStarted(floor, PLAN)))
        sink.merge(page(first))
        sink.drop()
        rest = page([], BackfillDone(PLAN, floor)) if is_last else page(second)
        for _ in range(2):
            with pytest.raises(MulticloudDbError, match="dropped") as caught:
                sink.merge(rest)
            assert caught.value.category in (ErrorCategory.INVALID_REQUEST, ErrorCategory.NOT_FOUND)
            assert caught.value.reason == ErrorReason.ROWS_MISSING
        plan = "provider:resource:snapshot:again"
        sink.merge(page([], SnapshotStarted(floor, plan)))
        sink.merge(page([], BackfillDone(plan, floor)))
        assert documents(sink) == {}

    def test_later_ones_with_the_same_floor_replace_the_rows_of_earlier_ones(self, sink: SinkHarness) -> None:
        """The floor of some services lies below every change. The sink dies before and after each step.

        A death after a step leaves what a death before the next one leaves.
        """
        floor = "000000~"
        for number in range(7):
            plan, document = f"provider:resource:snapshot:s{number}", {"scan": number}
            left = ["a", "bc"[number % 2]]
            mark = f"snapshot:s{number}:"
            scanned = events(*((key, 0, document) for key in left), mark=mark, backfilled=True, floor=floor)
            sink.dies(Turn(number - 1) if number else None, 0.5)
            for each in (page([], SnapshotStarted(floor, plan)), page(scanned, BackfillDone(plan, floor))):
                try:
                    sink.merge(each)
                except Death:
                    sink.merge(each)
            sink.dies(None)
            assert documents(sink) == dict.fromkeys(left, document)

    def test_of_an_empty_collection_makes_tombstones_of_all(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 5, {}), ("b", 6, {}))))
        sink.merge(page([], SnapshotStarted("000010~", PLAN), BackfillDone(PLAN, "000010~")))
        assert documents(sink) == {}
        assert tombstones(sink).keys() == {"a", "b"}


class TestNoticesOfPages:
    """Tests notices that change which rows exist."""

    @pytest.mark.parametrize(
        "notice",
        [Dropped("main/orders"), Renamed("main/orders", "main/old"), Invalidated("it was dropped")],
        ids=lambda notice: type(notice).__name__,
    )
    def test_a_page_after_which_other_rows_exist_is_refused(self, sink: SinkHarness, notice: Notice) -> None:
        sink.merge(page(events(("a", 1, {"n": 1}))))
        message = refused(sink.merge, page(events(("b", 2, {})), notice), reason=ErrorReason.REPLACED).message
        assert "Snapshot()" in message
        assert documents(sink) == {"a": {"n": 1}}


class TestTexts:
    """Tests texts that some services keep, and that no JSON text can hold."""

    @pytest.mark.parametrize("is_key", [False, True])
    def test_half_a_surrogate_pair_is_named_and_the_rest_of_the_page_can_be_merged(
        self, sink: SinkHarness, *, is_key: bool
    ) -> None:
        good, bad, last = events(("a", 1, {}), ("b", 2, {"t": "\ud800"}), ("c", 3, {}))
        if is_key:
            bad = attrs.evolve(bad, key=MulticloudDbKey({"id": "\udc00"}), new_item_state={})
        whole = page([good, bad, last])
        error = refusal(ErrorCategory.PROVIDER_ERROR, lambda: sink.merge(whole))
        assert error.reason == ErrorReason.MISFIT
        assert "page.events[1]" in error.message
        assert f"at {bad.order_key} in {bad.partition_id}" in error.message
        assert "sha256:" in error.message
        sink.merge(attrs.evolve(whole, events=(good, last)))
        assert documents(sink) == {"a": {}, "c": {}}


class TestNoticed:
    """Tests what a gap leaves in the mark of the table."""

    def test_a_gap_marks_the_table_until_a_whole_snapshot_has_ended(self, sink: SinkHarness) -> None:
        def since() -> str | None:
            mark = sink.target.found().mark
            assert mark is not None
            return mark.incomplete_since

        sink.merge(page(events(("a", 1, {"n": 1}))))
        assert since() is None
        lost = Gap(PLAN, "5", "9")
        sink.merge(page(events(("b", 9, {})), lost))
        first = since()
        assert first is not None
        sink.merge(page(events(("c", 10, {}))))
        assert since() == first
        sink.merge(page([], Gap(PLAN, "11", "a new snapshot"), SnapshotStarted("000020~", PLAN)))
        scanned = events(("c", 0, {}), mark="snapshot:s:", backfilled=True, floor="000020~")
        sink.merge(page(scanned, BackfillDone(PLAN, "000020~")))
        assert since() is None
        assert documents(sink) == {"c": {}}

    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_gap_during_a_snapshot_stays(self, sink: SinkHarness, is_first: bool) -> None:
        def since() -> str | None:
            mark = sink.target.found().mark
            assert mark is not None
            return mark.incomplete_since

        sink.merge(page(events(("a", 1, {"n": 1}))))
        if not is_first:
            sink.merge(page([], Gap(PLAN, "5", "9")))
        sink.merge(page([], SnapshotStarted("000020~", PLAN)))
        scanned = events(("c", 0, {}), mark="snapshot:s:", backfilled=True, floor="000020~")
        sink.merge(page(scanned))
        # What is lost may be a change of the row that has been read.
        sink.merge(page([], Gap("p", "21", "25")))
        last = since()
        assert last is not None
        sink.merge(page([], BackfillDone(PLAN, "000020~")))
        assert since() == last

    def test_a_second_gap_is_told_from_the_first(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 1, {}))))
        sink.merge(page([], Gap("p", "1", "2")))
        before = expected(sink)
        first = before.found.mark
        sink.merge(page([], Gap("p", "5", "9")))
        assert first is not None
        assert first.incomplete_since is not None
        # A comparison that began before the second gap proves nothing about what that gap has lost.
        sink.target.complete(before)
        found = sink.target.found().mark
        assert found is not None
        assert found.incomplete_since not in (None, first.incomplete_since)
        sink.target.complete(expected(sink))
        assert sink.target.found().mark == attrs.evolve(found, incomplete_since=None)

    def test_a_gap_before_the_first_event_marks_the_table_too(self, sink: SinkHarness) -> None:
        sink.merge(page([], Gap(PLAN, "5", "9")))
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.incomplete_since is not None


class TestVanished:
    """Tests that a table which lost what a query has delivered before is not filled with the rest."""

    def test_a_table_that_was_dropped_is_not_made_again(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 1, {}))))
        sink.drop()
        for later in (page(events(("b", 2, {}))), page([], SnapshotStarted("000010~", PLAN, whole=False))):
            with pytest.raises(MulticloudDbError) as caught:
                sink.merge(attrs.evolve(later, resumed_from="token"))
            check_refusal(caught.value, ErrorCategory.NOT_FOUND, [ErrorReason.ROWS_MISSING])
            assert "delivered rows before" in caught.value.message

    def test_pages_without_events_come_before_the_first_one(self, sink: SinkHarness) -> None:
        assert not sink.merge(page([]))
        assert not sink.merge(page([]))
        assert sink.merge(page(events(("a", 1, {"n": 1}))))
        assert documents(sink) == {"a": {"n": 1}}

    def test_a_snapshot_of_everything_may_begin_without_the_table(self, sink: SinkHarness) -> None:
        """A feed whose position has expired goes on with one."""
        sink.merge(page(events(("a", 1, {}))))
        sink.drop()
        sink.merge(page([], SnapshotStarted("000010~", PLAN)))
        scanned = events(("b", 0, {}), mark="snapshot:s:", backfilled=True, floor="000010~")
        sink.merge(page(scanned, BackfillDone(PLAN, "000010~")))
        assert documents(sink) == {"b": {}}
