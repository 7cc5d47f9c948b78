"""Spares calls on a large feed: the last page is returned again while nothing can have changed.

If the service has a mark that every change moves, an idle page is returned again while the mark stays. The
mark is requested only after an idle page, so a busy feed needs no additional call, and before the partitions
are read, so that a change during the read gives the next call a different mark. Without a mark, a call that
leaves out partitions waits until the first one is worth asking.

Only feeds with more partitions than a call reads at once are spared: `may_stay`, `may_leave_out`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

import attrs
from attrs import frozen

from multiclouddb_api import ChangeFeedPage, OperationOptions
from multiclouddb_spi.abilities import SupportsChangeMark
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.fetching.consumer import Consumer, LastPage
from multiclouddb_spi.fetching.fetcher import ReadContext
from multiclouddb_spi.reading.filling import Waiting
from multiclouddb_spi.time_limits import Deadline

_MARK_SECONDS: Final = 1.0


@frozen(eq=False, repr=False)
class Check:
    """What is known before a call reads.

    Attributes:
        wait: How many seconds the call may still wait.
        page: The page to return, if there is no need to read.
        mark: The change mark of the feed, or None.
    """

    wait: float
    page: ChangeFeedPage | None = None
    mark: Hashable = None


def check(consumer: Consumer, options: OperationOptions, context: ReadContext, deadline: Deadline) -> Check:
    """Find out whether the last page of a consumer can be returned again."""
    last, feed = consumer.last_page, consumer.feed
    if last is None:
        return Check(options.wait_seconds)
    waiting = Waiting(deadline, options.wait_seconds, time.monotonic())
    if isinstance(feed, SupportsChangeMark):
        return _compared(consumer, last, feed.change_mark, waiting, context, deadline)
    return (
        Check(options.wait_seconds)
        if options.ask_all
        else _when_due(consumer, last, waiting, context, deadline)
    )


def _compared(
    consumer: Consumer,
    last: LastPage,
    ask: Callable[[Deadline], Hashable],
    waiting: Waiting,
    context: ReadContext,
    deadline: Deadline,
) -> Check:
    """Compare the mark until it has changed, or the wait is over."""
    requests = 0
    while True:
        # Most of the call's time is reserved for the read, in case the service does not answer.
        soon = deadline.sooner(min(_MARK_SECONDS, deadline.remaining() / 4))
        try:
            mark = context.fetcher.call(partial(ask, soon), soon)
        except Exception:  # noqa: BLE001 - the reading reports why the service does not answer
            consumer.last_page = None
            return Check(waiting.left())
        requests += 1
        left = waiting.left()
        if last.mark is None or mark != last.mark:
            return Check(left, None, mark)
        if not left:
            return Check(0.0, _again(consumer, last, waiting, requests))
        context.pause(waiting.before_round(), deadline)
        waiting.begin_round()


def _when_due(
    consumer: Consumer, last: LastPage, waiting: Waiting, context: ReadContext, deadline: Deadline
) -> Check:
    """Wait until a partition is due, or the wait is over."""
    due_at = last.due_at
    if due_at > waiting.began:
        context.pause(max(0.0, min(due_at, waiting.until) - time.monotonic()), deadline)
    if due_at > (now := time.monotonic()):
        page = _again(consumer, last, waiting, 0, now - last.made_at)
        return Check(0.0, attrs.evolve(page, idle=False, poll_after_seconds=due_at - now))
    return Check(waiting.left())


def _again(
    consumer: Consumer, last: LastPage, waiting: Waiting, requests: int, older: float = 0.0
) -> ChangeFeedPage:
    """Return the last page again, with the same token, because no position has moved."""
    told = last.page.diagnostics
    diagnostics = attrs.evolve(
        told, requests=requests, retries=0, native_charge=None, found_late=0,
        lag_seconds=None if told.lag_seconds is None else told.lag_seconds + older,
        elapsed_seconds=time.monotonic() - waiting.began,
    )  # fmt: skip
    return attrs.evolve(last.page, diagnostics=diagnostics, resumed_from=consumer.resumed_from)


def may_stay(lineage: Lineage, width: int) -> bool:
    """Return whether a call may leave this state as it is while the mark stays."""
    if len(lineage) <= width or lineage.audited is not None:
        return False
    # In every other state, each call has something to do: a scan, a search for children or for uncovered
    # partitions, or a partition that must be read first.
    return all(
        isinstance(each, Entry) and each.stage is Stage.READ and each.listed and not each.failed_last
        for each in lineage
    )


def may_leave_out(lineage: Lineage, width: int) -> bool:
    """Return whether a call may leave out the partitions that are not due."""
    return len(lineage) > width and lineage.plan is None


def last_page(
    consumer: Consumer, page: ChangeFeedPage, due_at: float | None, mark: Hashable, *, stays: bool
) -> LastPage | None:
    """Return what the next call may return again; None if it has to read.

    Args:
        consumer: The consumer.
        page: The page that is returned now.
        due_at: When the first partition is worth asking again, if the call has left out partitions.
        mark: The change mark from before the page was read.
        stays: True if the page is idle, and the state may stay as it is.
    """
    if page.notices or not (stays or due_at is not None):
        return None
    if isinstance(consumer.feed, SupportsChangeMark):
        return LastPage(page, time.monotonic(), mark) if stays else None
    if due_at is None or not any(stream.due_at for stream in consumer.streams.values()):
        return None
    return LastPage(page, time.monotonic(), None, due_at)
