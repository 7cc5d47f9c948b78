"""Builds the page or the error of a call from its result: how far it was read, lag, headroom and cost."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import attrs
from attrs import frozen

from multiclouddb_api import (
    ChangeFeedPage,
    ChildPartition,
    Dropped,
    ErrorCategory,
    FeedEnded,
    MulticloudDbError,
    Notice,
    OperationDiagnostics,
    RecordSkipped,
    Renamed,
)
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import (
    EndedFeed,
    FeedOver,
    FeedState,
    Retired,
    end_to_json,
)
from multiclouddb_spi.continuation.token import ReadUntil, encode_token, to_micros
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.errors import cause_of, to_error
from multiclouddb_spi.faults import Fault, ProviderFault, RecordFault, no_partition_named
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.fetcher import Fetcher, late_fault
from multiclouddb_spi.fetching.page_content import PageContent
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.open_feed import FeedCache
from multiclouddb_spi.reading.answers import Look
from multiclouddb_spi.time_limits import Deadline

T = TypeVar("T")
_REOPEN: Final = (ErrorCategory.NOT_FOUND, ErrorCategory.INVALID_REQUEST, ErrorCategory.CHECKPOINT_EXPIRED)


@frozen
class Reading(Generic[T]):
    """One page. The caller's view has converted the page's records, for example to events.

    Attributes:
        values: The values that the view made, in the order of the page.
        page: The page that contains the records; its `events` are empty here.
    """

    values: tuple[T, ...]
    page: ChangeFeedPage


class PageBuilder:
    """Builds pages and errors for one engine."""

    def __init__(
        self,
        provider_id: str,
        fetcher: Fetcher,
        feeds: FeedCache,
        observing: Observing,
        headroom_warning: float,
    ) -> None:
        self._provider_id, self._fetcher, self._feeds = provider_id, fetcher, feeds
        self._observing, self._headroom_warning = observing, headroom_warning

    def raise_failure(
        self, consumer: Consumer, lineage: Lineage, result: PageContent[Any], deadline: Deadline
    ) -> None:
        """Raise the error that stopped the feed, if there is one and nothing was returned."""
        if result.notices:  # they come before the error; the next call reads the failed partition first
            return
        if result.poison is not None:
            raise self._poisoned(consumer, lineage, *result.poison)
        if result.failure is not None:
            name, error = result.failure
            raise self._failed(consumer, lineage, name, error, deadline)
        if result.moved:
            return
        for name, failed in result.failed.items():
            raise self._failed(consumer, lineage, name, failed, deadline)
        if deadline.passed():
            raise ProviderFault(late_fault())

    def has_expired(self, result: PageContent[Any]) -> bool:
        """Return whether an expired position has stopped the feed, and nothing can be returned."""
        if result.failure is None or result.in_hand():
            return False
        return self._fetcher.fault(result.failure[1]).category == ErrorCategory.CHECKPOINT_EXPIRED

    def is_gone(self, result: PageContent[Any]) -> bool:
        """Return whether the feed has ended, or its resource was dropped, renamed or not found."""
        if result.failure is None:
            return result.over is not None or any(
                isinstance(each, Dropped | Renamed) for each in result.notices
            )
        return self._fetcher.fault(result.failure[1]).category == ErrorCategory.NOT_FOUND

    def begun_again(
        self, consumer: Consumer, lineage: Lineage, fresh: Lineage, result: PageContent[Any], *, whole: bool
    ) -> PageContent[Any]:
        """Return the result of a call that starts a snapshot because a position has expired."""
        from multiclouddb_spi.scan.start import announced, lost

        assert result.failure is not None
        gap = lost(consumer.feed, lineage, result.failure[0])
        self._observing.gap(consumer.feed.spec.address, gap)
        begun = announced(consumer.feed, fresh, whole=whole)
        assert begun is not None
        begun.notices.insert(0, gap)
        begun.requests, begun.retries = result.requests, result.retries
        return begun

    def _poisoned(
        self, consumer: Consumer, lineage: Lineage, name: str, fault: RecordFault
    ) -> MulticloudDbError:
        where = consumer.feed.public_id(name)
        lineage.took(name, fault.skip_cursor)
        token = encode_token(
            consumer.envelope(
                lineage.to_json(),
                watermark=consumer.watermark,
                read_until=consumer.read_until,
                skipped=((where, fault.position),),
            )
        )
        error = to_error(self._provider_id, "read_changes", self._fetcher.fault(fault), fault)
        message = f"{where}: {fault}; once it is handled, continue after it from error.detail.skip_token"
        raised = MulticloudDbError(message, attrs.evolve(error.detail, skip_token=token))
        raised.__cause__ = fault.__cause__ or fault
        return raised

    def _failed(
        self, consumer: Consumer, lineage: Lineage, name: str, error: Exception, deadline: Deadline
    ) -> MulticloudDbError:
        fault = self._fetcher.fault(error)
        oldest: str | None = None
        if fault.category == ErrorCategory.CHECKPOINT_EXPIRED and not lineage.is_segment(name):
            with suppress(Exception):
                oldest = self._oldest(consumer.feed, name, lineage.cursor(name), deadline)
        fault = attrs.evolve(fault, message=f"{consumer.feed.public_id(name)}: {fault.message}")
        raised = to_error(self._provider_id, "read_changes", fault, error, oldest_position=oldest)
        if raised is not error:
            raised.__cause__ = cause_of(fault, error)
        return raised

    def _oldest(self, feed: Feed, name: str, cursor: Cursor, deadline: Deadline) -> str | None:
        """Describe where a refused position could go on; None if the service does not tell."""
        survey = self._fetcher.call(lambda: feed.survey({name: cursor}, deadline, expired={name}), deadline)
        places = [each.oldest for each in survey.present if each.partition_id == name]
        if not places:
            places = [seed.cursor for seed in survey.heirs or ()]
            places += [each.oldest for each in survey.present if name in each.parents]
        return ", ".join(feed.describe(each).text for each in places[:3] if each is not None) or None

    def forget_if_gone(self, consumer: Consumer, fault: Fault) -> bool:
        """Forget the feed if its resource may have been deleted and created again; return whether it was."""
        if fault.category in _REOPEN:
            self._feeds.forget(consumer.feed)
            return True
        return False

    def reading(
        self, consumer: Consumer, lineage: Lineage, result: PageContent[T], deadline: Deadline, began: float
    ) -> Reading[T]:
        """Build the page from a poll's result; the token contains the current lineage."""
        state: FeedState = lineage
        if result.retired is not None:
            state = result.retired
        elif result.over is not None:
            state = FeedOver(result.over)
        feed, now = consumer.feed, self._feeds.soon(consumer.feed, deadline)
        progress = consumer.standings.measure(
            feed, lineage, result.answers, now, watermark=consumer.watermark, floor=consumer.read_until
        )
        plan, waiting, ends = lineage.plan, lineage.waiting(), lineage.ends()
        if state is lineage and not len(lineage):
            raise no_partition_named()
        body = state.to_json() if isinstance(state, Lineage) else end_to_json(state)
        nearest, headroom = "", math.inf
        for name, shown in result.answers.items():
            if shown.headroom < headroom:
                nearest, headroom = name, shown.headroom
        if headroom < self._headroom_warning:
            self._warn(feed, nearest, headroom)
        errors, watches = {}, int(isinstance(state, Retired) and state.watch is not None)
        for name, error in result.failed.items():
            errors[feed.public_id(name)] = self._fetcher.fault(error).message
        if state is lineage:
            watches = len([end for end in ends if end.children]) if ends else 0
            for entry in waiting:
                kept = [] if now is None else [feed.headroom(cursor, now) for cursor in entry.said]
                headroom = min([headroom, *(seconds for seconds in kept if seconds is not None)])
        lag: float | None = None
        if progress.read_until is not None and now is not None:
            lag = max(0.0, (now - progress.read_until).total_seconds())
        diagnostics = OperationDiagnostics(
            watermark=progress.watermark,
            read_until=progress.read_until,
            read_until_estimated=progress.estimated,
            partitions_read_until=progress.partitions,
            partitions_watermark=progress.watermarks,
            partitions_headroom_seconds=progress.headrooms,
            lag_seconds=lag,
            retention_headroom_seconds=None if headroom == math.inf else headroom,
            requests=result.requests,
            native_charge=result.charge,
            retries=result.retries,
            open_watches=watches,
            found_late=result.found_late,
            partition_errors=errors,
            elapsed_seconds=time.monotonic() - began,
            snapshot=None if plan is None or state is not lineage else plan.progress(),
        )
        watermark = None if progress.watermark is None else to_micros(progress.watermark)
        until: ReadUntil | None = None
        if progress.read_until is not None:
            until = ReadUntil(to_micros(progress.read_until), progress.estimated)
        page = self._page(
            consumer, state, body, diagnostics, tuple(result.notices), watermark, until, idle=result.idle,
            delivers=bool(result.values),
        )  # fmt: skip
        if result.due_at is not None and (seconds := result.due_at - time.monotonic()) > 0:
            page = attrs.evolve(page, poll_after_seconds=seconds)
        return Reading(tuple(result.values), page)

    def ended(self, consumer: Consumer, look: Look) -> Reading[Any]:
        """Build the page for the token of an ended feed or partition; the page reports the end again."""
        state = look.state
        errors = {}
        if look.error is not None and isinstance(state, Retired):
            errors[consumer.feed.public_id(state.partition_id)] = look.error
        watches = int(isinstance(state, Retired) and state.watch is not None)
        for late in look.late:
            self._observing.partition_found_late(consumer.feed.spec.address, late)
        diagnostics = OperationDiagnostics(
            requests=look.requests, partition_errors=errors, open_watches=watches, found_late=len(look.late)
        )
        body, until = end_to_json(state), consumer.read_until
        page = self._page(
            consumer, state, body, diagnostics, look.late, consumer.watermark, until, idle=False
        )
        return Reading((), page)

    def _page(
        self,
        consumer: Consumer,
        state: FeedState,
        body: Any,
        diagnostics: OperationDiagnostics,
        notices: tuple[Notice, ...],
        watermark: int | None,
        read_until: ReadUntil | None,
        *,
        idle: bool,
        delivers: bool = False,
    ) -> ChangeFeedPage:
        children: list[ChildPartition] = []
        if isinstance(state, Retired):
            id_of = consumer.feed.public_id
            for child in state.children:
                parents = tuple(id_of(parent) for parent in child.parents)
                token = consumer.child_token(child, delivers=delivers)
                children.append(ChildPartition(id_of(child.partition_id), parents, token))
        elif isinstance(state, FeedOver):
            notices, idle = (*notices, FeedEnded(state.reason)), True
        if consumer.skipped:
            notices = (*_skipped(consumer), *notices)
        envelope = consumer.envelope(body, watermark=watermark, read_until=read_until, delivers=delivers)
        token, resumed_from = encode_token(envelope), consumer.resumed_from
        consumer.state = state
        consumer.advance(token, envelope)
        return ChangeFeedPage(
            events=(),
            continuation_token=token,
            idle=idle,
            partition_retired=isinstance(state, Retired),
            child_partitions=tuple(children),
            notices=notices,
            diagnostics=diagnostics,
            resumed_from=resumed_from,
        )

    def _warn(self, feed: Feed, nearest: str, headroom: float) -> None:
        """Report the partition whose position will expire first, at most once a minute."""
        if self._feeds.may_warn(feed):
            self._observing.headroom_low(feed.spec.address, feed.public_id(nearest), headroom)


def _skipped(of: Consumer | EndedFeed) -> tuple[Notice, ...]:
    return tuple(RecordSkipped(where, position) for where, position in of.skipped)


def finished(end: EndedFeed) -> Reading[Any]:
    """Build the last page of a feed, without asking the service."""
    notices = (*_skipped(end), FeedEnded(end.over.reason))
    return Reading((), ChangeFeedPage((), end.token, idle=True, notices=notices, resumed_from=end.token))
