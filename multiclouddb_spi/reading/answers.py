"""Applies to page and lineage what follows an answer: the end of a partition, its loss, or its failure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from attrs import frozen

from multiclouddb_api import (
    ErrorCategory,
    Fail,
    FeedEnded,
    Gap,
    Invalidated,
    OnExpired,
    PartitionFoundLate,
    SkipToOldest,
)
from multiclouddb_spi.abilities import Freshness
from multiclouddb_spi.batch import Awaiting, Batch, Child, Continue, Drained, Ended, Outcome
from multiclouddb_spi.computed_once import computed_once
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.continuation.follow import Follow, Found, PartitionEnd, apply_end, is_search_due
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import FeedOver, Retired, retired
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import ProviderFault, undecided
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.fetcher import ReadContext
from multiclouddb_spi.fetching.page_content import PageContent
from multiclouddb_spi.retry import MOST_SKIPS
from multiclouddb_spi.time_limits import Deadline

_AUDIT_SECONDS: Final = 10.0
_NOTHING: Final = Freshness()
_ALL_ENDED: Final = "every partition has ended and everything in them has been read"


class Answers:
    """Applies what follows an answer to the lineage and the result of one call."""

    def __init__(
        self,
        context: ReadContext,
        consumer: Consumer,
        result: PageContent[Any],
        deadline: Deadline,
        *,
        on_expired: OnExpired,
        single: bool,
    ) -> None:
        lineage = consumer.state
        assert isinstance(lineage, Lineage)
        self._consumer, self._feed, self._lineage = consumer, consumer.feed, lineage
        self._result = result
        self._fetcher, self._observing, self._deadline = context.fetcher, context.observing, deadline
        self._context, self._on_expired, self._single = context, on_expired, single
        self._discovered = set[str]()
        # How often this call has skipped expired records of a partition; its position before the first time,
        # and how many notices the page had.
        self._skips = dict[str, tuple[int, Cursor, int]]()

    @computed_once
    def _follow(self) -> Follow:
        context = self._context
        return Follow(
            self._feed, self._lineage, self._fetcher.call, self._deadline, self._on_expired,
            self._consumer.looks, context.watch_seconds,
        )  # fmt: skip

    def finish(self, name: str, batch: Batch, asked_at: float) -> list[str] | None:
        """Apply a batch's outcome, after all records of the batch are returned."""
        result, goes_on = self._result, type(batch.outcome) is Continue
        known = result.answers.get(name, _NOTHING)
        result.answers[name] = Freshness(
            batch.watermark, batch.likely_read_until or known.likely_read_until,
            asked_at if goes_on and batch.caught_up is True else known.caught_up_at, known.headroom,
        )  # fmt: skip
        for notice in batch.notices:
            result.tell(notice, name)
        return None if goes_on else self._ends(name, batch.outcome)

    def has_ended(self) -> bool:
        """Return whether a partition has ended in this call but its children have not been requested yet."""
        unnamed = {end.partition_id for end in self._lineage.ends() if end.is_unnamed}
        return self._result.moved and not unnamed <= self._discovered

    def discover(self) -> list[str]:
        """Ask once for more children of the ended partitions for which a look is due."""
        ends = self._follow.due() if self._lineage.ends() else []
        if not ends:
            return []
        asked = [end.partition_id for end in ends]
        self._discovered.update(asked)
        for name in asked:
            self._result.failed.pop(name, None)
        self._result.requests += 1
        try:
            found = self._follow.look(ends)
        except Exception as error:
            fault = self._fetcher.fault(error)
            if not fault.retryable and fault.category != ErrorCategory.CHECKPOINT_EXPIRED:
                raise
            for name in asked:
                self.blame(name, error)
            return []
        # A look that finds no child must not hide the fact that no read has succeeded.
        self._result.moved = self._result.moved or bool(found.children or found.gaps or found.over)
        if self._single and (children := _children(found)):
            (name,) = (end.partition_id for end in ends)
            self._result.retired = Retired(name, children, self._lineage.ending(name))
            self._apply(found)
            self._tell_retired(name, children)
            return []
        for end in ends:
            fresh = [child for child in found.children if end.partition_id in child.parents]
            if fresh:
                self._tell_retired(end.partition_id, fresh)
        for name, outcome in found.over:
            self._tell_end(name, outcome, PartitionEnd())
        return self._apply(found)

    def failed(self, name: str, error: Exception) -> list[str]:
        """Handle a read that has failed permanently: record the failure, or skip the expired records."""
        expired = self._fetcher.fault(error).category == ErrorCategory.CHECKPOINT_EXPIRED
        may_skip = isinstance(self._on_expired, SkipToOldest) and not self._lineage.is_segment(name)
        if not (expired and may_skip):
            self.blame(name, error)
            return []
        skips, lost, before = self._skips.get(name, (0, None, 0))
        if skips == MOST_SKIPS:  # each oldest record expired before it was read
            where, told = self._feed.public_id(name), self._result.notices
            told[:] = [  # a later call reports the gaps since then
                item
                for number, item in enumerate(told)
                if number < before or not (isinstance(item, Gap) and item.partition_id == where)
            ]
            self._lineage.took(name, lost)
            self.blame(name, error)
            return []
        position = self._lineage.cursor(name)
        try:
            losses = self._follow.lost((name,))
        except Exception as failed:  # noqa: BLE001 - classified by the provider
            self.blame(name, failed)
            return []
        if not losses:
            self.blame(name, undecided(self._feed.public_id(name)))
            return []
        if not skips:
            lost, before = position, len(self._result.notices)
        self._skips[name] = (skips + 1, lost, before)
        if self._single and self._lineage.reading(name) is None:
            children = tuple(Child(seed.partition_id, seed.parents, seed.cursor) for seed in losses[0].left)
            self._result.retired = Retired(name, children, self._lineage.ending(name))
        started = [seed.partition_id for loss in losses for seed in loss.left]
        return self._apply(Found(tuple(started), gaps=self._follow.told(losses)))

    def _apply(self, found: Found) -> list[str]:
        """Report what was found, and return the partitions that are read now."""
        address = self._feed.spec.address
        for gap, heirs in found.gaps:
            self._result.tell(gap, *heirs)
            self._result.moved = True
            self._observing.gap(address, gap)
        for number, late in enumerate(found.late):
            self._result.tell(late, *(() if number else found.started))  # the first notice marks them all
            self._result.found_late += 1
            self._observing.partition_found_late(address, late)
        if not len(self._lineage) and self._result.over is None and self._result.retired is None:
            self._result.over = "everything was lost to retention" if found.gaps else _ALL_ENDED
        return list(found.started)

    def blame(self, name: str, error: Exception) -> None:
        """Record a failure of a partition; a failure that is not retryable stops the feed."""
        self._result.failed[name] = error
        if not self._fetcher.fault(error).retryable:
            self._result.failure = (name, error)

    def _ends(self, name: str, outcome: Outcome) -> list[str] | None:
        """Apply an outcome; return the ids that start now (None while the partition has more to read)."""
        moved: PartitionEnd | None = PartitionEnd()
        if isinstance(outcome, Drained) and self._single:
            self._tell_retired(name, outcome.children)
            self._result.retired = retired(self._lineage, name, outcome.children, complete=outcome.complete)
        else:
            try:
                moved = apply_end(self._lineage, name, outcome, names_late=self._feed.names_late)
            except ProviderFault as error:
                self.blame(name, error)
                return []
        if moved is None:
            return None
        self._tell_end(name, outcome, moved)
        self._pass_on(name, [*(child.partition_id for child in moved.fresh), *moved.started])
        self._result.moved = True
        if not isinstance(outcome, Awaiting):
            self._result.keeps(name, math.inf)  # read to its end, so nothing in it can be lost
        return list(moved.started)

    def _tell_end(self, name: str, outcome: Outcome, moved: PartitionEnd) -> None:
        match outcome:
            case Drained() if moved.fresh and not self._single:
                self._tell_retired(name, moved.fresh)
            case Ended(notice) if notice is not None:
                # Every partition of a dropped collection ends with this notice; after the last partition, the
                # feed is over. That the resource is gone waits for the last one, because a sink refuses the
                # page that says so, and the others still have changes.
                is_last = not len(self._lineage)
                waits = isinstance(notice, Invalidated) and not is_last
                if not waits and not isinstance(notice, FeedEnded) and notice not in self._result.notices:
                    self._result.tell(notice, name)
                if is_last:
                    self._result.over = str(notice)
                    if isinstance(notice, FeedEnded | Invalidated):
                        self._result.over = notice.reason
            case Ended():
                if not len(self._lineage):
                    self._result.over = _ALL_ENDED
            case _:
                pass

    def audit_when_due(self, every: float, meanwhile: Callable[[], None]) -> list[str] | None:
        """Compare the lineage with the service's listing; return the ids that start, or None if not due."""
        if self._single or not is_search_due(self._feed, self._lineage.audited, every):
            return None
        meanwhile()
        try:
            found = self._follow.search(
                self._deadline.sooner(min(_AUDIT_SECONDS, self._deadline.remaining() / 2))
            )
        except Exception as error:  # noqa: BLE001 - only the search fails, not the page
            fault = self._fetcher.fault(error)
            if fault.category == ErrorCategory.CHECKPOINT_EXPIRED:
                self._result.failure = next(iter(self._lineage)).partition_id, error
                return []
            self._observing.audit_failed(self._feed.spec.address, fault.message)
            return []
        return self._apply(found)

    def worth_asking(self) -> list[Entry]:
        """Return the active partitions, except those that failed after retries by the vendor's client."""
        failed = {
            name for name, error in self._result.failed.items() if self._fetcher.fault(error).vendor_retried
        }
        return [entry for entry in self._lineage.active() if entry.partition_id not in failed]

    def _pass_on(self, name: str, heirs: Iterable[str]) -> None:
        """Mark the successors of a partition if the page contains a notice of this partition."""
        if name in self._result.noticed:
            self._result.noticed.update(heirs)

    def _tell_retired(self, name: str, children: Sequence[Child]) -> None:
        public_id = self._feed.public_id
        named = tuple(dict.fromkeys(public_id(child.partition_id) for child in children))
        self._observing.partition_retired(self._feed.spec.address, public_id(name), named)


