"""Mutants that treat the first page, floor, order or end of a snapshot's scan incorrectly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from multiclouddb_api import (
    BackfillDone,
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    FromContinuationToken,
    LookupAnswer,
    MulticloudDbError,
    MulticloudDbKey,
    OperationOptions,
    Snapshot,
)
from multiclouddb_conformance.delegating import WrappedFeed, WrappedMapper, WrappedReader
from multiclouddb_conformance.mutants.mutant import Mutant, changed
from multiclouddb_conformance.simulation import SimulationProvider
from multiclouddb_spi import Batch, Cursor, Deadline, Scan, ScanPlan, Segment, plan_id_of
from multiclouddb_spi.continuation.token import decode_token, encode_token

_LOW = "0"
_HOLDS = 32

_Read = Callable[[ChangeFeedRequest, OperationOptions], ChangeFeedPage]


class HasRowsOnTheFirstPage(Mutant):
    """The first page of a snapshot contains rows, so a target may have rows but no token."""

    caught_by = ("TestSnapshot::test_the_first_page_pins_the_changes_and_has_no_rows[ordered]",)

    def answer(self, read: _Read, request: ChangeFeedRequest, options: OperationOptions) -> ChangeFeedPage:
        first = read(request, options)
        if not isinstance(request.start_position, Snapshot):
            return first
        position = FromContinuationToken(first.continuation_token)
        second = read(attrs.evolve(request, start_position=position), options)
        return attrs.evolve(second, notices=first.notices + second.notices)


class GoesOnAfterTheRows(Mutant):
    """A snapshot without changes delivers changes too, and never ends."""

    caught_by = (
        "TestRowsAlone::test_every_row_comes_once_and_then_the_feed_ends[0]",
        "TestRowsAlone::test_an_empty_collection_ends_at_once",
    )

    def answer(self, read: _Read, request: ChangeFeedRequest, options: OperationOptions) -> ChangeFeedPage:
        if isinstance(request.start_position, Snapshot):
            request = attrs.evolve(request, start_position=Snapshot())
        return read(request, options)


class LeavesOutWhatMoves(Mutant):
    """A scan without changes skips the row after each page."""

    caught_by = ("TestRowsAlone::test_rows_that_do_not_change_are_never_left_out",)

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        if plan_id_of(reader.partition_id) is None or len(batch) < 2:
            return batch
        return changed(batch, lambda events: events[:-1])


@attrs.frozen(eq=False)
class _Late(WrappedMapper):
    end: Cursor

    def cursor_after(self, records: Any, count: int) -> Cursor:
        return self.end if count + 1 >= len(records) else self.inner.cursor_after(records, count + 1)


class CutsARowTooLate(Mutant):
    """A page that ends within a segment has the position after the next row, which no page returns."""

    caught_by = ("TestSnapshot::test_another_process_goes_on_where_a_page_ends[5]",)

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        if plan_id_of(reader.partition_id) is None:
            return batch
        return attrs.evolve(batch, mapper=_Late(batch.mapper, batch.end))


class LooksUpWhatWasOnceThere(Mutant):
    """A lookup answers with the rows of the first lookup, not with the current ones."""

    caught_by = ("TestLookup::test_it_returns_the_current_row_or_none",)

    def look_up(
        self, feed: WrappedFeed, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> Mapping[MulticloudDbKey, LookupAnswer]:
        found = dict(super().look_up(feed, keys, deadline))
        there = next((row for row in found.values() if isinstance(row, ChangeEvent)), None)
        return {key: row or (there and attrs.evolve(there, key=key)) for key, row in found.items()}


class LooksUpOtherTexts(Mutant):
    """A looked-up row has other values than the image of its last change."""

    caught_by = (
        "TestScannedRow::test_it_equals_the_image_of_the_last_change",
        "TestScannedRow::test_its_key_is_that_of_the_last_change[float]",
    )

    def look_up(
        self, feed: WrappedFeed, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> Mapping[MulticloudDbKey, LookupAnswer]:
        found = super().look_up(feed, keys, deadline)
        return {
            key: attrs.evolve(row, new_item_state=_as_text(row)) if isinstance(row, ChangeEvent) else row
            for key, row in found.items()
        }


def _as_text(row: ChangeEvent) -> dict[str, str]:
    return {name: str(value) for name, value in (row.new_item_state or {}).items()}


class ForgetsKeysOfALookup(Mutant):
    """A lookup of many keys says that some rows do not exist, because it did not ask for them."""

    caught_by = ("TestLookup::test_many_keys_take_several_calls_to_the_service",)

    def look_up(
        self, feed: WrappedFeed, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> Mapping[MulticloudDbKey, LookupAnswer]:
        return dict.fromkeys(keys) | dict(super().look_up(feed, keys, deadline))


class TakesARefusalForAbsence(Mutant):
    """A lookup that is refused says that the rows do not exist."""

    caught_by = ("TestLookup::test_a_key_that_no_row_can_have_is_refused_or_not_known",)

    def look_up(
        self, feed: WrappedFeed, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> Mapping[MulticloudDbKey, LookupAnswer]:
        try:
            return super().look_up(feed, keys, deadline)
        except MulticloudDbError:
            return dict.fromkeys(keys)


class AnswersUnderAnotherKey(Mutant):
    """A lookup answers under a key that was not asked, so the key that was asked seems to have no row."""

    caught_by = ("TestLookup::test_it_returns_the_current_row_or_none",)

    def look_up(
        self, feed: WrappedFeed, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> Mapping[MulticloudDbKey, LookupAnswer]:
        found = super().look_up(feed, keys, deadline)
        return {
            attrs.evolve(key, components={f"{name} ": each for name, each in key.components.items()}): row
            for key, row in found.items()
        } | dict.fromkeys(keys)


class HasALowFloor(Mutant):
    """The rows of a snapshot have a lower `order_key` than older changes."""

    caught_by = ("TestSnapshot::test_the_floor_lies_above_every_earlier_change",)

    def snapshot(self, feed: WrappedFeed, segments: int | None, deadline: Deadline) -> ScanPlan:
        plan = super().snapshot(feed, segments, deadline)
        return attrs.evolve(plan, scan=attrs.evolve(plan.scan, floor=_LOW))


class LosesTheBarrierAtASplit(Mutant):
    """After a partition has split, the changes no longer wait for the end of the scan."""

    caught_by = ("TestSnapshotUnderLoad::test_ordered_holds_the_changes_through_a_split",)

    def answer(self, read: _Read, request: ChangeFeedRequest, options: OperationOptions) -> ChangeFeedPage:
        page = read(request, options)
        envelope = decode_token(page.continuation_token)
        state: Any = envelope.state
        assert isinstance(self.inner, SimulationProvider)
        if "p" not in state or not self.inner.has_split():
            return page
        plans = [item for item in state["p"] if len(item) > 2 and item[2] & 16 and item[2] & _HOLDS]
        for plan in plans:
            plan[2] -= _HOLDS
            for item in state["p"]:
                if len(item) > 3 and item[3] == [plan[0]]:
                    item[1:] = [item[1][0]]
        return attrs.evolve(page, continuation_token=encode_token(envelope))


class SaysDoneTooEarly(Mutant):
    """`BackfillDone` comes when every segment has been started, not when every segment has been read."""

    caught_by = ("TestSnapshot::test_every_row_comes_once_and_then_the_end[ordered-3]",)

    def answer(self, read: _Read, request: ChangeFeedRequest, options: OperationOptions) -> ChangeFeedPage:
        page = read(request, options)
        progress = page.diagnostics.snapshot
        if progress is not None and 3 < progress.rows <= 6:
            return attrs.evolve(page, notices=(*page.notices, BackfillDone("early")))
        kept = tuple(notice for notice in page.notices if not isinstance(notice, BackfillDone))
        return attrs.evolve(page, notices=kept)


class SkipsASegmentAtACut(Mutant):
    """When a plan of segments is divided into two parts, the last segment is in neither part."""

    caught_by = ("TestSnapshot::test_every_row_comes_once_and_then_the_end[interleaved-0]",)

    def cut_segments(
        self, feed: WrappedFeed, scan: Scan, rest: Cursor, count: int, deadline: Deadline
    ) -> tuple[list[Segment], Cursor | None]:
        segments, rest = super().cut_segments(feed, scan, rest, count, deadline)
        return segments[:-1] if len(segments) > 1 else segments, rest
