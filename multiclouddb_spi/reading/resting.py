"""Spares calls on a large feed: they leave out what is not due, or all if nothing has changed."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import closing
from functools import partial
from typing import Final

import attrs

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    FeedScope,
    FromContinuationToken,
    OperationOptions,
)
from multiclouddb_api.value import frozen
from multiclouddb_spi.abilities import SupportsChangeMark
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.contract import Feed, FeedSpec
from multiclouddb_spi.fetching.fetcher import ReadContext
from multiclouddb_spi.fetching.turns import DueTimes
from multiclouddb_spi.open_feed import OpenFeed
from multiclouddb_spi.reading.poll import Waiting
from multiclouddb_spi.time_limits import Deadline

_MOST: Final = 16
_MOST_TIMES: Final = 100_000
_MARK_SECONDS: Final = 1.0


@frozen(eq=False)
class _Rest:
    """What a call leaves for the next call with its token."""

    page: ChangeFeedPage
    feed: Feed
    spec: FeedSpec
    scope: FeedScope  # a token of one scope must be refused for another scope
    made_at: float
    mark: Hashable = None  # from the time before the page was read; None if no mark was requested
    due: DueTimes = attrs.field(factory=DueTimes)


@frozen(eq=False)
class Check:
    """What is known before a call reads: how long it may still wait, and the page if there is no need to."""

    wait: float
    page: ChangeFeedPage | None = None
    feed: Feed | None = None  # the feed that was asked for its mark, before anything is read
    mark: Hashable = None
    due: DueTimes | None = None


class Resting:
    """Remembers what the last calls have left, for feeds with more partitions than a call reads at once.

    1. If the service has a mark that every change moves, an idle page is returned again while the mark stays.
       The mark is requested only after an idle page, so a busy feed needs no additional call. It is requested
       before the partitions are read. Therefore, if a change happens during the read, the next call gets a
       different mark and reads again.
    2. Else a call asks only the partitions that are due. A time counts only for the very position for which
       it was given, so a partition that another call has moved, or that nothing is known of, is due.
    """

    def __init__(self, open_feed: Callable[[FeedSpec, Deadline], OpenFeed], context: ReadContext) -> None:
        self._open_feed, self._context = open_feed, context
        self.kept: OrderedDict[str, _Rest] = OrderedDict()
        self._times = 0
        self._lock = threading.Lock()

    def check(
        self, request: ChangeFeedRequest, spec: FeedSpec, options: OperationOptions, deadline: Deadline
    ) -> Check | None:
        """Find out whether the previous page can be returned again; None if nothing is known of it."""
        rest = self._known(request, spec)
        if rest is None:
            return None
        with closing(self._open_feed(spec, deadline)) as opened:
            feed, waiting = opened.feed, Waiting(deadline, options.wait_seconds)
            if feed is not rest.feed:
                return None
            if isinstance(feed, SupportsChangeMark):
                return self._compared(rest, feed, feed.change_mark, waiting, deadline)
            return None if options.ask_all else self._when_due(rest, waiting)

    def _compared(
        self,
        rest: _Rest,
        feed: Feed,
        ask: Callable[[Deadline], Hashable],
        waiting: Waiting,
        deadline: Deadline,
    ) -> Check:
        """1. Compare the mark until it has changed, or the wait is over."""
        requests = 0
        while True:
            # Most of the call's time is reserved for the read, in case the service does not answer.
            soon = deadline.sooner(min(_MARK_SECONDS, deadline.remaining() / 4))
            try:
                mark = self._context.fetcher.call(partial(ask, soon), soon)
            except Exception:  # noqa: BLE001 - the reading reports why the service does not answer
                with self._lock:
                    self._drop(rest.page.continuation_token)
                return Check(waiting.left())
            requests += 1
            left = waiting.left()
            if rest.mark is None or mark != rest.mark:
                return Check(left, None, feed, mark)
            if not left:
                return Check(0.0, self._again(rest, waiting, requests))
            self._context.pause(waiting.before_round())
            waiting.begin_round()

    def _when_due(self, rest: _Rest, waiting: Waiting) -> Check:
        """2. Wait until a partition is due, or the wait is over."""
        soonest = rest.due.soonest
        if soonest > waiting.began:
            self._context.pause(max(0.0, min(soonest, waiting.until) - time.monotonic()))
        if soonest > (now := time.monotonic()):
            page = self._again(rest, waiting, 0, now - rest.made_at)
            return Check(0.0, attrs.evolve(page, idle=False, poll_after_seconds=soonest - now))
        return Check(waiting.left(), due=rest.due)

    def may_stay(self, lineage: Lineage) -> bool:
        """Return whether a call may leave this state as it is while the mark stays."""
        if len(lineage) <= self._context.width or lineage.audited is not None:
            return False
        # In every other state, each call has something to do: a scan, a search for children or for uncovered
        # partitions, or a partition that must be read first.
        return all(
            isinstance(each, Entry) and each.stage is Stage.READ and each.listed and not each.failed_last
            for each in lineage
        )

    def may_leave_out(self, lineage: Lineage) -> bool:
        """Return whether a call may leave out the partitions that are not due."""
        return len(lineage) > self._context.width and lineage.plan is None

    def note(
        self,
        request: ChangeFeedRequest,
        feed: Feed,
        page: ChangeFeedPage,
        due: DueTimes | None,
        check: Check | None,
        *,
        may_stay: bool,
    ) -> None:
        """Remember a page and when its partitions are due, if the next call may need less."""
        if page.notices:
            return
        if isinstance(feed, SupportsChangeMark):
            if may_stay:
                mark = check.mark if check is not None and check.feed is feed else None
                self._keep(_Rest(page, feed, feed.spec, request.scope, time.monotonic(), mark))
        elif due is not None and due.times:
            self._keep(_Rest(page, feed, feed.spec, request.scope, time.monotonic(), None, due))

    def _known(self, request: ChangeFeedRequest, spec: FeedSpec) -> _Rest | None:
        """Return what the call has left that returned the request's token."""
        position = request.start_position
        if not isinstance(position, FromContinuationToken):
            return None
        with self._lock:
            rest = self.kept.get(position.token)
        if rest is None or rest.spec != spec or rest.scope != request.scope:
            return None
        return rest

    def _again(self, rest: _Rest, waiting: Waiting, requests: int, older: float = 0.0) -> ChangeFeedPage:
        """Return the previous page again, with the same token, because no position has moved."""
        self._keep(rest)
        told = rest.page.diagnostics
        diagnostics = attrs.evolve(
            told, requests=requests, retries=0, native_charge=None, found_late=0,
            lag_seconds=None if told.lag_seconds is None else told.lag_seconds + older,
            elapsed_seconds=time.monotonic() - waiting.began,
        )  # fmt: skip
        return attrs.evolve(rest.page, diagnostics=diagnostics, resumed_from=rest.page.continuation_token)

    def _keep(self, rest: _Rest) -> None:
        token = rest.page.continuation_token
        with self._lock:
            self._drop(token)
            self.kept[token] = rest
            self._times += len(rest.due.times)
            while len(self.kept) > _MOST or (self._times > _MOST_TIMES and len(self.kept) > 1):
                self._drop(next(iter(self.kept)))

    def _drop(self, token: str) -> None:
        rest = self.kept.pop(token, None)
        if rest is not None:
            self._times -= len(rest.due.times)
