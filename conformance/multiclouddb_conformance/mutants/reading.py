"""Mutants that treat positions, ends of pages, retention or resources incorrectly."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import attrs

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    CapabilitySet,
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    EntireCollection,
    ErrorCategory,
    FromContinuationToken,
    Notice,
    Now,
    OperationOptions,
)
from multiclouddb_conformance.delegating import WrappedFeed, WrappedMapper, WrappedReader
from multiclouddb_conformance.mutants.mutant import Mutant, emptied
from multiclouddb_conformance.simulated import SIMULATED
from multiclouddb_conformance.simulation import MissingError, TrimmedError, capabilities_without
from multiclouddb_spi import (
    Batch,
    Cursor,
    Deadline,
    Fault,
    Feed,
    FeedSpec,
    FeedStart,
    RecordFault,
    Seed,
)


@attrs.frozen(eq=False)
class _Ahead(WrappedMapper):
    end: Cursor

    def cursor_after(self, records: Any, count: int) -> Cursor:
        del records, count
        return self.end


class MovesTokenPastUnreadEvents(Mutant):
    """The token moves past events that are fetched but not returned yet."""

    caught_by = ("TestCheckpoint::test_resuming_after_every_page_loses_nothing[3]",)

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        return attrs.evolve(batch, begin=batch.end, mapper=_Ahead(batch.mapper, batch.end))


class SaysIdleTooSoon(Mutant):
    """A reader reports `caught_up` after any empty answer, although more records may follow."""

    caught_by = (
        "TestIdle::test_no_page_is_idle_while_something_is_missing",
        "TestPageSize::test_no_page_is_longer[1]",
    )

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        if reader.fetches != 2:
            batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
            reader.cursor = batch.cursor_after(len(batch))
            return batch
        other = reader.feed.inner.open(reader.partition_id, reader.cursor)
        batch = other.fetch(1, max_bytes, 0, deadline)
        other.close()
        return emptied(batch, reader.cursor)


class NeverAdvancesIdleToken(Mutant):
    """The position of an idle partition stays at its last event."""

    caught_by = (
        "TestFollowing::test_an_idle_partition_passes_the_moment_of_a_merge",
        "TestIdle::test_an_empty_page_moves_the_token_with_the_service",
        "TestIdle::test_a_partition_that_is_idle_for_long_does_not_fall_out_of_retention",
    )

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        if len(batch):
            reader.cursor = batch.cursor_after(len(batch))
            return batch
        return emptied(batch, reader.cursor, batch.caught_up)


class RetriesDeadIteratorForEver(Mutant):
    """An expired position is treated as a transient failure and retried."""

    caught_by = (
        "TestExpiry::test_a_token_that_was_trimmed_has_expired",
        "TestExpiry::test_skipping_reports_the_gap_and_continues",
    )

    def classify(self, error: Exception) -> Fault:
        if isinstance(error, TrimmedError):
            return Fault(ErrorCategory.TRANSIENT_FAILURE, str(error), retryable=True)
        return super().classify(error)


class JumpsOverExpiredGap(Mutant):
    """A read from an expired position silently continues at the oldest record."""

    caught_by = (
        "TestExpiry::test_a_token_that_was_trimmed_has_expired",
        "TestExpiry::test_skipping_reports_the_gap_and_continues",
        "TestTrimmedOnTheWay::test_it_is_reported_and_not_jumped_over",
    )

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        try:
            return super().fetch(reader, max_records, max_bytes, wait, deadline)
        except TrimmedError:
            inner, name = reader.feed.inner, reader.partition_id
            for each in inner.survey({name: reader.cursor}, deadline, expired={name}).present:
                if each.partition_id == name:
                    reader.inner = inner.open(name, each.oldest)
            return super().fetch(reader, max_records, max_bytes, wait, deadline)


class NoticeAfterItsPlace(Mutant):
    """A notice is delivered too late, together with the events that follow it."""

    caught_by = (
        "TestNotices::test_a_notice_comes_between_the_events_around_it[0-one client]",
        "TestNotices::test_a_notice_comes_between_the_events_around_it[3-a client a page]",
    )

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        held: list[Notice] = []
        while True:
            batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
            if not batch.notices or len(batch):
                return attrs.evolve(batch, notices=(*held, *batch.notices)) if held else batch
            held += batch.notices


class ReadsOnBehindNotice(Mutant):
    """A page contains events that come after its notices."""

    caught_by = (
        "TestNotices::test_a_notice_comes_between_the_events_around_it[0-one client]",
        "TestNotices::test_what_is_read_after_a_gap_comes_on_a_later_page[0]",
        "TestNotices::test_a_skipped_record_is_reported_before_anything_after_it_is_read",
    )

    def answer(
        self,
        read: Callable[[ChangeFeedRequest, OperationOptions], ChangeFeedPage],
        request: ChangeFeedRequest,
        options: OperationOptions,
    ) -> ChangeFeedPage:
        page = read(request, options)
        if not page.notices:
            return page
        after = FromContinuationToken(page.continuation_token)
        more = read(attrs.evolve(request, start_position=after), options)
        return attrs.evolve(more, events=page.events + more.events, notices=page.notices + more.notices)


class _Sound(WrappedMapper):
    def events(self, records: Any, start: int, stop: int) -> list[ChangeEvent]:
        found = []
        for index in range(start, stop):
            try:
                found += self.inner.events(records, index, index + 1)
            except RecordFault:
                continue
        return found


class DropsPoison(Mutant):
    """A record that cannot be decoded is dropped."""

    caught_by = (
        "TestPoison::test_what_lies_before_comes_first_and_then_the_error[0]",
        "TestPoison::test_without_the_skip_token_it_is_reported_again",
    )

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        return attrs.evolve(batch, mapper=_Sound(batch.mapper))


class LeaksReaders(Mutant):
    """Readers are never closed."""

    caught_by = ("TestReleasing::test_many_pages_leave_no_reader_open",)

    def close_reader(self, reader: WrappedReader) -> None:
        """Do not close the reader."""


class NowIsBeginning(Mutant):
    """`Now` starts at the oldest record."""

    caught_by = (
        "TestNow::test_the_first_page_of_now_is_empty",
        "TestNow::test_now_of_one_partition_is_empty_too",
    )

    def start(
        self, feed: WrappedFeed, position: FeedStart, partition_id: str | None, deadline: Deadline
    ) -> list[Seed]:
        position = Beginning() if isinstance(position, Now) else position
        return super().start(feed, position, partition_id, deadline)


class AtTimeIsExclusive(Mutant):
    """`AtTime` omits changes at exactly the requested time."""

    caught_by = ("TestAtTime::test_a_moment_is_inclusive_and_never_late",)

    def start(
        self, feed: WrappedFeed, position: FeedStart, partition_id: str | None, deadline: Deadline
    ) -> list[Seed]:
        if isinstance(position, AtTime):
            position = AtTime(position.utc + timedelta(microseconds=1))
        return super().start(feed, position, partition_id, deadline)


class IgnoresKeyOfScope(Mutant):
    """A logical partition returns the changes of the whole collection."""

    caught_by = (
        "TestLogicalPartition::test_a_key_has_its_changes_only",
        "TestLogicalPartition::test_a_key_has_the_same_events_as_in_the_collection",
    )

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> Feed:
        feed = super().open_feed(attrs.evolve(spec, scope=EntireCollection()), deadline)
        feed.spec = spec
        return feed


class TakesRecreatedForTheSame(Mutant):
    """A recreated collection is mistaken for the earlier collection with the same name."""

    caught_by = (
        "TestRecreated::test_a_token_of_the_old_one_is_refused",
        "TestRecreated::test_a_partition_id_of_the_old_one_is_refused",
    )

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> Feed:
        feed = super().open_feed(spec, deadline)
        feed.identity = attrs.evolve(feed.identity, incarnation=None)
        return feed


class WrongCategory(Mutant):
    """The error for a missing collection has the wrong category."""

    caught_by = ("TestCapabilities::test_a_collection_that_is_not_there_is_not_found",)

    def classify(self, error: Exception) -> Fault:
        if isinstance(error, MissingError):
            return Fault(ErrorCategory.PERMANENT_FAILURE, str(error))
        return super().classify(error)


class AcceptsUndeclaredCapability(Mutant):
    """A request that needs an unsupported capability is accepted."""

    caught_by = (
        "TestAtTime::test_a_moment_is_refused",
        "TestCapabilities::test_a_client_reports_what_the_harness_says",
    )
    declared = CapabilitySet(
        {**SIMULATED.notes, **capabilities_without(Capability.CHANGE_FEED_POINT_IN_TIME).notes}
    )

    def capabilities(self) -> CapabilitySet:
        return SIMULATED