def _children(found: Found) -> tuple[Child, ...]:
    """Return what follows the only partition that is read."""
    left = (Child(seed.partition_id, seed.parents, seed.cursor) for seed in found.left)
    return (*found.children, *left)


@frozen(eq=False, repr=False)
class Look:
    """What is known about an ended partition after a call has looked for its children."""

    state: Retired | FeedOver
    requests: int = 0
    error: str | None = None  # why the service could not name more children
    late: tuple[PartitionFoundLate, ...] = ()  # the children that follow a loss


def look_again(consumer: Consumer, state: Retired, context: ReadContext, deadline: Deadline) -> Look:
    """Look for more children of a retired partition, if that is due; the known ones are always returned."""
    if state.watch is None:
        return Look(state)
    known = [Entry.read(child.partition_id, child.cursor) for child in state.children]
    lineage = Lineage([state.watch, *known], consumer.feed, root=state.partition_id)
    follow = Follow(
        consumer.feed, lineage, context.fetcher.call, deadline, Fail(), consumer.looks, context.watch_seconds
    )
    if not (due := follow.due()):
        return Look(state)
    try:
        found = follow.look(due)
    except Exception as error:  # noqa: BLE001 - the known facts are reported again anyway
        return Look(state, 1, context.fetcher.fault(error).message)
    children = (*state.children, *_children(found))
    ended = Retired(state.partition_id, children, lineage.ending(state.partition_id))
    return Look(ended, 1, late=found.late)
